"""PMMR: proximal maximum moment restriction, in closed form (Mastouri et al., 2021; Zhang et al., 2020).

f minimises the largest moment E[(Y - f(X)) g(C)] over the unit ball of a kernel space of functions g, squared, plus a
ridge penalty. With residuals r the squared moment is r' K_C r / n^2: a quadratic form, so f solves linear equations.
"""

from typing import Any, Self

import numpy as np

from prudent.cmr._arrays import Scaler
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._kernel_estimator import KernelEstimator
from prudent.cmr._problem import check_positive
from prudent.cmr._product_kernel import KernelBasis, ProductKernel, c_blocks, ridge_path, x_blocks

PENALTIES = np.logspace(-9, 0, 19)
WIDTHS = (0.5, 1.0, 2.0)


class PMMR(KernelEstimator):
    """Kernel estimator of f in E[Y - f(X) | C] = 0 by maximum moment restriction.

    Parameters
    ----------
    n_landmarks : int, default=500
        Nystroem landmarks of both kernels. As many as rows gives the exact closed form.
    bandwidths : sequence of float, default=(0.5, 1, 2)
        Candidates for the kernel of x, in multiples of the median distance between rows.
    moment_bandwidth : float, default=0.5
        Bandwidth of the kernel of c, in the same unit. It defines the criterion, so data cannot choose it.
    penalties : sequence of float, optional
        Candidates for the ridge penalty; default: 19 values from 1e-9 to 1.
    n_folds : int, default=5
        Folds on whose held-out moment (a U-statistic) bandwidth and penalty are compared. The smoothest pair within
        a standard error of the best is taken.

    Attributes
    ----------
    bandwidth_, penalty_ : float
        The chosen candidates.
    """

    def __init__(
        self,
        *,
        n_landmarks: int = 500,
        bandwidths: tuple[float, ...] = WIDTHS,
        moment_bandwidth: float = 0.5,
        penalties: tuple[float, ...] | None = None,
        n_folds: int = 5,
    ):
        self.n_landmarks = n_landmarks
        self.bandwidths = bandwidths
        self.moment_bandwidth = moment_bandwidth
        self.penalties = penalties
        self.n_folds = n_folds

    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit f on arrays ``y (n, outcomes)``, ``x (n, d)``, ``c (n, m)``."""
        check_positive("moment_bandwidth", self.moment_bandwidth)
        problem = self._read(y, x, c, seed, groups)
        rng = np.random.default_rng(seed)
        folds = cross_fit_folds(len(problem.y), self.n_folds, rng, problem.groups)
        penalties = np.sort(np.asarray(PENALTIES if self.penalties is None else self.penalties, dtype=float))
        target = np.asarray(Scaler.of(problem.y).forward(problem.y), dtype=float)
        c_kernel = ProductKernel.median(problem.c, c_blocks(problem), rng, self.moment_bandwidth)
        # The linear part of this basis is left out: moments against a Gaussian kernel are what the method is about.
        c_basis = KernelBasis.of(c_kernel, problem.c, self.n_landmarks, rng)
        moments = c_kernel(problem.c, c_basis.landmarks) @ c_basis.whitening
        x_kernel = ProductKernel.median(problem.x, x_blocks(problem), rng)
        candidates, losses = [], []
        for width in sorted(self.bandwidths):
            basis = KernelBasis.of(x_kernel.scaled(width), problem.x, self.n_landmarks, rng)
            candidates.append((basis, basis(problem.x), float(width)))
            losses.append(held_out_moments(moments, candidates[-1][1], target, folds, penalties))
        chosen, number = smoothest(np.stack(losses))
        (basis, features, self.bandwidth_), self.penalty_ = candidates[chosen], float(penalties[number])
        coefficient = solve_moments(
            moments.T @ features / len(problem.y), moments.T @ target / len(problem.y), np.array([self.penalty_])
        )[0]
        return self._store(basis, coefficient, problem)


def solve_moments(matrix: np.ndarray, vector: np.ndarray, penalties: np.ndarray) -> np.ndarray:
    """argmin |vector - matrix b|^2 + penalty |b|^2 for every penalty."""
    return ridge_path(matrix.T @ matrix, matrix.T @ vector, penalties)


def held_out_moments(
    moments: np.ndarray, features: np.ndarray, target: np.ndarray, folds: list[np.ndarray], penalties: np.ndarray
) -> np.ndarray:
    """U-statistic of the squared moment on every held-out fold: (penalties, folds).

    ``moments`` (n, q) are features of c whose inner products are its kernel.
    """
    matrices = [moments[rows].T @ features[rows] for rows in folds]
    vectors = [moments[rows].T @ target[rows] for rows in folds]
    all_matrix, all_vector, n = sum(matrices), sum(vectors), len(target)
    loss = np.zeros((len(penalties), len(folds)))
    for fold, (rows, matrix, vector) in enumerate(zip(folds, matrices, vectors, strict=True)):
        n_train, n_held = n - len(rows), len(rows)
        path = solve_moments((all_matrix - matrix) / n_train, (all_vector - vector) / n_train, penalties)
        diagonal = np.sum(moments[rows] ** 2, axis=1)
        for number, coefficient in enumerate(path):
            residual = target[rows] - features[rows] @ coefficient
            square = np.sum((vector - matrix @ coefficient) ** 2) - diagonal @ np.sum(residual**2, axis=1)
            loss[number, fold] = square / max(n_held * (n_held - 1), 1)
    return loss


def smoothest(losses: np.ndarray) -> tuple[int, int]:
    """The smoothest candidate (width, penalty) that is not worse than the best one by more than a standard error.

    ``losses`` (widths, penalties, folds) are held-out moments; widths and penalties grow. A step in width (a doubling)
    counts as much as two in the penalty (a factor of ten): the widest kernel with hardly a penalty is not smooth, nor
    is the narrowest with a large one. Squared moments are noisy,
    and their minimum alone picks functions that are far too rough.
    """
    mean = losses.mean(axis=2)
    best = np.unravel_index(np.argmin(mean), mean.shape)
    excess = losses - losses[best]
    error = excess.std(axis=2, ddof=1) / np.sqrt(losses.shape[2])
    admissible = np.argwhere(excess.mean(axis=2) <= error)
    width, penalty = max(admissible, key=lambda candidate: (2 * candidate[0] + candidate[1], candidate[0]))
    return int(width), int(penalty)
