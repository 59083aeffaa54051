"""Tree estimators: the arrays against scikit-learn, a step, and what every estimator has to do."""

import dataclasses

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.tree import DecisionTreeRegressor
from threadpoolctl import threadpool_limits

import prudent
from prudent import IVRegression, datasets
from prudent._progress import Progress
from prudent.cmr import KernelCMR, TreeCMR
from prudent.cmr._codes import Codes, indicator_sets
from prudent.cmr._tree_ensemble import TreeEnsemble
from prudent.cmr._tree_regression import _parts, tree_regression
from prudent.cmr._treecmr import _last_good
from prudent.errors import DataError, NotFittedError


def problem(design: datasets.Design):
    context = np.empty((len(design.outcome), 0)) if design.context is None else design.context
    return design.outcome, np.hstack([design.action, context]), np.hstack([design.instruments, context])


@pytest.fixture(scope="module")
def design() -> datasets.Design:
    return datasets.make_linear_gaussian(300, seed=0)


def test_arrays_predict_what_scikit_learn_predicts():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    y = np.sin(x[:, :2]) + x[:, 2:]
    trees = [DecisionTreeRegressor(max_depth=d, random_state=0).fit(x, y) for d in (1, 3, 6)]
    ensemble = TreeEnsemble.of([t.tree_ for t in trees], [t.tree_.value.reshape(-1, 1, 2) for t in trees])
    fresh = rng.normal(size=(500, 3))
    expected = sum(tree.predict(fresh) for tree in trees)
    np.testing.assert_allclose(ensemble.predict(fresh, np.ones((500, 1))), expected)
    again = TreeEnsemble.from_arrays(ensemble.to_arrays())
    assert np.array_equal(again.predict(fresh, np.ones((500, 1))), ensemble.predict(fresh, np.ones((500, 1))))


@pytest.mark.parametrize("dropped", [0, 1])
def test_levels_are_one_column_in_the_order_of_their_mean_outcome(dropped):
    rng = np.random.default_rng(0)
    level = rng.integers(0, 5, 400)
    value = np.array([3.0, -1.0, 7.0, 0.0, 2.0])[level]
    flag, number = rng.integers(0, 2, 400), rng.normal(size=400)
    # With or without an indicator of the first level; a flag that goes with all of them is no level.
    x = np.column_stack([flag, number, np.eye(5)[level][:, dropped:]])
    outcome = value + 0.1 * rng.normal(size=400)
    # Outcomes that mirror each other, as the indicators of a binary action do, do not cancel.
    for y in (outcome[:, None], np.column_stack([outcome, -outcome])):
        seen = Codes.of(x, y)(x)
        assert seen.shape == (400, 3)
        assert np.array_equal(seen[:, :2], x[:, :2])
        means = [np.mean(value[seen[:, 2] == rank]) for rank in np.unique(seen[:, 2])]
        assert means in (sorted(means), sorted(means, reverse=True))
        assert len(means) == 5
    few = x[:, :3]
    assert np.array_equal(Codes.of(few, outcome[:, None])(few), few)


def test_a_level_without_rows_is_an_average_one():
    level = np.repeat(np.arange(4), 50)
    x = np.column_stack([np.eye(4)[level], np.zeros(200)])
    codes = Codes.of(x, (level - 1.5)[:, None])
    at = codes(np.eye(5))[:, 0]
    middle = sorted(at[:4])[1:3]
    assert middle[0] < at[4] < middle[1]
    assert codes.others.size == 0


def test_rare_flags_are_no_levels():
    flags = (np.random.default_rng(0).random((200, 8)) < 0.02).astype(float)
    assert indicator_sets(flags) == []


@pytest.mark.parametrize("model", ["boosting", "forest"])
def test_categories_in_the_context(model, tmp_path):
    data = datasets.make_demand(300, seed=1000)
    # On a grid, so that rounding in the last digit leaves the same rows on either side of a split.
    data = dataclasses.replace(data, action=np.round(64 * data.action) / 64)
    fitted = IVRegression(TreeCMR(model, n_folds=2), seed=0).fit(**data.roles())
    assert fitted.estimator_.codes_.weight.shape == (9, 1)
    action, context = data.action[:20], data.context[:20]
    expected = fitted.effect(action, context)
    fitted.save(tmp_path / "model")
    assert np.array_equal(prudent.load(tmp_path / "model").effect(action, context), expected)
    # The same problem far from zero: trees see standard units.
    far = data.action + 1e7
    moved = IVRegression(TreeCMR(model, n_folds=2), seed=0).fit(**data.roles() | {"action": far})
    np.testing.assert_allclose(moved.effect(far[:20], context), expected, atol=0.05)


def test_growth_ends_with_the_last_step_that_is_not_clearly_worse():
    assert _last_good([1.0]) == 0
    assert _last_good([1.0, 0.5, 0.504, 0.51]) == 2
    # Nothing was gained.
    assert _last_good([1.0, 1.0 + 1e-6, 1.1]) == 0


@pytest.mark.parametrize(("name", "value"), [("left", 0), ("right", 10**6), ("feature", -5)])
def test_damaged_trees_are_refused(name, value):
    tree = DecisionTreeRegressor(max_depth=2).fit(np.arange(20.0)[:, None], np.arange(20.0)).tree_
    arrays = TreeEnsemble.of([tree], [tree.value.reshape(-1, 1, 1)]).to_arrays()
    arrays[f"trees.{name}"][0] = value
    with pytest.raises(ValueError, match="tree"):
        TreeEnsemble.from_arrays(arrays)


@pytest.mark.parametrize("model", ["boosting", "forest"])
def test_a_step_is_found(model):
    # A step in a known column: no inverse problem, so trees should be sharp.
    rng = np.random.default_rng(0)
    z, k, u = rng.normal(size=(1000, 1)), rng.uniform(-1, 1, (1000, 1)), 0.5 * rng.normal(size=(1000, 1))
    a = z + u + 0.3 * rng.normal(size=z.shape)
    y = np.where(k > 0, 2.0, -1.0) + a + u
    fitted = TreeCMR(model, n_folds=3).fit(y, np.hstack([a, k]), np.hstack([z, k]), seed=0)
    values = fitted.predict([[0.0, -0.5], [0.0, 0.5]])[:, 0]
    assert values[1] - values[0] == pytest.approx(3.0, abs=0.35)
    places = np.linspace(-0.9, 0.9, 10)
    high, low = (fitted.predict(np.column_stack([np.full(10, a), places])) for a in (1.0, -1.0))
    assert np.mean(high - low) / 2 == pytest.approx(1.0, abs=0.12)  # plain regression: 1.19


@pytest.mark.parametrize("settings", [{"score": "deepiv"}, {"n_folds": 1}, {"leaves": "constant"}])
def test_variants_find_the_slope(settings):
    design = datasets.make_linear_gaussian(1000, seed=0)
    model = TreeCMR(**{"n_folds": 2, **settings}).fit(*problem(design), seed=0)
    values = model.predict([[-1.0, 0.0], [1.0, 0.0]])
    assert (values[1, 0] - values[0, 0]) / 2 == pytest.approx(2.0, abs=0.25)


def test_discrete_action():
    design = datasets.make_linear_gaussian(1500, seed=0, discrete=True)
    model = TreeCMR(n_folds=2).fit(*problem(design), seed=0)
    assert model.report_.discrete == (0,)
    values = model.predict([[0.0, 0.0], [1.0, 0.0]])
    assert values[1, 0] - values[0, 0] == pytest.approx(2.0, abs=0.5)


@pytest.mark.parametrize("model", ["boosting", "forest"])
def test_fit_in_a_model_saved_and_repeated(model, design, tmp_path):
    estimator = TreeCMR(model, n_folds=2)
    fitted = IVRegression(estimator, seed=3).fit(**design.roles())
    again = IVRegression(estimator, seed=3).fit(**design.roles())
    expected = fitted.effect([-1.0, 0.0, 1.0], [0.5])
    assert np.array_equal(again.effect([-1.0, 0.0, 1.0], [0.5]), expected)
    loaded = prudent.load(fitted.save(tmp_path / "model"))
    assert np.array_equal(loaded.effect([-1.0, 0.0, 1.0], [0.5]), expected)
    assert fitted.diagnose().weakest_f > 10


def test_outcomes_are_columns_and_groups_stay_together(design):
    y, x, c = problem(design)
    model = TreeCMR(n_folds=2).fit(np.hstack([y, -y]), x, c, seed=0, groups=np.repeat(np.arange(100), 3))
    assert model.predict(x[:7]).shape == (7, 2)


def test_bad_input(design):
    y, x, c = problem(design)
    with pytest.raises(DataError, match="x must be finite"):
        TreeCMR().fit(y, x * np.nan, c, seed=0)
    with pytest.raises(DataError, match="Column 0 of x is constant"):
        TreeCMR().fit(y, x * 0, c, seed=0)
    with pytest.raises(DataError, match="needs at least 20 rows, got 9"):
        TreeCMR().fit(y[:9], x[:9], c[:9], seed=0)
    for settings, message in [
        ({"model": "oak"}, "model must be one of"),
        ({"score": "both"}, "score must be one of"),
        ({"leaves": "cubic"}, "leaves must be one of"),
        ({"n_folds": 0}, "n_folds must be a whole number"),
    ]:
        with pytest.raises(ValueError, match=message):
            TreeCMR(**settings).fit(y, x, c, seed=0)
    with pytest.raises(NotFittedError):
        TreeCMR().predict(x)
    assert clone(TreeCMR("forest")).get_params()["model"] == "forest"


def test_held_out_outcomes_do_not_leak_into_the_number_of_steps():
    # The outcome is noise: nothing is to be learnt, and held-out rows say so unless they were seen before. With the
    # leak boosting took 28, 227 and 4 steps here.
    steps = []
    for seed in range(3):
        rng = np.random.default_rng(1000 + seed)
        z, u, k = rng.normal(size=(3, 250, 1))
        y = rng.normal(size=(250, 1))
        fitted = TreeCMR("boosting", n_folds=5).fit(y, np.hstack([z + u, k]), np.hstack([z, k]), seed=1000 + seed)
        steps.append(fitted.report_.n_steps)
    assert max(steps) < 60


def test_held_out_outcomes_do_not_leak_by_the_order_of_levels():
    # As above. In the order of the outcomes of all rows, 60 levels took boosting 36, 0 and 11 steps here.
    steps = []
    for seed in range(3):
        rng = np.random.default_rng(1000 + seed)
        k = np.eye(60)[rng.integers(60, size=250)][:, 1:]
        z, u, y = rng.normal(size=(3, 250, 1))
        model = TreeCMR("boosting", n_folds=1, score="deepiv")
        steps.append(model.fit(y, np.hstack([z + u, k]), np.hstack([z, k]), seed=1000 + seed).report_.n_steps)
    assert max(steps) < 5


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("make", [lambda: TreeCMR("forest", n_folds=1), lambda: KernelCMR(1, n_landmarks=100)])
def test_strength_with_one_fold_is_that_of_unseen_rows(make, discrete):
    # An instrument that is noise: a forest that had seen its rows called it strong (F = 163).
    rng = np.random.default_rng(0)
    z, a, e = rng.normal(size=(3, 300, 1))
    a = (a > 0).astype(float) if discrete else a
    report = make().fit(a + e, a, z, seed=0).report_
    assert report.strength[0].effective_f < 10
    assert report.modelled_r2[0] < 0.1
    assert report.outcome_r2[0] < 0.1


@pytest.mark.parametrize("model", ["boosting", "forest"])
@pytest.mark.parametrize("levels", [0, 60])
def test_one_fold_predicts_rows_out_of_bag(model, levels):
    # Nothing but noise: a forest that had seen its rows followed a quarter of it, and so did codes of many levels.
    rng = np.random.default_rng(0)
    inputs, noise = rng.normal(size=(400, 2)), rng.normal(size=(400, 1))
    if levels:
        inputs = np.eye(levels)[rng.integers(0, levels, 400)]
    with Progress(False) as progress, threadpool_limits(1):
        predict = tree_regression(model, rng, progress)(inputs, noise, [np.arange(400)], None)
    assert np.mean(predict(inputs) * noise) / np.var(noise) < 0.03


def test_parts_hold_every_row_once_and_groups_as_a_whole():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(7), 4)
    for some in (None, groups, np.zeros(28, dtype=int)):
        parts = _parts(28, some, rng)
        assert len(parts) == 3
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(28))
    parts = _parts(28, groups, rng)
    assert sum(len(np.unique(groups[part])) for part in parts) == 7


def test_levels_do_not_turn_into_slopes():
    # The level jumps with k, and so does the place of the action; the slope is 0.5 everywhere. With leaves that were
    # shrunk at the origin of the action it was 0.65 to 0.38.
    rng = np.random.default_rng(0)
    z, u, k = rng.normal(size=(2000, 1)), 0.5 * rng.normal(size=(2000, 1)), rng.integers(0, 3, (2000, 1)).astype(float)
    a = z + u + 6 * k
    y = 0.5 * a + np.array([0.0, 4.0, -2.0])[k.astype(int)] + u
    fitted = TreeCMR("forest", n_folds=2).fit(y, np.hstack([a, k]), np.hstack([z, k]), seed=0)
    levels = np.arange(3.0)
    high, low = (fitted.predict(np.column_stack([6 * levels + far, levels]))[:, 0] for far in (6, -6))
    assert np.ptp((high - low) / 12) < 0.1
