"""What the closed-form kernel estimators share: settings, and f as a linear function of kernel features."""

from typing import Any, Self

import numpy as np

from prudent._checks import check_count
from prudent.cmr._arrays import Matrix, Scaler, as_matrix
from prudent.cmr._base import MomentEstimator
from prudent.cmr._problem import Problem, check_candidates, params_from_json, simple_params
from prudent.cmr._product_kernel import KernelBasis


class KernelEstimator(MomentEstimator):
    """A moment estimator whose f is linear in the features of a :class:`KernelBasis`."""

    n_landmarks: int
    n_folds: int
    bandwidths: tuple[float, ...]
    penalties: tuple[float, ...] | None

    def predict(self, x: Any) -> np.ndarray:
        """f(x), shape (n, outcomes), in the units of y."""
        self._check_fitted("basis_")
        x = as_matrix("x", x, n_columns=self.n_columns_)
        return self.y_scaler_.back(self.basis_(x) @ self.coefficient_)

    def _pairs(self, first: Matrix, others: Matrix) -> np.ndarray:
        """As in the base class, with kernels between landmarks and rows only, not pairs of rows."""
        self._check_fitted("basis_")
        return self.y_scaler_.back(self.basis_.pairs(first, others, self.coefficient_))

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds the fitted function."""
        self._check_fitted("basis_")
        basis, arrays = self.basis_.to_state()
        record = {
            "kind": type(self).__name__,
            "params": simple_params(self.get_params()),
            "basis": basis,
            "n_columns": self.n_columns_,
        }
        scales = {"y.mean": self.y_scaler_.mean, "y.scale": self.y_scaler_.scale}
        return record, {**arrays, **scales, "coefficient": self.coefficient_}

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """Rebuild a fitted estimator; it predicts, but the chosen bandwidths and penalties are not kept."""
        model = cls(**params_from_json(record["params"]))
        model.basis_ = KernelBasis.from_state(record["basis"], arrays)
        model.coefficient_ = arrays["coefficient"]
        model.y_scaler_ = Scaler(arrays["y.mean"], arrays["y.scale"])
        model.n_columns_ = int(record["n_columns"])
        return model

    def _read(self, y: Any, x: Any, c: Any, seed: Any, groups: Any) -> Problem:
        check_count("n_landmarks", self.n_landmarks)
        check_count("n_folds", self.n_folds, 2)
        for name in ("bandwidths", "instrument_bandwidths", "penalties"):
            check_candidates(name, getattr(self, name, None))
        return Problem.of(type(self).__name__, y, x, c, seed=seed, groups=groups)

    def _store(self, basis: KernelBasis, coefficient: np.ndarray, problem: Problem) -> Self:
        self.basis_, self.coefficient_ = basis, coefficient
        self.y_scaler_, self.n_columns_ = Scaler.of(problem.y), problem.x.shape[1]
        return self
