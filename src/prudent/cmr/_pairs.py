"""A function of (a, w) at all pairs of some a and some w, of which averages over w are made."""

from collections.abc import Callable, Iterator

import numpy as np

from prudent.cmr._arrays import Matrix

# Rows at which a function is evaluated for one question; beyond it, the average is over a subset of the units.
MAX_ROWS = 500_000
MIN_UNITS = 500
# Numbers handed to the function at a time.
BLOCK_CELLS = 2_000_000


def even_choice(others: Matrix, n_treatments: int) -> Matrix:
    """All units, or an even choice of them where the number of treatments makes that too many rows."""
    count = max(MIN_UNITS, MAX_ROWS // max(n_treatments, 1))
    if len(others) <= count:
        return others
    return others[np.linspace(0, len(others) - 1, count).astype(int)]


def over_units(
    predict: Callable[[Matrix], np.ndarray], treatment: Matrix, others: Matrix
) -> Iterator[tuple[Matrix, np.ndarray]]:
    """For every row a of ``treatment``: the rows (a, others), and predict there (units, outcomes)."""
    n = len(others)
    count = max(1, BLOCK_CELLS // (n * (treatment.shape[1] + others.shape[1])))
    for start in range(0, len(treatment), count):
        block = treatment[start : start + count]
        rows = np.hstack([np.repeat(block, n, axis=0), np.tile(others, (len(block), 1))])
        values = np.asarray(predict(rows)).reshape(len(rows), -1)
        for k in range(len(block)):
            yield rows[k * n : (k + 1) * n], values[k * n : (k + 1) * n]


def all_pairs(predict: Callable[[Matrix], np.ndarray], treatment: Matrix, others: Matrix) -> np.ndarray:
    """(treatments, units, outcomes): the values of :func:`over_units`."""
    return np.stack([values for _, values in over_units(predict, treatment, others)])


def beside(first: Matrix, others: Matrix) -> Matrix:
    """Rows of both side by side; one of them may be a single row, which serves for all rows of the other."""
    first, others = np.atleast_2d(first), np.atleast_2d(others)
    n = max(len(first), len(others))
    return np.hstack([np.broadcast_to(part, (n, part.shape[1])) for part in (first, others)])


def pair_products(left: np.ndarray, right: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Sums over l of left[i, l] right[j, l] weight[l, k]: (i, j, k)."""
    return np.stack([(left * column) @ right.T for column in weight.T], axis=2)
