"""A variable in two roles."""

from collections.abc import Mapping, Sequence

import numpy as np

from prudent._roles import Role
from prudent.cmr._arrays import Matrix
from prudent.errors import DataError
from prudent.proximal._compress import WIDE

# Columns are copies of each other where their correlation is one, or minus one, up to this.
TOLERANCE = 1e-9
# A pixel that is lit in fewer pictures than this may be lit in the same ones as another by chance.
MIN_LIT = 10
MAX_ROWS = 1000
# Columns at a time, so that no copy of all pictures is made.
BLOCK = 256


def check_copies(columns: Mapping[str, tuple[Sequence[str], Matrix]]) -> None:
    """Raise where a column is one of another role but for scale and shift: such a proxy cannot do its work.

    ``columns`` has (names, one column each) by role. Constant columns (a picture's border) say nothing.
    """
    some = _some_rows([matrix for _, matrix in columns.values()])
    places = [(role, j) for role, (names, _) in columns.items() for j in range(len(names))]
    # Copies have the same projection on a random direction but for the sign, others hardly ever: only neighbours on
    # that scale are compared, of the thousands of columns of two pictures.
    shadow = np.concatenate([_projections(matrix[some]) for _, matrix in columns.values()])
    # Unit columns with that correlation are sqrt(2 TOLERANCE) apart, and so are their projections, times a normal draw.
    reach = 6 * np.sqrt(2 * TOLERANCE)
    order = np.argsort(shadow)[: np.isfinite(shadow).sum()]
    ends = np.searchsorted(shadow[order], shadow[order] + reach, side="right")
    for start, end in enumerate(ends):
        for other in range(start + 1, end):
            (role, i), (later, j) = (places[k] for k in sorted((order[start], order[other])))
            if role == later:
                continue
            first, second = columns[role][1][:, i], columns[later][1][:, j]
            if _are_copies(first[some], second[some]) and _are_copies(first, second):
                this, that = (title.replace("_", " ") for title in (later, role))
                raise DataError(
                    f"{this.capitalize()} column {columns[later][0][j]!r} is a copy of {that} column "
                    f"{columns[role][0][i]!r}, up to scale and shift: a variable cannot stand in two roles. Drop one "
                    "of them."
                )


def one_column_each(role: Role, matrix: Matrix) -> Matrix:
    """The encoded columns of a role with categories as numbers, in the order in which their levels appear."""
    if all(column.levels is None for column in role.columns):
        return matrix
    columns, start = [], 0
    for column in role.columns:
        block = matrix[:, start : start + column.width]
        start += column.width
        if column.levels is not None:
            block = block @ np.argsort(np.argsort(block.argmax(axis=0)))[:, None]
        columns.append(block)
    return np.hstack(columns)


def _some_rows(matrices: list[Matrix]) -> slice:
    """All rows; beside pictures, with their thousands of columns, about a thousand if all narrow columns vary there."""
    some = slice(None, None, -(-len(matrices[0]) // MAX_ROWS))
    narrow = [matrix[some] for matrix in matrices if matrix.shape[1] <= WIDE]
    if len(narrow) == len(matrices) or any((np.ptp(matrix, axis=0) == 0).any() for matrix in narrow):
        return slice(None)
    return some


def _projections(matrix: Matrix) -> np.ndarray:
    """Size of every column, centred and of length one, along one random direction; infinite where it cannot be told."""
    direction = np.random.default_rng(0).standard_normal(len(matrix))
    parts = []
    for start in range(0, matrix.shape[1], BLOCK):
        block = matrix[:, start : start + BLOCK]
        unit = block - block.mean(axis=0)
        varies = np.ptp(block, axis=0) > 0
        unit /= np.where(varies, np.linalg.norm(unit, axis=0), 1.0)
        if matrix.shape[1] > WIDE:
            # The fourth powers of a column that is lit k times sum to about 1 / k.
            varies &= np.sum(unit**4, axis=0) < 1 / MIN_LIT
        parts.append(np.where(varies, np.abs(direction @ unit), np.inf))
    return np.concatenate(parts) if parts else np.empty(0)


def _are_copies(first: np.ndarray, second: np.ndarray) -> bool:
    return 1 - abs(np.corrcoef(first, second)[0, 1]) < TOLERANCE
