"""Cross-fitted ensembles: per fold several networks, each stopped on its own held-out part, averaged afterwards."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from prudent._progress import Progress
from prudent.nn._networks import start_at_linear
from prudent.nn._train import GROUP, Loss, TrainConfig, TrainLog, fit_stack, stack_networks

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


@dataclasses.dataclass(frozen=True)
class FoldPlan:
    """Rows of every member of a cross-fitted stack, and of the pilot that compares weight decays.

    The first ``n_audit`` folds are audited: a function is fitted without them, by nuisances that have not seen them,
    so that the moment can be measured on rows that had no influence whatever.
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
        splits = [split for split in plan.pilot_splits for _ in candidates]
        n_pilots = len(splits)
        # Filled up to a whole group, so that pilot and folds share one compiled program.
        splits += splits[: -n_pilots % GROUP]
        networks = _linear_start(stack_networks(build, len(splits), pilot_key), data, splits, target)
        _, log = fit_stack(
            networks,
            loss,
            data,
            [train for train, _ in splits],
            [held for _, held in splits],
            config,
            seed=seed + 1,
            weight_decay=np.resize(candidates, len(splits)),
            progress=progress,
            label=f"{label}: regularisation",
        )
        mean_loss = log.best_loss[:n_pilots].reshape(-1, len(candidates)).mean(axis=0)
        decay = float(candidates[np.argmin(mean_loss)])
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
    stacked = [jax.numpy.asarray(np.stack(part), dtype=jax.numpy.float32) for part in (weights, biases, noises)]
    return start_at_linear(networks, *stacked)


@eqx.filter_jit
def apply_stack(networks: Any, x: jax.Array) -> Any:
    """Outputs of every member on the same rows: leading axis = member."""
    return eqx.filter_vmap(lambda network, rows: network(rows), in_axes=(eqx.if_array(0), None))(networks, x)


def apply_in_blocks(networks: Any, x: np.ndarray, block: int = 4096) -> Any:
    """:func:`apply_stack` on the host, block by block, so that memory stays bounded and one program serves all n."""
    outputs = []
    for start in range(0, len(x), block):
        rows = x[start : start + block]
        padded = np.concatenate([rows, np.repeat(rows[:1], block - len(rows), axis=0)]) if len(rows) < block else rows
        out = apply_stack(networks, jax.numpy.asarray(padded))
        outputs.append(jax.tree.map(lambda a, n=len(rows): np.asarray(a[:, :n]), out))
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *outputs)
