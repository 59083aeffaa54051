"""What every moment estimator shares: the contract, and an honest measure of how well the moment holds."""

import abc
import dataclasses
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from prudent.cmr._arrays import Matrix, Scaler, as_groups, as_matrix
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._pairs import all_pairs
from prudent.errors import DataError, NotFittedError

# Units on which a moment can be measured out of fold.
MIN_UNITS = 4
PENALTIES = np.logspace(-2, 5, 15)
# Rows that are paired with others at a time.
PAIR_ROWS = 4000


@dataclasses.dataclass(frozen=True)
class MomentError:
    """Estimate of E[(E[Y - f(X) | C])^2], summed over outcomes, with its standard error.

    It is a lower bound in expectation and may be negative by chance when the moment holds.
    """

    value: float
    standard_error: float
    n_rows: int

    @property
    def verdict(self) -> str:
        """What the value says of the fit, in words."""
        t = self.value / max(self.standard_error, 1e-300)
        if t > 2:
            return "the moment is violated"
        if t >= -2:
            return "consistent with zero"
        return "no violation seen" if t >= -4 else "not informative: the fit may have diverged"

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

    def pairs(self, first: Any, others: Any) -> np.ndarray:
        """f at every row of ``first`` beside every row of ``others``: (first, others, outcomes).

        Columns of x stand in this order. Kernel estimators need no more for this than for the rows of both alone,
        where the two have no part in common; policies and averages over contexts and proxies are made of it.
        """
        first, others = as_matrix("first", first), as_matrix("others", others)
        blocks = np.array_split(others, -(-len(others) // PAIR_ROWS))
        return np.concatenate([self._pairs(first, block) for block in blocks], axis=1)

    def _pairs(self, first: Matrix, others: Matrix) -> np.ndarray:
        """:meth:`pairs` of a few thousand others."""
        return all_pairs(self.predict, first, others)

    def terms(self, x: Matrix) -> Matrix:
        """What the directions in which f may be wrong are made of: columns of x, of a series its functions."""
        return x

    def instrument_terms(self, c: Matrix) -> Matrix:
        """As :meth:`terms`, of the conditioning variables."""
        return c

    @abc.abstractmethod
    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which ``from_state`` rebuilds the fitted estimator."""

    def moment_error(
        self, y: Any, x: Any, c: Any, *, seed: int = 0, n_folds: int = 5, groups: Any = None
    ) -> MomentError:
        """How far E[Y - f(X) | C] is from zero on the given rows; give rows that were not used in ``fit``.

        With e = Y - f(X) and w a regression of e on C from other folds, 2 e w - w^2 has a mean of at most
        E[(E[e|C])^2], with equality when w = E[e|C]; unlike the squared residual of a fitted regression it is not
        inflated by that regression's noise. Being a plain mean (over ``groups``, if given), it has a standard error.
        """
        check_seed(seed)
        x = as_matrix("x", x)
        f = self.predict(x)
        y, c = as_matrix("y", y, n_rows=len(x), n_columns=f.shape[1]), as_matrix("c", c, n_rows=len(x))
        return residual_moment(y - f, c, seed=seed, n_folds=n_folds, groups=as_groups(groups, len(x)))

    def _check_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            raise NotFittedError(f"This {type(self).__name__} is not fitted. Call fit(...) first.")


def check_seed(seed: Any) -> None:
    """Raise unless ``seed`` is a whole number that every generator in use accepts."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to 2^32 - 1, got {seed!r}.")


def residual_moment(
    residual: Matrix, c: Matrix, *, seed: int, n_folds: int = 5, groups: np.ndarray | None = None
) -> MomentError:
    """:meth:`MomentEstimator.moment_error` for given residuals."""
    fitted = regress_out_of_fold(residual, c, seed=seed, n_folds=n_folds, groups=groups)
    term = np.sum(2 * residual * fitted - fitted**2, axis=1)
    deviation = term - term.mean()
    if groups is not None:
        deviation = np.bincount(np.unique(groups, return_inverse=True)[1], weights=deviation)
    units = len(deviation)
    error = np.sqrt(units / max(units - 1, 1) * np.sum(deviation**2)) / len(term)
    return MomentError(float(term.mean()), float(error), len(term))


def regress_out_of_fold(
    target: Matrix, c: Matrix, *, seed: int, n_folds: int = 5, groups: np.ndarray | None = None
) -> Matrix:
    """Out-of-fold kernel ridge regression of ``target`` on ``c`` (Nystroem features, penalty by cross-validation)."""
    from sklearn.kernel_approximation import Nystroem
    from threadpoolctl import threadpool_limits

    if c.shape[1] == 0:
        return np.zeros_like(target)
    standard = np.asarray(Scaler.of(c).forward(c), dtype=float)
    # A kernel width of the order of the typical distance between rows (2 d in squared standard units).
    features = Nystroem(gamma=1.0 / (2 * c.shape[1]), n_components=min(200, max(1, len(c) // 2)), random_state=seed)
    fitted = np.zeros_like(target)
    n_units = len(c) if groups is None else len(np.unique(groups))
    if n_units < MIN_UNITS:
        raise DataError(f"The moment can be measured on four units or more, got {n_units}. Give more rows.")
    folds = cross_fit_folds(len(c), min(n_folds, n_units // 2), np.random.default_rng(seed), groups)
    # Matrices are small: threads of the linear algebra library would spend their time waiting for each other.
    with threadpool_limits(1):
        design = np.hstack([standard, features.fit_transform(standard)])
        for test in folds:
            train = np.setdiff1d(np.arange(len(c)), test)
            if groups is None:
                fitted[test] = _ridge(design, target, train, test)
            else:
                fitted[test] = _grouped_ridge(design, target, train, test, groups)
    return fitted


def _ridge(design: Matrix, target: Matrix, train: np.ndarray, test: np.ndarray) -> Matrix:
    """Predictions of the rows ``test``; penalties are chosen for each target by leaving out one row at a time.

    As RidgeCV of scikit-learn, whose singular values of all rows take several times as long as products of columns
    where there are more rows than columns.
    """
    centre, mean = design[train].mean(axis=0), target[train].mean(axis=0)
    inside, goal = design[train] - centre, target[train] - mean
    if len(inside) > inside.shape[1]:
        value, vector = np.linalg.eigh(inside.T @ inside)
    else:
        _, root, transposed = np.linalg.svd(inside, full_matrices=False)
        value, vector = root**2, transposed.T
    value, rotated = np.maximum(value, 0.0), inside @ vector
    moment, squares = rotated.T @ goal, rotated**2
    paths, losses = [], []
    for penalty in PENALTIES:
        shrunk = 1 / (value + penalty)
        paths.append(shrunk[:, None] * moment)
        # What a row has to say about its own prediction; the mean counts for 1 / n.
        leverage = squares @ shrunk + 1 / len(train)
        left_out = (goal - rotated @ paths[-1]) / np.maximum(1 - leverage, 1e-12)[:, None]
        losses.append(np.mean(left_out**2, axis=0))
    best = np.argmin(losses, axis=0)
    coefficient = vector @ np.stack(paths)[best, :, np.arange(len(best))].T
    return (design[test] - centre) @ coefficient + mean


def _grouped_ridge(design: Matrix, target: Matrix, train: np.ndarray, test: np.ndarray, groups: np.ndarray) -> Matrix:
    """Predictions of the rows ``test``; penalties are chosen for each target on whole groups of ``train``.

    Rows of one group resemble each other: left out one by one they would favour small penalties.
    """
    from prudent.cmr._product_kernel import fit_ridge

    unit = np.unique(groups[train], return_inverse=True)[1]
    folds = [np.flatnonzero(unit % 5 == k) for k in range(min(5, int(unit.max()) + 1))]
    centre, mean = design[train].mean(axis=0), target[train].mean(axis=0)
    inside, outside = design[train] - centre, design[test] - centre
    columns = [
        outside @ fit_ridge(inside, column[:, None], folds, PENALTIES / len(train)).coefficient
        for column in (target[train] - mean).T
    ]
    return np.hstack(columns) + mean
