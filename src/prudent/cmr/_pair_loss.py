"""The loss of NMMR: a kernel-weighted sum over pairs of residuals, unbiased from any batch of rows."""

import equinox as eqx
import jax.numpy as jnp


class PairLoss(eqx.Module):
    """Squared moment from all pairs of a batch. No fields, so that every fit shares a compiled program.

    ``batch["c"]`` is scaled so that the kernel is exp(-|c_i - c_j|^2 / 2). ``batch["own"]`` is the weight of the pair
    of a row with itself: 0 for U, 1/n for V. ``batch["unit"]``, where it is given, leaves out pairs within a unit.
    """

    def __call__(self, network, batch, key):
        """One value per row, whose mean is an unbiased estimate of the statistic of all rows."""
        own, c = batch["own"], batch["c"]
        residual = batch["y"] - network(batch["x"], key=key)
        square = jnp.sum(c**2, axis=1)
        distance = jnp.maximum(square[:, None] + square[None, :] - 2 * c @ c.T, 0.0)
        kernel = jnp.exp(-0.5 * distance)
        if "unit" in batch:
            kernel = jnp.where(batch["unit"][:, None] == batch["unit"][None, :], 0.0, kernel)
        # The diagonal of the kernel is one up to rounding; subtracting the product with itself leaves i = j out.
        others = kernel @ residual - jnp.diagonal(kernel)[:, None] * residual
        pairs = jnp.sum(residual * others, axis=1) / max(len(c) - 1, 1)
        return (1.0 - own) * pairs + own * jnp.sum(residual**2, axis=1)
