"""Folds and held-out parts: every row once, units never divided."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prudent._progress import Progress
from prudent.cmr import ControlFunction
from prudent.cmr._base import regress_out_of_fold, residual_moment
from prudent.cmr._folds import cross_fit_folds, held_out_groups, held_out_splits
from prudent.cmr._tree_regression import tree_regression
from prudent.errors import DataError


@settings(derandomize=True, deadline=None, max_examples=60)
@given(n=st.integers(20, 200), n_folds=st.integers(2, 8), seed=st.integers(0, 99))
def test_folds_are_a_partition_of_nearly_equal_parts(n, n_folds, seed):
    folds = cross_fit_folds(n, n_folds, np.random.default_rng(seed))
    assert sorted(np.concatenate(folds)) == list(range(n))
    assert max(map(len, folds)) - min(map(len, folds)) <= 1


@settings(derandomize=True, deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(1, 9), min_size=12, max_size=40), seed=st.integers(0, 99))
def test_units_stay_together(sizes, seed):
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    folds = cross_fit_folds(len(groups), 4, rng, groups)
    assert sorted(np.concatenate(folds)) == list(range(len(groups)))
    owners = [set(groups[fold]) for fold in folds]
    assert sum(map(len, owners)) == len(sizes)
    for train, held in held_out_splits(np.arange(len(groups)), 3, rng, groups):
        assert not set(groups[train]) & set(groups[held])
        assert len(train)
        assert len(held)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(n=st.integers(20, 200), n_splits=st.integers(1, 10), seed=st.integers(0, 99))
def test_held_out_parts_do_not_overlap(n, n_splits, seed):
    rows = np.random.default_rng(seed).permutation(1000)[:n]
    splits = held_out_splits(rows, n_splits, np.random.default_rng(seed))
    held = np.concatenate([h for _, h in splits])
    assert len(set(held)) == len(held)
    assert all(sorted([*train, *h]) == sorted(rows) for train, h in splits)


def test_too_few_units():
    with pytest.raises(DataError, match="n_folds=10 needs at least two units per fold, got 15 rows"):
        cross_fit_folds(15, 10, np.random.default_rng(0))
    with pytest.raises(DataError, match="got 3 groups"):
        cross_fit_folds(60, 2, np.random.default_rng(0), np.repeat([0, 1, 2], 20))


def test_penalties_and_stops_are_chosen_on_whole_groups():
    # Ten copies of every row: a copy that is held out by itself was seen nine times, and nothing stops the fit of
    # noise. Out of fold the noise of other groups cannot be predicted, so a good fit is close to zero.
    rng = np.random.default_rng(1)
    c, e = rng.normal(size=(2, 60, 1))
    rows = np.repeat(np.arange(60), 10)
    fitted = regress_out_of_fold(e[rows], c[rows], seed=0, groups=rows)
    assert np.mean(fitted**2) < 0.05  # Chosen row by row: 0.24.
    moment = residual_moment(e[rows], c[rows], seed=0, groups=rows)
    assert abs(moment.value) < 3 * moment.standard_error


def test_boosted_nuisances_stop_on_whole_groups():
    rng = np.random.default_rng(0)
    c, e = rng.normal(size=(2, 60, 1))
    rows = np.repeat(np.arange(60), 10)
    sizes = []
    for groups in (rows, None):
        with Progress(False) as progress:
            regress = tree_regression("boosting", np.random.default_rng(0), progress)
            sizes.append(np.mean(regress(c[rows], e[rows], [np.arange(600)], groups)(c[rows]) ** 2))
    # The outcome is noise, of which ten copies were learnt by heart where the others judged.
    assert sizes[0] < 0.3 * sizes[1]


def test_a_boosted_second_stage_stops_on_whole_groups():
    rng = np.random.default_rng(0)
    z, u, e = rng.normal(size=(3, 40, 1))
    rows = np.repeat(np.arange(40), 8)
    model = ControlFunction("boosting", n_landmarks=50).fit(
        e[rows], (z + u)[rows] + 0.01 * rng.normal(size=(320, 1)), z[rows], seed=0, groups=rows
    )
    # The outcome of a group is noise: f should be nearly flat. Stopped on single rows: 0.40.
    assert np.std(model.predict(np.linspace(-1, 1, 50)[:, None])) < 0.25


def test_held_out_groups_are_whole():
    train, held = held_out_groups(np.repeat(np.arange(30), 2), np.random.default_rng(0))
    assert len(held) == 6
    assert not set(np.repeat(np.arange(30), 2)[train]) & set(np.repeat(np.arange(30), 2)[held])
    assert len(held_out_groups(np.zeros(20), np.random.default_rng(0))[1]) == 2
