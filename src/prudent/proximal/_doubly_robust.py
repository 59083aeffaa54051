"""PKDR: proximal kernel doubly robust estimation of a continuous treatment's effect (Wu et al., 2024).

Besides the outcome bridge h there is a treatment bridge q with E[q(A, V, X) | A, W, X] = p(A) p(W, X) / p(A, W, X).
Then E[Y | do(a)] = E[h(a, W, X)] + E[q(A, V, X) (Y - h(A, W, X)) | A = a] if h or q is right, whichever it is. This q
is the paper's, times the density of A; no density is estimated, because E[q m(A, W, X)] is for every m the mean of m
over independent A and (W, X), which data give at once.
"""

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone

from prudent._checks import check_count
from prudent.cmr import estimator_from_state
from prudent.cmr._arrays import Matrix, as_matrix, is_discrete
from prudent.cmr._base import MomentEstimator
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._pairs import even_choice, mean_over_others
from prudent.cmr._pmmr import PENALTIES, PMMR, WIDTHS, smoothest, solve_moments
from prudent.cmr._problem import check_candidates, check_positive
from prudent.cmr._product_kernel import KernelBasis, ProductKernel
from prudent.proximal._direct import DirectEffect, Proxies

# Learnt arrays that are written to disk as they are.
SAVED = ("coefficient", "weight", "correction", "others", "treatment")


class PKDR(DirectEffect):
    """Doubly robust dose response from an outcome bridge and a treatment bridge.

    Parameters
    ----------
    outcome_bridge : MomentEstimator, default=PMMR()
        Estimator of h; any moment estimator will do.
    n_landmarks : int, default=500
        Nystroem landmarks of the treatment bridge.
    bandwidths : sequence of float, default=(0.5, 1, 2)
        Candidates for the kernel of q, in multiples of the median distance between rows.
    moment_bandwidth : float, default=0.5
        Bandwidth of the kernel of the functions m, in the same unit.
    local_bandwidth : float, optional
        Width of the window in a, in standard deviations of the treatment; default: n^(-1/5). A treatment with few
        values is matched exactly.
    n_folds : int, default=5
        Folds on whose held-out moment the bandwidth and the penalty of q are compared.

    Attributes
    ----------
    outcome_bridge_ : MomentEstimator
        The fitted h; columns (A, W, X).
    weight_ : (n, 1) array
        q at the rows of the data.
    bandwidth_, penalty_ : float
        The chosen candidates.
    """

    def __init__(
        self,
        outcome_bridge: MomentEstimator | None = None,
        *,
        n_landmarks: int = 500,
        bandwidths: tuple[float, ...] = WIDTHS,
        moment_bandwidth: float = 0.5,
        local_bandwidth: float | None = None,
        n_folds: int = 5,
    ):
        self.outcome_bridge = outcome_bridge
        self.n_landmarks = n_landmarks
        self.bandwidths = bandwidths
        self.moment_bandwidth = moment_bandwidth
        self.local_bandwidth = local_bandwidth
        self.n_folds = n_folds

    def treatment_bridge(self, treatment: Any, treatment_proxy: Any, context: Any = None) -> np.ndarray:
        """q(a, v, x), shape (n,)."""
        self._check_fitted()
        parts = [treatment, treatment_proxy] + ([] if context is None else [context])
        rows = np.hstack([as_matrix("argument", part) for part in parts])
        rows = as_matrix("treatment, treatment_proxy and context", rows, n_columns=self.basis_.landmarks.shape[1])
        return (self.basis_(rows) @ self.coefficient_)[:, 0]

    def _fit(self, data: Proxies, seed: int) -> None:
        check_count("n_landmarks", self.n_landmarks)
        check_count("n_folds", self.n_folds, 2)
        for name in ("moment_bandwidth", "local_bandwidth"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_candidates("bandwidths", self.bandwidths)
        if self.outcome_bridge is not None and not isinstance(self.outcome_bridge, MomentEstimator):
            raise TypeError(f"outcome_bridge must be a moment estimator, got {type(self.outcome_bridge).__name__}.")
        x = np.hstack([data.treatment, data.outcome_proxy, data.context])
        c = np.hstack([data.treatment, data.treatment_proxy, data.context])
        bridge: Any = PMMR() if self.outcome_bridge is None else clone(self.outcome_bridge)
        self.outcome_bridge_ = bridge.fit(data.outcome, x, c, seed=seed)
        self._fit_treatment_bridge(x, c, data.treatment.shape[1], seed)
        self.weight_ = self.basis_(c) @ self.coefficient_
        self.correction_ = self.weight_ * (data.outcome - self.outcome_bridge_.predict(x))
        self.others_ = np.hstack([data.outcome_proxy, data.context])
        self.treatment_ = data.treatment
        self.is_discrete_ = all(is_discrete(column) for column in data.treatment.T)

    def _fit_treatment_bridge(self, x: Matrix, c: Matrix, n_treatments: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        folds = cross_fit_folds(len(x), self.n_folds, rng)
        blocks_x, blocks_c = ((range(n_treatments), range(n_treatments, array.shape[1])) for array in (x, c))
        moment_basis = KernelBasis.of(
            ProductKernel.median(x, blocks_x, rng, self.moment_bandwidth), x, self.n_landmarks, rng
        )
        moments = moment_basis.kernel(x, moment_basis.landmarks) @ moment_basis.whitening
        # Mean of the moment features over all pairs of a treatment and a (W, X): a product of two means.
        means = [moment_basis.kernel.factor(b, x, moment_basis.landmarks).mean(axis=0) for b in (0, 1)]
        goal = (means[0] * means[1]) @ moment_basis.whitening
        kernel = ProductKernel.median(c, blocks_c, rng)
        candidates, losses = [], []
        for width in sorted(self.bandwidths):
            basis = KernelBasis.of(kernel.scaled(width), c, self.n_landmarks, rng)
            candidates.append((basis, basis(c), float(width)))
            losses.append(_held_out_loss(moments, candidates[-1][1], goal, folds))
        chosen, number = smoothest(np.stack(losses))
        (self.basis_, features, self.bandwidth_), self.penalty_ = candidates[chosen], float(PENALTIES[number])
        coefficient = solve_moments(moments.T @ features / len(x), goal[:, None], np.array([self.penalty_]))[0]
        # The mean of q is one (take m = 1); the penalty has shrunk it.
        mean = float(np.mean(features @ coefficient))
        if mean <= 0:
            warnings.warn(
                f"the treatment bridge must have mean one, got {mean:.3g}: PKDR's correction means nothing on these "
                "rows. Bring more rows or stronger proxies, or use KPV.",
                stacklevel=4,
            )
        self.coefficient_ = coefficient / mean if mean > 0 else coefficient

    def _effect(self, treatment: Matrix) -> Matrix:
        mean = mean_over_others(self.outcome_bridge_.pairs, treatment, even_choice(self.others_, len(treatment)))
        window = self._window(treatment)
        # One more row without a correction: where no treatment is near, the effect is that of the outcome bridge.
        return mean + window @ self.correction_ / (window.sum(axis=1, keepdims=True) + 1.0)

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        bridge, bridge_arrays = self.outcome_bridge_.to_state()
        basis, basis_arrays = self.basis_.to_state()
        arrays = {f"bridge.{name}": array for name, array in bridge_arrays.items()}
        arrays |= {f"basis.{name}": array for name, array in basis_arrays.items()}
        arrays |= {name: getattr(self, f"{name}_") for name in SAVED}
        return {"bridge": bridge, "basis": basis, "is_discrete": self.is_discrete_}, arrays

    def _restore(self, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        def part(prefix: str) -> dict[str, np.ndarray]:
            return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}

        self.outcome_bridge_ = estimator_from_state(record["bridge"], part("bridge."))
        self.basis_ = KernelBasis.from_state(record["basis"], part("basis."))
        self.is_discrete_ = bool(record["is_discrete"])
        for name in SAVED:
            setattr(self, f"{name}_", arrays[name])

    def _window(self, treatment: Matrix) -> np.ndarray:
        if self.is_discrete_:
            return np.all(treatment[:, None] == self.treatment_[None], axis=2).astype(float)
        n, d = self.treatment_.shape
        kernel = ProductKernel.median(self.treatment_, [range(d)], np.random.default_rng(0))
        # In standard deviations for one column; for several, in the same share of the median distance.
        width = self.local_bandwidth or n ** (-1 / (4 + min(d, 10)))
        if d == 1:
            kernel = kernel.scaled(1.0 / float(kernel.bandwidth[0]))
        return kernel.scaled(width)(treatment, self.treatment_)


def _held_out_loss(moments: np.ndarray, features: np.ndarray, goal: np.ndarray, folds: list[np.ndarray]) -> np.ndarray:
    """Squared distance between moments of q and their goal on held-out folds: (penalties, folds).

    Pairs of a row with itself are left out, as in a U-statistic.
    """
    matrices = [moments[rows].T @ features[rows] for rows in folds]
    total, n = sum(matrices), len(features)
    loss = np.zeros((len(PENALTIES), len(folds)))
    for fold, (rows, matrix) in enumerate(zip(folds, matrices, strict=True)):
        path = solve_moments((total - matrix) / (n - len(rows)), goal[:, None], PENALTIES)
        diagonal, m = np.sum(moments[rows] ** 2, axis=1), len(rows)
        for number, coefficient in enumerate(path):
            sums, weight = matrix @ coefficient, features[rows] @ coefficient
            pairs = (np.sum(sums**2) - diagonal @ weight[:, 0] ** 2) / max(m * (m - 1), 1)
            loss[number, fold] = pairs - 2 * goal @ sums[:, 0] / m + goal @ goal
    return loss
