"""The loss of NMMR: a kernel-weighted sum over pairs of residuals, unbiased from any batch of rows."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np


class PairLoss(eqx.Module):
    """Squared moment from all pairs of a batch. No fields, so that every fit shares a compiled program.

    ``batch["c"]`` is scaled so that the kernel is exp(-|c_i - c_j|^2 / 2). ``batch["own"]`` is the weight of the pair
    of a row with itself: 0 for U, 1/n for V. ``batch["live"]`` is zero for the blank rows that fill up held-out blocks.
    """

    def __call__(self, network, batch, key):
        """One value per row, whose mean is an unbiased estimate of the statistic of all rows."""
        live, own, c = batch["live"], batch["own"], batch["c"]
        residual = (batch["y"] - network(batch["x"], key=key)) * live[:, None]
        square = jnp.sum(c**2, axis=1)
        distance = jnp.maximum(square[:, None] + square[None, :] - 2 * c @ c.T, 0.0)
        kernel = jnp.exp(-0.5 * distance)
        # The diagonal of the kernel is one up to rounding; subtracting the product with itself leaves i = j out.
        others = kernel @ residual - jnp.diagonal(kernel)[:, None] * residual
        pairs = jnp.sum(residual * others, axis=1) / jnp.maximum(jnp.sum(live) - 1.0, 1.0)
        return (1.0 - own) * pairs + own * jnp.sum(residual**2, axis=1)


def with_blank_row(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Data with a row of zeros in front. The training loop fills up held-out blocks with row 0.

    A loss over pairs of rows needs rows there that take part in nothing.
    """
    return {name: np.concatenate([np.zeros_like(array[:1]), array]) for name, array in data.items()}


def shifted(splits: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Row numbers behind the blank row."""
    return [(train + 1, held + 1) for train, held in splits]
