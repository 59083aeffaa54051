"""Offline contextual bandits, which know no instruments: lower confidence bounds on a plain regression.

They regress the logged outcome on context and logged action and choose the action whose estimate, less a multiple of
its uncertainty, is largest. An instrument is left out, or is one more context. With hidden confounding the regression
is wrong however large the data are, and so is the policy; they are here to show it. Without confounding they work.

LinLCB (Jin et al., 2021), KernLCB (Valko et al., 2013), NeuraLCB, NeuralLinLCB and NeuralLinGreedy (Nguyen-Tang et al.,
2022). Actions are discrete; a continuous action is cut into ``n_actions`` levels, and a logged action counts as the
nearest one. The published versions stream over the data; these fit the whole log at once.
"""

import abc
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from prudent._checks import check_count
from prudent.cmr._arrays import Matrix, Scaler, as_matrix
from prudent.cmr._base import check_seed
from prudent.cmr._problem import check_positive
from prudent.errors import DataError, NotFittedError
from prudent.iv._policy import check_actions, interval_grid

# Rows times actions scored at a time.
_BLOCK = 20_000


class OfflineBandit(BaseEstimator, abc.ABC):
    """What the five share: levels of the action, standard units, and the choice of the largest score.

    Subclasses implement ``_fit(x, arm, y)`` and ``_scores(x) -> (rows, arms)`` in standard units, where ``x`` has a
    leading column of ones.
    """

    def __init__(self, *, n_actions: int = 20, beta: float = 0.1, seed: int = 0):
        self.n_actions = n_actions
        self.beta = beta
        self.seed = seed

    def fit(
        self,
        *,
        outcome: Any,
        action: Any,
        context: Any = None,
        instruments: Any = None,
        images: Any = None,
        actions: Any = None,
    ) -> Self:
        """Fit on a log of contexts, actions and outcomes, one row each.

        Parameters
        ----------
        outcome, action : (n,) or (n, 1) arrays
        context : (n, columns) array
        instruments : (n, columns) array, optional
            More context: these methods have no other use for it. ``act`` then needs it, too.
        images : (height, width), optional
            Refused: these methods see no images.
        actions : (low, high) tuple, or list of numbers, optional
            A range to be cut into ``n_actions`` levels, or the levels. Default: the range of the log.
        """
        check_seed(self.seed)
        self._check_settings()
        name = type(self).__name__
        if context is None:
            raise DataError(f"{name} chooses by the context, got none. Give context=..., which may be the instruments.")
        if images is not None:
            raise DataError(
                f"{name} sees no images, got images={images!r}. Give features of them, or leave images out: pixels are "
                "columns then."
            )
        y = as_matrix("outcome", outcome)
        a = as_matrix("action", action, n_rows=len(y))
        for role, matrix in (("outcome", y), ("action", a)):
            if matrix.shape[1] != 1:
                raise DataError(f"{role} must be one column for {name}, got {matrix.shape[1]}. Choose one.")
        x = as_matrix("context", context, n_rows=len(y))
        z = np.empty((len(y), 0)) if instruments is None else as_matrix("instruments", instruments, n_rows=len(y))
        x = np.hstack([x, z])
        if np.ptp(y) == 0:
            raise DataError(f"The outcome is constant ({y[0, 0]:g}): there is nothing to choose by.")
        # Only after all checks: a fit that fails leaves an earlier one as it was.
        self.actions_, self.n_instruments_ = self._levels(a, actions), z.shape[1]
        self.scaler_, self.y_scaler_ = Scaler.of(x), Scaler.of(y)
        arm = np.argmin(np.abs(a - self.actions_), axis=1)
        self._fit(self._standard(x), arm, (y[:, 0] - self.y_scaler_.mean[0]) / self.y_scaler_.scale[0])
        return self

    def act(self, context: Any, instruments: Any = None) -> np.ndarray:
        """The chosen level of the action for every context, (n,)."""
        best = np.argmax(self.scores(context, instruments), axis=1)
        return self.actions_[best]

    def scores(self, context: Any, instruments: Any = None) -> np.ndarray:
        """Estimate less ``beta`` times its uncertainty for every context and level, in the units of the outcome."""
        if not hasattr(self, "actions_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted. Call fit(...) first.")
        x = as_matrix("context", context)
        if (instruments is None) != (self.n_instruments_ == 0):
            raise DataError("Give instruments to act if and only if they were given to fit.")
        if instruments is not None:
            x = np.hstack([x, as_matrix("instruments", instruments, n_rows=len(x), n_columns=self.n_instruments_)])
        if x.shape[1] != len(self.scaler_.mean):
            expected = len(self.scaler_.mean) - self.n_instruments_
            raise DataError(f"context must have {expected} columns as in fit, got {x.shape[1] - self.n_instruments_}.")
        rows = self._standard(x)
        block = max(1, _BLOCK // len(self.actions_))
        parts = [self._scores(rows[start : start + block]) for start in range(0, len(rows), block)]
        return self.y_scaler_.back(np.concatenate(parts))

    def _check_settings(self) -> None:
        is_number = isinstance(self.beta, int | float | np.number) and not isinstance(self.beta, bool)
        if not is_number or not 0 <= self.beta < np.inf:
            raise ValueError(f"beta must be a number of at least 0, got {self.beta!r}.")
        settings = self.get_params(deep=False)
        for name, least in (("n_actions", 2), ("max_rows", 1), ("batch_size", 1), ("n_steps", 1)):
            if name in settings:
                check_count(name, settings[name], least)
        if "widths" in settings:
            widths = settings["widths"]
            if not isinstance(widths, Sequence) or isinstance(widths, str) or not widths:
                raise DataError(f"widths must be a sequence of one or more whole numbers, got {widths!r}.")
            for width in widths:
                check_count("every one of widths", width)
        for name in ("ridge", "length_scale", "noise", "learning_rate"):
            if name in settings:
                check_positive(name, settings[name])

    @abc.abstractmethod
    def _fit(self, x: Matrix, arm: np.ndarray, y: np.ndarray) -> None: ...

    @abc.abstractmethod
    def _scores(self, x: Matrix) -> np.ndarray: ...

    def _standard(self, x: Matrix) -> Matrix:
        return np.column_stack([np.ones(len(x)), self.scaler_.forward(x).astype(float)])

    def _levels(self, a: Matrix, actions: Any) -> np.ndarray:
        if actions is None:
            actions = float(a.min()), float(a.max())
        check_actions(actions)
        if isinstance(actions, tuple) and len(actions) == 2:
            return interval_grid(actions, self.n_actions)[:, 0]
        levels = np.unique(as_matrix("actions", actions))
        if len(levels) < 2:
            raise DataError(f"actions must name at least two levels, got {actions!r}.")
        return levels


class LinLCB(OfflineBandit):
    """A ridge regression of the outcome on the context for every action; its uncertainty is phi' Sigma^-1 phi.

    Parameters
    ----------
    beta : float
        Weight of the uncertainty.
    ridge : float
        Penalty (lambda_0).
    """

    def __init__(self, *, n_actions: int = 20, beta: float = 0.1, ridge: float = 0.1, seed: int = 0):
        super().__init__(n_actions=n_actions, beta=beta, seed=seed)
        self.ridge = ridge

    def _fit(self, x: Matrix, arm: np.ndarray, y: np.ndarray) -> None:
        d = x.shape[1]
        self.precision_ = np.tile(self.ridge * np.eye(d), (len(self.actions_), 1, 1))
        target = np.zeros((len(self.actions_), d))
        for k in range(len(self.actions_)):
            rows = x[arm == k]
            self.precision_[k] += rows.T @ rows
            target[k] = rows.T @ y[arm == k]
        self.covariance_ = np.linalg.inv(self.precision_)
        self.coefficient_ = np.einsum("kij,kj->ki", self.covariance_, target)

    def _scores(self, x: Matrix) -> np.ndarray:
        width = np.sqrt(np.einsum("ni,kij,nj->nk", x, self.covariance_, x, optimize=True))
        return x @ self.coefficient_.T - self.beta * width


class KernLCB(OfflineBandit):
    """A Gaussian process over (context, action) with a Gaussian kernel, on at most ``max_rows`` rows of the log.

    Parameters
    ----------
    length_scale : float
        Of the kernel, in standard units. Contexts of different actions enter disjoint coordinates.
    noise : float
        Variance of the outcome's noise, in standard units. The published value, 1e-6, interpolates the noise.
    """

    def __init__(
        self,
        *,
        n_actions: int = 20,
        beta: float = 0.1,
        length_scale: float = 1.0,
        noise: float = 0.1,
        max_rows: int = 1000,
        seed: int = 0,
    ):
        super().__init__(n_actions=n_actions, beta=beta, seed=seed)
        self.length_scale = length_scale
        self.noise = noise
        self.max_rows = max_rows

    def _fit(self, x: Matrix, arm: np.ndarray, y: np.ndarray) -> None:
        from scipy.linalg import cho_factor, cho_solve

        if len(x) > self.max_rows:
            rows = np.random.default_rng(self.seed).choice(len(x), self.max_rows, replace=False)
            x, arm, y = x[rows], arm[rows], y[rows]
        self.x_, self.arm_ = x, arm
        gram = self._kernel(x, arm[None, :] == arm[:, None])
        factor = cho_factor(gram + self.noise * np.eye(len(x)), lower=True)
        self.weight_ = cho_solve(factor, y)
        # Single precision: the product with it takes nearly all the time of act.
        self.inverse_ = cho_solve(factor, np.eye(len(x))).astype(np.float32)

    def _scores(self, x: Matrix) -> np.ndarray:
        scores = np.empty((len(x), len(self.actions_)))
        for k in range(len(self.actions_)):
            cross = self._kernel(x, np.broadcast_to(self.arm_ == k, (len(x), len(self.arm_))))
            single = cross.astype(np.float32)
            variance = np.maximum(1.0 - np.einsum("ni,ni->n", single @ self.inverse_, single), 0.0)
            scores[:, k] = cross @ self.weight_ - self.beta * np.sqrt(variance)
        return scores

    def _kernel(self, x: Matrix, same_arm: np.ndarray) -> np.ndarray:
        """Gaussian kernel of x (x) e_arm: the inner product of two contexts counts for the same action only."""
        inner = np.where(same_arm, x @ self.x_.T, 0.0)
        square = np.sum(x**2, axis=1)[:, None] + np.sum(self.x_**2, axis=1) - 2 * inner
        return np.exp(-np.maximum(square, 0.0) / (2 * self.length_scale**2))


class NeuraLCB(OfflineBandit):
    """A small network f over x (x) e_action; its uncertainty comes from its gradient, g' Lambda^-1 g / m.

    Parameters
    ----------
    widths : tuple of int
        Hidden layers, each with layer normalisation.
    ridge : float
        lambda_0 in Lambda = lambda_0 I + sum g g' / m, of which the diagonal is kept, one for every action.
    weight_decay, learning_rate, batch_size, n_steps
        Training.
    """

    def __init__(
        self,
        *,
        n_actions: int = 20,
        beta: float = 0.1,
        ridge: float = 0.1,
        widths: tuple[int, ...] = (20, 20),
        weight_decay: float = 1e-4,
        learning_rate: float = 1e-3,
        batch_size: int = 50,
        n_steps: int = 3000,
        seed: int = 0,
    ):
        super().__init__(n_actions=n_actions, beta=beta, seed=seed)
        self.ridge = ridge
        self.widths = widths
        self.weight_decay = weight_decay
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_steps = n_steps

    def _fit(self, x: Matrix, arm: np.ndarray, y: np.ndarray) -> None:
        from prudent.iv._lcb_network import GradientNetwork

        self.network_ = GradientNetwork.fit(x, arm, y, n_arms=len(self.actions_), settings=self)
        gradient = self.network_.gradients(x, arm)
        self.diagonal_ = np.full((len(self.actions_), gradient.shape[1]), self.ridge)
        for k in range(len(self.actions_)):
            self.diagonal_[k] += np.sum(gradient[arm == k] ** 2, axis=0)
        self._fit_mean(gradient, y)

    def _fit_mean(self, gradient: np.ndarray, y: np.ndarray) -> None:
        """The network itself is the estimate."""

    def _mean(self, x: Matrix, arm: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return self.network_.values(x, arm)

    def _scores(self, x: Matrix) -> np.ndarray:
        scores = np.empty((len(x), len(self.actions_)))
        for k in range(len(self.actions_)):
            arm = np.full(len(x), k)
            gradient = self.network_.gradients(x, arm)
            width = np.sqrt(np.sum(gradient**2 / self.diagonal_[k], axis=1))
            scores[:, k] = self._mean(x, arm, gradient) - self.beta * width
        return scores


class NeuralLinLCB(NeuraLCB):
    """As :class:`NeuraLCB`, with a ridge regression on the network's gradient as the estimate."""

    def _fit_mean(self, gradient: np.ndarray, y: np.ndarray) -> None:
        # (G' G + ridge) theta = G' y by way of the smaller of the two Gram matrices.
        n, p = gradient.shape
        if p <= n:
            self.theta_ = np.linalg.solve(gradient.T @ gradient + self.ridge * np.eye(p), gradient.T @ y)
        else:
            self.theta_ = gradient.T @ np.linalg.solve(gradient @ gradient.T + self.ridge * np.eye(n), y)

    def _mean(self, x: Matrix, arm: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return gradient @ self.theta_


class NeuralLinGreedy(NeuralLinLCB):
    """As :class:`NeuralLinLCB` without regard to uncertainty (``beta`` is not used)."""

    def _scores(self, x: Matrix) -> np.ndarray:
        scores = np.empty((len(x), len(self.actions_)))
        for k in range(len(self.actions_)):
            scores[:, k] = self.network_.gradients(x, np.full(len(x), k)) @ self.theta_
        return scores
