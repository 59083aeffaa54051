"""The network of NeuraLCB, its training and its gradients."""

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from prudent.nn import Linear, TrainConfig, fit_stack, stack_networks, take_members

# Gradients have thousands of columns: rows at a time.
_BLOCK = 1000


class LayerNormMLP(eqx.Module):
    """Rectified layers with layer normalisation, on x (x) e_arm.

    The first layer has one weight matrix for every arm, which is what a matrix on x (x) e_arm is.
    """

    first: jax.Array
    layers: tuple[Linear, ...]

    def __init__(self, in_size: int, n_arms: int, widths: tuple[int, ...], *, key: Any):
        keys = jax.random.split(key, len(widths) + 1)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(keys[0])))
        self.first = jnp.asarray(rng.standard_normal((n_arms, in_size, widths[0])) * (2 / in_size) ** 0.5, jnp.float32)
        sizes = (*widths, 1)
        gains = [2.0**0.5] * (len(widths) - 1) + [1.0]
        self.layers = tuple(
            Linear(i, o, key=k, gain=g) for i, o, k, g in zip(sizes[:-1], sizes[1:], keys[1:], gains, strict=True)
        )

    def __call__(self, x: jax.Array, arm: jax.Array) -> jax.Array:
        """Value of one context and arm, a scalar."""
        h = jax.nn.relu(_normalise(x @ self.first[arm]))
        for layer in self.layers[:-1]:
            h = jax.nn.relu(_normalise(layer(h)))
        return self.layers[-1](h)[0]


def _normalise(h: jax.Array) -> jax.Array:
    return (h - h.mean()) / jnp.sqrt(h.var() + 1e-5)


def squared_loss(network, batch, key):
    """Squared error per row."""
    return (jax.vmap(network)(batch["x"], batch["arm"]) - batch["y"]) ** 2


class GradientNetwork:
    """A fitted network with its values and its gradients / sqrt(width)."""

    def __init__(self, network: LayerNormMLP, width: int):
        self.network, self.width = network, width

    @classmethod
    def fit(cls, x: np.ndarray, arm: np.ndarray, y: np.ndarray, *, n_arms: int, settings: Any) -> Self:
        """Train on the whole log with squared loss."""
        if not settings.widths:
            raise ValueError("widths must name at least one hidden layer, got ().")
        networks = stack_networks(
            lambda key: LayerNormMLP(x.shape[1], n_arms, tuple(settings.widths), key=key),
            1,
            jax.random.key(settings.seed),
        )
        data = {"x": x.astype(np.float32), "arm": arm.astype(np.int32), "y": y.astype(np.float32)}
        config = TrainConfig(
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            batch_size=min(settings.batch_size, len(x)),
            max_steps=settings.n_steps,
            evaluate_every=max(1, settings.n_steps // 10),
            patience=0,
        )
        fitted, _ = fit_stack(
            networks, squared_loss, data, [np.arange(len(x))], [np.empty(0, int)], config, seed=settings.seed
        )
        network = jax.tree.map(lambda leaf: leaf[0], take_members(fitted, np.arange(1)))
        return cls(network, settings.widths[0])

    def values(self, x: np.ndarray, arm: np.ndarray) -> np.ndarray:
        """f at every row."""
        return np.asarray(_values(self.network, jnp.asarray(x, jnp.float32), jnp.asarray(arm)), dtype=float)

    def gradients(self, x: np.ndarray, arm: np.ndarray) -> np.ndarray:
        """Gradient of f by all weights / sqrt(width), (rows, weights); zero for other arms' first layers."""
        rows = []
        for start in range(0, len(x), _BLOCK):
            part = slice(start, start + _BLOCK)
            rows.append(np.asarray(_gradients(self.network, jnp.asarray(x[part], jnp.float32), jnp.asarray(arm[part]))))
        return np.concatenate(rows).astype(float) / self.width**0.5


@eqx.filter_jit
def _values(network, x, arm):
    return jax.vmap(network)(x, arm)


@eqx.filter_jit
def _gradients(network, x, arm):
    def one(row, which):
        grads = jax.grad(lambda n: n(row, which))(network)
        return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(grads)])

    return jax.vmap(one)(x, arm)
