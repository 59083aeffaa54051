"""Who trains on which rows: cross-fitting folds by unit, and held-out parts inside a training set."""

import numpy as np

from prudent.errors import DataError


def cross_fit_folds(
    n_rows: int,
    n_folds: int,
    rng: np.random.Generator,
    groups: np.ndarray | None = None,
    *,
    user: str | None = None,
) -> list[np.ndarray]:
    """Random partition of the rows into ``n_folds`` parts; rows of one group (an episode, a person) stay together.

    ``user`` is the subject of the error where the number of folds is not a parameter that could be lowered.
    """
    if groups is None:
        unit_rows = None
        n_units = n_rows
    else:
        _, unit = np.unique(groups, return_inverse=True)
        order = np.argsort(unit, kind="stable")
        unit_rows = np.split(order, np.flatnonzero(np.diff(unit[order])) + 1)
        n_units = len(unit_rows)
    # The floor of two units holds for one fold, too: a unit is held out of its training set.
    if n_units < max(2 * n_folds, 2):
        kind = "rows" if groups is None else "groups"
        if user is not None:
            cure = "" if groups is None else ", or leave groups out where rows are independent"
            raise DataError(f"{user} needs at least {2 * n_folds} {kind}, got {n_units}. Bring more data{cure}.")
        raise DataError(
            f"n_folds={n_folds} needs at least two units per fold, got {n_units} {kind}. Lower n_folds or bring more "
            "data."
        )
    if n_folds == 1:
        return [np.arange(n_rows)]
    parts = np.array_split(rng.permutation(n_units), n_folds)
    if unit_rows is None:
        return [np.sort(part) for part in parts]
    return [np.sort(np.concatenate([unit_rows[u] for u in part])) for part in parts]


def unseen_folds(n_rows: int, rng: np.random.Generator, groups: np.ndarray | None) -> list[np.ndarray]:
    """Two folds by which a fit without cross-fitting is judged on rows that its models have not seen."""
    return cross_fit_folds(
        n_rows, 2, rng, groups, user="A fit with n_folds=1 judges its models on two halves, for which it"
    )


def held_out_groups(groups: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(train, held out): rows of a tenth of the groups, and of one at the least, are held out."""
    names, unit = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        # One group is all there is to learn from and to stop on: its rows count as units.
        unit = np.arange(len(groups))
    n_units = int(unit.max()) + 1
    held = np.isin(unit, rng.permutation(n_units)[: max(1, n_units // 10)])
    return np.flatnonzero(~held), np.flatnonzero(held)


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
        if len(names) < 2:
            raise DataError(
                f"Training is stopped on groups of its own, for which it needs at least 2 groups, got {len(names)}. "
                "Bring more data, or leave groups out where rows are independent."
            )
        n_parts = max(2, min(n_parts, len(names)))
        label = (rng.permutation(len(names)) % n_parts)[unit]
    return [(rows[label != s % n_parts], rows[label == s % n_parts]) for s in range(n_splits)]
