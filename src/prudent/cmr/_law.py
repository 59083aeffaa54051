"""The conditional law of X given C, cross-fitted, as weighted nodes per row.

Columns of X that stand in C are known given C and are not modelled. The discrete columns among the rest get one
categorical model over their joint levels, so that expectations over them are exact sums; the continuous ones get a
mixture of Gaussians given C and the level. A scalar continuous column is represented by means of equal shares of its
mixture; several columns by draws of a component and then of its Gaussian. Components are diagonal in coordinates in
which the residuals of a linear regression on C are uncorrelated, so that columns may depend on each other given C.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from scipy.special import ndtr

from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler, is_discrete
from prudent.cmr._problem import MAX_OWN
from prudent.cmr._report import in_two_halves, permuted_instruments
from prudent.errors import DataError
from prudent.nn import (
    Categorical,
    FitTask,
    FoldPlan,
    MixtureDensity,
    NetworkSpec,
    TrainConfig,
    apply_in_blocks,
    fit_folds,
)

# Nodes per row and level for continuous columns.
N_NODES = 64
# Quantiles whose mean is one node.
QUANTILES_PER_NODE = 8
# Permutations of the instruments that measure their strength, in two halves.
N_PERMUTATIONS = 10
MAX_LEVELS = 100
# Components of the mixture. Each has a mean and a scale per column to be learnt: of many columns, fewer.
COMPONENTS, COMPONENTS_OF_MANY = 10, 3


@dataclasses.dataclass(frozen=True)
class Nodes:
    """Law of the modelled columns for every row: ``E[f(X) | c_i] = sum_l weight[i, l] mean_p f(value[i, l, p])``.

    ``is_exact`` says that there is one node a level, so that the sum has no sampling error.
    ``paired`` says that nodes are equal shares of the law in an order in which strided subsets are balanced.
    """

    value: np.ndarray
    weight: np.ndarray
    is_exact: bool
    paired: bool

    def mean(self) -> np.ndarray:
        """Conditional mean of every modelled column."""
        return np.einsum("nl,nld->nd", self.weight, self.value.mean(axis=2))


@dataclasses.dataclass(frozen=True)
class LawSettings:
    """Networks, training and size of the mixture for the law."""

    network: NetworkSpec
    train: TrainConfig
    decay_guess: float | None
    n_components: int | None


@dataclasses.dataclass(frozen=True)
class LawFit:
    """Cross-fitted law: nodes for every row from the networks that have not seen it.

    ``audit`` has, for each audited fold, the nodes of all other rows from that fold's own networks. ``expected`` are
    the means of the rows ``plan.unseen``, from networks that were not trained on them; ``without_instruments``
    (2, n, d) twice the same with the columns of c that are not in x permuted among rows, independently: what the law
    says when the instruments say nothing.
    """

    nodes: Nodes
    audit: tuple[Nodes, ...]
    expected: np.ndarray
    without_instruments: np.ndarray
    discrete: tuple[int, ...]
    decays: tuple[float, ...]


def discrete_columns(x: Matrix, discrete: Any) -> tuple[int, ...]:
    """Discrete columns of the modelled part, from data (``"auto"``) or as the user says; checks their levels."""
    if isinstance(discrete, str):
        if discrete != "auto":
            raise DataError(f"discrete must be 'auto' or column numbers of the modelled x, got {discrete!r}.")
        chosen = tuple(j for j in range(x.shape[1]) if is_discrete(x[:, j]))
    else:
        chosen = tuple(sorted(int(j) for j in discrete))
    if chosen:
        _check_levels(np.unique(x[:, chosen], axis=0))
    return chosen


def fit_law(
    x: Matrix,
    c: np.ndarray,
    plan: FoldPlan,
    settings: LawSettings,
    *,
    discrete: tuple[int, ...],
    instruments: list[int],
    groups: np.ndarray | None,
    seed: int,
    progress: Progress | None,
) -> LawFit:
    """Fit the law of the modelled columns ``x`` (raw units) given standardised ``c`` and return nodes in raw units.

    ``discrete`` are columns of ``x``, ``instruments`` the columns of ``c`` that are not among the columns of x.
    """
    if x.shape[1] == 0:
        known = [
            Nodes(np.zeros((len(a.rows), 1, 1, 0)), np.ones((len(a.rows), 1)), True, False) for a in plan.all_parts
        ]
        nothing = np.zeros((2, len(plan.unseen.rows), 0))
        return LawFit(known[0], tuple(known[1:]), nothing[0], nothing, (), ())
    continuous = tuple(j for j in range(x.shape[1]) if j not in discrete)
    rng = np.random.default_rng(seed)
    permuted, _ = permuted_instruments(c, instruments, N_PERMUTATIONS, np.random.default_rng(seed), groups)
    decays: list[float] = []
    unseen = plan.unseen
    expected = np.zeros((len(unseen.rows), x.shape[1]))
    without = np.zeros((2, *expected.shape))
    levels, level, chances = np.zeros((1, 0)), np.zeros(len(x), dtype=int), np.ones((len(unseen.rows), 1))
    weights = [np.ones((len(part.rows), 1)) for part in plan.all_parts]
    if discrete:
        levels, level = np.unique(x[:, discrete], axis=0, return_inverse=True)
        level = level.reshape(-1)
        networks, decay = _fit_task(level_task(level, len(levels), c, settings.network), plan, settings, seed, progress)
        probability = np.exp(apply_in_blocks(networks, c))
        weights, chances = [part.average(probability) for part in plan.all_parts], unseen.average(probability)
        expected[:, discrete] = chances @ levels
        blind = [unseen.evaluate(networks, p, np.exp) for p in permuted]
        without[:, :, discrete] = in_two_halves([chance @ levels for chance in blind])
        decays.append(decay)
    if not continuous:
        nodes = [
            Nodes(np.broadcast_to(levels[None, :, None, :], (*w.shape, 1, len(discrete))), w, True, False)
            for w in weights
        ]
        return LawFit(nodes[0], tuple(nodes[1:]), expected, without, discrete, tuple(decays))

    scaler = _residual_coordinates(x[:, continuous], c)
    indicator = np.eye(len(levels), dtype=np.float32) if discrete else np.zeros((1, 0), np.float32)
    task = mixture_task(
        scaler.forward(x[:, continuous]), np.hstack([c, indicator[level]]), settings.n_components, settings.network
    )
    mixture, decay = _fit_task(task, plan, settings, seed + 1, progress)
    decays.append(decay)
    blind = [
        unseen.evaluate(mixture, np.hstack([p, indicator[level]]), lambda law: np.asarray(law.expectation()))
        for p in permuted
    ]
    without[:, :, continuous] = in_two_halves([scaler.back(means) for means in blind])
    values = [np.empty((*w.shape, N_NODES, x.shape[1])) for w in weights]
    for number in range(len(levels)):
        given = np.hstack([c, np.broadcast_to(indicator[number], (len(c), indicator.shape[1]))])
        laws = apply_in_blocks(mixture, given)
        means = scaler.back(unseen.average(np.asarray(laws.expectation())))
        expected[:, continuous] += chances[:, number, None] * means
        for value, drawn in zip(values, _part_nodes(laws, plan, rng), strict=True):
            value[:, number][:, :, discrete] = levels[number]
            value[:, number][:, :, continuous] = scaler.back(drawn)
    paired = len(continuous) == 1
    nodes = [Nodes(v, w, is_exact=False, paired=paired) for v, w in zip(values, weights, strict=True)]
    return LawFit(nodes[0], tuple(nodes[1:]), expected, without, discrete, tuple(decays))


@dataclasses.dataclass(frozen=True)
class _Rotation:
    """Linear coordinates of several columns, in the interface of :class:`Scaler`."""

    mean: np.ndarray
    inward: np.ndarray
    outward: np.ndarray

    def forward(self, array: np.ndarray) -> np.ndarray:
        return ((array - self.mean) @ self.inward).astype(np.float32)

    def back(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array, dtype=float) @ self.outward + self.mean


def _residual_coordinates(x: Matrix, c: np.ndarray) -> "Scaler | _Rotation":
    """Standard units for one column; for several, coordinates whose residuals given ``c`` are uncorrelated."""
    scaler = Scaler.of(x)
    if x.shape[1] == 1:
        return scaler
    standard = np.asarray(scaler.forward(x), dtype=float)
    centred = np.asarray(c, dtype=float) - np.mean(c, axis=0)
    # A penalty of one observation per column, as where networks start.
    gram = centred.T @ centred + centred.shape[1] * np.eye(centred.shape[1])
    residual = standard - centred @ np.linalg.solve(gram, centred.T @ standard)
    _, axes = np.linalg.eigh(np.cov(residual.T))
    spread = np.maximum((standard @ axes).std(axis=0), 1e-6)
    inward = axes / spread / scaler.scale[:, None]
    return _Rotation(scaler.mean, inward, (axes * spread).T * scaler.scale)


def _check_levels(levels: np.ndarray) -> None:
    if len(levels) < 2:
        raise DataError(
            "A discrete action needs at least two levels in the data, got one. Drop the column, or bring data in "
            "which it varies."
        )
    if len(levels) > MAX_LEVELS:
        raise DataError(
            f"Discrete columns may have at most {MAX_LEVELS} joint levels, got {len(levels)}. "
            "Merge rare levels, or declare the column continuous with discrete=()."
        )


def categorical_loss(network, batch, key):
    """Negative log-likelihood of the observed level."""
    return -jax.numpy.take_along_axis(network(batch["c"], key=key), batch["level"][:, None], axis=1)[:, 0]


def mixture_loss(network, batch, key):
    """Negative log-density of the observed columns."""
    return -network(batch["c"], key=key).log_prob(batch["x"])


def level_task(level: np.ndarray, n_levels: int, c: np.ndarray, network: NetworkSpec) -> FitTask:
    """Learn the probabilities of joint levels given standardised ``c``."""
    return FitTask(
        label="discrete action",
        build=lambda key: Categorical(network(c.shape[1], n_levels, key=key)),
        loss=categorical_loss,
        data={"c": c, "level": level.astype(np.int32)},
    )


def mixture_task(x: np.ndarray, given: np.ndarray, n_components: int | None, network: NetworkSpec) -> FitTask:
    """Learn the density of standardised columns ``x`` given ``given``."""
    d = x.shape[1]
    k = n_components or (COMPONENTS if d <= MAX_OWN else COMPONENTS_OF_MANY)
    return FitTask(
        label="action given instruments",
        build=lambda key: MixtureDensity(network(given.shape[1], k * (1 + 2 * d), key=key), k, d),
        loss=mixture_loss,
        data={"c": given, "x": x},
        target="x",
    )


def law_tasks(
    x: Matrix, c: np.ndarray, discrete: tuple[int, ...], n_components: int | None, network: NetworkSpec
) -> list[FitTask]:
    """What :func:`fit_law` learns of the modelled columns ``x`` (raw units) given standardised ``c``."""
    tasks, indicator = [], np.zeros((len(x), 0), np.float32)
    continuous = [j for j in range(x.shape[1]) if j not in discrete]
    if discrete:
        levels, level = np.unique(x[:, discrete], axis=0, return_inverse=True)
        tasks.append(level_task(level.reshape(-1), len(levels), c, network))
        indicator = np.eye(len(levels), dtype=np.float32)[level.reshape(-1)]
    if continuous:
        standard = Scaler.of(x[:, continuous]).forward(x[:, continuous])
        tasks.append(mixture_task(standard, np.hstack([c, indicator]), n_components, network))
    return tasks


def _fit_task(task: FitTask, plan, settings, seed, progress):
    networks, _, decay = fit_folds(
        task.build,
        task.loss,
        task.data,
        plan,
        settings.train,
        target=task.target,
        decay_guess=settings.decay_guess,
        seed=seed,
        progress=progress,
        label=task.label,
    )
    return networks, decay


def _part_nodes(mixture: Any, plan: FoldPlan, rng: np.random.Generator) -> list[np.ndarray]:
    """Nodes (rows, N_NODES, d) in standard units for every part of the plan, from the ensembles it names.

    ``mixture`` has the laws of all rows from every network.
    """
    weight = np.exp(mixture.log_weight)
    d = mixture.mean.shape[-1]
    result = []
    for part in plan.all_parts:
        nodes = np.empty((len(part.rows), N_NODES, d))
        for members, rows, place in part.pieces:
            # The law of an ensemble is the mixture of its members' mixtures.
            w = np.concatenate([weight[m][rows] for m in members], axis=1) / len(members)
            mean = np.concatenate([mixture.mean[m][rows] for m in members], axis=1)
            scale = np.concatenate([mixture.scale[m][rows] for m in members], axis=1)
            if d == 1:
                nodes[place, :, 0] = balanced_order(mixture_nodes(w, mean[..., 0], scale[..., 0], N_NODES))
            else:
                nodes[place] = _mixture_draws(w, mean, scale, N_NODES, rng)
        result.append(nodes)
    return result


def mixture_nodes(weight: np.ndarray, mean: np.ndarray, scale: np.ndarray, count: int) -> np.ndarray:
    """Means of ``count`` equal shares of one-dimensional mixtures, from low to high. Rows are laws.

    They keep the mean of the law and, with 64 of them, more than 99 % of its variance, on which E[f(X)|c] of a curved f
    depends; quantiles at the middle of each share lose 2 %. A share is read at its quantiles: the distribution function
    is tabulated at 257 points between mean -+ 6 standard deviations of the mixture and inverted by linear
    interpolation; a component much narrower than a cell is smeared over that cell.
    """
    weight, mean, scale = (np.asarray(part, dtype=float) for part in (weight, mean, scale))
    n_read = count * QUANTILES_PER_NODE
    target = (np.arange(n_read) + 0.5) / n_read
    centre = np.sum(weight * mean, axis=1)
    spread = np.sqrt(np.sum(weight * (scale**2 + (mean - centre[:, None]) ** 2), axis=1))
    grid = centre[:, None] + spread[:, None] * np.linspace(-6.0, 6.0, 257)
    below = np.zeros_like(grid)
    for k in range(weight.shape[1]):
        below += weight[:, k, None] * ndtr((grid - mean[:, k, None]) / scale[:, k, None])
    return np.stack([np.interp(target, b, g).reshape(count, -1).mean(axis=1) for b, g in zip(below, grid, strict=True)])


def balanced_order(nodes: np.ndarray, n_parts: int = 2) -> np.ndarray:
    """Sorted nodes reordered so that ``nodes[:, o::count // n_parts]`` mixes low with high ones (antithetic pairs)."""
    parts = np.split(nodes, n_parts, axis=1)
    return np.concatenate([part[:, ::-1] if number % 2 else part for number, part in enumerate(parts)], axis=1)


def _mixture_draws(weight, mean, scale, count, rng) -> np.ndarray:
    cumulative = np.cumsum(weight, axis=1)
    uniform = rng.random((len(weight), count)) * cumulative[:, -1:]
    which = (uniform[:, :, None] > cumulative[:, None, :]).sum(axis=2)
    rows = np.arange(len(weight))[:, None]
    return mean[rows, which] + scale[rows, which] * rng.standard_normal((len(weight), count, mean.shape[-1]))
