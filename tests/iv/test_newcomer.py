"""Mistakes that newcomers make, and what they are told."""

import itertools

import numpy as np
import pandas as pd
import pytest

from prudent import DataError, IVRegression, RoleError, datasets, tune
from prudent._roles import as_frame, role_from_array, role_from_frame
from prudent.cmr import ControlFunction, KernelCMR, TreeCMR, TwoStageLeastSquares
from prudent.cmr._tune import Trial, best_first
from prudent.iv import suboptimality


@pytest.fixture(scope="module")
def design():
    return datasets.make_linear_gaussian(300, seed=0)


@pytest.fixture(scope="module")
def model(design):
    return IVRegression(TwoStageLeastSquares()).fit(**design.roles())


@pytest.mark.parametrize("factor", [1.0, -3.0])
def test_the_action_is_no_instrument(design, factor):
    frame = design.frame().assign(z=lambda d: factor * d.a)
    with pytest.raises(RoleError, match="is the action 'a' in other units"):
        IVRegression(TwoStageLeastSquares()).fit(frame, outcome="y", action="a", instruments="z")


def test_one_action_of_two_may_instrument_itself(design):
    rng = np.random.default_rng(0)
    frame = design.frame().assign(ad=rng.normal(size=300))
    frame["ad_again"] = frame.ad
    names = {"outcome": "y", "action": ["a", "ad"], "instruments": ["z1", "z2", "ad_again"]}
    fitted = IVRegression(TwoStageLeastSquares()).fit(frame, **names)
    assert np.isfinite(fitted.effect([[0.0, 0.0]])).all()


def test_a_level_may_be_taken_by_all_who_are_assigned_to_it():
    rng = np.random.default_rng(0)
    assigned = rng.choice(["none", "A", "B"], size=400)
    crosses = (assigned != "none") & (rng.random(400) < 0.3)
    arm = np.where(crosses, np.where(assigned == "A", "B", "A"), assigned)
    frame = pd.DataFrame({"y": rng.normal(size=400) + (arm == "A"), "arm": arm, "assigned": assigned})
    fitted = IVRegression(KernelCMR(n_folds=2)).fit(frame, outcome="y", action="arm", instruments="assigned")
    assert np.isfinite(fitted.effect(["A"])).all()


def test_nearly_the_action_is_warned_of(design):
    noise = 0.01 * np.random.default_rng(0).normal(size=300)
    frame = design.frame().assign(z=lambda d: d.a + noise)
    with pytest.warns(UserWarning, match="is nearly the action"):
        IVRegression(TwoStageLeastSquares()).fit(frame, outcome="y", action="a", instruments="z")


def confounded(kind, seed):
    """A slope of 1 under a confounder; the instrument is a function of the context, or correlated with it (0.9)."""
    rng = np.random.default_rng(seed)
    c, u, e, noise = rng.normal(size=(4, 500))
    z = {"copy": 3 * c, "bent": c**2, "correlated": 0.9 * c + 0.43 * e}[kind]
    a = 2 * c + u + (z if kind == "correlated" else 0)
    return {"outcome": a + 2 * u + c + noise, "action": a, "instruments": z, "context": c}


FAST = {"kernel": KernelCMR(n_folds=2), "control": ControlFunction(), "trees": TreeCMR(n_folds=2)}


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("kind", ["copy", "bent"])
def test_an_instrument_that_the_context_determines_is_weak(name, kind):
    with pytest.warns(UserWarning, match="weak instrument"):
        IVRegression(FAST[name]).fit(**confounded(kind, seed=0))


@pytest.mark.parametrize("name", FAST)
def test_an_instrument_that_the_context_predicts_has_its_own_strength(name):
    found = IVRegression(FAST[name]).fit(**confounded("correlated", seed=0)).diagnose()
    # 0.43^2 / (0.43^2 + 1), of 500 rows.
    assert found.partial_r2[0] == pytest.approx(0.156, abs=0.06)
    assert 40 < found.effective_f[0] < 120


def test_an_instrument_that_determines_the_action_is_warned_of():
    rng = np.random.default_rng(0)
    a = rng.uniform(1, 4, size=400)
    with pytest.warns(UserWarning, match="the instruments determine the action .* made from the action"):
        IVRegression(KernelCMR(n_folds=2)).fit(outcome=a + rng.normal(size=400), action=a, instruments=np.log(a))


def test_two_actions_and_one_binary_instrument_are_warned_of():
    rng = np.random.default_rng(0)
    z = rng.integers(2, size=300)
    actions = np.column_stack([z + rng.normal(size=300), z - rng.normal(size=300)])
    with pytest.warns(UserWarning, match="take 2 different values, which identify 1 of the action's 2 effects"):
        IVRegression(KernelCMR(n_folds=2)).fit(outcome=actions.sum(axis=1), action=actions, instruments=z)


def test_a_name_that_is_nearly_right(design):
    with pytest.raises(RoleError, match="Do you mean 'z1'"):
        IVRegression().fit(design.frame(), outcome="y", action="a", instruments="z_1")


def test_two_columns_of_one_name(design):
    frame = design.frame()
    frame = pd.concat([frame, frame[["a"]]], axis=1)
    with pytest.raises(RoleError, match="'a' stands in the data 2 times"):
        IVRegression().fit(frame, outcome="y", action="a", instruments=["z1", "z2"])


def test_ordered_levels_keep_their_order():
    rng = np.random.default_rng(0)
    z = rng.normal(size=300)
    size = pd.Categorical(np.where(z > 0.5, "large", np.where(z > -0.5, "mid", "small")), ordered=True)
    frame = pd.DataFrame({"y": z + rng.normal(size=300), "z": z + 0.1 * rng.normal(size=300)})
    frame["size"] = size.reorder_categories(["small", "mid", "large"])
    fitted = IVRegression(KernelCMR(n_folds=2)).fit(frame, outcome="y", action="size", instruments="z")
    assert fitted.roles_["action"].columns[0].levels == ("small", "mid", "large")
    with pytest.raises(DataError, match="one per level"):
        IVRegression(ControlFunction()).fit(frame, outcome="y", action="size", instruments="z")


def test_ordered_levels_keep_their_order_as_a_series_and_in_polars():
    polars = pytest.importorskip("polars")
    order, values = ["small", "mid", "large"], ["mid", "large", "small", "mid"]
    series = pd.Series(pd.Categorical(values, categories=order, ordered=True))
    assert role_from_array("Action", series).columns[0].levels == tuple(order)
    frame = as_frame(polars.DataFrame({"size": polars.Series(values, dtype=polars.Enum(order))}))
    assert role_from_frame("Action", frame, "size").columns[0].levels == tuple(order)


@pytest.mark.parametrize("actions", [5, "0:3", ("a", "b")])
def test_actions_that_are_neither_range_nor_list(model, actions):
    with pytest.raises(DataError, match="range"):
        model.policy(actions)


@pytest.mark.parametrize("outcome", ["y", 0.0, True, 1])
def test_outcome_of_a_policy_is_a_number(model, outcome):
    with pytest.raises(DataError, match=rf"in 0\.\.0, got {outcome!r}"):
        model.policy(outcome=outcome)
    with pytest.raises(DataError, match=rf"in 0\.\.0, got {outcome!r}"):
        model.policy_value(model.policy(), outcome=outcome)


def test_policies_and_truths_must_be_callable(model, design):
    contexts = design.context[:5]
    with pytest.raises(DataError, match="policy must have act"):
        suboptimality("best", design, contexts, actions=(-1.0, 1.0))
    with pytest.raises(DataError, match="truth must be a Design"):
        suboptimality(model.policy(), 3, contexts, actions=(-1.0, 1.0))


def test_a_constant_policy_is_a_policy(design):
    contexts = design.context[:5]
    constant = suboptimality(lambda context: 0.0, design, contexts, actions=(-1.0, 1.0))
    assert constant == suboptimality(lambda context: np.zeros(len(context)), design, contexts, actions=(-1.0, 1.0))


def test_truth_of_a_design_is_averaged_over_the_contexts_of_the_picture(model, design):
    lines = [
        model.plot_effect(truth=truth).get_lines()[-1].get_ydata()
        for truth in (design, design.truth, lambda action: 2 * action)
    ]
    expected = [
        np.mean(design.truth(np.full(300, a), design.context)) for a in model.plot_effect().get_lines()[0].get_xdata()
    ]
    np.testing.assert_allclose(lines[0], expected)
    np.testing.assert_allclose(lines[1], expected)
    assert np.ptp(np.diff(lines[2])) < 1e-9
    sine = model.plot_effect(truth=np.sin).get_lines()
    np.testing.assert_allclose(sine[-1].get_ydata(), np.sin(sine[0].get_xdata()))
    with pytest.raises(DataError, match="finite"):
        model.plot_effect(truth=lambda action: float("nan"))
    # A truth may give several values of one action, to be averaged.
    several = model.plot_effect(truth=lambda action: [action, 3 * action]).get_lines()
    np.testing.assert_allclose(several[-1].get_ydata(), 2 * np.asarray(several[0].get_xdata()))


def test_each_of_two_outcomes_has_its_own_truth(design):
    outcomes = np.column_stack([design.outcome, -design.outcome])
    fitted = IVRegression(TwoStageLeastSquares()).fit(**(design.roles() | {"outcome": outcomes}))
    lines = fitted.plot_effect(truth=lambda action: [action, -action]).get_lines()
    assert len(lines) == 4
    np.testing.assert_allclose(lines[2].get_ydata(), -np.asarray(lines[3].get_ydata()))


def test_a_wild_candidate_does_not_win_by_its_noise():
    grid = {"features": ["linear", "polynomial"], "interactions": [False, True]}
    for seed in range(1, 4):
        result = tune(TwoStageLeastSquares(), grid, datasets.make_linear_gaussian(500, seed=seed))
        assert result.best["function.features"] == "linear"


def test_a_diverged_candidate_loses_wherever_it_stands():
    good, wild, lost = (
        Trial("function", {}, score, error, {})
        for score, error in ((0.004, 0.021), (-5.0, 8.0), (float("inf"), float("nan")))
    )
    for trials in itertools.permutations([good, wild, lost]):
        assert best_first(list(trials)) == [good, wild, lost]
    # Of two errors that can be told, the smaller, not the one with the smaller noise: that is the regression's.
    regression = Trial("function", {}, 0.017, 0.003, {})
    assert best_first([regression, good, wild])[0] == good


def test_tune_takes_a_frame_and_names_as_fit_does(design):
    names = {"outcome": "y", "action": "a", "instruments": ["z1", "z2"], "context": "x"}
    space = {"features": ["linear", "polynomial"]}
    by_names = tune(TwoStageLeastSquares(), space, {"data": design.frame(), **names})
    assert by_names.trials == tune(TwoStageLeastSquares(), space, design).trials
    with pytest.raises(RoleError, match="is a column name, but no data frame was given"):
        tune(TwoStageLeastSquares(), space, names)


def test_the_moment_error_on_new_rows_takes_a_frame_or_arrays(design, model):
    new = datasets.make_linear_gaussian(400, seed=1)
    names = {"outcome": "y", "action": "a", "instruments": ["z1", "z2"], "context": "x"}
    by_names = IVRegression(TwoStageLeastSquares()).fit(design.frame(), **names)
    y, a, z, x = (np.asarray(new.roles()[name]).reshape(400, -1) for name in names)
    expected = model.estimator_.moment_error(y, np.hstack([a, x]), np.hstack([z, x]), seed=0)
    assert by_names.moment_error(new.frame()) == model.moment_error(**new.roles()) == expected
    assert abs(expected.value) < 3 * expected.standard_error
    with pytest.raises(RoleError, match="outcome is missing"):
        model.moment_error()
    with pytest.raises(RoleError, match="outcome was given beside a frame"):
        by_names.moment_error(new.frame(), outcome=y)
    with pytest.raises(DataError, match="Action must have 399 rows like the outcome, got 400"):
        model.moment_error(**(new.roles() | {"outcome": y[1:]}))
    without = IVRegression(TwoStageLeastSquares()).fit(design.frame(), **(names | {"context": None}))
    with pytest.raises(RoleError, match="fitted without context, but one was given"):
        without.moment_error(**new.roles())


def _wages(n: int = 120) -> pd.DataFrame:
    frame = datasets.make_linear_gaussian(n, seed=0).frame()
    return frame.assign(w2=-frame["y"] + frame["x"])


WAGES = {"outcome": "y", "action": "a", "instruments": ["z1", "z2"], "context": "x"}


@pytest.mark.parametrize(
    ("change", "given", "message"),
    [
        (
            {"y": 1e300},
            {},
            r"Outcome column 'y' must have numbers of at most 1e\+100.*got 1e\+300 \(first: row index 3\)",
        ),
        ({"a": 1e300}, {}, "Action column 'a' must have numbers of at most"),
        ({}, {"instruments": "y2"}, "Instruments column 'y2' is the outcome 'y' in other units"),
        ({}, {"context": "y2"}, "Context column 'y2' is the outcome 'y' in other units"),
        ({}, {"context": "day"}, "Context column 'day' is text that holds dates"),
        ({}, {"outcome": "yes"}, "booleans in .*Code it as numbers, such as 0 and 1"),
        ({}, {"action": "tiny"}, "Action column 'tiny' varies by .*Change its unit"),
        ({}, {"action": 1}, r"Action must be the name of a column as text, got 1"),
    ],
)
def test_columns_that_cannot_be_what_they_are_named(change, given, message):
    frame = _wages()
    for name, value in change.items():
        frame.loc[3, name] = value
    days = pd.date_range("2020-01-01", periods=len(frame)).strftime("%Y-%m-%d")
    frame = frame.assign(y2=2 * frame["y"], day=days, yes=frame["y"] > 0, tiny=frame["a"] * 1e-200)
    with pytest.raises((DataError, RoleError), match=message):
        IVRegression(TwoStageLeastSquares()).fit(frame, **(WAGES | given))


def test_outcomes_have_names_and_a_policy_is_as_good_as_itself():
    frame = _wages()
    model = IVRegression(TwoStageLeastSquares()).fit(frame, **(WAGES | {"outcome": ["y", "w2"]}))
    first, second = (model.policy((-1.0, 1.0), outcome=name).act({"x": [0.0]}) for name in ("y", "w2"))
    assert first[0] == -second[0]
    assert model.policy_value(1.0, outcome="w2") == model.policy_value(1.0, outcome=1)
    with pytest.raises(DataError, match=r"outcome must be one of \['y', 'w2'\] or its number, in 0\.\.1, got 'w3'"):
        model.policy(outcome="w3")
    same = model.policy_value(1.0, {"x": [0.0]}, baseline=1.0)
    assert (same.value, same.lower, same.upper) == (0.0, 0.0, 0.0)
