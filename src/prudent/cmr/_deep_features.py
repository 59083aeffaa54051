"""Networks and loss of DFPV: feature maps of the parts of x and c, and two nested ridge regressions on a batch."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from prudent.nn import NetworkSpec, spec_from_json, spec_to_json

# Blocks with more columns than this enter through learnt features only.
MAX_RAW = 10
SOLVER_TOLERANCE = 1e-4
SOLVER_STEPS = 30


class BlockFeatures(eqx.Module):
    """(1, columns, last hidden layer of a network) of some columns; (1,) where there are none."""

    network: Any
    columns: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, spec: NetworkSpec, columns: tuple[int, ...], key: PRNGKeyArray) -> "BlockFeatures":
        """Features of ``columns``; the network's output layer is not used."""
        return cls(spec(len(columns), 1, key=key) if columns else None, columns)

    @property
    def width(self) -> int:
        """Number of features."""
        if self.network is None:
            return 1
        block = jax.ShapeDtypeStruct((1, len(self.columns)), jnp.float32)
        hidden = eqx.filter_eval_shape(lambda network, rows: network.hidden(rows), self.network, block)
        return 1 + hidden.shape[-1] + (len(self.columns) if len(self.columns) <= MAX_RAW else 0)

    def __call__(self, array: Float[Array, "n d"], *, key: PRNGKeyArray | None = None) -> Float[Array, "n p"]:
        one = jnp.ones((*array.shape[:-1], 1))
        if self.network is None:
            return one
        block = array[..., list(self.columns)]
        raw = [block] if len(self.columns) <= MAX_RAW else []
        return jnp.concatenate([one, *raw, self.network.hidden(block, key=key)], axis=-1)


def products(u: Float[Array, "n p"], v: Float[Array, "n q"]) -> Float[Array, "n pq"]:
    """All products of a feature of ``u`` with one of ``v``, row by row."""
    return (u[..., :, None] * v[..., None, :]).reshape(*u.shape[:-1], -1)


class FeatureFunction(eqx.Module):
    """f(x): linear in the products of features of the known and the modelled columns."""

    known: BlockFeatures
    modelled: BlockFeatures
    coefficient: Float[Array, "p o"]

    def __call__(self, x: Float[Array, "n d"], *, key: PRNGKeyArray | None = None) -> Float[Array, "n o"]:
        return products(self.known(x, key=key), self.modelled(x, key=key)) @ self.coefficient


class Stages(eqx.Module):
    """f and the features of stage 1."""

    function: FeatureFunction
    known: BlockFeatures
    instruments: BlockFeatures

    def given(self, c: Float[Array, "n m"], *, key: PRNGKeyArray | None = None) -> Float[Array, "n q"]:
        """Features of c."""
        return products(self.known(c, key=key), self.instruments(c, key=key))


class FeatureMaps(eqx.Module):
    """Features of rows (x, c): of the known columns, of the modelled ones, and of c."""

    stages: Stages

    def __call__(self, rows: Float[Array, "n d"], *, key: PRNGKeyArray | None = None) -> tuple[Array, Array, Array]:
        function = self.stages.function
        n_x = len(function.known.columns) + len(function.modelled.columns)
        x, c = rows[:, :n_x], rows[:, n_x:]
        return function.known(x), function.modelled(x), self.stages.given(c)


class TwoStageLoss(eqx.Module):
    """Errors of both stages on a batch; every part of the network follows the gradient of its own stage only."""

    first_penalty: float = eqx.field(static=True)
    second_penalty: float = eqx.field(static=True)

    def __call__(self, stages: Stages, batch: Any, key: PRNGKeyArray | None) -> Float[Array, " n"]:
        half = len(batch["y"]) // 2
        given = stages.given(batch["c"], key=key)
        modelled = stages.function.modelled(batch["x"], key=key)[:, 1:]
        # Stage 1: solved on the first half, judged on the second, in units of the features' spread.
        fixed = jax.lax.stop_gradient(modelled)
        miss = fixed[half:] - given[half:] @ training_ridge(given[:half], fixed[:half], self.first_penalty)
        first = jnp.mean(miss**2 / (jnp.var(fixed, axis=0) + 1e-3), axis=1)
        # Stage 2: features of c stand still; those of w move through the solution of stage 1.
        still = jax.lax.stop_gradient(given)
        expected = still[half:] @ training_ridge(still[:half], modelled[:half], self.first_penalty)
        expected = jnp.concatenate([jnp.ones((len(expected), 1)), expected], axis=1)
        design = products(stages.function.known(batch["x"][half:], key=key), expected)
        solution = training_ridge(design, batch["y"][half:], self.second_penalty)
        error = jnp.sum((batch["y"][half:] - design @ solution) ** 2, axis=1)
        second = error + self.second_penalty * jnp.sum(solution**2)
        value = first + second
        # One value per row of the batch, as the training loop wants it; its mean is that of the second half.
        return jnp.concatenate([jnp.full(half, jnp.mean(value)), value])


def training_ridge(
    features: Float[Array, "n p"], target: Float[Array, "n t"], penalty: float | Array
) -> Float[Array, "p t"]:
    """(features' features / n + penalty)^-1 features' target / n, by conjugate gradients.

    Not by LAPACK: batched factorisations within a compiled loop can block XLA's thread pool for good (seen with
    jaxlib on two cores). Training needs no more digits; the final regressions are solved exactly.
    """
    gram = features.T @ features / len(features) + penalty * jnp.eye(features.shape[1])
    diagonal = jnp.diagonal(gram)[:, None]
    right = features.T @ target / len(features)
    solution, _ = jax.scipy.sparse.linalg.cg(
        lambda v: gram @ v, right, tol=SOLVER_TOLERANCE, maxiter=SOLVER_STEPS, M=lambda v: v / diagonal
    )
    return solution


@dataclasses.dataclass(frozen=True)
class StageBuilder:
    """Networks of the three parts, and which columns they take."""

    known_network: NetworkSpec
    modelled_network: NetworkSpec
    instrument_network: NetworkSpec
    known: tuple[int, ...]
    modelled: tuple[int, ...]
    known_in_c: tuple[int, ...]
    instruments: tuple[int, ...]

    def function(self, in_size: int, out_size: int, *, key: PRNGKeyArray) -> FeatureFunction:
        """A new f."""
        known_key, modelled_key = jax.random.split(key)
        known = BlockFeatures.of(self.known_network, self.known, known_key)
        modelled = BlockFeatures.of(self.modelled_network, self.modelled, modelled_key)
        return FeatureFunction(known, modelled, jnp.zeros((known.width * modelled.width, out_size)))

    def stages(self, in_size: int, out_size: int, *, key: PRNGKeyArray) -> Stages:
        """A new f with new features of stage 1."""
        function_key, known_key, instrument_key = jax.random.split(key, 3)
        return Stages(
            self.function(in_size, out_size, key=function_key),
            BlockFeatures.of(self.known_network, self.known_in_c, known_key),
            BlockFeatures.of(self.instrument_network, self.instruments, instrument_key),
        )

    def to_json(self) -> dict[str, Any]:
        """What is needed to rebuild f."""
        return {
            "known_network": spec_to_json(self.known_network),
            "modelled_network": spec_to_json(self.modelled_network),
            "known": list(self.known),
            "modelled": list(self.modelled),
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "StageBuilder":
        """Rebuild from :meth:`to_json`; features of stage 1 are gone."""
        known, modelled = (spec_from_json(record[name]) for name in ("known_network", "modelled_network"))
        return cls(known, modelled, modelled, tuple(record["known"]), tuple(record["modelled"]), (), ())
