"""DML-CMR against closed forms and independent implementations."""

import jax
import numpy as np
import pytest
from linearmodels.iv import IV2SLS
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from prudent import datasets
from prudent.cmr import DMLCMR, Defaults
from prudent.cmr._arrays import level_indicators, shared_columns
from prudent.cmr._law import mixture_task
from prudent.cmr._problem import Problem
from prudent.cmr._report import partial_strength
from prudent.errors import DataError, NotFittedError
from prudent.nn import FoldPlan, MLPSpec, TrainConfig, apply_in_blocks, stack_networks

LINEAR = MLPSpec(widths=())
FAST = TrainConfig(weight_decay=0.0, batch_size=64, max_steps=400, evaluate_every=100)


def problem(design: datasets.Design):
    return design.outcome, np.hstack([design.action, design.context]), np.hstack([design.instruments, design.context])


def linear_estimator(**settings) -> DMLCMR:
    """Linear networks throughout: the estimate then has 2SLS as its closed form, up to fold splits and early stops."""
    return DMLCMR(
        **{
            "n_folds": 2,
            "network": LINEAR,
            "nuisance_network": LINEAR,
            "n_components": 1,
            "n_repeats": 1,
            "n_functions": 2,
            "train": FAST,
            "function_train": TrainConfig(learning_rate=5e-3, weight_decay=0.0, max_steps=1500, evaluate_every=500),
            **settings,
        }
    )


@pytest.fixture(scope="module")
def design() -> datasets.Design:
    return datasets.make_linear_gaussian(2000, seed=0)


@pytest.fixture(scope="module")
def fitted(design) -> DMLCMR:
    return linear_estimator().fit(*problem(design), seed=0)


def slope(model: DMLCMR) -> float:
    values = model.predict([[0.0, 0.0], [1.0, 0.0]])
    return float(values[1, 0] - values[0, 0])


def two_stage(design: datasets.Design):
    exogenous = np.hstack([np.ones_like(design.outcome), design.context])
    return IV2SLS(design.outcome, exogenous, design.action, design.instruments).fit()


def test_agrees_with_two_stage_least_squares(design, fitted):
    result = two_stage(design)
    assert abs(slope(fitted) - result.params.iloc[-1]) < 2 * result.std_errors.iloc[-1]
    biased = LinearRegression().fit(np.hstack([design.action, design.context]), design.outcome).coef_[0, 0]
    assert biased - 2.0 > 10 * result.std_errors.iloc[-1]  # what confounding does to a plain regression


def test_same_seed_same_numbers(design, fitted):
    again = linear_estimator().fit(*problem(design), seed=0)
    x = problem(design)[1][:50]
    assert np.array_equal(fitted.predict(x), again.predict(x))
    other = linear_estimator().fit(*problem(design), seed=1)
    assert not np.array_equal(fitted.predict(x), other.predict(x))


def test_report_speaks_of_strength_and_fit(fitted):
    report = fitted.report_
    assert report.strength[0].effective_f > 200
    assert 0.2 < report.strength[0].partial_r2 < 0.6
    assert report.outcome_r2[0] == pytest.approx(5 / 19, abs=0.05)  # Var(2 Z1 + Z2) / Var(Y)
    assert report.moment is not None
    assert report.moment.value < 0.05 * report.moment_of_mean.value


def test_moment_error_tells_a_wrong_function_from_a_right_one(design, fitted):
    fresh = datasets.make_linear_gaussian(2000, seed=9)
    right = fitted.moment_error(*problem(fresh))
    assert abs(right.value) < 4 * right.standard_error + 0.02
    y, x, c = problem(fresh)
    wrong = fitted.moment_error(y + x[:, :1], x, c)
    assert wrong.value > 10 * wrong.standard_error
    # The violation is E[A|C], of variance Var(Z1 + Z2/2 + X/2) = 1.5.
    assert wrong.value == pytest.approx(1.5, rel=0.15)


def test_discrete_action_uses_exact_expectations():
    design = datasets.make_linear_gaussian(2000, seed=0, discrete=True)
    model = linear_estimator(nuisance_network=MLPSpec((16,))).fit(*problem(design), seed=0)
    assert model.report_.discrete == (0,)
    result = two_stage(design)
    assert abs(slope(model) - result.params.iloc[-1]) < 2 * result.std_errors.iloc[-1]


def test_any_regressor_can_be_the_outcome_nuisance(design):
    model = linear_estimator(outcome_model=LinearRegression()).fit(*problem(design), seed=0)
    result = two_stage(design)
    assert abs(slope(model) - result.params.iloc[-1]) < 2 * result.std_errors.iloc[-1]


def test_several_outcomes_one_fold_and_groups(design):
    y, x, c = problem(design)
    both = np.hstack([y, -3 * y + 1])
    model = linear_estimator(n_folds=1).fit(both, x, c, seed=0)
    values = model.predict([[0.0, 0.0], [1.0, 0.0]])
    assert values.shape == (2, 2)
    effect = values[1] - values[0]
    assert effect[1] == pytest.approx(-3 * effect[0], rel=0.05)
    assert model.report_.moment is None
    grouped = linear_estimator().fit(y, x, c, seed=0, groups=np.repeat(np.arange(500), 4))
    assert slope(grouped) == pytest.approx(2.0, abs=0.2)


def test_two_actions_one_of_them_discrete():
    rng = np.random.default_rng(0)
    n = 2000
    z, u = rng.normal(size=(n, 2)), rng.normal(size=(n, 1))
    continuous = z[:, :1] + u + 0.5 * rng.normal(size=(n, 1))
    binary = (z[:, 1:] + 0.5 * u + 0.5 * rng.normal(size=(n, 1)) > 0).astype(float)
    y = continuous + 2 * binary + u + 0.1 * rng.normal(size=(n, 1))
    model = linear_estimator(nuisance_network=MLPSpec((16,)), n_components=2).fit(
        y, np.hstack([continuous, binary]), z, seed=0
    )
    assert model.report_.discrete == (1,)
    values = model.predict([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])[:, 0]
    assert values[1] - values[0] == pytest.approx(1.0, abs=0.15)
    assert values[2] - values[0] == pytest.approx(2.0, abs=0.3)


def test_useless_instruments_have_no_strength_whatever_the_context_explains(quick_estimator):
    strengths = []
    for iv_strength in (0.0, 1.0):
        y, x, c = problem(datasets.make_demand(600, seed=0, iv_strength=iv_strength))
        strengths.append(quick_estimator().fit(y, x, c, seed=0).report_.strength[0])
    assert strengths[0].effective_f < 10
    assert strengths[1].effective_f > 100


def test_strength_does_not_depend_on_units():
    rng = np.random.default_rng(0)
    z = rng.normal(size=1000)
    a = z + rng.normal(size=1000)
    first, second = (partial_strength(k * a, k * z, np.zeros(1000)) for k in (1.0, 1e-7))
    assert first.effective_f == pytest.approx(second.effective_f, rel=1e-6)
    assert first.partial_r2 == pytest.approx(0.5, abs=0.05)
    assert partial_strength(a, -z, np.zeros(1000)).effective_f == 0.0


def test_an_action_that_is_its_own_instrument_is_plain_regression(design, quick_estimator):
    x = np.hstack([design.action, design.context])
    model = quick_estimator(network=LINEAR, outcome_model=LinearRegression()).fit(design.outcome, x, x, seed=0)
    assert model.report_.modelled == ()
    assert np.isfinite(model.predict(x[:5])).all()


def test_groups_widen_the_standard_error(fitted):
    fresh = datasets.make_linear_gaussian(300, seed=9)
    y, x, c = (np.repeat(a, 5, axis=0) for a in problem(fresh))
    alone, grouped = fitted.moment_error(y, x, c), fitted.moment_error(y, x, c, groups=np.repeat(np.arange(300), 5))
    assert grouped.standard_error > 1.5 * alone.standard_error or grouped.value < alone.value
    with pytest.raises(DataError, match="four units or more, got 3"):
        fitted.moment_error(y[:15], x[:15], c[:15], groups=np.repeat(np.arange(3), 5))


def test_one_unit_cannot_be_fitted(design):
    y, x, c = (a[:40] for a in problem(design))
    with pytest.raises(DataError, match="at least two units per fold, got 1 groups"):
        linear_estimator(n_folds=1).fit(y, x, c, seed=0, groups=np.zeros(40))


def test_parameters_are_stored_and_cloned():
    model = DMLCMR(3, n_components=4)
    assert clone(model).get_params() == model.get_params()
    assert model.get_params()["n_folds"] == 3


@pytest.mark.parametrize(("n_columns", "n_components"), [(8, 10), (9, 3)])
def test_the_law_of_many_columns_has_fewer_components(n_columns, n_components):
    task = mixture_task(np.zeros((5, n_columns)), np.zeros((5, 2)), None, MLPSpec((3,)))
    assert task.build(jax.random.key(0)).n_components == n_components


@pytest.mark.parametrize("settings", [{"n_components": 0}, {"n_repeats": 2.5}])
def test_counts_are_checked_where_they_are_given(settings, design):
    with pytest.raises((DataError, ValueError), match=next(iter(settings))):
        DMLCMR(**settings).fit(*problem(design), seed=0)


def test_shared_columns_are_found_once_each():
    x = np.array([[1.0, 5, 7], [2, 6, 8]])
    c = np.array([[7.0, 1, 9], [8, 2, 9]])
    assert shared_columns(x, c) == {0: 1, 2: 0}


def test_defaults_follow_the_documented_rule():
    small, large = Defaults.of(500, 10), Defaults.of(50_000, 10)
    assert small.n_repeats == 3
    assert large.n_repeats == 1
    assert small.nuisance_steps < large.nuisance_steps
    assert small.decay_guess > large.decay_guess
    assert Defaults.of(1000, 1).n_repeats == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y, x, c: (y, np.where(np.arange(len(x))[:, None] == 3, np.nan, x), c), "x must be finite.*row index 3"),
        (lambda y, x, c: (y * np.inf, x, c), "y must be finite"),
        (lambda y, x, c: (y[:-1], x, c), "y must have 100 rows like the other arrays, got 99"),
        (lambda y, x, c: (y[:, :, None], x, c), r"y must have one row per unit \(2-D\), got shape"),
        (lambda y, x, c: (y, [[1.0], [2.0, 3.0]], c), "x must be a rectangular array of numbers"),
        (lambda y, x, c: (y, np.hstack([np.ones_like(y), x[:, 1:]]), c), "Column 0 of x is constant"),
        (lambda y, x, c: (y[:10], x[:10], c[:10]), "needs at least 20 rows, got 10"),
        (lambda y, x, c: (y[:0], x[:0], c[:0]), "x must have at least one row"),
    ],
)
def test_bad_arrays(change, message):
    arrays = problem(datasets.make_linear_gaussian(100, seed=0))
    with pytest.raises(DataError, match=message):
        DMLCMR(2).fit(*change(*arrays), seed=0)


def test_bad_settings():
    arrays = problem(datasets.make_linear_gaussian(100, seed=0))
    with pytest.raises(ValueError, match="n_folds must be a whole number of at least 1, got 0"):
        DMLCMR(0).fit(*arrays, seed=0)
    with pytest.raises(DataError, match="n_folds=60 needs at least two units per fold, got 100 rows"):
        DMLCMR(60).fit(*arrays, seed=0)
    with pytest.raises(DataError, match="discrete must be 'auto' or a list of column numbers"):
        DMLCMR(2, discrete=(7,)).fit(*arrays, seed=0)
    with pytest.raises(DataError, match="discrete must be 'auto' or a list of column numbers"):
        DMLCMR(2, discrete="yes").fit(*arrays, seed=0)
    with pytest.raises(NotFittedError, match="not fitted"):
        DMLCMR().predict([[1.0]])
    for seed in (-1, 2**32, "one", True):
        with pytest.raises(ValueError, match="seed must be a whole number from 0"):
            DMLCMR(2).fit(*arrays, seed=seed)


def test_prediction_needs_the_width_of_fit(fitted):
    with pytest.raises(DataError, match="x must have 2 columns as in fit, got 3"):
        fitted.predict(np.zeros((4, 3)))


@pytest.mark.slow
def test_error_falls_like_the_root_of_n():
    sizes, errors = np.array([500, 2000, 8000]), []
    for n in sizes:
        squared = []
        for seed in range(6):
            design = datasets.make_linear_gaussian(int(n), seed=seed)
            squared.append((slope(linear_estimator().fit(*problem(design), seed=seed)) - 2.0) ** 2)
        errors.append(np.sqrt(np.mean(squared)))
    rate = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    print(f"slope of log error against log n: {rate:.2f}")
    assert -0.8 < rate < -0.3


@pytest.mark.slow
def test_demand_is_far_below_the_published_error():
    from prudent import IVRegression

    errors = []
    for seed in range(3):
        data = datasets.make_demand(1000, seed=seed)
        errors.append(datasets.demand_error(IVRegression(DMLCMR(5), seed=seed).fit(**data.roles())))
    assert np.median(errors) < 0.207  # published median of DML-IV at n = 1000


def test_one_fold_is_judged_on_rows_that_were_not_trained_on(quick_estimator):
    rng = np.random.default_rng(0)
    z, a, e = rng.normal(size=(3, 300, 1))
    model = quick_estimator(n_folds=1, n_repeats=7, train=TrainConfig(batch_size=64, max_steps=600, evaluate_every=600))
    report = model.fit(a + e, a, z, seed=0).report_
    assert report.strength[0].effective_f < 10
    assert report.modelled_r2[0] < 0.1
    assert report.outcome_r2[0] < 0.1


def test_unseen_rows_of_a_plan_without_folds():
    splits = [(np.array([2, 3]), np.array([0, 1])), (np.array([0, 1]), np.array([2, 3]))]
    plan = FoldPlan(4, [np.arange(4)], 3, 0, [*splits, splits[0]], [])
    outputs = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(plan.unseen.rows, [0, 1, 2, 3])
    np.testing.assert_array_equal(plan.unseen.average(outputs), [4.0, 5.0, 6.0, 7.0])


def test_members_need_only_see_their_own_rows():
    folds = [np.array([0, 3, 5]), np.array([1, 2, 4])]
    plan = FoldPlan(6, folds, 2, 1, [(np.arange(6), np.arange(0))] * 4, [])
    networks = stack_networks(lambda key: MLPSpec((4,))(2, 3, key=key), 4, jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    for part in (*plan.all_parts, plan.unseen):
        assert part.evaluate(networks, x, np.exp) == pytest.approx(part.average(np.exp(apply_in_blocks(networks, x))))


@pytest.fixture(scope="module")
def useless_instrument():
    """The action follows the context, which alone moves the outcome: y = 4 |t| where a = 2 |t| + noise."""
    rng = np.random.default_rng(0)
    t, z, noise, error = rng.normal(size=(4, 1000, 1))
    return 4 * np.abs(t) + error, np.hstack([2 * np.abs(t) + 0.3 * noise, t]), np.hstack([z, t])


@pytest.mark.slow
def test_weak_instruments_credit_the_context_and_not_the_action(quick_estimator, useless_instrument):
    y, x, c = useless_instrument
    at = np.array([[0.0, 0.5], [4.0, 0.5]])
    training = TrainConfig(weight_decay=0.1, batch_size=64, max_steps=600, evaluate_every=100)
    effect = {
        start: quick_estimator(start=start, train=training, function_train=training).fit(y, x, c, seed=0).predict(at)
        for start in (None, "zero")
    }
    assert abs(float(np.diff(effect[None][:, 0])[0])) < 0.4
    assert float(np.diff(effect["zero"][:, 0])[0]) > 3.0


def test_a_fit_with_weak_instruments_starts_from_the_context(quick_estimator, useless_instrument):
    y, x, c = useless_instrument
    model = quick_estimator().fit(y, x, c, seed=0)
    assert model.baseline_.columns == (1,)
    # What is said of the outcome is said of all of it: of what the context leaves, nothing can be explained.
    assert model.report_.outcome_r2[0] > 0.3
    again = DMLCMR.from_state(*model.to_state())
    np.testing.assert_allclose(again.predict(x[:5]), model.predict(x[:5]), rtol=1e-6)


def test_strong_instruments_and_no_context_start_from_zero(quick_estimator):
    rng = np.random.default_rng(0)
    z, noise, t = rng.normal(size=(3, 300, 1))
    strong = quick_estimator().fit(z + noise, np.hstack([z + noise, t]), np.hstack([z, t]), seed=0)
    assert strong.baseline_ is None
    alone = quick_estimator().fit(noise, noise, z, seed=0)
    assert alone.baseline_ is None


def test_a_tested_regression_is_kept_where_nothing_speaks_against_it(quick_estimator):
    design = datasets.make_linear_gaussian(600, seed=1, confounding=0.0)
    y, x, c = problem(design)
    kept = quick_estimator(start="tested").fit(y, x, c, seed=0)
    assert kept.report_.correction == "not needed"
    assert kept.report_.moment.value <= kept.report_.moment.standard_error
    again = DMLCMR.from_state(*kept.to_state())
    np.testing.assert_array_equal(again.predict(x), kept.predict(x))
    far = kept.predict(1e3 * x)
    assert y.min() - np.ptp(y) / 2 <= far.min() <= far.max() <= y.max() + np.ptp(y) / 2
    np.testing.assert_array_equal(again.predict(1e3 * x), far)


def test_a_tested_regression_is_corrected_where_its_moment_is_not_zero(quick_estimator):
    y, x, c = problem(datasets.make_linear_gaussian(600, seed=1, confounding=2.0))
    tested, always = (quick_estimator(start=start).fit(y, x, c, seed=0) for start in ("tested", "regression"))
    assert tested.report_.correction == "made"
    np.testing.assert_array_equal(tested.predict(x), always.predict(x))


def test_a_correction_that_runs_off_is_left_out(quick_estimator):
    y, x, c = problem(datasets.make_linear_gaussian(600, seed=1, confounding=2.0))
    # One step of 100 per weight, whatever the gradient: where many such steps end is chance, and the machine's.
    wild = TrainConfig(learning_rate=100.0, weight_decay=0.0, max_steps=1, evaluate_every=1)
    with pytest.warns(UserWarning, match="diverged and is left out"):
        model = quick_estimator(start="tested", function_train=wild).fit(y, x, c, seed=0)
    assert model.report_.correction == "diverged"
    assert model.predict(x).std() < 2 * y.std()


def test_a_constant_outcome_does_not_count_as_diverged(quick_estimator):
    y, x, c = problem(datasets.make_linear_gaussian(600, seed=1, confounding=2.0))
    y = np.hstack([y, np.zeros_like(y)])
    model = quick_estimator(start="tested").fit(y, x, c, seed=0)
    assert model.report_.correction == "made"


def test_one_fold_is_not_tested(quick_estimator):
    y, x, c = problem(datasets.make_linear_gaussian(200, seed=1, confounding=0.0))
    assert quick_estimator(start="tested", n_folds=1).fit(y, x, c, seed=0).report_.correction == "made"


def test_numbers_of_levels_are_no_scale():
    """A judge's number moves the action in no order, and six more columns do so given the judge."""
    rng = np.random.default_rng(0)
    judge, context, (u, noise) = rng.integers(5, size=300), rng.normal(size=(300, 6)), rng.normal(size=(2, 300))
    action = np.array([0.0, 1.0, 0.0, -0.2, -0.8])[judge] + (context * rng.normal(size=(5, 6))[judge]).sum(axis=1)
    action += 0.2 * u + 0.1 * noise
    c = np.column_stack([judge, context])
    problem = Problem.of("test", action + u, np.column_stack([action, context]), c, seed=0, groups=None)
    inputs = DMLCMR()._nuisance_inputs(problem)
    assert inputs.c.shape[1] == 7 + 5
    assert inputs.instruments == [0, *range(7, 12)]
    # 300 rows are too few for waves in six columns.
    assert inputs.network.embed == ()
    copies = np.column_stack([np.repeat(c[:, :1], 3, axis=1), context])
    many = Problem.of("test", action + u, np.column_stack([action, context]), copies, seed=0, groups=None)
    assert DMLCMR()._nuisance_inputs(many).c.shape[1] == 3 + 6
    own = DMLCMR(nuisance_network=lambda n_in, n_out, *, key: MLPSpec()(n_in, n_out, key=key))._nuisance_inputs(problem)
    assert own.c.shape[1] == 7


def test_rare_and_many_values_get_no_indicators():
    assert level_indicators(np.repeat([0.0, 1.0], 50)).shape[1] == 0
    assert level_indicators(np.repeat([0.0, 1.0, 2.0], 50)).shape[1] == 3
    assert level_indicators(np.concatenate([np.zeros(99), [1.0, 2.0]])).shape[1] == 0
    assert level_indicators(np.arange(100.0)).shape[1] == 0
