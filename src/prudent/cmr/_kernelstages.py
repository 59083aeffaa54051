"""The two stages of kernel instrumental-variable regression, exact or with random features.

The first half learns what is expected of the kernel of the actions given C, the second half f; either stage's penalty
is the one of least loss in the half that the stage did not use.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh

from prudent.cmr._arrays import Matrix
from prudent.cmr._gp import distances

PENALTIES = 10.0 ** np.arange(-7.0, 0.6, 0.5)


@dataclasses.dataclass(frozen=True)
class Halves:
    """Both halves in standard units: actions, known columns, C and outcome."""

    action: tuple[Matrix, Matrix]
    known: tuple[Matrix, Matrix]
    c: tuple[Matrix, Matrix]
    y: tuple[Matrix, Matrix]


@dataclasses.dataclass(frozen=True)
class Penalties:
    """Ridge parameters per row of the stages; None where the data choose."""

    first: float | None
    second: float | None


@dataclasses.dataclass(frozen=True)
class Solution:
    """Arrays for prediction, the penalties, and the losses of both stages in the rows that their stage did not use."""

    arrays: dict[str, np.ndarray]
    penalties: tuple[float, float]
    losses: tuple[np.ndarray, np.ndarray]


def solve_exact(data: Halves, given: Penalties) -> Solution:
    """The closed form of the paper, with the kernel of the known columns outside the embedding."""
    n_first, n_second = len(data.y[0]), len(data.y[1])
    c_first, c_second = gaussian(data.c[0], data.c[0]), gaussian(data.c[1], data.c[0])
    action = gaussian(data.action[0], data.action[0])
    across = gaussian(data.action[1], data.action[0])
    values, vectors = eigh(c_first)
    values = np.maximum(values, 0.0)
    rotated, rotated_action = c_second @ vectors, vectors.T @ action @ vectors
    rotated_across = across @ vectors

    def first_loss(penalty: float) -> np.ndarray:
        # |k(a_j, .) - sum_i gamma_ij k(a_i, .)|^2 for the rows of the other half.
        gamma = rotated / (values + n_first * penalty)
        return 1 - 2 * np.sum(gamma * rotated_across, axis=1) + np.sum((gamma @ rotated_action) * gamma, axis=1)

    first, loss_1 = _smallest(first_loss, given.first)
    inverse = (vectors / (values + n_first * first)) @ vectors.T
    embedding = inverse @ c_second.T  # (first, second)
    embedding_first = inverse @ c_first
    smooth = action @ embedding
    kernel = gaussian(data.known[1], data.known[1])
    cross = gaussian(data.known[0], data.known[1])
    if data.action[0].shape[1]:
        kernel = kernel * (embedding.T @ smooth)
        cross = cross * (embedding_first.T @ smooth)

    def solve(penalty: float) -> np.ndarray:
        ridge = kernel + n_second * penalty * np.eye(n_second)
        return cho_solve(cho_factor(ridge, lower=True), data.y[1])

    second, loss_2 = _smallest(lambda p: _squares(data.y[0] - cross @ solve(p)), given.second)
    arrays = {"action": data.action[0], "known": data.known[1], "embedding": embedding, "weights": solve(second)}
    return Solution(arrays, (first, second), (loss_1, loss_2))


@dataclasses.dataclass(frozen=True)
class Draws:
    """Random frequencies and phases, and the part of the rows and outputs on which the first penalty is judged."""

    action: np.ndarray
    known: np.ndarray
    phase: np.ndarray
    c: np.ndarray
    c_phase: np.ndarray
    columns: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, data: Halves, n_features: int, seed: int) -> "Draws":
        rng = np.random.default_rng(seed)
        n_action, n_known, n_c = (part[0].shape[1] for part in (data.action, data.known, data.c))
        return cls(
            action=rng.standard_normal((n_action, n_features)),
            known=rng.standard_normal((n_known, n_features)),
            phase=rng.uniform(0, 2 * np.pi, n_features),
            c=rng.standard_normal((n_c, n_features)),
            c_phase=rng.uniform(0, 2 * np.pi, n_features),
            # All of them would cost more than the fit.
            columns=rng.permutation(2 * n_features)[:200],
            rows=rng.permutation(len(data.y[1]))[:1000],
        )


@dataclasses.dataclass(frozen=True)
class Regressors:
    """Random features of c in both halves, and the spectrum of their products in the first."""

    features: tuple[Matrix, Matrix]
    values: np.ndarray
    vectors: Matrix

    @classmethod
    def of(cls, data: Halves, draws: Draws) -> "Regressors":
        root = np.sqrt(2 / len(draws.phase))
        first, second = (np.hstack([root * np.cos(c @ draws.c + draws.c_phase), np.ones((len(c), 1))]) for c in data.c)
        values, vectors = eigh(first.T @ first)
        return cls((first, second), np.maximum(values, 0.0), vectors)


@dataclasses.dataclass(frozen=True)
class FirstStage:
    """Regression of cos(w.a) and sin(w.a) on features of c, of both halves; penalty, and losses in the second half.

    Without coefficients the features are cos and sin themselves.
    """

    coefficients: np.ndarray | None
    features: tuple[Matrix, Matrix]
    penalty: float
    losses: np.ndarray

    @functools.cached_property
    def means(self) -> list[Matrix]:
        """What is expected of cos(w.a) and sin(w.a) in both halves."""
        return [part if self.coefficients is None else part @ self.coefficients for part in self.features]


def solve_random(data: Halves, draws: Draws, given: Penalties) -> Solution:
    """Random Fourier features: the mean of cos(w.a + v.k + b) given c is that of cos(w.a), sin(w.a), turned."""
    return second_stage(data, draws, first_stage(data, draws, Regressors.of(data, draws), given.first), given.second)


def first_stage(data: Halves, draws: Draws, regressors: Regressors, given: float | None) -> FirstStage:
    """What is expected of the features of the actions given c."""
    if not data.action[0].shape[1]:
        # With nothing to model, cos(0) and sin(0) are known.
        features = _turned(data.action[0] @ draws.action), _turned(data.action[1] @ draws.action)
        return FirstStage(None, features, float(given or PENALTIES[0]), np.zeros(1))
    targets = [_turned(action @ draws.action) for action in (data.action[0], data.action[1][draws.rows])]
    (c_first, c_second), values, vectors = regressors.features, regressors.values, regressors.vectors
    n_first = len(c_first)
    moment = vectors.T @ (c_first.T @ targets[0])
    rotated, judged = c_second[draws.rows] @ vectors, moment[:, draws.columns]
    goal = targets[1][:, draws.columns]
    # |goal - rotated diag(d) judged|^2 = |goal|^2 - 2 cross.d + d.square.d; a guess for every penalty costs more.
    total, cross = np.sum(goal**2), np.sum((rotated.T @ goal) * judged, axis=1)
    square = (rotated.T @ rotated) * (judged @ judged.T)

    def loss(penalty: float) -> float:
        d = 1 / (values + n_first * penalty)
        return float(total - 2 * cross @ d + d @ square @ d)

    penalty = _least(loss, given)
    shrunk = 1 / (values + n_first * penalty)[:, None]
    losses = _squares(goal - rotated @ (shrunk * judged))
    return FirstStage(vectors @ (shrunk * moment), regressors.features, penalty, losses)


def second_stage(data: Halves, draws: Draws, first: FirstStage, given: float | None) -> Solution:
    """Ridge regression of y on what is expected of the features of (a, k)."""
    n_features, n_second = len(draws.phase), len(data.y[1])
    designs = []
    for mean, known in zip(first.means, data.known, strict=True):
        turn = known @ draws.known + draws.phase
        designs.append(np.cos(turn) * mean[:, :n_features] - np.sin(turn) * mean[:, n_features:])
    gram_values, gram_vectors = eigh(designs[1].T @ designs[1])
    gram_values = np.maximum(gram_values, 0.0)
    second_moment = gram_vectors.T @ (designs[1].T @ data.y[1])
    check = designs[0] @ gram_vectors

    def second_loss(penalty: float) -> np.ndarray:
        # Features are of size 1, not root: the penalty is that of the kernel, which is their mean product.
        weights = second_moment / (gram_values + n_second * penalty * n_features / 2)[:, None]
        return _squares(data.y[0] - check @ weights)

    second, loss = _smallest(second_loss, given)
    weights = gram_vectors @ (second_moment / (gram_values + n_second * second * n_features / 2)[:, None])
    arrays = {
        "action_frequency": draws.action,
        "known_frequency": draws.known,
        "phase": draws.phase,
        "weights": weights,
    }
    return Solution(arrays, (first.penalty, second), (first.losses, loss))


def gaussian(left: Matrix, right: Matrix) -> np.ndarray:
    """exp(-|u - w|^2 / 2); one where there are no columns."""
    return np.exp(-0.5 * distances(left, right))


def _least(loss: Callable[[float], float], given: float | None) -> float:
    """The penalty of least loss, or the given one."""
    return float(min(PENALTIES, key=lambda penalty: loss(float(penalty)))) if given is None else float(given)


def _smallest(losses: Callable[[float], np.ndarray], given: float | None) -> tuple[float, np.ndarray]:
    """The penalty of least mean loss, or the given one, with its losses by row."""
    penalty = _least(lambda trial: float(np.mean(losses(trial))), given)
    return penalty, losses(penalty)


def _turned(angle: Matrix) -> Matrix:
    return np.hstack([np.cos(angle), np.sin(angle)])


def _squares(residual: Matrix) -> np.ndarray:
    return np.mean(residual**2, axis=1)
