"""Categorical variables for trees: one column in place of the indicators of levels.

A split on the indicator of one level leaves all other levels together, so that trees of moderate depth never see a
trend over many levels. The levels stand in the order of their mean outcome instead, in which one split can part them at
any place.
"""

import dataclasses

import numpy as np

from prudent.cmr._arrays import Matrix

# Of fewer indicators a split on one says as much as a split on their order.
MIN_INDICATORS = 3


@dataclasses.dataclass(frozen=True)
class Codes:
    """The rank of a row's level, for every variable; linear in the indicators of the levels.

    ``weight (d, variables)`` and ``offset`` make the ranks, ``others`` are the columns that indicate no level.
    """

    weight: np.ndarray
    offset: np.ndarray
    others: np.ndarray

    @classmethod
    def of(cls, x: Matrix, y: Matrix) -> "Codes":
        """Levels in the order of their mean outcome; of several outcomes, that of the mean over their leading part."""
        sets = indicator_sets(x)
        weight, offset = np.zeros((x.shape[1], len(sets))), np.zeros(len(sets))
        for number, columns in enumerate(sets):
            indicators = np.column_stack([1 - x[:, columns].sum(axis=1), x[:, columns]])
            count = indicators.sum(axis=0)
            # A level that no row has is like an average one.
            means = np.where(count[:, None] > 0, indicators.T @ (y - y.mean(axis=0)), 0.0)
            means /= np.maximum(count, 1.0)[:, None]
            # Outcomes of opposite sign would cancel in a mean: their principal direction does not.
            leading = means @ np.linalg.svd(np.sqrt(count)[:, None] * means, full_matrices=False)[2][0]
            ranks = np.argsort(np.argsort(leading)).astype(float)
            offset[number] = ranks[0]
            weight[columns, number] = ranks[1:] - ranks[0]
        taken = {j for columns in sets for j in columns}
        return cls(weight, offset, np.array([j for j in range(x.shape[1]) if j not in taken], dtype=np.int64))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """What trees see of ``x (..., d)``: the columns that indicate no level, then the rank for every variable."""
        return np.concatenate([x[..., self.others], x @ self.weight + self.offset], axis=-1)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for a saved model."""
        return {f"codes.{field.name}": getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], width: int) -> "Codes":
        """Inverse of :meth:`to_arrays`, of ``width`` columns; raises where they do not fit together."""
        codes = cls(**{field.name: arrays[f"codes.{field.name}"] for field in dataclasses.fields(cls)})
        is_inside = np.all((codes.others >= 0) & (codes.others < width))
        if codes.weight.shape != (width, len(codes.offset)) or not is_inside:
            raise ValueError("the codes of categories do not fit the columns")
        return codes


def indicator_sets(x: Matrix) -> list[list[int]]:
    """Sets of neighbouring columns that indicate the levels of one variable.

    No row has two of them, and at least half of the rows have one; the others are of a level without an indicator.
    (Rare flags of different things hardly ever meet either, but most rows have none of them.)
    """
    sets, current = [], []
    is_indicator = ((x == 0) | (x == 1)).all(axis=0)
    for j in range(x.shape[1] + 1):
        fits = j < x.shape[1] and is_indicator[j]
        if fits and current:
            fits = not np.any(x[:, current].any(axis=1) & (x[:, j] == 1))
        if fits:
            current.append(j)
            continue
        if len(current) >= MIN_INDICATORS and np.mean(x[:, current].any(axis=1)) >= 0.5:
            sets.append(current)
        current = [j] if j < x.shape[1] and is_indicator[j] else []
    return sets
