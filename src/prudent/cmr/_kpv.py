"""KPV: two-stage kernel proxy variables (Mastouri et al., 2021); without columns in common it is kernel IV.

Stage 1 regresses kernel sections of the modelled columns W on c = (known, instruments). Stage 2 regresses y on the
conditional mean k(a, .) E[k(W, .) | c] of the features of f, where a are the known columns. Every row's conditional
mean comes from stage-1 fits on other rows.
"""

from typing import Any, Self

import numpy as np

from prudent.cmr._arrays import Scaler
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._kernel_estimator import KernelEstimator
from prudent.cmr._problem import Problem, check_positive
from prudent.cmr._product_kernel import KernelBasis, ProductKernel, c_blocks, fit_ridge, out_of_fold_ridge, x_blocks

PENALTIES = np.logspace(-8, 0, 17)
WIDTHS = (0.5, 1.0, 2.0)
N_SECTIONS = 30


class KPV(KernelEstimator):
    """Two-stage kernel estimator of f in E[Y - f(X) | C] = 0.

    Parameters
    ----------
    n_landmarks : int, default=500
        Nystroem landmarks of both kernels; f lies in the span of the kernel sections at the landmarks of x.
    bandwidths : sequence of float, default=(0.5, 1, 2)
        Candidates for the kernel of x, in multiples of the median distance between rows; compared by the
        cross-validated error of stage 2.
    instrument_bandwidths : sequence of float, default=(0.5, 1, 2)
        The same for the kernel of c; compared by the cross-validated error of stage 1 at the median bandwidth of x.
    penalties : sequence of float, optional
        Candidates for both ridge penalties; default: 17 values from 1e-8 to 1.
    n_folds : int, default=5
        Folds of both stages' cross-validation and of the conditional means.

    Attributes
    ----------
    bandwidth_, instrument_bandwidth_, first_penalty_, second_penalty_ : float
        The chosen candidates.
    """

    def __init__(
        self,
        *,
        n_landmarks: int = 500,
        bandwidths: tuple[float, ...] = WIDTHS,
        instrument_bandwidths: tuple[float, ...] = WIDTHS,
        penalties: tuple[float, ...] | None = None,
        n_folds: int = 5,
    ):
        self.n_landmarks = n_landmarks
        self.bandwidths = bandwidths
        self.instrument_bandwidths = instrument_bandwidths
        self.penalties = penalties
        self.n_folds = n_folds

    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit f on arrays; columns of ``x`` that equal a column of ``c`` are known given c, exactly."""
        for value in self.instrument_bandwidths:
            check_positive("every one of instrument_bandwidths", value)
        problem = self._read(y, x, c, seed, groups)
        rng = np.random.default_rng(seed)
        folds = cross_fit_folds(len(problem.y), self.n_folds, rng, problem.groups)
        penalties = np.asarray(PENALTIES if self.penalties is None else self.penalties, dtype=float)
        target = np.asarray(Scaler.of(problem.y).forward(problem.y), dtype=float)
        x_kernel = ProductKernel.median(problem.x, x_blocks(problem), rng)
        c_kernel = ProductKernel.median(problem.c, c_blocks(problem), rng)

        self.instrument_bandwidth_, c_features, self.first_penalty_ = self._first_stage(
            problem, x_kernel, c_kernel, folds, penalties, rng
        )
        best = np.inf
        for width in self.bandwidths:
            basis = KernelBasis.of(x_kernel.scaled(width), problem.x, self.n_landmarks, rng)
            mean = conditional_features(basis, problem, c_features, folds, self.first_penalty_)
            ridge = fit_ridge(mean, target, folds, penalties)
            if ridge.loss < best:
                best, chosen = ridge.loss, (basis, ridge, float(width))
        basis, ridge, self.bandwidth_ = chosen
        self.second_penalty_ = ridge.penalty
        return self._store(basis, ridge.coefficient, problem)

    def _first_stage(self, problem, x_kernel, c_kernel, folds, penalties, rng):
        """Bandwidth and features of c, and the penalty, that best predict kernel sections of the modelled columns."""
        # A few sections are enough to compare settings; the stage itself predicts all of them.
        sections = modelled_sections(KernelBasis.of(x_kernel, problem.x, N_SECTIONS, rng), problem)[0]
        best = np.inf
        for width in self.instrument_bandwidths:
            features = KernelBasis.of(c_kernel.scaled(width), problem.c, self.n_landmarks, rng)(problem.c)
            ridge = fit_ridge(features, sections, folds, penalties)
            if ridge.loss < best:
                best, chosen = ridge.loss, (float(width), features, ridge.penalty)
        return chosen


def modelled_sections(basis: KernelBasis, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Kernel sections of the modelled columns at the landmarks (n, landmarks), and their linear part."""
    if not problem.modelled:
        return np.ones((len(problem.y), len(basis.landmarks))), np.empty((len(problem.y), 0))
    factor = basis.kernel.factor(len(basis.kernel.blocks) - 1, problem.x, basis.landmarks)
    linear = [j for j in problem.modelled if j in basis.linear]
    return factor, basis.kernel.standard(problem.x)[:, linear]


def conditional_features(
    basis: KernelBasis, problem: Problem, c_features: np.ndarray, folds: list[np.ndarray], penalty: float
) -> np.ndarray:
    """E[features(X) | c] of every row, from ridge regressions on the rows of other folds."""
    sections, linear = modelled_sections(basis, problem)
    expected = out_of_fold_ridge(c_features, np.hstack([sections, linear]), folds, penalty)
    at_landmarks, expected_linear = np.split(expected, [sections.shape[1]], axis=1)
    if problem.known:
        at_landmarks = at_landmarks * basis.kernel.factor(0, problem.x, basis.landmarks)
    linear_part = basis.linear_part(problem.x)
    for number, j in enumerate(j for j in problem.modelled if j in basis.linear):
        # The constant stands first in the linear part.
        linear_part[:, 1 + basis.linear.index(j)] = expected_linear[:, number]
    return basis.lift(at_landmarks, linear_part)
