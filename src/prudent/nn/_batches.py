"""Which rows a training step sees, in shapes that few compiled programs can serve."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_MIN_BUCKET = 512


class BatchSampler:
    """Row numbers of the next batches: every member goes through its own rows in a new order each epoch."""

    def __init__(self, rows: Sequence[np.ndarray], batch_size: int, rng: np.random.Generator):
        self.rows = [np.asarray(r, dtype=np.int32) for r in rows]
        self.batch_size = batch_size
        self.rng = rng
        self.queue = [np.empty(0, np.int32) for _ in rows]

    def draw(self, n_steps: int) -> np.ndarray:
        """Row numbers (steps, members, batch)."""
        need = n_steps * self.batch_size
        out = np.empty((len(self.rows), need), np.int32)
        for member, rows in enumerate(self.rows):
            parts, have = [self.queue[member]], len(self.queue[member])
            while have < need:
                parts.append(self.rng.permutation(rows))
                have += len(rows)
            stream = np.concatenate(parts)
            out[member], self.queue[member] = stream[:need], stream[need:]
        return out.reshape(len(self.rows), n_steps, self.batch_size).swapaxes(0, 1)


def _bucket(n: int) -> int:
    """Next size of the form 2^k or 3 * 2^(k-1): few enough to reuse programs, close enough to waste little."""
    size = _MIN_BUCKET
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def pad_rows(rows: Sequence[np.ndarray]) -> tuple[jax.Array, jax.Array]:
    """Row numbers of all members as one array, and which of them are real."""
    longest = max((len(r) for r in rows), default=0)
    width = _bucket(longest) if longest else 0
    index = np.zeros((len(rows), width), np.int32)
    weight = np.zeros((len(rows), width), np.float32)
    for member, r in enumerate(rows):
        index[member, : len(r)] = r
        weight[member, : len(r)] = 1.0
    return jnp.asarray(index), jnp.asarray(weight)


def pad_to_bucket(data: Any) -> Any:
    """Arrays with as many rows as the next bucket has, so that fits of similar size share a program."""

    def pad(array):
        array = np.asarray(array)
        extra = _bucket(len(array)) - len(array)
        # Padding repeats a real row: it is never drawn, but must not produce NaN if a program touches it.
        return jnp.asarray(np.concatenate([array, np.repeat(array[:1], extra, axis=0)]) if extra else array)

    return jax.tree.map(pad, data)
