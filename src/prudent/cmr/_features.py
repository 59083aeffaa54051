"""Series of basis functions of columns: powers or splines, alone or multiplied in pairs."""

import dataclasses
from itertools import combinations
from typing import Any

import numpy as np

from prudent.cmr._arrays import Matrix, Scaler
from prudent.cmr._gp import column_scaler, standard

KINDS = ("linear", "polynomial", "spline")


@dataclasses.dataclass(frozen=True)
class Series:
    """Basis functions of columns, standardised but for linear ones; ``knots[j]`` is empty where one enters plain."""

    kind: str
    degree: int
    interactions: bool
    scaler: Scaler
    knots: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, array: Matrix, *, kind: str, degree: int, n_knots: int, interactions: bool) -> "Series":
        """Knots at quantiles of the numeric columns; columns of few values enter as they are."""
        # Plain columns keep their units, so that their coefficients read like those of any table.
        plain = Scaler(np.zeros(array.shape[1]), np.ones(array.shape[1]))
        scaler = plain if kind == "linear" else column_scaler(array)
        u = standard(scaler, array)
        knots = []
        for j in range(u.shape[1]):
            places = np.unique(np.quantile(u[:, j], np.linspace(0, 1, n_knots)))
            few = len(np.unique(u[:, j])) <= 2
            knots.append(np.empty(0) if few or kind == "linear" or len(places) < 2 else places)
        return cls(kind, degree, interactions, scaler, tuple(knots))

    def terms(self) -> tuple[list[str], list[tuple[int, ...]]]:
        """Name of every basis function, and the columns that it needs."""
        single = [[(f"x{j}" if size == 1 else f"x{j}[{k}]", (j,)) for k in range(size)] for j, size in self._sizes()]
        found = [term for basis in single for term in basis]
        if self.interactions:
            for first, second in combinations(single, 2):
                found += [(f"{a} {b}", (*i, *j)) for a, i in first for b, j in second]
        return [name for name, _ in found], [columns for _, columns in found]

    def transform(self, array: Matrix) -> np.ndarray:
        """Values of all basis functions, in the order of :meth:`terms`."""
        u = standard(self.scaler, array)
        single = [self._basis(u[:, j : j + 1], knots) for j, knots in enumerate(self.knots)]
        blocks = list(single)
        if self.interactions:
            blocks += [
                (first[:, :, None] * second[:, None, :]).reshape(len(u), -1)
                for first, second in combinations(single, 2)
            ]
        return np.hstack(blocks) if blocks else np.empty((len(u), 0))

    def _sizes(self) -> list[tuple[int, int]]:
        return [(j, self._basis(np.zeros((1, 1)), knots).shape[1]) for j, knots in enumerate(self.knots)]

    def _basis(self, column: Matrix, knots: np.ndarray) -> np.ndarray:
        if len(knots) == 0:
            return column
        if self.kind == "polynomial":
            return column ** np.arange(1, self.degree + 1)
        from sklearn.preprocessing import SplineTransformer

        # Given knots, nothing is learnt from the rows that fit sees.
        places: Any = knots[:, None]
        spline = SplineTransformer(degree=self.degree, knots=places, extrapolation="linear", include_bias=False)
        spline.fit(places)
        return np.asarray(spline.transform(column))

    def to_state(self, prefix: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays)."""
        arrays = {f"{prefix}.mean": self.scaler.mean, f"{prefix}.scale": self.scaler.scale}
        arrays |= {f"{prefix}.knots.{j}": knots for j, knots in enumerate(self.knots)}
        return {"kind": self.kind, "degree": self.degree, "interactions": self.interactions}, arrays

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray], prefix: str) -> "Series":
        """From what :meth:`to_state` gave."""
        scaler = Scaler(arrays[f"{prefix}.mean"], arrays[f"{prefix}.scale"])
        knots = tuple(arrays[f"{prefix}.knots.{j}"] for j in range(len(scaler.mean)))
        return cls(record["kind"], record["degree"], record["interactions"], scaler, knots)


def independent_columns(given: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Positions of the candidates that are not linear combinations of ``given`` and of earlier candidates."""
    basis = np.empty((len(candidates), 0))
    kept = []
    for number, column in enumerate(np.hstack([given, candidates]).T):
        size = np.linalg.norm(column)
        rest = column
        for _ in range(2):  # Twice is enough: the second pass removes what rounding left.
            rest = rest - basis @ (basis.T @ rest)
        if size > 0 and np.linalg.norm(rest) > 1e-7 * size:
            basis = np.hstack([basis, (rest / np.linalg.norm(rest))[:, None]])
            if number >= given.shape[1]:
                kept.append(number - given.shape[1])
    return np.array(kept, dtype=int)
