"""Debiased policy values: against linearmodels, against known truths, and on bad input."""

import numpy as np
import pytest
from linearmodels.iv import IV2SLS

import prudent
from prudent import IVRegression, datasets
from prudent.cmr import KernelCMR, TwoStageLeastSquares
from prudent.errors import DataError

ROLES = {"outcome": "y", "action": "a", "instruments": ["z1", "z2"], "context": ["x"]}


@pytest.fixture(scope="module")
def design():
    return datasets.make_linear_gaussian(500, seed=0)


@pytest.fixture(scope="module")
def model(design) -> IVRegression:
    return IVRegression(TwoStageLeastSquares(), seed=0).fit(design.frame(), **ROLES)


def test_the_value_of_an_action_against_another_is_that_of_two_stage_least_squares(design, model):
    frame = design.frame().assign(one=1.0)
    judge = IV2SLS(frame["y"], frame[["one", "x"]], frame["a"], frame[["z1", "z2"]]).fit(cov_type="robust")
    found = model.policy_value(1.0, baseline=0.0)
    assert found.value == pytest.approx(judge.params["a"], rel=1e-6)
    assert found.standard_error == pytest.approx(judge.std_errors["a"], rel=2e-3)
    assert found.lower == pytest.approx(found.value - 1.9647 * found.standard_error, rel=1e-4)
    assert model.policy_value(1.0, baseline=0.0, level=0.5).upper < found.upper


def test_the_value_of_an_action_has_the_spread_of_contexts_in_it(design, model):
    frame = design.frame().assign(one=1.0)
    judge = IV2SLS(frame["y"], frame[["one", "x"]], frame["a"], frame[["z1", "z2"]]).fit(cov_type="robust")
    gradient = np.array([1.0, frame["x"].mean(), 2.0])
    variance = gradient @ judge.cov @ gradient + judge.params["x"] ** 2 * frame["x"].var(ddof=1) / len(frame)
    found = model.policy_value(2.0)
    assert found.value == pytest.approx(gradient @ judge.params, rel=1e-6)
    # The two parts are uncorrelated, in the sample but nearly so.
    assert found.standard_error == pytest.approx(np.sqrt(variance), rel=2e-2)
    # One context has no spread.
    alone = model.policy_value(2.0, {"x": 0.0})
    gradient[1] = 0.0
    assert alone.standard_error == pytest.approx(np.sqrt(gradient @ judge.cov @ gradient), rel=5e-3)


def test_groups_widen_the_interval(design):
    frame = design.frame()
    doubled = frame.loc[np.repeat(frame.index, 3)].reset_index(drop=True).assign(unit=np.repeat(frame.index, 3))
    alone = IVRegression(TwoStageLeastSquares(), seed=0).fit(frame, **ROLES).policy_value(1.0)
    found = IVRegression(TwoStageLeastSquares(), seed=0).fit(doubled, **ROLES, groups="unit")
    assert found.policy_value(1.0).standard_error == pytest.approx(alone.standard_error, rel=1e-6)


def test_a_loaded_model_has_the_same_value(model, design, tmp_path):
    policy, contexts = model.policy([0.0, 1.0]), design.frame()[["x"]]
    model.save(tmp_path / "model")
    again = prudent.load(tmp_path / "model")
    found, expected = again.policy_value(again.policy([0.0, 1.0]), contexts), model.policy_value(policy, contexts)
    assert (found.value, found.lower) == pytest.approx((expected.value, expected.lower), rel=1e-9)
    assert found.without_data is None
    assert expected.without_data is not None


def test_a_wrong_function_is_put_right(design, quick_estimator):
    model = IVRegression(quick_estimator(), seed=0).fit(**design.roles())
    before = model.policy_value(1.0)

    class Wrong(type(quick_estimator())):
        def predict(self, x):
            return 0.7 * super().predict(x) + 3.0

    wrong = IVRegression(Wrong(**quick_estimator().get_params()), seed=0).fit(**design.roles())
    after = wrong.policy_value(1.0)
    assert abs(after.plug_in - before.plug_in) > 2
    assert after.value == pytest.approx(before.value, abs=2 * before.standard_error)


def test_data_far_away_are_told(model):
    found = model.policy_value(1e3)
    assert found.without_data == 1.0
    assert found.at_stake == pytest.approx(float(model.sums_.spread[0]))
    assert "without data 100%, at stake" in str(found)
    assert "without data 0%)" in str(model.policy_value(0.0, {"x": 0.0}))
    both = model.policy_value(1e3, baseline=-1e3)
    assert both.without_data == 1.0
    assert both.at_stake == pytest.approx(2 * found.at_stake)


def test_bad_arguments(model):
    with pytest.raises(ValueError, match="level"):
        model.policy_value(1.0, level=95)
    for policy in ("best", None, [1.0, 2.0], np.nan):
        with pytest.raises(DataError, match="policy must be a Policy, a callable of contexts, or one action"):
            model.policy_value(policy)
    for contexts in (None, {"x": 0.0}):
        with pytest.raises(DataError, match="one action per context"):
            model.policy_value(lambda context: np.zeros(7), contexts)


def test_policies_of_every_kind_may_be_compared(model):
    policy = model.policy([0.0, 1.0])
    same = model.policy_value(policy, baseline=lambda context: policy.act_encoded(context))
    assert (same.value, same.standard_error) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert model.policy_value(policy, baseline=model.policy([1.0])).value == pytest.approx(0.0, abs=1e-12)


def test_contexts_that_are_given_are_a_sample_of_their_own(design, model):
    contexts = design.frame()[["x"]]
    own, given = model.policy_value(1.0), model.policy_value(1.0, contexts)
    assert given.value == pytest.approx(own.value, rel=1e-9)
    assert given.standard_error == pytest.approx(own.standard_error, rel=0.02)
    # Of two contexts the spread is hardly known. Where it is most of the error, there is one degree of freedom.
    few = model.policy_value(1.0, {"x": [-50.0, 50.0]})
    assert few.upper - few.value > 12 * few.standard_error


def test_categories_and_models_without_context(design, quick_estimator, tmp_path):
    frame = design.frame().assign(kind=np.where(design.action[:, 0] > 0, "high", "low"))
    roles = {"outcome": "y", "action": "kind", "instruments": ["z1", "z2"]}
    model = IVRegression(quick_estimator(), seed=0).fit(frame, **roles)
    found = model.policy_value("high", baseline="low")
    assert found.lower < found.value < found.upper
    assert found.n_contexts == 0
    assert "context" not in str(found)
    model.save(tmp_path / "model")
    again = prudent.load(tmp_path / "model").policy_value("high", baseline="low")
    assert (again.value, again.upper) == pytest.approx((found.value, found.upper), rel=1e-6)
    with pytest.raises(DataError, match="or one action, got 'middle'"):
        model.policy_value("middle")


def test_instruments_that_move_the_action_along_a_curve_are_seen():
    rng = np.random.default_rng(0)
    z, u = rng.normal(size=(2, 600))
    a = z**2 + u + 0.3 * rng.normal(size=600)
    y = 2 * a - 3 * u + rng.normal(size=600)
    model = IVRegression(KernelCMR(n_folds=2, n_landmarks=60), seed=0).fit(outcome=y, action=a, instruments=z)
    found = model.policy_value(1.0, baseline=0.0)
    assert found.value == pytest.approx(2.0, abs=3 * found.standard_error)
    assert found.standard_error < 0.5


def test_few_groups_have_no_interval(design):
    groups = np.repeat([0, 1], 250)
    model = IVRegression(TwoStageLeastSquares(), seed=0).fit(**design.roles(), groups=groups)
    assert np.isfinite(model.effect(1.0, 0.0)).all()
    with pytest.raises(DataError, match="four groups"):
        model.policy_value(1.0)


def test_the_rows_of_a_group_may_depend_on_each_other():
    """The context of a group's second row is the noise of its first: value and error belong together there."""
    rng, values, errors = np.random.default_rng(0), [], []
    for _ in range(150):
        z, u, x = rng.normal(size=(3, 200, 2))
        x[:, 1] = u[:, 0]
        a = z + x + u
        y = a + 2 * x + u + rng.normal(size=(200, 2))
        model = IVRegression(TwoStageLeastSquares(), seed=0).fit(
            outcome=y.ravel(),
            action=a.ravel(),
            instruments=z.ravel(),
            context=x.ravel(),
            groups=np.repeat(np.arange(200), 2),
        )
        found = model.policy_value(0.0)
        values.append(found.value)
        errors.append(found.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


def test_intervals_cover_at_the_nominal_rate():
    runs, hits = 100, np.zeros(2)
    for seed in range(runs):
        data = datasets.make_linear_gaussian(300, seed=2000 + seed)
        for number, estimator in enumerate((TwoStageLeastSquares(), TwoStageLeastSquares(features="polynomial"))):
            found = IVRegression(estimator, seed=0).fit(**data.roles()).policy_value(1.0)
            hits[number] += found.lower < 2.0 < found.upper
    # Three binomial standard errors below 0.95.
    assert np.all(hits / runs > 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs)), hits / runs
