"""Second stage of DML-CMR: one function f for all folds, from the Neyman-orthogonal score (s(c) - E[f(X)|c])^2.

One draw of X inside the square would add Var(f|c) to the loss and shrink f. Here two independent sets of nodes give
two residuals whose product has exactly the square as its mean; with one node a level the square itself is exact.
"""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler
from prudent.cmr._law import Nodes
from prudent.cmr._report import WEAK_F
from prudent.nn import (
    NetworkSpec,
    StackGroup,
    TrainConfig,
    apply_in_blocks,
    fit_stack,
    join_members,
    stack_networks,
    take_members,
    with_dropout,
)
from prudent.nn._networks import start_at_linear

# Nodes per residual in one step. Nodes of a scalar come as antithetic pairs, so two are worth many more draws.
NODES_PER_SET = 2


@dataclasses.dataclass(frozen=True)
class SecondStage:
    """An ensemble of functions with the scales of their inputs and outputs; ``predict`` averages its members.

    ``columns`` are those of x that it sees; None: all. ``bounds`` (2, outcomes) are the values that a prediction is
    held between, if there are any.
    """

    networks: Any
    x_scaler: Scaler
    y_scaler: Scaler
    columns: tuple[int, ...] | None = None
    bounds: np.ndarray | None = None

    def predict(self, x: Matrix) -> np.ndarray:
        """f(x) in the units of the outcome, (n, outcomes)."""
        x = x if self.columns is None else x[:, list(self.columns)]
        # A policy asks for a few rows at a time: a block of thousands would be padding.
        block = 64 if len(x) <= 64 else 4096
        found = self.y_scaler.back(apply_in_blocks(self.networks, self.x_scaler.forward(x), block).mean(axis=0))
        return found if self.bounds is None else np.clip(found, *self.bounds)


def function_values(network, modelled: jax.Array, known: jax.Array, slots: tuple, key) -> jax.Array:
    """f at every node: ``modelled`` (rows, nodes, m) and ``known`` (rows, k) put back into the order of x."""
    shape = (*modelled.shape[:2], known.shape[-1])
    joined = jnp.concatenate([modelled, jnp.broadcast_to(known[:, None], shape)], axis=-1)
    return network(joined[..., list(slots)], key=key)


class ScoreLoss(eqx.Module):
    """Loss of the second stage. Static fields only, so that equal settings reuse a compiled program."""

    slots: tuple[int, ...] = eqx.field(static=True)
    is_exact: bool = eqx.field(static=True)
    paired: bool = eqx.field(static=True)
    one_draw: bool = eqx.field(static=True, default=False)

    def __call__(self, network, batch, key):
        """One unbiased estimate of the squared conditional moment per row."""
        value, weight = batch["value"], batch["weight"]
        rows, n_levels, n_nodes, width = value.shape
        if self.is_exact or key is None:
            at_nodes = function_values(
                network, value.reshape(rows, n_levels * n_nodes, width), batch["known"], self.slots, key
            )
            inner = at_nodes.reshape(rows, n_levels, n_nodes, -1).mean(axis=2)
            residual = batch["s"] - jnp.einsum("nl,nlo->no", weight, inner)
            return jnp.sum(residual**2, axis=-1)
        if self.one_draw:
            which = jax.random.randint(jax.random.fold_in(key, 1), (rows, 1, 1, 1), 0, n_nodes)
            drawn = jnp.take_along_axis(value, which, axis=2)[:, :, 0]
            at_nodes = function_values(network, drawn, batch["known"], self.slots, key)
            return jnp.sum((batch["s"] - jnp.einsum("nl,nlo->no", weight, at_nodes)) ** 2, axis=-1)
        chosen = self._two_sets(value, key)
        at_nodes = function_values(network, chosen.reshape(rows, -1, width), batch["known"], self.slots, key)
        inner = at_nodes.reshape(rows, n_levels, 2, NODES_PER_SET, -1).mean(axis=3)
        residual = batch["s"][:, None] - jnp.einsum("nl,nlro->nro", weight, inner)
        return jnp.sum(residual[:, 0] * residual[:, 1], axis=-1)

    def _two_sets(self, value, key):
        rows, _, n_nodes, _ = value.shape
        stride = n_nodes // NODES_PER_SET
        first_key, second_key = jax.random.split(jax.random.fold_in(key, 1))
        first = jax.random.randint(first_key, (rows,), 0, stride)
        # Paired nodes *are* the law: two independent choices give an unbiased product. Drawn nodes are a sample of
        # the law: two disjoint subsets do, while a node in both would bring back the variance.
        if self.paired:
            second = jax.random.randint(second_key, (rows,), 0, stride)
        else:
            second = (first + jax.random.randint(second_key, (rows,), 1, stride)) % stride
        offsets = jnp.stack([first, second], axis=1)[:, :, None] + jnp.arange(NODES_PER_SET) * stride
        return jnp.take_along_axis(value, offsets.reshape(rows, 1, -1, 1), axis=2)


@dataclasses.dataclass(frozen=True)
class ScoreData:
    """What the second stage needs of some rows: s and the law's nodes in raw units, and the known columns of x."""

    s: np.ndarray
    nodes: Nodes
    known: Matrix


def score_arrays(
    parts: Sequence[ScoreData], slots: tuple[int, ...], x_scaler: Scaler, y_scaler: Scaler
) -> dict[str, np.ndarray]:
    """The rows of all parts, one after another, in standard units: what :class:`ScoreLoss` reads."""
    order = np.argsort(slots)
    m = parts[0].nodes.value.shape[-1]
    modelled_scaler = Scaler(x_scaler.mean[order[:m]], x_scaler.scale[order[:m]])
    known_scaler = Scaler(x_scaler.mean[order[m:]], x_scaler.scale[order[m:]])
    return {
        "s": np.concatenate([y_scaler.forward(part.s) for part in parts]),
        "value": np.concatenate([modelled_scaler.forward(part.nodes.value) for part in parts]),
        "weight": np.concatenate([part.nodes.weight.astype(np.float32) for part in parts]),
        "known": np.concatenate([known_scaler.forward(part.known) for part in parts]),
    }


def linear_solution(
    part: ScoreData, x: Matrix, y: Matrix, slots: tuple[int, ...], x_scaler: Scaler, y_scaler: Scaler
) -> tuple[np.ndarray, np.ndarray]:
    """(weight, bias) in standard units of the linear f that solves the moment for the rows ``x`` and ``y`` of a part.

    This is two-stage least squares with the law's means of x as instruments, shrunk: a column that they move with
    strength F, given the others, keeps about F / (F + WEAK_F) of its coefficient.
    """
    expected = np.hstack([part.nodes.mean(), part.known])[:, list(slots)]
    x_mean, y_mean = x_scaler.forward(x).mean(axis=0), y_scaler.forward(y).mean(axis=0)
    instruments = np.asarray(x_scaler.forward(expected) - x_mean, dtype=float)
    gram = instruments.T @ (x_scaler.forward(x) - x_mean) + WEAK_F * np.eye(x.shape[1])
    weight = np.linalg.solve(gram, instruments.T @ (y_scaler.forward(y) - y_mean))
    return weight, y_mean - x_mean @ weight


def check_finite(networks: Any, lower: str = "the learning rate in function_train") -> None:
    """Raise where training has diverged; ``lower`` names what the user is to lower."""
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(eqx.filter(networks, eqx.is_inexact_array))):
        raise diverged("weights are not finite", lower)


def diverged(reason: str, lower: str) -> FloatingPointError:
    """The error of a training that has diverged."""
    return FloatingPointError(
        f"Training of f diverged ({reason}). Lower {lower}, or look for extreme values in the data."
    )


def fit_second_stage(
    parts: Sequence[ScoreData],
    slots: tuple[int, ...],
    x: Matrix,
    y: Matrix,
    network: NetworkSpec,
    config: TrainConfig,
    *,
    n_functions: int,
    seed: int,
    progress: Progress | None,
    one_draw: bool = False,
    linear_rows: Sequence[np.ndarray] | None = None,
) -> tuple[SecondStage, list[SecondStage]]:
    """Fit ``n_functions`` networks to the score on the first part, and one network on each further part.

    Parameters
    ----------
    parts : sequence of ScoreData
        All rows with their out-of-fold nuisances; then, per audited fold, the other rows with that fold's nuisances.
    slots : tuple of int
        Position in (modelled, known) of every column of x.
    linear_rows : sequence of arrays, optional
        The rows of ``x`` and ``y`` that the parts stand for. Where they are given, networks start at the linear
        solution of their part.
    """
    x_scaler, y_scaler = Scaler.for_network(x, network), Scaler.of(y)
    data = score_arrays(parts, slots, x_scaler, y_scaler)
    ends = np.cumsum([len(part.s) for part in parts])
    blocks = [np.arange(end - len(part.s), end) for part, end in zip(parts, ends, strict=True)]
    rows = [blocks[0]] * n_functions + blocks[1:]
    nodes = parts[0].nodes
    loss = ScoreLoss(slots=slots, is_exact=nodes.is_exact, paired=nodes.paired, one_draw=one_draw)
    data = jax.tree.map(jnp.asarray, data)

    linear: list[tuple[np.ndarray, np.ndarray]] = [
        linear_solution(part, x[own], y[own], slots, x_scaler, y_scaler)
        for part, own in zip(parts, linear_rows or (), strict=False)
    ]

    def fit_half(members: np.ndarray) -> Any:
        key = jax.random.key(seed + int(members[0]))
        networks = stack_networks(lambda k: network(x.shape[1], y.shape[1], key=k), len(members), key)
        if linear:
            starts = [linear[max(0, member - n_functions + 1)] for member in members]
            weight, bias = (jnp.asarray(np.stack(values), jnp.float32) for values in zip(*starts, strict=True))
            networks = start_at_linear(networks, weight, bias, jnp.zeros_like(bias))
        return fit_stack(
            networks,
            loss,
            data,
            [rows[member] for member in members],
            [np.empty(0, dtype=int)] * len(members),
            config,
            seed=seed + int(members[0]),
            progress=progress,
            label="causal function",
        )

    # Two stacks in two threads: one compiled program keeps about one core busy.
    halves = np.array_split(np.arange(len(rows)), 2) if len(rows) > 1 else [np.arange(1)]
    with ThreadPoolExecutor(len(halves)) as threads:
        fitted = [networks for networks, _ in threads.map(fit_half, halves)]
    networks = join_members(fitted)
    check_finite(networks)

    def members(start: int, stop: int) -> SecondStage:
        return SecondStage(take_members(networks, np.arange(start, stop)), x_scaler, y_scaler)

    return members(0, n_functions), [members(k, k + 1) for k in range(n_functions, len(rows))]


def fit_function_candidates(
    group: StackGroup,
    loss: ScoreLoss,
    data: dict[str, np.ndarray],
    split: tuple[np.ndarray, np.ndarray],
    scalers: tuple[Scaler, Scaler],
    *,
    seed: int,
    progress: Progress | None,
) -> list[SecondStage]:
    """One function per candidate of a group, which is one stack.

    ``split`` has the rows for training and for stopping (which may be none).
    """
    x_scaler, y_scaler = scalers
    count = len(group.places)
    networks = stack_networks(
        lambda key: group.network(len(x_scaler.mean), len(y_scaler.mean), key=key), count, jax.random.key(seed)
    )
    if group.numbers.dropout_rate is not None:
        networks = with_dropout(networks, group.numbers.dropout_rate)
    networks, _ = fit_stack(
        networks,
        loss,
        data,
        [split[0]] * count,
        [split[1]] * count,
        group.config,
        seed=seed,
        learning_rate=group.numbers.learning_rate,
        weight_decay=group.numbers.weight_decay,
        progress=progress,
        label="candidates for f",
    )
    return [SecondStage(take_members(networks, np.array([member])), x_scaler, y_scaler) for member in range(count)]


def function_to_arrays(function: SecondStage) -> dict[str, np.ndarray]:
    """Weights and scales as named arrays."""
    leaves = jax.tree.leaves(eqx.filter(function.networks, eqx.is_array))
    arrays = {f"function.{number:03d}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
    for name, scaler in (("x", function.x_scaler), ("y", function.y_scaler)):
        arrays |= {f"{name}.mean": scaler.mean, f"{name}.scale": scaler.scale}
    if function.columns is not None:
        arrays["columns"] = np.array(function.columns)
    if function.bounds is not None:
        arrays["bounds"] = function.bounds
    return arrays


def function_from_arrays(network: NetworkSpec, n_columns: int, arrays: dict[str, np.ndarray]) -> SecondStage:
    """The function whose arrays :func:`function_to_arrays` made."""
    x_scaler, y_scaler = (Scaler(arrays[f"{name}.mean"], arrays[f"{name}.scale"]) for name in ("x", "y"))
    saved = [arrays[name] for name in sorted(arrays) if name.startswith("function.")]
    columns = tuple(int(j) for j in arrays["columns"]) if "columns" in arrays else None
    n_columns = n_columns if columns is None else len(columns)
    skeleton = stack_networks(
        lambda key: network(n_columns, len(y_scaler.mean), key=key), len(saved[0]) if saved else 1, jax.random.key(0)
    )
    leaves, tree = jax.tree.flatten(eqx.filter(skeleton, eqx.is_array))
    if [leaf.shape for leaf in leaves] != [array.shape for array in saved]:
        raise ValueError(f"weights of {len(saved)} arrays do not fit the network, which has {len(leaves)}")
    filled = jax.tree.unflatten(tree, [jnp.asarray(array) for array in saved])
    return SecondStage(eqx.combine(filled, skeleton), x_scaler, y_scaler, columns, arrays.get("bounds"))
