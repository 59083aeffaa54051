"""What every moment estimator shares: the contract, and an honest measure of how well the moment holds."""

import abc
import dataclasses
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from prudent.cmr._arrays import Matrix, Scaler, as_matrix
from prudent.errors import NotFittedError


@dataclasses.dataclass(frozen=True)
class MomentError:
    """Estimate of E[(E[Y - f(X) | C])^2], summed over outcomes, with its standard error.

    It is a lower bound in expectation and may be negative by chance when the moment holds.
    """

    value: float
    standard_error: float
    n_rows: int

    def __str__(self) -> str:
        return f"{self.value:.4g} (standard error {self.standard_error:.2g}, {self.n_rows} rows)"


class MomentEstimator(BaseEstimator, abc.ABC):
    """Solves E[Y - f(X) | C] = 0 for f.

    Subclasses store keyword parameters in ``__init__`` (so that ``get_params`` and ``sklearn.base.clone`` work) and
    implement :meth:`fit` and :meth:`predict`.
    """

    @abc.abstractmethod
    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit on arrays ``y (n, outcomes)``, ``x (n, d)``, ``c (n, m)``; rows of one group are one unit."""

    @abc.abstractmethod
    def predict(self, x: Any) -> np.ndarray:
        """f(x), shape (n, outcomes)."""

    @abc.abstractmethod
    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which ``from_state`` rebuilds the fitted estimator."""

    def moment_error(self, y: Any, x: Any, c: Any, *, seed: int = 0, n_folds: int = 5) -> MomentError:
        """How far E[Y - f(X) | C] is from zero on the given rows; give rows that were not used in ``fit``.

        With e = Y - f(X) and w a regression of e on C from other folds, 2 e w - w^2 has a mean of at most
        E[(E[e|C])^2], with equality when w = E[e|C]; unlike the squared residual of a fitted regression it is not
        inflated by that regression's noise. Being a plain mean, it has a plain standard error.
        """
        x = as_matrix("x", x)
        y, c = as_matrix("y", y, n_rows=len(x)), as_matrix("c", c, n_rows=len(x))
        return residual_moment(y - self.predict(x), c, seed=seed, n_folds=n_folds)

    def _check_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            raise NotFittedError(f"This {type(self).__name__} is not fitted. Call fit(...) first.")


def residual_moment(residual: Matrix, c: Matrix, *, seed: int, n_folds: int = 5) -> MomentError:
    """:meth:`MomentEstimator.moment_error` for given residuals."""
    fitted = regress_out_of_fold(residual, c, seed=seed, n_folds=n_folds)
    term = np.sum(2 * residual * fitted - fitted**2, axis=1)
    return MomentError(float(term.mean()), float(term.std(ddof=1) / np.sqrt(len(term))), len(term))


def regress_out_of_fold(target: Matrix, c: Matrix, *, seed: int, n_folds: int = 5) -> Matrix:
    """Out-of-fold kernel ridge regression of ``target`` on ``c`` (Nystroem features, penalty by cross-validation)."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import KFold
    from threadpoolctl import threadpool_limits

    if c.shape[1] == 0:
        return np.zeros_like(target)
    standard = np.asarray(Scaler.of(c).forward(c), dtype=float)
    # A kernel width of the order of the typical distance between rows (2 d in squared standard units).
    features = Nystroem(gamma=1.0 / (2 * c.shape[1]), n_components=min(200, len(c) // 2), random_state=seed)
    fitted = np.empty_like(target)
    folds = KFold(n_splits=min(n_folds, len(c)), shuffle=True, random_state=seed)
    # Matrices are small: threads of the linear algebra library would spend their time waiting for each other.
    with threadpool_limits(1):
        design = np.hstack([standard, features.fit_transform(standard)])
        for train, test in folds.split(design):
            model = RidgeCV(alphas=np.logspace(-2, 5, 15)).fit(design[train], target[train])
            fitted[test] = np.asarray(model.predict(design[test])).reshape(len(test), -1)
    return fitted
