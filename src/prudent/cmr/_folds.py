"""Who trains on which rows: cross-fitting folds by unit, and held-out parts inside a training set."""

import numpy as np

from prudent.errors import DataError


def cross_fit_folds(
    n_rows: int, n_folds: int, rng: np.random.Generator, groups: np.ndarray | None = None
) -> list[np.ndarray]:
    """Random partition of the rows into ``n_folds`` parts; rows of one group (an episode, a person) stay together."""
    if n_folds == 1:
        return [np.arange(n_rows)]
    if groups is None:
        unit_rows = None
        n_units = n_rows
    else:
        _, unit = np.unique(groups, return_inverse=True)
        order = np.argsort(unit, kind="stable")
        unit_rows = np.split(order, np.flatnonzero(np.diff(unit[order])) + 1)
        n_units = len(unit_rows)
    if n_units < 2 * n_folds:
        raise DataError(
            f"n_folds={n_folds} needs at least two units per fold, got {n_units} "
            f"{'rows' if groups is None else 'groups'}. Lower n_folds or bring more data."
        )
    parts = np.array_split(rng.permutation(n_units), n_folds)
    if unit_rows is None:
        return [np.sort(part) for part in parts]
    return [np.sort(np.concatenate([unit_rows[u] for u in part])) for part in parts]


def held_out_splits(
    rows: np.ndarray, n_splits: int, rng: np.random.Generator, groups: np.ndarray | None = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """``n_splits`` pairs (train, held out) of ``rows``; the held-out parts (a seventh or less) do not overlap.

    Groups stay together here, too: a held-out row of an episode that was trained on would stop training too late.
    """
    n_parts = max(n_splits, 7)
    if groups is None:
        label = rng.permutation(len(rows)) % n_parts
    else:
        names, unit = np.unique(groups[rows], return_inverse=True)
        n_parts = max(2, min(n_parts, len(names)))
        label = (rng.permutation(len(names)) % n_parts)[unit]
    return [(rows[label != s % n_parts], rows[label == s % n_parts]) for s in range(n_splits)]
