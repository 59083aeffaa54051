"""A function at all pairs of some rows and some others, and its averages over the others."""

from collections.abc import Callable, Iterator

import numpy as np

from prudent.cmr._arrays import Matrix

# Rows at which a function is evaluated for one question; beyond it, the average is over a subset of the units.
MAX_ROWS = 500_000
MIN_UNITS = 500
# Numbers handed to the function at a time.
BLOCK_CELLS = 2_000_000


def evenly(rows: Matrix, count: int) -> Matrix:
    """All rows, or ``count`` of them at even distances."""
    return rows if len(rows) <= count else rows[np.linspace(0, len(rows) - 1, count).astype(int)]


def even_choice(others: Matrix, n_first: int) -> Matrix:
    """All others, or an even choice of them where pairs with ``n_first`` rows would be too many."""
    return evenly(others, max(MIN_UNITS, MAX_ROWS // max(n_first, 1)))


def over_units(
    predict: Callable[[Matrix], np.ndarray], first: Matrix, others: Matrix
) -> Iterator[tuple[Matrix, np.ndarray]]:
    """For every row a of ``first``: the rows (a, others), and predict there (others, outcomes)."""
    n = len(others)
    count = max(1, BLOCK_CELLS // (n * (first.shape[1] + others.shape[1])))
    for start in range(0, len(first), count):
        block = first[start : start + count]
        rows = np.hstack([np.repeat(block, n, axis=0), np.tile(others, (len(block), 1))])
        values = np.asarray(predict(rows)).reshape(len(rows), -1)
        for k in range(len(block)):
            yield rows[k * n : (k + 1) * n], values[k * n : (k + 1) * n]


def all_pairs(predict: Callable[[Matrix], np.ndarray], first: Matrix, others: Matrix) -> np.ndarray:
    """(first, others, outcomes): the values of :func:`over_units`."""
    return np.stack([values for _, values in over_units(predict, first, others)])


def mean_over_others(pairs: Callable[[Matrix, Matrix], np.ndarray], first: Matrix, others: Matrix) -> np.ndarray:
    """(first, outcomes): means of ``pairs(first, others)`` over the others."""
    blocks = np.array_split(first, -(-len(first) * len(others) // BLOCK_CELLS))
    return np.concatenate([pairs(block, others).mean(axis=1) for block in blocks if len(block)])


def beside(*parts: Matrix) -> Matrix:
    """Rows of all parts side by side; a part of one row serves for all rows of the others."""
    n = max(len(part) for part in parts)
    return np.hstack([np.broadcast_to(part, (n, part.shape[1])) for part in parts])


def pair_products(left: np.ndarray, right: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Sums over l of left[i, l] right[j, l] weight[l, k]: (i, j, k)."""
    return np.stack([(left * column) @ right.T for column in weight.T], axis=2)
