"""Networks as Equinox modules that act on whole batches: ``(n, in_size)`` to ``(n, out_size)``.

Weight decay acts on arrays of two and more axes, except those whose names begin with ``free_``.
"""

from collections.abc import Callable
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

# Scales of a mixture start a little below one in standard units.
SCALE_SHIFT = 0.5

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "tanh": jnp.tanh,
    "softplus": jax.nn.softplus,
}


def activation_function(name: str) -> Callable[[Array], Array]:
    """The activation called ``name``, or an error that lists the known ones."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {name!r}.")
    return ACTIVATIONS[name]


class Network(Protocol):
    """Maps a batch ``(n, in_size)`` to ``(n, out_size)``; ``key=None`` means evaluation (no dropout)."""

    def __call__(self, x: Float[Array, "n i"], *, key: PRNGKeyArray | None = None) -> Float[Array, "n o"]: ...


def dropout(x: Array, rate: float | Array, key: PRNGKeyArray | None) -> Array:
    """Inverted dropout with cheap masks: 8 bits a unit, from an integer hash of the unit's number and one random word.

    JAX's own generator would cost more than the matrix products here. A rate that is an array is given in 256ths.
    """
    if key is None or (isinstance(rate, float) and rate == 0.0):
        return x
    word = jax.random.bits(key, (), dtype=jnp.uint32)
    h = jax.lax.iota(jnp.uint32, -(-x.size // 4)) * jnp.uint32(0x9E3779B9) + word
    # Multiply-xorshift finaliser: every input bit reaches every output bit with probability close to one half.
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    octets = jax.lax.bitcast_convert_type(h ^ (h >> 16), jnp.uint8).reshape(-1)[: x.size].reshape(x.shape)
    # Eight bits resolve the rate to 1/256; the kept units are rescaled by the rate that was really used.
    dropped = round(rate * 256) if isinstance(rate, float) else rate
    return jnp.where(octets.astype(jnp.int32) >= dropped, x * (256 / (256 - dropped)), 0.0)


def gaussian(key: PRNGKeyArray, shape: tuple[int, ...], scale: float) -> Array:
    """Initial weights, drawn on the host: compiling JAX's generator for every shape takes longer than many a fit."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return jnp.asarray(scale * rng.standard_normal(shape), dtype=jnp.float32)


class Linear(eqx.Module):
    """Affine map on a batch; weights are scaled so that activations keep their size."""

    weight: Float[Array, "i o"]
    bias: Float[Array, " o"]

    def __init__(self, in_size: int, out_size: int, *, key: PRNGKeyArray, gain: float = 1.0):
        self.weight = gaussian(key, (in_size, out_size), gain / max(in_size, 1) ** 0.5)
        self.bias = jnp.zeros(out_size)

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        return x @ self.weight + self.bias


class MLP(eqx.Module):
    """Multi-layer perceptron plus a linear map, on a batch, with dropout after each hidden layer.

    The linear map (``free_skip``) is not decayed: regularisation pulls the network towards a linear function, not
    towards a constant. No widths leave the linear map alone.
    """

    layers: tuple[Linear, ...]
    free_skip: Float[Array, "i o"]
    free_bias: Float[Array, " o"]
    activation: str = eqx.field(static=True)
    dropout_rate: float = eqx.field(static=True)
    dropped: Array | None
    """A rate in 256ths that takes the place of ``dropout_rate``: how candidates with several rates share a program."""

    def __init__(
        self,
        in_size: int,
        out_size: int,
        widths: tuple[int, ...],
        *,
        n_raw: int | None = None,
        activation: str = "silu",
        dropout_rate: float = 0.0,
        key: PRNGKeyArray,
    ):
        sizes = (in_size, *widths, out_size) if widths else ()
        keys = jax.random.split(key, max(len(sizes), 1))
        # Gain sqrt(2) for the hidden layers (rectifier-like activations halve the variance); the output starts at zero,
        # so that training starts at the linear map.
        gains = [2.0**0.5] * len(widths) + [0.0]
        self.layers = tuple(
            Linear(i, o, key=k, gain=g) for i, o, k, g in zip(sizes[:-1], sizes[1:], keys, gains, strict=False)
        )
        # Only the raw columns, which come first, enter the linear map.
        self.free_skip = jnp.zeros((in_size if n_raw is None else n_raw, out_size))
        self.free_bias = jnp.zeros(out_size)
        self.activation = activation
        self.dropout_rate = dropout_rate
        self.dropped = None

    def hidden(self, x: Float[Array, "*n i"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*n h"]:
        """Values of the last hidden layer."""
        rate = float(self.dropout_rate) if self.dropped is None else self.dropped
        act = activation_function(self.activation)
        keys = [None] * len(self.layers) if key is None else list(jax.random.split(key, max(len(self.layers), 1)))
        for layer, k in zip(self.layers[:-1], keys, strict=False):
            x = dropout(act(layer(x)), rate, k)
        return x

    def __call__(self, x: Float[Array, "*n i"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*n o"]:
        linear = x[..., : self.free_skip.shape[0]] @ self.free_skip + self.free_bias
        return linear + self.layers[-1](self.hidden(x, key=key)) if self.layers else linear


def wave(u: Array) -> Array:
    """A sine of period 1, by a polynomial on the reduced argument (error below 3e-4).

    As a feature it does what ``sin(2 pi u)`` does, and costs a fraction of it on a CPU.
    """
    r = u - jax.lax.stop_gradient(jnp.round(u))
    r2 = r * r
    return r * (6.27863 + r2 * (-41.09367 + r2 * (77.92973 - r2 * 56.08471)))


class Tabular(eqx.Module):
    """Perceptron that sees some columns also through waves, so that it can follow narrow features.

    A plain perceptron smooths a bump that is narrow beside the spread of its column until it has seen very many rows.
    Columns named by ``embed`` enter raw and through ``relu(linear(waves))`` (periodic embedding, Gorishniy, Rubachev
    and Babenko, 2022, with random frequencies that are not trained); all others, such as indicators and the action,
    enter raw only.
    """

    free_frequency: Float[Array, "e f"]
    weight: Float[Array, "e f2 w"]
    bias: Float[Array, "e w"]
    body: MLP
    embed: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        out_size: int,
        widths: tuple[int, ...],
        embed: tuple[int, ...],
        *,
        n_frequencies: int,
        embedding_size: int,
        frequency_scale: float,
        activation: str,
        dropout_rate: float,
        key: PRNGKeyArray,
    ):
        frequency_key, weight_key, body_key = jax.random.split(key, 3)
        n_embed, n_waves = len(embed), 2 * n_frequencies
        self.embed = embed
        self.free_frequency = gaussian(frequency_key, (n_embed, n_frequencies), frequency_scale)
        self.weight = gaussian(weight_key, (n_embed, n_waves, embedding_size), (2.0 / n_waves) ** 0.5)
        self.bias = jnp.zeros((n_embed, embedding_size))
        self.body = MLP(
            in_size + n_embed * embedding_size,
            out_size,
            widths,
            n_raw=in_size,
            activation=activation,
            dropout_rate=dropout_rate,
            key=body_key,
        )

    def _embedded(self, x: Float[Array, "*n i"]) -> Float[Array, "*n j"]:
        parts = [x]
        frequency = jax.lax.stop_gradient(self.free_frequency)
        for number, column in enumerate(self.embed):
            turns = x[..., column, None] * frequency[number]
            waves = jnp.concatenate([wave(turns), wave(turns + 0.25)], axis=-1)
            parts.append(jax.nn.relu(waves @ self.weight[number] + self.bias[number]))
        return jnp.concatenate(parts, axis=-1)

    def hidden(self, x: Float[Array, "*n i"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*n h"]:
        """Values of the last hidden layer."""
        return self.body.hidden(self._embedded(x), key=key)

    def __call__(self, x: Float[Array, "*n i"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*n o"]:
        return self.body(self._embedded(x), key=key)


class FeatureProduct(eqx.Module):
    """Linear in products of learnt features: ``f(x) = w . [(1, x_1, a(x_1)) (x) (1, b(x_2)), x_2]``.

    ``a`` and ``b`` are the last hidden layers of networks of two groups of columns. Raw columns of the second group
    enter by themselves only: there may be many, and products with each of them would cost accuracy. The weights ``w``
    are not trained by gradients: whoever trains the features solves for them.
    """

    first: Any
    second: Any
    free_weight: Float[Array, "p o"]
    columns: tuple[int, ...] = eqx.field(static=True)
    n_second: int = eqx.field(static=True)

    def split(self, x: Float[Array, "*n i"]) -> tuple[Float[Array, "*n a"], Float[Array, "*n b"]]:
        """The two groups of columns."""
        others = [j for j in range(x.shape[-1]) if j not in self.columns]
        return x[..., list(self.columns)], x[..., others]

    def features(self, x: Float[Array, "*n i"], *, key: PRNGKeyArray | None = None) -> tuple[Array, Array]:
        """(x_1, a(x_1)) and (x_2, b(x_2))."""
        keys = (None, None) if key is None else jax.random.split(key)
        first, second = self.split(x)
        return joined_features(self.first, first, keys[0]), joined_features(self.second, second, keys[1])

    def design(self, first: Float[Array, "*n a"], second: Float[Array, "*n b"]) -> Float[Array, "*n p"]:
        """What f is linear in, from the features of the two groups."""
        raw, learnt = second[..., : self.n_second], second[..., self.n_second :]
        one = jnp.ones_like(first[..., :1])
        a, b = jnp.concatenate([one, first], axis=-1), jnp.concatenate([one, learnt], axis=-1)
        product = (a[..., :, None] * b[..., None, :]).reshape(*first.shape[:-1], -1)
        return jnp.concatenate([product, raw], axis=-1)

    def __call__(self, x: Float[Array, "*n i"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*n o"]:
        return self.design(*self.features(x, key=key)) @ jax.lax.stop_gradient(self.free_weight)


def joined_features(network: Any, x: Float[Array, "*n i"], key: PRNGKeyArray | None) -> Float[Array, "*n f"]:
    """Raw columns and the last hidden layer; only the columns (there may be none) where there is no network."""
    return x if network is None else jnp.concatenate([x, network.hidden(x, key=key)], axis=-1)


class Mixture(eqx.Module):
    """Diagonal Gaussian mixtures for a batch: the output of a mixture density network."""

    log_weight: Float[Array, "*n k"]
    mean: Float[Array, "*n k d"]
    scale: Float[Array, "*n k d"]

    def log_prob(self, x: Float[Array, "*n d"]) -> Float[Array, " *n"]:
        """Exact log-density."""
        z = (x[..., None, :] - self.mean) / self.scale
        log_component = -0.5 * jnp.sum(z**2 + jnp.log(2 * jnp.pi) + 2 * jnp.log(self.scale), axis=-1)
        return jax.nn.logsumexp(self.log_weight + log_component, axis=-1)

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*n d"]:
        """One draw per row: a component is drawn, then its Gaussian (component draws are never averaged)."""
        which_key, noise_key = jax.random.split(key)
        which = jax.random.categorical(which_key, self.log_weight)[..., None, None]
        mean = jnp.take_along_axis(self.mean, which, axis=-2)[..., 0, :]
        scale = jnp.take_along_axis(self.scale, which, axis=-2)[..., 0, :]
        return mean + scale * jax.random.normal(noise_key, mean.shape)

    def expectation(self) -> Float[Array, "*n d"]:
        """Mean of the mixture."""
        return jnp.sum(jnp.exp(self.log_weight)[..., None] * self.mean, axis=-2)


class MixtureDensity(eqx.Module):
    """Conditional density of ``d`` columns as a mixture of diagonal Gaussians whose parameters a network computes."""

    network: Network
    n_components: int = eqx.field(static=True)
    n_columns: int = eqx.field(static=True)

    def __call__(self, c: Float[Array, "n i"], *, key: PRNGKeyArray | None = None) -> Mixture:
        k, d = self.n_components, self.n_columns
        out = self.network(c, key=key)
        logits, mean, raw = jnp.split(out, [k, k + k * d], axis=-1)
        shape = (*out.shape[:-1], k, d)
        # Softplus keeps scales from exploding, the floor keeps a component from collapsing onto one row.
        scale = jax.nn.softplus(raw.reshape(shape) + SCALE_SHIFT) + 1e-2
        return Mixture(jax.nn.log_softmax(logits, axis=-1), mean.reshape(shape), scale)


def start_at_linear(network: Any, weight: Array, bias: Array, noise: Array) -> Any:
    """A network (or a stack) whose linear map is ``weight (..., i, o)`` and ``bias (..., o)``, where it has one.

    For a mixture every component gets the map, with offsets of the order of the residual ``noise (..., o)``.
    """
    if isinstance(network, MixtureDensity):
        k, d = network.n_components, network.n_columns
        zeros = jnp.zeros((*weight.shape[:-1], 1))
        spread = jnp.linspace(-1.0, 1.0, k)[:, None] if k > 1 else jnp.zeros((1, 1))
        means = jnp.reshape(bias[..., None, :] + spread * noise[..., None, :], (*bias.shape[:-1], k * d))
        # Inverse of the softplus by which MixtureDensity makes scales positive.
        raw = jnp.log(jnp.expm1(jnp.maximum(noise, 0.02))) - SCALE_SHIFT
        full_weight = [jnp.repeat(zeros, k, -1), jnp.tile(weight, k), jnp.repeat(zeros, k * d, -1)]
        full_bias = [jnp.zeros((*bias.shape[:-1], k)), means, jnp.tile(raw, k)]
        inner = start_at_linear(
            network.network, jnp.concatenate(full_weight, -1), jnp.concatenate(full_bias, -1), noise
        )
        return eqx.tree_at(lambda n: n.network, network, inner)
    if isinstance(network, Tabular):
        return eqx.tree_at(lambda n: n.body, network, start_at_linear(network.body, weight, bias, noise))
    if isinstance(network, MLP):
        return eqx.tree_at(lambda n: (n.free_skip, n.free_bias), network, (weight, bias))
    if isinstance(network, ImageNetwork):
        # The columns beside the image are the last inputs of the body; pixels have no linear map.
        columns = network.other_columns(weight.shape[-2])
        n_others = columns.stop - columns.start
        skip = network.body.free_skip
        skip = skip.at[..., skip.shape[-2] - n_others :, :].set(weight[..., columns, :])
        return eqx.tree_at(lambda n: (n.body.free_skip, n.body.free_bias), network, (skip, bias))
    return network


def with_dropout(networks: Any, rates: np.ndarray) -> Any:
    """A stack whose members have their own dropout rates, in every perceptron that they contain."""
    dropped = jnp.asarray(np.round(np.asarray(rates) * 256), jnp.int32)

    def set_rate(node: Any) -> Any:
        if not isinstance(node, MLP):
            return node
        return eqx.tree_at(lambda mlp: mlp.dropped, node, dropped, is_leaf=lambda leaf: leaf is None)

    return jax.tree.map(set_rate, networks, is_leaf=lambda node: isinstance(node, MLP))


class Categorical(eqx.Module):
    """Conditional law of a discrete variable: log-probabilities of its levels, from a network."""

    network: Network

    def __call__(self, c: Float[Array, "n i"], *, key: PRNGKeyArray | None = None) -> Float[Array, "n l"]:
        return jax.nn.log_softmax(self.network(c, key=key), axis=-1)


class ImageNetwork(eqx.Module):
    """Convolutions over the pixel columns, then a perceptron over image features and all other columns.

    The first (or last) ``prod(shape)`` columns are the image, row by row and channels last; the others (price, time,
    ...) join after the convolutions.
    """

    kernels: tuple[Float[Array, "i o"], ...]
    offsets: tuple[Float[Array, " o"], ...]
    body: MLP
    shape: tuple[int, int, int] = eqx.field(static=True)
    is_last: bool = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        out_size: int,
        shape: tuple[int, int, int],
        channels: tuple[int, ...],
        widths: tuple[int, ...],
        *,
        is_last: bool = False,
        activation: str,
        dropout_rate: float,
        key: PRNGKeyArray,
    ):
        height, width, depth = shape
        if in_size < height * width * depth:
            raise ValueError(
                f"An image of shape {shape} needs {height * width * depth} columns, got {in_size}. "
                "Give the shape of your images as (height, width, channels)."
            )
        body_key, *keys = jax.random.split(key, len(channels) + 1)
        sizes = (depth, *channels)
        self.kernels = tuple(
            gaussian(k, (9 * i, o), (2 / (9 * i)) ** 0.5) for i, o, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )
        self.offsets = tuple(jnp.zeros(o) for o in channels)
        for _ in channels:
            height, width = -(-height // 2), -(-width // 2)
        features = height * width * sizes[-1] + in_size - shape[0] * shape[1] * shape[2]
        self.body = MLP(features, out_size, widths, activation=activation, dropout_rate=dropout_rate, key=body_key)
        self.shape = shape
        self.is_last = is_last

    def other_columns(self, in_size: int) -> slice:
        """The columns beside the image."""
        n_pixels = self.shape[0] * self.shape[1] * self.shape[2]
        return slice(0, in_size - n_pixels) if self.is_last else slice(n_pixels, in_size)

    def _features(self, x: Float[Array, "*n i"]) -> Float[Array, "*n j"]:
        rows = x.reshape(-1, x.shape[-1])
        beside = self.other_columns(rows.shape[-1])
        others = rows[:, beside]
        image = rows[:, beside.stop :] if self.is_last else rows[:, : beside.start]
        image = image.reshape(-1, *self.shape)
        for kernel, offset in zip(self.kernels, self.offsets, strict=True):
            image = jax.nn.relu(_patches(image) @ kernel + offset)
        features = jnp.concatenate([image.reshape(len(rows), -1), others], axis=-1)
        return features.reshape(*x.shape[:-1], -1)

    def hidden(self, x: Float[Array, "*n i"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*n h"]:
        """Values of the last hidden layer."""
        return self.body.hidden(self._features(x), key=key)

    def __call__(self, x: Float[Array, "*n i"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*n o"]:
        return self.body(self._features(x), key=key)


def _patches(image: Float[Array, "n h w i"]) -> Float[Array, "n h2 w2 j"]:
    """3 x 3 patches at every second pixel, zero-padded: a convolution of stride 2 is a matrix product with them.

    A stack of networks turns a convolution into a grouped one, for which the CPU backend has no fast code.
    """
    height, width = image.shape[1:3]
    padded = jnp.pad(image, ((0, 0), (1, 1 + height % 2), (1, 1 + width % 2), (0, 0)))
    rows, columns = -(-height // 2), -(-width // 2)
    shifted = [padded[:, i : i + 2 * rows - 1 : 2, j : j + 2 * columns - 1 : 2] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1)
