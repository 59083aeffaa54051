"""Cross-fitted ensembles: per fold several networks, each stopped on its own held-out part, averaged afterwards."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from prudent._progress import Progress
from prudent.nn._cache import enable_compilation_cache
from prudent.nn._networks import start_at_linear, with_dropout
from prudent.nn._train import GROUP, Loss, TrainConfig, TrainLog, fit_stack, stack_networks, take_members

# How far the candidates lie apart: the held-out loss is flat within a factor of three.
DECAY_STEP = 3.0


@dataclasses.dataclass(frozen=True)
class Part:
    """Rows, and which members of the stack speak for which of them: pieces (members, rows, place within the part)."""

    rows: np.ndarray
    pieces: list[tuple[list[int], np.ndarray, np.ndarray]]

    def average(self, outputs: np.ndarray) -> np.ndarray:
        """Mean over the members in charge of outputs (members, all rows, ...), for the rows of this part."""
        result = np.empty((len(self.rows), *outputs.shape[2:]))
        for members, rows, place in self.pieces:
            result[place] = outputs[members][:, rows].mean(axis=0)
        return result

    def evaluate(self, networks: Any, x: np.ndarray, read: Callable[[Any], np.ndarray] = np.asarray) -> np.ndarray:
        """As :meth:`average`, of what ``read`` finds in the outputs of a stack; members see their own rows only."""
        found = [
            read(apply_in_blocks(take_members(networks, np.array(members)), x[rows], block=1024)).mean(axis=0)
            for members, rows, _ in self.pieces
        ]
        result = np.empty((len(self.rows), *found[0].shape[1:]))
        for (_, _, place), values in zip(self.pieces, found, strict=True):
            result[place] = values
        return result


@dataclasses.dataclass(frozen=True)
class FoldPlan:
    """Rows of every member of a cross-fitted stack, and of the pilot that compares weight decays.

    The first ``n_audit`` folds are audited: a function is fitted without them, by nuisances that have not seen them,
    so that the moment can be measured on rows that had no part in the fit (but for one weight decay).
    """

    n_rows: int
    folds: list[np.ndarray]
    n_repeats: int
    n_audit: int
    member_splits: list[tuple[np.ndarray, np.ndarray]]
    pilot_splits: list[tuple[np.ndarray, np.ndarray]]

    def members(self, fold: int) -> list[int]:
        """Members of the stack that were trained for ``fold``."""
        return list(range(fold * self.n_repeats, (fold + 1) * self.n_repeats))

    def training_rows(self, fold: int) -> np.ndarray:
        """Rows on which the nuisances of ``fold`` are trained: all others, or all rows if there is one fold."""
        if len(self.folds) == 1:
            return np.arange(self.n_rows)
        return np.setdiff1d(np.arange(self.n_rows), self.folds[fold], assume_unique=True)

    @property
    def all_parts(self) -> list[Part]:
        """First all rows, each spoken for by its own fold; then, per audited fold, all other rows by that fold."""
        own = Part(np.arange(self.n_rows), [(self.members(k), rows, rows) for k, rows in enumerate(self.folds)])
        audited = []
        for fold in range(self.n_audit):
            rows = self.training_rows(fold)
            audited.append(Part(rows, [(self.members(fold), rows, np.arange(len(rows)))]))
        return [own, *audited]

    @property
    def unseen(self) -> Part:
        """Rows spoken for by members that were not trained on them: all rows, by their folds.

        With one fold these are the rows that some member was stopped on, which it has seen only in that way.
        """
        if len(self.folds) > 1:
            return self.all_parts[0]
        # Members may share a held-out part where there are few groups.
        held: dict[bytes, tuple[list[int], np.ndarray]] = {}
        for member, (_, rows) in enumerate(self.member_splits):
            held.setdefault(rows.tobytes(), ([], rows))[0].append(member)
        rows = np.concatenate([part for _, part in held.values()])
        pieces, start = [], 0
        for members, part in held.values():
            pieces.append((members, part, np.arange(start, start + len(part))))
            start += len(part)
        return Part(rows, pieces)


@dataclasses.dataclass(frozen=True)
class FitTask:
    """A regression or density to be learnt: what :func:`fit_folds` and :func:`candidate_losses` need to know of it."""

    label: str
    build: Callable[[Any], Any]
    loss: Loss
    data: Any
    target: str | None = None


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Numbers in which candidates of one shape differ; None leaves what configuration and network say."""

    learning_rate: np.ndarray | None = None
    weight_decay: np.ndarray | None = None
    dropout_rate: np.ndarray | None = None

    def __len__(self) -> int:
        return max(len(v) for v in (self.learning_rate, self.weight_decay, self.dropout_rate, ()) if v is not None)

    def resize(self, count: int) -> "Candidates":
        """``count`` candidates: these, again and again."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Candidates(**{k: None if v is None else np.resize(v, count) for k, v in values.items()})


@dataclasses.dataclass(frozen=True)
class StackGroup:
    """Settings that can share a stack: one shape of network and training, and the numbers in which they differ."""

    network: Any
    config: TrainConfig
    numbers: Candidates
    places: list[int]


def stack_groups(settings: list[tuple[Any, TrainConfig]]) -> list[StackGroup]:
    """Group (network, training) pairs that differ in learning rate, weight decay and dropout only."""
    shapes: dict[Any, list[int]] = {}
    for place, (network, config) in enumerate(settings):
        bare = dataclasses.replace(network, dropout_rate=0.0) if hasattr(network, "dropout_rate") else network
        shapes.setdefault((bare, dataclasses.replace(config, learning_rate=1.0, weight_decay=0.0)), []).append(place)
    groups = []
    for places in shapes.values():
        networks, configs = zip(*(settings[place] for place in places), strict=True)
        rates = np.array([getattr(network, "dropout_rate", 0.0) for network in networks])
        numbers = Candidates(
            learning_rate=np.array([config.learning_rate for config in configs]),
            weight_decay=np.array([config.weight_decay for config in configs]),
            # One rate for all is cheaper as a constant of the program.
            dropout_rate=rates if len(set(rates)) > 1 else None,
        )
        groups.append(StackGroup(networks[0], configs[0], numbers, places))
    return groups


def candidate_losses(
    build: Callable[[Any], Any],
    loss: Loss,
    data: Any,
    splits: list[tuple[np.ndarray, np.ndarray]],
    config: TrainConfig,
    candidates: Candidates,
    *,
    target: str | None = None,
    key: jax.Array,
    seed: int,
    progress: Progress | None,
    label: str,
) -> np.ndarray:
    """Held-out losses (candidates, splits) of networks that differ in numbers only, trained as one stack.

    A loss is the smallest over the evaluations of a member, on the rows that it is stopped on: a little optimistic, but
    alike for all candidates. An inner part to stop on would cost every candidate rows.
    """
    members = [split for split in splits for _ in range(len(candidates))]
    n_members = len(members)
    # Filled up to a whole group, so that this and later stacks share one compiled program.
    members += [members[m % n_members] for m in range(-n_members % GROUP)]
    networks = _linear_start(stack_networks(build, len(members), key), data, members, target)
    numbers = candidates.resize(len(members))
    if numbers.dropout_rate is not None:
        networks = with_dropout(networks, numbers.dropout_rate)
    _, log = fit_stack(
        networks,
        loss,
        data,
        [train for train, _ in members],
        [held for _, held in members],
        config,
        seed=seed,
        learning_rate=numbers.learning_rate,
        weight_decay=numbers.weight_decay,
        progress=progress,
        label=label,
    )
    return log.best_loss[:n_members].reshape(len(splits), len(candidates)).T


def fit_folds(
    build: Callable[[Any], Any],
    loss: Loss,
    data: Any,
    plan: FoldPlan,
    config: TrainConfig,
    *,
    target: str | None = None,
    decay_guess: float | None,
    seed: int,
    progress: Progress | None,
    label: str,
) -> tuple[Any, TrainLog, float]:
    """Fit the stack of a plan. With ``decay_guess`` the weight decay is chosen among three around it, by a pilot.

    ``target`` names the array of ``data`` that is predicted from ``data["c"]``; networks then start at its ridge
    regression on their own rows, and learn only what a linear model leaves.

    The pilot sees all rows, so one number of the nuisances depends on the fold they are used on; its influence is of
    the order of one parameter's, while networks that were regularised wrongly lose far more.
    """
    key, pilot_key = jax.random.split(jax.random.key(seed))
    decay = config.weight_decay
    if decay_guess is not None:
        candidates = decay_guess * DECAY_STEP ** np.array([-1.0, 0.0, 1.0])
        losses = candidate_losses(
            build,
            loss,
            data,
            plan.pilot_splits,
            config,
            Candidates(weight_decay=candidates),
            target=target,
            key=pilot_key,
            seed=seed + 1,
            progress=progress,
            label=f"{label}: regularisation",
        )
        mean_loss = losses.mean(axis=1)
        decay = float(candidates[np.argmin(np.where(np.isnan(mean_loss), np.inf, mean_loss))])
    networks = _linear_start(stack_networks(build, len(plan.member_splits), key), data, plan.member_splits, target)
    networks, log = fit_stack(
        networks,
        loss,
        data,
        [train for train, _ in plan.member_splits],
        [held for _, held in plan.member_splits],
        dataclasses.replace(config, weight_decay=decay),
        seed=seed,
        progress=progress,
        label=label,
    )
    return networks, log, decay


def _linear_start(networks: Any, data: Any, splits: list[tuple[np.ndarray, np.ndarray]], target: str | None) -> Any:
    if target is None:
        return networks
    stacked = [jax.numpy.asarray(part, dtype=jax.numpy.float32) for part in _ridge(data, target, splits)]
    return start_at_linear(networks, *stacked)


def linear_predictions(data: Any, target: str, splits: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """What the linear regressions of the members, each on its own rows, predict for all rows: (members, n, columns)."""
    weight, bias, _ = _ridge(data, target, splits)
    return np.asarray(data["c"], dtype=float) @ weight + bias[:, None]


def _ridge(data: Any, target: str, splits: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Weight, bias and standard deviation of the residuals, per member."""
    weights, biases, noises = [], [], []
    for train, _ in splits:
        c, y = np.asarray(data["c"][train], dtype=float), np.asarray(data[target][train], dtype=float)
        c_mean, y_mean = c.mean(axis=0), y.mean(axis=0)
        # A penalty of one observation per column: negligible in narrow tables, a brake in wide ones.
        gram = (c - c_mean).T @ (c - c_mean) + c.shape[1] * np.eye(c.shape[1])
        weight = np.linalg.solve(gram, (c - c_mean).T @ (y - y_mean))
        weights.append(weight)
        biases.append(y_mean - c_mean @ weight)
        noises.append(np.std(y - y_mean - (c - c_mean) @ weight, axis=0))
    return [np.stack(part) for part in (weights, biases, noises)]


@eqx.filter_jit
def apply_stack(networks: Any, x: jax.Array) -> Any:
    """Outputs of every member on the same rows: leading axis = member."""
    return eqx.filter_vmap(lambda network, rows: network(rows), in_axes=(eqx.if_array(0), None))(networks, x)


def apply_in_blocks(networks: Any, x: np.ndarray, block: int = 4096) -> Any:
    """:func:`apply_stack` on the host, block by block, so that memory stays bounded and one program serves all n."""
    enable_compilation_cache()
    outputs = []
    for start in range(0, len(x), block):
        rows = x[start : start + block]
        padded = np.concatenate([rows, np.repeat(rows[:1], block - len(rows), axis=0)]) if len(rows) < block else rows
        out = apply_stack(networks, jax.numpy.asarray(padded))
        outputs.append(jax.tree.map(lambda a, n=len(rows): np.asarray(a[:, :n]), out))
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *outputs)
