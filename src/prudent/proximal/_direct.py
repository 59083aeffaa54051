"""What estimators of the dose response share that do not yield a bridge function: roles, checks, the effect's shape."""

import abc
import dataclasses
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone

from prudent.cmr._arrays import Matrix, as_matrix
from prudent.cmr._base import check_seed
from prudent.cmr._problem import MIN_ROWS, params_from_json, simple_params
from prudent.errors import DataError, NotFittedError
from prudent.proximal._copies import check_copies


@dataclasses.dataclass(frozen=True)
class Proxies:
    """Checked arrays by role; a context that is not given has no columns."""

    outcome: Matrix
    treatment: Matrix
    outcome_proxy: Matrix
    treatment_proxy: Matrix
    context: Matrix


class DirectEffect(BaseEstimator, abc.ABC):
    """Estimator of a -> E[Y | do(a)] from an outcome, a treatment and two proxies."""

    def fit(
        self,
        outcome: Any,
        treatment: Any,
        outcome_proxy: Any,
        treatment_proxy: Any,
        *,
        context: Any = None,
        seed: int,
    ) -> Self:
        """Fit on arrays with one row per unit; pictures (n, height, width) are flattened."""
        check_seed(seed)
        y = _flat("outcome", outcome)
        n = len(y)
        data = Proxies(
            y,
            _flat("treatment", treatment, n),
            _flat("outcome_proxy", outcome_proxy, n),
            _flat("treatment_proxy", treatment_proxy, n),
            np.empty((n, 0)) if context is None else _flat("context", context, n),
        )
        if n < MIN_ROWS:
            raise DataError(f"{type(self).__name__} needs at least {MIN_ROWS} rows, got {n}. Bring more data.")
        for name in ("outcome", "treatment", "outcome_proxy", "treatment_proxy"):
            if np.all(np.ptp(getattr(data, name), axis=0) == 0):
                raise DataError(
                    f"{name} is constant: data in which it never varies cannot answer the question. Bring data in "
                    "which it varies."
                )
        matrices = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
        check_copies({name: ([f"{name}_{j}" for j in range(m.shape[1])], m) for name, m in matrices.items()})
        # In a copy: a fit that fails leaves an earlier one as it was.
        fresh: Any = clone(self)
        fresh._fit(data, seed)
        vars(self).update({name: value for name, value in vars(fresh).items() if name.endswith("_")})
        self.n_treatments_, self.n_outcomes_ = data.treatment.shape[1], y.shape[1]
        return self

    def effect(self, treatment: Any) -> np.ndarray:
        """E[Y | do(a)] for every row of ``treatment``, shape (n,) or (n, outcomes)."""
        self._check_fitted()
        values = self._effect(_flat("treatment", treatment, n_columns=self.n_treatments_))
        return values[:, 0] if self.n_outcomes_ == 1 else values

    def save(self, folder: str | Path) -> Path:
        """Write the model as ``model.json`` and ``weights.safetensors``; read it with :func:`prudent.load`.

        The proxies and contexts over which effects are averaged are part of the model.
        """
        from prudent._storage import save_model

        self._check_fitted()
        record, arrays = self._state()
        head = {"params": simple_params(self.get_params(deep=False))}
        head |= {"n_treatments": self.n_treatments_, "n_outcomes": self.n_outcomes_}
        return save_model(folder, type(self).__name__, {**head, **record}, arrays)

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """Rebuild from what :meth:`save` wrote."""
        model = cls(**params_from_json(record["params"]))
        model.n_treatments_, model.n_outcomes_ = int(record["n_treatments"]), int(record["n_outcomes"])
        model._restore(record, arrays)
        return model

    def _check_fitted(self) -> None:
        if not hasattr(self, "n_treatments_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted. Call fit(...) first.")

    @abc.abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) of what was learnt."""

    @abc.abstractmethod
    def _restore(self, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Take up what :meth:`_state` gave."""

    @abc.abstractmethod
    def _fit(self, data: Proxies, seed: int) -> None:
        """Learn."""

    @abc.abstractmethod
    def _effect(self, treatment: Matrix) -> Matrix:
        """Effects (n, outcomes)."""


def column_blocks(parts: list[Matrix]) -> list[range]:
    """Columns of every part when the parts stand side by side."""
    ends = np.cumsum([part.shape[1] for part in parts])
    return [range(int(end) - part.shape[1], int(end)) for part, end in zip(parts, ends, strict=True)]


def _flat(name: str, value: Any, n_rows: int | None = None, n_columns: int | None = None) -> Matrix:
    if getattr(value, "ndim", 0) > 2:
        value = np.asarray(value).reshape(len(value), -1)
    return as_matrix(name, value, n_rows=n_rows, n_columns=n_columns)
