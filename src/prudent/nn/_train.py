"""One training loop for everything: it fits a *stack* of networks (folds x repeats x candidates) at once.

The members of a stack have the same shape and share one data set, but each has its own rows, its own held-out part and
its own stopping time. One compiled program runs a chunk of optimiser steps for all members, evaluates them on their
held-out rows and keeps the best weights of each. Its shape depends on the sizes of networks and batches, not on the
learning rate, the schedule or (up to a bucket) the number of rows, so that most fits reuse a compiled program.

A game of two networks is one network with two parts: its loss stops gradients so that each part sees its own
objective, and the part called ``critic`` may have its own learning rate.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from prudent._progress import Progress, Task
from prudent.nn._batches import BatchSampler, pad_rows, pad_to_bucket
from prudent.nn._cache import enable_compilation_cache

# A loss maps (network, batch, key) to one value per row of the batch; key=None means evaluation.
Loss = Callable[[Any, Any, Any], jax.Array]
# Given the stack after a chunk and the numbers of its members: one held-out loss per member.
Evaluate = Callable[[Any, np.ndarray], np.ndarray]

# Members per compiled program; a larger stack is fitted group by group, which costs the same on a CPU.
GROUP = 10


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """How a stack of networks is trained.

    Parameters
    ----------
    learning_rate : float
        Peak rate of AdamW; a linear warm-up over the first 5 % of the steps, then a cosine to zero at ``max_steps``.
    weight_decay : float
        Decoupled weight decay, on matrices only (each step shrinks them by ``rate * weight_decay``).
    batch_size : int
        Rows per step and member.
    max_steps : int
        Optimiser steps at most.
    patience : int
        Evaluations without a better held-out loss after which a member stops. 0 turns early stopping off.
    evaluate_every : int
        Steps between two evaluations on the held-out rows.
    clip_norm : float
        Gradients of a member are scaled down to this norm.
    optimistic : bool
        Optimistic Adam (Daskalakis et al., 2018): every update is corrected by its change since the last one, which
        keeps a minimax game from cycling.
    critic_rate : float
        Factor on the learning rate of weights that belong to a part called ``critic``.
    """

    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    batch_size: int = 128
    max_steps: int = 3000
    patience: int = 10
    evaluate_every: int = 50
    clip_norm: float = 5.0
    optimistic: bool = False
    critic_rate: float = 1.0

    def check(self) -> None:
        """Raise ``ValueError`` where a setting makes no sense."""
        for name in ("learning_rate", "batch_size", "max_steps", "evaluate_every", "clip_norm", "critic_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"TrainConfig.{name} must be positive, got {getattr(self, name)!r}.")
        for name in ("weight_decay", "patience"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"TrainConfig.{name} must not be negative, got {getattr(self, name)!r}.")


@dataclasses.dataclass(frozen=True)
class TrainLog:
    """What happened during a fit: one row per evaluation, one column per member of the stack."""

    steps: np.ndarray
    train_loss: np.ndarray
    held_out_loss: np.ndarray
    best_step: np.ndarray

    @property
    def best_loss(self) -> np.ndarray:
        """Held-out loss of the weights that were kept, per member."""
        return np.nanmin(self.held_out_loss, axis=0)

    def take(self, n_members: int) -> "TrainLog":
        """The log of the first members."""
        return TrainLog(
            self.steps,
            self.train_loss[:, :n_members],
            self.held_out_loss[:, :n_members],
            self.best_step[:n_members],
        )

    @staticmethod
    def join(logs: Sequence["TrainLog"]) -> "TrainLog":
        """One log of several groups; a group that stopped early has NaN from there on."""
        longest = max((log.steps for log in logs), key=len)

        def pad(losses: np.ndarray) -> np.ndarray:
            extra = np.full((len(longest) - len(losses), losses.shape[1]), np.nan)
            return np.concatenate([losses, extra])

        return TrainLog(
            longest,
            np.hstack([pad(log.train_loss) for log in logs]),
            np.hstack([pad(log.held_out_loss) for log in logs]),
            np.concatenate([log.best_step for log in logs]),
        )


def learning_rates(config: TrainConfig, start: int, count: int) -> np.ndarray:
    """Rates of the steps ``start .. start + count - 1``: linear warm-up, then half a cosine."""
    step = np.arange(start, start + count, dtype=np.float64)
    warm_up = max(1.0, 0.05 * config.max_steps)
    progress = np.clip((step - warm_up) / max(1.0, config.max_steps - warm_up), 0.0, 1.0)
    rate = np.where(step < warm_up, (step + 1) / warm_up, 0.5 * (1 + np.cos(np.pi * progress)))
    return (config.learning_rate * rate).astype(np.float32)


def stack_networks(build: Callable[[Any], Any], n_members: int, key: jax.Array) -> Any:
    """``n_members`` networks with different initial weights, as one pytree with a leading member axis."""
    networks = [build(member_key) for member_key in jax.random.split(key, n_members)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *networks)


def fit_stack(
    networks: Any,
    loss: Loss,
    data: Any,
    train_rows: Sequence[np.ndarray],
    held_out_rows: Sequence[np.ndarray],
    config: TrainConfig,
    *,
    seed: int,
    learning_rate: np.ndarray | None = None,
    weight_decay: np.ndarray | None = None,
    evaluate: Evaluate | None = None,
    progress: Progress | None = None,
    label: str = "training",
) -> tuple[Any, TrainLog]:
    """Fit every member of ``networks`` on its own rows of ``data`` and return the best weights of each.

    Parameters
    ----------
    networks : pytree with a leading member axis
        From :func:`stack_networks`.
    loss : callable
        ``loss(network, batch, key) -> (rows,)``. Must be a module-level function (or another object with a stable
        hash): a new closure for every fit would compile a new program for every fit.
    data : pytree of arrays with one leading row axis
    train_rows, held_out_rows : one integer array per member
        With no held-out rows (empty arrays) the last weights are returned.
    learning_rate, weight_decay : (members,) array, optional
        One per member, in place of the one in ``config``: how candidates are compared in one program.
    evaluate : callable, optional
        ``evaluate(networks, members) -> (members,)``, called after every chunk, gives the held-out losses in place of
        ``loss`` on the held-out rows: for what is no mean over rows, and for looking at the networks on the way.
    """
    config.check()
    enable_compilation_cache()
    n_members = len(train_rows)
    if any(len(rows) == 0 for rows in train_rows):
        raise ValueError("Every member of a stack needs training rows, got one without. Check the split.")
    decay = np.broadcast_to(config.weight_decay if weight_decay is None else weight_decay, n_members)
    rate = np.broadcast_to(config.learning_rate if learning_rate is None else learning_rate, n_members)
    data = pad_to_bucket(data)
    n_groups = math.ceil(n_members / GROUP)
    task = (
        None
        if progress is None
        else progress.start(label, n_groups * math.ceil(config.max_steps / config.evaluate_every))
    )
    fitted, logs = [], []
    for group in range(n_groups):
        # The last group is filled up with members that stand in it already, so that all groups share one program.
        members = np.arange(group * GROUP, min((group + 1) * GROUP, n_members))
        filled = np.resize(members, GROUP) if n_groups > 1 else members
        part, log = _fit_group(
            take_members(networks, filled),
            loss,
            data,
            [train_rows[int(m)] for m in filled],
            [held_out_rows[int(m)] for m in filled],
            rate[filled] / config.learning_rate,
            decay[filled],
            None if evaluate is None else lambda stack, members=filled: evaluate(stack, members),
            config,
            seed + group,
            task,
        )
        fitted.append(take_members(part, np.arange(len(members))))
        logs.append(log.take(len(members)))
    if task is not None:
        task.finish()
    return join_members(fitted), TrainLog.join(logs)


def take_members(networks: Any, members: np.ndarray) -> Any:
    """Some members of a stack, as a stack."""
    return jax.tree.map(lambda leaf: leaf[members] if eqx.is_array(leaf) else leaf, networks)


def join_members(stacks: Sequence[Any]) -> Any:
    """Several stacks of equal networks as one."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves) if eqx.is_array(leaves[0]) else leaves[0], *stacks)


def _fit_group(
    networks,
    loss,
    data,
    train_rows,
    held_out_rows,
    rate_factor: np.ndarray,
    decay: np.ndarray,
    evaluate: Callable[[Any], np.ndarray] | None,
    config: TrainConfig,
    seed: int,
    task: Task | None,
) -> tuple[Any, TrainLog]:
    rng = np.random.default_rng(seed)
    key = jax.random.key(int(rng.integers(2**31)))
    batches = BatchSampler(train_rows, config.batch_size, rng)
    held_index, held_weight = pad_rows(held_out_rows)
    stopping = (evaluate is not None or float(held_weight.sum()) > 0) and config.patience > 0

    params, rest = eqx.partition(networks, eqx.is_inexact_array)
    # What differs between members and is not trained, such as a dropout rate per candidate.
    fixed, static = eqx.partition(rest, eqx.is_array)
    adam = _adam(config.optimistic)
    # Strong types throughout: a weakly typed leaf would make the second chunk a different program.
    state = jax.tree.map(lambda a: a.astype(a.dtype), _State.start(params, adam, len(train_rows)))
    chunk = min(config.evaluate_every, config.max_steps)
    n_chunks = math.ceil(config.max_steps / chunk)
    patience = jnp.int32(config.patience if stopping else n_chunks + 1)
    steps, train_losses, held_losses = [], [], []
    for number in range(n_chunks):
        key, chunk_key = jax.random.split(key)
        params, moments, train_loss, held_loss = _run_chunk(
            state.params,
            state.moments,
            fixed,
            static,
            adam,
            loss,
            data,
            jnp.asarray(batches.draw(chunk)),
            jnp.asarray(learning_rates(config, number * chunk, chunk)),
            jnp.asarray(rate_factor, jnp.float32),
            jnp.asarray(decay, jnp.float32),
            jnp.float32(config.clip_norm),
            jnp.float32(config.critic_rate),
            held_index,
            held_weight,
            chunk_key,
        )
        if evaluate is not None:
            held_loss = jnp.asarray(evaluate(eqx.combine(params, fixed, static)), jnp.float32)
        state = _keep_best(state, params, moments, held_loss, patience)
        steps.append((number + 1) * chunk)
        train_losses.append(np.asarray(train_loss))
        held_losses.append(np.asarray(held_loss))
        if task is not None:
            task.advance(f"loss {np.median(held_losses[-1] if stopping else train_losses[-1]):.4f}")
        if stopping and bool(np.all(np.asarray(state.stale) >= config.patience)):
            break
    log = TrainLog(
        steps=np.array(steps),
        train_loss=np.array(train_losses),
        held_out_loss=np.array(held_losses),
        best_step=(np.asarray(state.best_chunk) + 1) * chunk,
    )
    return eqx.combine(state.best if stopping else state.params, fixed, static), log


class _State(eqx.Module):
    """Weights, optimiser moments and stopping book-keeping of a whole stack."""

    params: Any
    moments: Any
    best: Any
    best_loss: jax.Array
    best_chunk: jax.Array
    stale: jax.Array
    chunk: jax.Array

    @staticmethod
    def start(params: Any, adam: optax.GradientTransformation, n_members: int) -> "_State":
        return _State(
            params=params,
            moments=jax.vmap(adam.init)(params),
            best=params,
            best_loss=jnp.full(n_members, jnp.inf, jnp.float32),
            best_chunk=jnp.zeros(n_members, jnp.int32),
            stale=jnp.zeros(n_members, jnp.int32),
            chunk=jnp.int32(0),
        )


def is_decayed(path: tuple, leaf: jax.Array) -> bool:
    """Whether (decoupled) weight decay acts on a leaf of one member's weights.

    Not on vectors: shrinking an offset is not a smoothness prior. Not on ``free_`` ones: AdamW's decay of a large
    weight does not fade with more data, and would shrink what a linear model gets right.
    """
    name = getattr(path[-1], "name", "")
    return leaf.ndim > 1 and not name.startswith("free_")


def is_critic(path: tuple) -> bool:
    """Whether a leaf belongs to the part of a game that is called ``critic``."""
    return any(getattr(part, "name", "") == "critic" for part in path)


@functools.cache
def _adam(optimistic: bool) -> optax.GradientTransformation:
    # The memory of the published game is shorter: a critic that was right some steps ago is not right now.
    if optimistic:
        return optax.chain(optax.scale_by_adam(b1=0.5, b2=0.9), optax.scale_by_optimistic_gradient())
    return optax.scale_by_adam()


@eqx.filter_jit
def _run_chunk(
    params,
    moments,
    fixed,
    static,
    adam,
    loss,
    data,
    index,
    rates,
    rate_factor,
    weight_decay,
    clip_norm,
    critic_rate,
    held_index,
    held_weight,
    key,
):
    n_members = index.shape[1]

    def member_loss(params, fixed, rows, member_key):
        batch = jax.tree.map(lambda a: a[rows], data)
        return jnp.mean(loss(eqx.combine(params, fixed, static), batch, member_key))

    def member_step(params, moments, fixed, rows, member_key, decay, rate):
        value, grads = jax.value_and_grad(member_loss)(params, fixed, rows, member_key)
        scale = jnp.minimum(1.0, clip_norm / (optax.tree.norm(grads) + 1e-12))
        updates, moments = adam.update(jax.tree.map(lambda g: g * scale, grads), moments)

        def stepped(path, p, u):
            leaf_rate = rate * critic_rate if is_critic(path) else rate
            return p - leaf_rate * (u + (decay * p if is_decayed(path, p) else 0.0))

        return jax.tree_util.tree_map_with_path(stepped, params, updates), moments, value

    def step(carry, inputs):
        params, moments = carry
        rows, rate, step_key = inputs
        keys = jax.random.split(step_key, n_members)
        params, moments, value = jax.vmap(member_step)(
            params, moments, fixed, rows, keys, weight_decay, rate * rate_factor
        )
        return (params, moments), value

    keys = jax.random.split(key, index.shape[0])
    (params, moments), values = jax.lax.scan(step, (params, moments), (index, rates, keys))

    def held_out_loss(member_params, member_fixed, rows, weight):
        batch = jax.tree.map(lambda a: a[rows], data)
        value = loss(eqx.combine(member_params, member_fixed, static), batch, None)
        return jnp.sum(value * weight) / jnp.maximum(jnp.sum(weight), 1.0)

    if held_index.shape[1] == 0:
        held = jnp.zeros(n_members, jnp.float32)
    else:
        held = jax.vmap(held_out_loss)(params, fixed, held_index, held_weight)
    return params, moments, jnp.mean(values, axis=0), held


@jax.jit
def _keep_best(state: _State, params, moments, held, patience) -> _State:
    # A member that has stopped stays stopped, whatever it does in the chunks that others still need.
    active = state.stale < patience
    better = active & (held < state.best_loss)

    def keep(new, old):
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return _State(
        params=params,
        moments=moments,
        best=jax.tree.map(keep, params, state.best),
        best_loss=jnp.where(better, held, state.best_loss),
        best_chunk=jnp.where(better, state.chunk, state.best_chunk),
        stale=jnp.where(better, 0, state.stale + 1),
        chunk=state.chunk + 1,
    )
