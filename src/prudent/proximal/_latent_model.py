"""The latent-variable model of CEVAE, and its variational bound."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prudent.nn import Network, NetworkSpec

# Spread below which a Gaussian may not collapse, in standard units.
MIN_SCALE = 0.05


class LatentModel(eqx.Module):
    """Encoder q(z | x, t, y) and decoders p(x | z), p(t | z), p(y | t, z), all Gaussian with diagonal covariance."""

    encoder: Network
    x_decoder: Network
    t_decoder: Network
    y_decoder: Network
    n_latent: int = eqx.field(static=True)

    @classmethod
    def of(cls, spec: NetworkSpec, n_x: int, n_t: int, n_y: int, n_latent: int, *, key: PRNGKeyArray) -> "LatentModel":
        """Networks for given sizes. Every one of them gives a mean and a scale per variable."""
        keys = jax.random.split(key, 4)
        return cls(
            spec(n_x + n_t + n_y, 2 * n_latent, key=keys[0]),
            spec(n_latent, 2 * n_x, key=keys[1]),
            spec(n_latent, 2 * n_t, key=keys[2]),
            spec(n_t + n_latent, 2 * n_y, key=keys[3]),
            n_latent,
        )

    def posterior(self, rows: Float[Array, "n d"], *, key: PRNGKeyArray | None = None) -> tuple[Array, Array]:
        """Mean and scale of z given (x, t, y)."""
        return gaussian_head(self.encoder(rows, key=key))

    def outcome(self, t: Float[Array, "n t"], z: Float[Array, "n l"]) -> Float[Array, "n y"]:
        """E[y | t, z]."""
        return gaussian_head(self.y_decoder(jnp.concatenate([t, z], axis=-1)))[0]


class Encoder(eqx.Module):
    """The posterior as a network of its own."""

    model: LatentModel

    def __call__(self, rows: Float[Array, "n d"], *, key: PRNGKeyArray | None = None) -> tuple[Array, Array]:
        return self.model.posterior(rows, key=key)


def gaussian_head(out: Float[Array, "n d2"]) -> tuple[Array, Array]:
    """Mean and positive scale from the two halves of a network's output."""
    mean, raw = jnp.split(out, 2, axis=-1)
    return mean, jax.nn.softplus(raw) + MIN_SCALE


def log_density(value: Array, mean: Array, scale: Array) -> Float[Array, " n"]:
    """Log-density of independent Gaussians, summed over columns."""
    return -0.5 * jnp.sum(((value - mean) / scale) ** 2 + 2 * jnp.log(scale) + jnp.log(2 * jnp.pi), axis=-1)


def negative_bound(model: LatentModel, batch, key: PRNGKeyArray | None) -> Float[Array, " n"]:
    """Minus the evidence lower bound of every row, with one draw of z (the same ones in every evaluation)."""
    x, t, y = batch["x"], batch["t"], batch["y"]
    draw_key = jax.random.key(0) if key is None else key
    mean, scale = model.posterior(jnp.concatenate([x, t, y], axis=-1), key=key)
    z = mean + scale * jax.random.normal(draw_key, mean.shape)
    likelihood = (
        log_density(x, *gaussian_head(model.x_decoder(z, key=key)))
        + log_density(t, *gaussian_head(model.t_decoder(z, key=key)))
        + log_density(y, *gaussian_head(model.y_decoder(jnp.concatenate([t, z], axis=-1), key=key)))
    )
    divergence = 0.5 * jnp.sum(mean**2 + scale**2 - 1.0 - 2 * jnp.log(scale), axis=-1)
    return divergence - likelihood


@eqx.filter_jit
def _mean_outcome(models: LatentModel, t: Float[Array, " d"], latent: Float[Array, "m n l"]) -> Float[Array, " y"]:
    def one(model, z):
        return jnp.mean(model.outcome(jnp.broadcast_to(t, (len(z), len(t))), z), axis=0)

    return jnp.mean(eqx.filter_vmap(one, in_axes=(eqx.if_array(0), 0))(models, latent), axis=0)


def mean_outcomes(models: LatentModel, treatment: np.ndarray, latent: np.ndarray) -> np.ndarray:
    """Mean of E[y | a, z] over models and their draws of z, for every row a of ``treatment``."""
    z = jnp.asarray(latent)
    return np.stack([np.asarray(_mean_outcome(models, jnp.asarray(a), z)) for a in treatment])
