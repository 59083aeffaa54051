"""Two-stage least squares on a series of basis functions, with linearmodels inside.

f(x) = theta . b(x); the basis functions of x that need a modelled column are endogenous, those of c are instruments.
With the plain columns as basis this is textbook 2SLS.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from threadpoolctl import threadpool_limits

from prudent._checks import check_count
from prudent.cmr._arrays import Matrix, Scaler, as_matrix
from prudent.cmr._base import MomentEstimator
from prudent.cmr._features import KINDS, Series, independent_columns
from prudent.cmr._problem import Problem, check_choice, simple_params
from prudent.errors import DataError

ERRORS = ("robust", "unadjusted", "clustered", "auto")


class TooFewInstrumentsError(DataError):
    """There are more endogenous terms than excluded instruments."""

    def __init__(self, n_terms: int, n_instruments: int):
        self.n_terms, self.n_instruments = n_terms, n_instruments
        super().__init__(
            f"{n_terms} endogenous terms need at least as many excluded instruments, got {n_instruments} (combinations "
            "of the context do not count). Use simpler features, or bring more instruments."
        )


@dataclasses.dataclass(frozen=True)
class TwoStageReport:
    """Coefficients and standard errors per outcome, and the first stage of every endogenous basis function.

    ``first_stage_f`` is the F of the excluded instruments (robust or clustered where the errors are), ``partial_r2``
    their share of what the exogenous columns leave. With several endogenous terms a large F of each is not enough. F is
    NaN where errors are clustered and there are no more groups than instruments.
    """

    n_rows: int
    errors: str
    terms: tuple[str, ...]
    coefficients: tuple[tuple[float, ...], ...]
    standard_errors: tuple[tuple[float, ...], ...]
    endogenous: tuple[str, ...]
    first_stage_f: tuple[float, ...]
    partial_r2: tuple[float, ...]
    n_instruments: int
    outcomes: tuple[str, ...] = ()

    def with_names(self, columns: Sequence[str], outcomes: Sequence[str]) -> "TwoStageReport":
        """The same report, with names in place of x0, x1, ... and of outcome 0, outcome 1, ..."""

        def named(terms: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(re.sub(r"\bx(\d+)", lambda m: columns[int(m[1])], term) for term in terms)

        return dataclasses.replace(
            self, terms=named(self.terms), endogenous=named(self.endogenous), outcomes=tuple(outcomes)
        )

    def __str__(self) -> str:
        width = max(len(name) for name in self.terms)
        lines = [f"two-stage least squares, {self.n_rows} rows, {self.errors} standard errors"]
        for number, (values, errors) in enumerate(zip(self.coefficients, self.standard_errors, strict=True)):
            lines.append(self.outcomes[number] if self.outcomes else f"outcome {number}")
            lines += [
                f"  {name:<{width}} {value:>12.5g}  ({error:.3g})"
                for name, value, error in zip(self.terms, values, errors, strict=True)
            ]
        lines.append(f"first stage, {self.n_instruments} excluded instruments")
        lines += [
            f"  {name:<{width}} F {f:>10.1f}  partial R2 {r2:.3f}"
            for name, f, r2 in zip(self.endogenous, self.first_stage_f, self.partial_r2, strict=True)
        ]
        return "\n".join(lines)


class TwoStageLeastSquares(MomentEstimator):
    """Linear instrumental-variable regression on basis functions of x and c.

    Parameters
    ----------
    features : {"linear", "polynomial", "spline"}
        Basis of every numeric column; indicators always enter as they are.
    degree : int, default=3
        Degree of the polynomial or of the spline's pieces.
    n_knots : int, default=5
        Knots of a spline, at quantiles.
    interactions : bool, default=False
        Add the products of the basis functions of every two columns.
    errors : {"auto", "robust", "unadjusted", "clustered"}
        Standard errors. "auto": clustered where ``groups`` are given, else robust.

    Attributes
    ----------
    coefficients_ : (terms, outcomes) array
        Of the basis functions ``report_.terms``, the first of which is the constant. With linear features they are in
        the units of the data; numeric columns are standardised before they enter polynomials and splines.
    report_ : TwoStageReport
        Coefficients, standard errors and the first stage; ``print`` shows a table.
    """

    def __init__(
        self,
        features: str = "linear",
        *,
        degree: int = 3,
        n_knots: int = 5,
        interactions: bool = False,
        errors: str = "auto",
    ):
        self.features = features
        self.degree = degree
        self.n_knots = n_knots
        self.interactions = interactions
        self.errors = errors

    def fit(self, y: Any, x: Any, c: Any, *, seed: int = 0, groups: Any = None) -> Self:
        """Fit f on arrays. Nothing is random here: ``seed`` is only checked."""
        from linearmodels.iv import IV2SLS

        check_choice("features", self.features, KINDS)
        check_choice("errors", self.errors, ERRORS)
        check_count("degree", self.degree)
        check_count("n_knots", self.n_knots, 2)
        problem = Problem.of("TwoStageLeastSquares", y, x, c, seed=seed, groups=groups)
        errors = self.errors
        if errors == "auto":
            errors = "robust" if problem.groups is None else "clustered"
        if errors == "clustered" and problem.groups is None:
            raise DataError("errors='clustered' needs groups, got none. Pass groups=..., or choose errors='robust'.")
        n_clusters = None
        if errors == "clustered" and problem.groups is not None:
            n_clusters = len(np.unique(problem.groups))
        if n_clusters == 1:
            raise DataError(
                "errors='clustered' needs at least two groups, got 1. Bring more groups, or choose errors='robust'."
            )
        settings = {
            "kind": self.features,
            "degree": self.degree,
            "n_knots": self.n_knots,
            "interactions": self.interactions,
        }
        series, instrument_series = Series.of(problem.x, **settings), Series.of(problem.c, **settings)
        raw, outer = series.transform(problem.x), _in_standard_units(instrument_series.transform(problem.c))[0]
        # Products of raw columns, of years in nanoseconds or of a size in dollars, would be rounding errors.
        basis, scaler = _in_standard_units(raw)
        names, needed = series.terms()
        is_exogenous = np.array([set(columns) <= set(problem.known) for columns in needed], dtype=bool)
        constant = np.ones((len(basis), 1))
        exogenous = np.flatnonzero(is_exogenous)
        exogenous = exogenous[independent_columns(constant, basis[:, exogenous])]
        fixed = np.hstack([constant, basis[:, exogenous]])
        for j in problem.modelled:
            own = [k for k, columns in enumerate(needed) if columns == (j,)]
            if not len(independent_columns(fixed, basis[:, own])):
                raise DataError(
                    f"Column {j} of x is a linear combination of columns that x and c share: what it does cannot be "
                    "told from what they do. Leave out this column, or those."
                )
        endogenous = np.flatnonzero(~is_exogenous)
        endogenous = endogenous[independent_columns(fixed, basis[:, endogenous])]
        excluded = outer[:, independent_columns(fixed, outer)]
        if excluded.shape[1] < len(endogenous):
            raise TooFewInstrumentsError(len(endogenous), excluded.shape[1])
        if len(basis) <= fixed.shape[1] + max(excluded.shape[1], len(endogenous)):
            raise DataError(
                f"{fixed.shape[1] + excluded.shape[1]} terms need more rows than {len(basis)}. Use simpler features."
            )
        options: dict[str, Any] = {"cov_type": errors}
        if errors == "clustered" and problem.groups is not None:
            options["clusters"] = np.unique(problem.groups, return_inverse=True)[1]
        # Matrices are small: threads of the linear algebra library would spend their time waiting for each other.
        with threadpool_limits(1):
            results = [
                IV2SLS(
                    column,
                    fixed,
                    basis[:, endogenous] if len(endogenous) else None,
                    excluded if len(endogenous) else None,
                ).fit(**options)
                for column in problem.y.T
            ]
            first_stage = [_first_stage(column, fixed, excluded, options) for column in basis[:, endogenous].T]
        chosen = np.concatenate([exogenous, endogenous])
        to_raw = _to_raw(scaler.mean[chosen], scaler.scale[chosen])
        coefficients = np.column_stack([to_raw @ np.asarray(result.params) for result in results])
        errors_of_raw = [np.sqrt(np.diag(to_raw @ np.asarray(result.cov) @ to_raw.T)) for result in results]
        if n_clusters is not None and n_clusters <= excluded.shape[1]:
            # The covariance of the instruments' coefficients is then singular: F would be a rounding error's inverse.
            first_stage = [(float("nan"), r2) for _, r2 in first_stage]
        report = TwoStageReport(
            n_rows=len(basis),
            errors=errors,
            terms=("constant", *(names[j] for j in chosen)),
            coefficients=tuple(tuple(float(v) for v in column) for column in coefficients.T),
            standard_errors=tuple(tuple(float(v) for v in column) for column in errors_of_raw),
            endogenous=tuple(names[j] for j in endogenous),
            first_stage_f=tuple(f for f, _ in first_stage),
            partial_r2=tuple(r2 for _, r2 in first_stage),
            n_instruments=excluded.shape[1],
        )
        # Only now: a fit that fails leaves an earlier one as it was.
        self.series_, self.instrument_series_, self.chosen_ = series, instrument_series, chosen
        self.coefficients_, self.report_ = coefficients, report
        return self

    def predict(self, x: Any) -> np.ndarray:
        """f(x), shape (n, outcomes)."""
        self._check_fitted("coefficients_")
        x = as_matrix("x", x, n_columns=len(self.series_.knots))
        return self.coefficients_[0] + self.terms(x) @ self.coefficients_[1:]

    def terms(self, x: Matrix) -> Matrix:
        """The basis functions that f is a combination of, but for the constant."""
        return self.series_.transform(x)[:, self.chosen_]

    def instrument_terms(self, c: Matrix) -> Matrix:
        """The basis functions of c that they are projected on."""
        return self.instrument_series_.transform(c)

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds the fitted function and its report."""
        self._check_fitted("coefficients_")
        series, arrays = self.series_.to_state("series")
        record = {
            "kind": type(self).__name__,
            "params": simple_params(self.get_params()),
            "series": series,
            # JSON has no NaN.
            "report": dataclasses.asdict(self.report_)
            | {"first_stage_f": [None if np.isnan(f) else f for f in self.report_.first_stage_f]},
        }
        return record, {**arrays, "coefficients": self.coefficients_, "chosen": self.chosen_.astype(np.int64)}

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "TwoStageLeastSquares":
        """Rebuild a fitted estimator with its report."""
        model = cls(**record["params"])
        model.series_ = Series.from_state(record["series"], arrays, "series")
        model.coefficients_, model.chosen_ = arrays["coefficients"], arrays["chosen"]
        model.report_ = TwoStageReport(**{key: _as_tuple(value) for key, value in record["report"].items()})
        return model


def _in_standard_units(terms: Matrix) -> tuple[Matrix, Scaler]:
    scaler = Scaler.of(terms)
    return (terms - scaler.mean) / scaler.scale, scaler


def _to_raw(mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The matrix that turns coefficients of (1, standardised terms) into those of (1, raw terms)."""
    matrix = np.diag(np.concatenate([[1.0], 1 / scale]))
    matrix[0, 1:] = -mean / scale
    return matrix


def _first_stage(target: np.ndarray, fixed: Matrix, excluded: Matrix, options: dict[str, Any]) -> tuple[float, float]:
    """(F of the excluded instruments, their partial R2) for one endogenous term.

    F is the Wald statistic, with the standard errors of the second stage, over the number of instruments.
    """
    from linearmodels.iv import IV2SLS

    result = IV2SLS(target, np.hstack([fixed, excluded]), None, None).fit(**options)
    chosen = slice(fixed.shape[1], None)
    values, covariance = np.asarray(result.params)[chosen], np.asarray(result.cov)[chosen, chosen]
    f = float(values @ np.linalg.lstsq(covariance, values, rcond=None)[0]) / len(values)
    free = target - fixed @ np.linalg.lstsq(fixed, target, rcond=None)[0]
    return f, float(1 - np.sum(np.asarray(result.resids) ** 2) / np.sum(free**2))


def _as_tuple(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_as_tuple(v) for v in value)
    return float("nan") if value is None else value
