"""Checks of the arrays of a moment problem, and facts about their columns."""

from typing import Any

import numpy as np
from jaxtyping import Float

from prudent.errors import DataError

Matrix = Float[np.ndarray, "n d"]

# A column with at most this many values, each of them repeated, is taken as discrete.
MAX_AUTO_LEVELS = 10
# Squares and products of larger numbers overflow.
LARGEST = 1e100
# Indicators are made of the values of a column that are seen in at least this share of the rows, each of them.
MIN_LEVEL_SHARE = 0.02


def as_matrix(
    name: str,
    value: Any,
    *,
    n_rows: int | None = None,
    n_columns: int | None = None,
    index: Any = None,
    cure: str = "Drop or impute these rows.",
) -> Matrix:
    """``value`` as a finite 2-D float array; a vector becomes one column.

    ``index`` names its rows in messages, ``cure`` says what to do about rows that are not finite.
    """
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError) as cause:
        raise DataError(f"{name} must be {_what_is_no_number(value, cause)}") from None
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise DataError(f"{name} must have one row per unit (2-D), got shape {array.shape}. Flatten the other axes.")
    if len(array) == 0:
        raise DataError(f"{name} must have at least one row, got none.")
    beyond = np.abs(array) > LARGEST
    if np.any(beyond & np.isfinite(array)):
        row, column = np.argwhere(beyond & np.isfinite(array))[0]
        raise DataError(
            f"{name} must have numbers of at most {LARGEST:g}, with which one can compute, got {array[row, column]:g} "
            f"(first: {row_label(index, row)}). If it stands for a missing value, drop or impute the row; else change "
            "the unit."
        )
    bad = ~np.isfinite(array)
    if bad.any():
        rows = np.flatnonzero(bad.any(axis=1))
        raise DataError(
            f"{name} must be finite, got NaN or infinity in {len(rows)} rows (first: {row_label(index, rows[0])}). "
            f"{cure}"
        )
    if n_rows is not None and len(array) != n_rows:
        raise DataError(f"{name} must have {n_rows} rows like the other arrays, got {len(array)}.")
    if n_columns is not None and array.shape[1] != n_columns:
        raise DataError(f"{name} must have {n_columns} columns as in fit, got {array.shape[1]}.")
    return array


def as_groups(groups: Any, n_rows: int) -> np.ndarray | None:
    """The unit of every row; None where every row is its own."""
    if groups is None:
        return None
    groups = np.asarray(groups).reshape(-1)
    if len(groups) != n_rows:
        raise DataError(
            f"groups must name one unit per row ({n_rows}), got {len(groups)}. Give every row of the data its group."
        )
    return groups


def row_label(index: Any, number: int) -> str:
    """Where row ``number`` stands, in the words of a pandas ``index`` (a line of a file, say) if there is one."""
    if index is None:
        return f"row index {number}"
    return f"{index.name or 'row index'} {index[number]}"


def as_number(value: Any) -> float | None:
    """``value`` as a number, None if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _what_is_no_number(value: Any, cause: Exception) -> str:
    """The end of a sentence on a ``value`` of which NumPy made no array of numbers."""
    try:
        cells = np.asarray(value, dtype=object).reshape(-1)
    except ValueError:
        cells = np.empty(0)
    for cell in cells:
        if np.ndim(cell) == 0 and as_number(cell) is None:
            return f"numeric, got {cell!r}. Encode text as numbers, or pass a data frame with column roles."
    return f"a rectangular array of numbers, got {type(value).__name__} that is ragged ({cause})."


def shared_columns(x: Matrix, c: Matrix) -> dict[int, int]:
    """Columns of ``x`` that stand in ``c``, too: {column of x: column of c}. They are known given c, exactly."""
    places: dict[bytes, list[int]] = {}
    for j in range(c.shape[1]):
        places.setdefault(_fingerprint(c[:, j]), []).append(j)
    found: dict[int, int] = {}
    for i in range(x.shape[1]):
        equal = places.get(_fingerprint(x[:, i]))
        if equal:
            found[i] = equal.pop(0)
    return found


def _fingerprint(column: np.ndarray) -> bytes:
    # Adding zero makes -0.0 and 0.0, which are equal, alike.
    return np.ascontiguousarray(column + 0.0).tobytes()


def is_discrete(column: np.ndarray) -> bool:
    """Whether a column looks like a discrete variable: few values, each seen at least twice."""
    _, counts = np.unique(column, return_counts=True)
    return len(counts) <= MAX_AUTO_LEVELS and counts.min() >= 2


def level_indicators(column: np.ndarray) -> Matrix:
    """A column of 0 and 1 for every value, of a column that takes few; none where some value is rare.

    None for two values, either, which are an indicator already. An indicator of a rare value is an outlier in its rows.
    """
    levels, counts = np.unique(column, return_counts=True)
    if not 2 < len(levels) <= MAX_AUTO_LEVELS or counts.min() < MIN_LEVEL_SHARE * len(column):
        return np.zeros((len(column), 0))
    return (column[:, None] == levels).astype(float)


def numeric_columns(array: Matrix) -> tuple[int, ...]:
    """Columns that take many values, for which an embedding pays."""
    return tuple(j for j in range(array.shape[1]) if len(np.unique(array[:, j])) > MAX_AUTO_LEVELS)


class Scaler:
    """Shift and scale of columns; a constant column is only shifted."""

    def __init__(self, mean: np.ndarray, scale: np.ndarray):
        self.mean, self.scale = mean, scale

    @classmethod
    def of(cls, array: Matrix, *, together: slice | list[int] | None = None) -> "Scaler":
        """Mean and standard deviation of the columns; of those in ``together`` (the pixels of an image), jointly.

        A pixel that is lit in one image of a thousand would else stand thirty standard deviations out in that image.
        """
        mean, scale = array.mean(axis=0), array.std(axis=0)
        scale = np.where(np.ptp(array, axis=0) > 0, scale, 1.0)
        if together is not None:
            block = array[:, together]
            mean[together], scale[together] = block.mean(), block.std() if np.ptp(block) > 0 else 1.0
        return cls(mean, scale)

    @classmethod
    def for_network(cls, array: Matrix, network: Any) -> "Scaler":
        """The scale of a network's inputs: pixels, where its specification takes some, share one."""
        places = network.image_columns(array.shape[1]) if hasattr(network, "image_columns") else None
        return cls.of(array, together=places)

    def forward(self, array: Matrix) -> np.ndarray:
        """To standard units, in single precision."""
        return ((array - self.mean) / self.scale).astype(np.float32)

    def back(self, array: np.ndarray) -> np.ndarray:
        """To the units of the data."""
        return np.asarray(array, dtype=float) * self.scale + self.mean


def with_ones(array: np.ndarray) -> np.ndarray:
    """A column of ones before the columns of ``array`` (its last axis)."""
    return np.concatenate([np.ones((*array.shape[:-1], 1)), array], axis=-1)
