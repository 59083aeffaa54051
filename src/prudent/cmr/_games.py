"""Losses in which two networks have different objectives: the moment game of DeepGMM, the two regressions of DFIV.

Each loss is one number whose gradient gives every part its own objective (gradients are stopped where a part is only
looked at), so that the training loop of :mod:`prudent.nn` serves both. The part that is not f is called ``critic``.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from prudent.nn import joined_features


class Game(eqx.Module):
    """f and its critic: test functions g(c) in DeepGMM, features of c in DFIV."""

    function: Any
    critic: Any
    penalty: jax.Array
    """Ridge parameters (first stage, second stage) of DFIV; no gradient reaches them."""


def _two_keys(key: Any) -> Any:
    return (None, None) if key is None else jax.random.split(key)


def moment_game(game: Game, batch: Any, key: Any) -> jax.Array:
    """E[g(C) e] - E[(g(C) e~)^2] / 4 with e = Y - f(X): f makes it small, g makes it large.

    e~ belongs to the weights of f before the step (Bennett, Kallus and Schnabel, 2019, the smoothed objective).
    """
    stop = jax.lax.stop_gradient
    function_key, critic_key = _two_keys(key)
    e = batch["y"] - game.function(batch["x"], key=function_key)
    g = game.critic(batch["c"], key=critic_key)
    against = jnp.sum(g * stop(e), axis=-1)
    return jnp.sum(stop(g) * e, axis=-1) - (against - against**2 / 4)


def ridge(features: jax.Array, target: jax.Array, penalty: jax.Array, weight: jax.Array | None = None) -> jax.Array:
    """argmin_W mean |target - features W|^2 + penalty |W|^2, the mean with optional weights of rows."""
    weighted = features / len(features) if weight is None else features * (weight / jnp.sum(weight))[:, None]
    gram = weighted.T @ features + penalty * jnp.eye(features.shape[1], dtype=features.dtype)
    return jax.scipy.linalg.solve(gram, weighted.T @ target, assume_a="pos")


def two_regressions(game: Game, batch: Any, key: Any) -> jax.Array:
    """Both losses of DFIV on the two halves of a batch (Xu et al., 2021).

    On the first half the action's features are regressed on those of c; the gradient reaches the features of c. On the
    second half the outcome is regressed on the predicted features, times those of the context; the gradient reaches
    the action's and the context's features, also through the closed form of the first regression.
    """
    stop = jax.lax.stop_gradient
    first_penalty, second_penalty = stop(game.penalty)
    half = len(batch["y"]) // 2
    function_key, critic_key = _two_keys(key)
    given = joined_features(game.critic, batch["c"], critic_key)
    given = jnp.concatenate([jnp.ones_like(given[:, :1]), given], axis=-1)
    action, context = game.function.features(batch["x"], key=function_key)

    weight = ridge(given[:half], stop(action[:half]), first_penalty)
    first = jnp.sum((stop(action[:half]) - given[:half] @ weight) ** 2, axis=-1) + first_penalty * jnp.sum(weight**2)

    weight = ridge(stop(given[:half]), action[:half], first_penalty)
    design = game.function.design(stop(given[half:]) @ weight, context[half:])
    outer = ridge(design, batch["y"][half:], second_penalty)
    second = jnp.sum((batch["y"][half:] - design @ outer) ** 2, axis=-1) + second_penalty * jnp.sum(outer**2)
    return jnp.concatenate([first, second])


def solve_two_stages(game: Game, data: Any, weight: jax.Array, penalties: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights (penalties, p, outcomes) of the second stage from rows with ``weight``, and squared errors of all rows.

    The features stay as they are; ``penalties`` are those of the second stage.
    """
    given = joined_features(game.critic, data["c"], None)
    given = jnp.concatenate([jnp.ones_like(given[:, :1]), given], axis=-1)
    action, context = game.function.features(data["x"])
    predicted = given @ ridge(given, action, game.penalty[0], weight)
    design = game.function.design(predicted, context)
    outer = jax.vmap(lambda penalty: ridge(design, data["y"], penalty, weight))(penalties)
    error = jax.vmap(lambda w: jnp.sum((data["y"] - design @ w) ** 2, axis=-1))(outer)
    return outer, error


@eqx.filter_jit
def solve_stack(games: Game, data: Any, weight: jax.Array, penalties: jax.Array) -> tuple[jax.Array, jax.Array]:
    """:func:`solve_two_stages` for every member of a stack with its own row weights (members, rows).

    Returns the weights (members, penalties, p, outcomes) and the mean squared error on the rows of weight zero
    (members, penalties). One member at a time: the design matrix of all rows is the largest array of a fit.
    """
    params, static = eqx.partition(games, eqx.is_array)

    def one(member: Any) -> tuple[jax.Array, jax.Array]:
        outer, error = solve_two_stages(eqx.combine(member[0], static), data, member[1], penalties)
        held = 1.0 - member[1]
        return outer, error @ held / jnp.maximum(jnp.sum(held), 1.0)

    return jax.lax.map(one, (params, weight))


def choose_by_moments(residual: np.ndarray, critic: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Largest moment violation that any critic finds in each candidate on held-out rows: smaller is better.

    residual (candidates, rows, outcomes), critic (critics, rows, outcomes), reference (rows, outcomes): the residual
    of a preliminary f, whose square weights the moments of all candidates alike.
    """
    n = residual.shape[1]
    moments = np.tensordot(residual, critic, axes=([1, 2], [1, 2])) / n
    spread = np.mean(np.einsum("gno,no->gn", critic, reference) ** 2, axis=1)
    return (moments - spread / 4).max(axis=1)
