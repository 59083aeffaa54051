"""Specifications of networks: small frozen records that build a network and can be written to JSON.

A saved model names its specification, so that it is rebuilt without running anybody's code. Any other callable
``build(in_size, out_size, *, key)`` that returns an Equinox module is accepted for fitting, too; such a model cannot be
saved.
"""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from prudent.nn._networks import (
    MLP,
    FeatureProduct,
    ImageNetwork,
    Network,
    Tabular,
    activation_function,
)


class NetworkSpec(Protocol):
    """Builds a network for given sizes."""

    def __call__(self, in_size: int, out_size: int, *, key: PRNGKeyArray) -> Network: ...


@dataclasses.dataclass(frozen=True)
class MLPSpec:
    """Plain perceptron; ``widths=()`` is a linear function."""

    widths: tuple[int, ...] = (128, 64)
    activation: str = "silu"
    dropout_rate: float = 0.0

    def __call__(self, in_size: int, out_size: int, *, key: PRNGKeyArray) -> Network:
        _check(self)
        return MLP(in_size, out_size, self.widths, activation=self.activation, dropout_rate=self.dropout_rate, key=key)


@dataclasses.dataclass(frozen=True)
class TabularSpec:
    """Perceptron with periodic embeddings of numeric columns, for tables. The default of every neural estimator.

    ``embed=None`` lets the estimator name the columns: those that take many values, except actions, because an action
    is asked for where there are no data and waves do not extrapolate; and none where there are more than twelve, or
    fewer than 250 rows for each.
    """

    widths: tuple[int, ...] = (128, 64)
    activation: str = "silu"
    dropout_rate: float = 0.1
    n_frequencies: int = 24
    embedding_size: int = 8
    frequency_scale: float = 0.7
    embed: tuple[int, ...] | None = None

    def __call__(self, in_size: int, out_size: int, *, key: PRNGKeyArray) -> Network:
        _check(self)
        if not self.embed:
            return MLPSpec(self.widths, self.activation, self.dropout_rate)(in_size, out_size, key=key)
        return Tabular(
            in_size,
            out_size,
            self.widths,
            tuple(self.embed),
            n_frequencies=self.n_frequencies,
            embedding_size=self.embedding_size,
            frequency_scale=self.frequency_scale,
            activation=self.activation,
            dropout_rate=self.dropout_rate,
            key=key,
        )


@dataclasses.dataclass(frozen=True)
class ImageSpec:
    """Convolutional features of the first or last ``prod(shape)`` columns, joined with the remaining columns.

    ``place="last"`` suits a context that ends with an image: in ``IVRegression`` the context stands behind the action
    and behind the instruments.
    """

    shape: tuple[int, int, int] = (28, 28, 1)
    channels: tuple[int, ...] = (16, 32)
    widths: tuple[int, ...] = (128, 64)
    activation: str = "silu"
    dropout_rate: float = 0.1
    place: str = "first"

    def __call__(self, in_size: int, out_size: int, *, key: PRNGKeyArray) -> Network:
        _check(self)
        if self.place not in ("first", "last"):
            raise ValueError(f"place must be 'first' or 'last', got {self.place!r}.")
        return ImageNetwork(
            in_size,
            out_size,
            self.shape,
            self.channels,
            self.widths,
            is_last=self.place == "last",
            activation=self.activation,
            dropout_rate=self.dropout_rate,
            key=key,
        )

    def image_columns(self, in_size: int) -> slice:
        """Where the image stands among ``in_size`` columns."""
        n_pixels = self.shape[0] * self.shape[1] * self.shape[2]
        return slice(in_size - n_pixels, in_size) if self.place == "last" else slice(0, n_pixels)


@dataclasses.dataclass(frozen=True)
class ProductSpec:
    """Products of learnt features of ``columns`` (by ``first``) with those of all other columns (by ``second``)."""

    first: "MLPSpec | TabularSpec | ImageSpec"
    second: "MLPSpec | TabularSpec | ImageSpec"
    columns: tuple[int, ...]

    def __call__(self, in_size: int, out_size: int, *, key: PRNGKeyArray) -> Network:
        first_key, second_key = jax.random.split(key)
        n_first, n_second = len(self.columns), in_size - len(self.columns)
        product = FeatureProduct(
            first=self.first(n_first, 1, key=first_key) if n_first else None,
            second=self.second(n_second, 1, key=second_key) if n_second else None,
            free_weight=jnp.zeros((0, out_size)),
            columns=tuple(self.columns),
            n_second=n_second,
        )
        width = jax.eval_shape(lambda: product.design(*product.features(jnp.zeros((1, in_size))))).shape[-1]
        return dataclasses.replace(product, free_weight=jnp.zeros((width, out_size)))

    def image_columns(self, in_size: int) -> list[int] | None:
        """Where the image of ``second`` stands among ``in_size`` columns, if it takes one."""
        others = [j for j in range(in_size) if j not in self.columns]
        return others[self.second.image_columns(len(others))] if isinstance(self.second, ImageSpec) else None


SPECS = {spec.__name__: spec for spec in (MLPSpec, TabularSpec, ImageSpec, ProductSpec)}


def spec_to_json(spec: Any) -> dict[str, Any]:
    """A record of ``spec``, or an error if it is not one of ours and so cannot be rebuilt from text."""
    if type(spec).__name__ not in SPECS:
        raise TypeError(
            f"Only models with a network specification of prudent.nn ({', '.join(SPECS)}) can be saved, "
            f"got {type(spec).__name__}. Use one of these, or keep the fitted object in memory."
        )
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    parts = {name: spec_to_json(v) if dataclasses.is_dataclass(v) else v for name, v in fields.items()}
    return {"kind": type(spec).__name__, **parts}


def spec_from_json(record: dict[str, Any]) -> NetworkSpec:
    """The specification that :func:`spec_to_json` wrote."""

    def read(value: Any) -> Any:
        return spec_from_json(value) if isinstance(value, dict) else tuple(value) if isinstance(value, list) else value

    return SPECS[record["kind"]](**{name: read(value) for name, value in record.items() if name != "kind"})


def _check(spec: Any) -> None:
    activation_function(spec.activation)
    if any(w < 1 for w in spec.widths):
        raise ValueError(f"Network widths must be positive, got {spec.widths}.")
    if not 0.0 <= spec.dropout_rate < 1.0:
        raise ValueError(f"dropout_rate must be in [0, 1), got {spec.dropout_rate}.")
