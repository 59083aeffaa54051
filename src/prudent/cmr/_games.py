"""Losses in which two networks have different objectives: the moment game of DeepGMM, the two regressions of DFIV.

Each loss is one number whose gradient gives every part its own objective (gradients are stopped where a part is only
looked at), so that the training loop of :mod:`prudent.nn` serves both. The part that is not f is called ``critic``.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from prudent.cmr._deep_features import training_ridge
from prudent.cmr._gp import ridge
from prudent.nn import apply_in_blocks, joined_features


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
    given = with_constant(joined_features(game.critic, batch["c"], critic_key))
    action, context = game.function.features(batch["x"], key=function_key)

    weight = training_ridge(given[:half], stop(action[:half]), first_penalty)
    first = jnp.sum((stop(action[:half]) - given[:half] @ weight) ** 2, axis=-1) + first_penalty * jnp.sum(weight**2)

    weight = training_ridge(stop(given[:half]), action[:half], first_penalty)
    design = game.function.design(stop(given[half:]) @ weight, context[half:])
    outer = training_ridge(design, batch["y"][half:], second_penalty)
    second = jnp.sum((batch["y"][half:] - design @ outer) ** 2, axis=-1) + second_penalty * jnp.sum(outer**2)
    return jnp.concatenate([first, second])


class StageFeatures(eqx.Module):
    """Features of rows (x, c) in DFIV: of the action, of the context, and (1, features of c)."""

    game: Game

    def __call__(self, rows: jax.Array, *, key: Any = None) -> tuple[jax.Array, jax.Array, jax.Array]:
        function = self.game.function
        n_x = len(function.columns) + function.n_second
        return *function.features(rows[:, :n_x]), with_constant(joined_features(self.game.critic, rows[:, n_x:], None))


def with_constant(features: jax.Array) -> jax.Array:
    """A column of ones, and the features."""
    return jnp.concatenate([jnp.ones_like(features[:, :1]), features], axis=-1)


def solve_stack(
    games: Game, data: dict[str, np.ndarray], train: list[np.ndarray], held: list[np.ndarray], penalties: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Both regressions of DFIV for every member on its rows ``train``, exactly; the features stay as they are.

    Returns weights (members, penalties, p, outcomes) of the second stage for each of its ``penalties``, and the mean
    squared errors (members, penalties) on the rows ``held``.
    """
    features = apply_in_blocks(StageFeatures(games), np.hstack([data["x"], data["c"]]))
    weights, errors = [], []
    for member, (rows, others) in enumerate(zip(train, held, strict=True)):
        action, context, given = (np.asarray(part[member], dtype=float) for part in features)
        first = _solve(given[rows], action[rows], float(games.penalty[member, 0]))
        design = np.asarray(games.function.design(given @ first, context), dtype=float)
        outer = np.stack([_solve(design[rows], data["y"][rows], float(penalty)) for penalty in penalties])
        weights.append(outer)
        errors.append([np.mean(np.sum((data["y"][others] - design[others] @ w) ** 2, axis=1)) for w in outer])
    return np.stack(weights), np.array(errors)


def _solve(features: np.ndarray, target: np.ndarray, penalty: float) -> np.ndarray:
    """argmin_W mean |target - features W|^2 + penalty |W|^2."""
    return ridge(features.T @ features / len(features), features.T @ target / len(features), penalty)


def choose_by_moments(residual: np.ndarray, critic: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Largest moment violation that any critic finds in each candidate on held-out rows: smaller is better.

    residual (candidates, rows, outcomes), critic (critics, rows, outcomes), reference (rows, outcomes): the residual
    of a preliminary f, whose square weights the moments of all candidates alike.
    """
    n = residual.shape[1]
    moments = np.tensordot(residual, critic, axes=([1, 2], [1, 2])) / n
    spread = np.mean(np.einsum("gno,no->gn", critic, reference) ** 2, axis=1)
    return (moments - spread / 4).max(axis=1)
