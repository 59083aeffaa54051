"""ProximalRegression: roles, effects, standard errors, diagnostics and saved models."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib.axes import Axes
from scipy import stats

import prudent
from prudent import ProximalRegression, datasets
from prudent.cmr import MomentError, MomentEstimator, TwoStageLeastSquares, _pairs
from prudent.errors import DataError, ModelFileError, NotFittedError, RoleError
from prudent.proximal._copies import check_copies

ROLES = {"outcome": "y", "treatment": "a", "outcome_proxy": "w", "treatment_proxy": "v"}


class LinearIV(MomentEstimator):
    """Two-stage least squares in closed form: what linear problems are compared with."""

    def fit(self, y, x, c, *, seed, groups=None):
        x, c = (np.hstack([np.ones((len(y), 1)), m]) for m in (x, c))
        fitted = c @ np.linalg.lstsq(c, x, rcond=None)[0]
        self.coefficients_ = np.linalg.lstsq(fitted, y, rcond=None)[0]
        return self

    def predict(self, x):
        return np.hstack([np.ones((len(x), 1)), x]) @ self.coefficients_

    def to_state(self):
        raise NotImplementedError


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return datasets.make_linear_proximal(400, seed=0).frame()


@pytest.fixture(scope="module")
def model(frame, quick_estimator) -> ProximalRegression:
    return ProximalRegression(quick_estimator(), seed=0).fit(frame, **ROLES)


def textbook(data, a):
    """Effect at ``a`` and its standard error, from the influence function of the just-identified estimator."""
    n = len(data.outcome)
    x = np.hstack([np.ones((n, 1)), data.treatment, data.outcome_proxy])
    z = np.hstack([np.ones((n, 1)), data.treatment, data.treatment_proxy])
    b = np.linalg.solve(z.T @ x, z.T @ data.outcome[:, 0])
    at = np.column_stack([np.ones(n), np.full(n, a), data.outcome_proxy[:, 0]])
    q = z @ np.linalg.solve(x.T @ z / n, at.mean(axis=0))
    score = at @ b + q * (data.outcome[:, 0] - x @ b)
    return (at @ b).mean(), score.std() / np.sqrt(n)


def test_linear_effect_and_standard_error_agree_with_the_textbook():
    data = datasets.make_linear_proximal(2000, seed=1)
    model = ProximalRegression(LinearIV(), seed=0).fit(**data.roles())
    for a in (-1.0, 0.0, 1.0):
        value, error = textbook(data, a)
        found = model.interval([a])
        assert model.effect([a])[0] == pytest.approx(value)
        assert found.plug_in[0] == pytest.approx(value)
        assert found.standard_error[0] == pytest.approx(error, rel=1e-3)
        assert found.value[0] == pytest.approx(value)
        np.testing.assert_allclose(found.upper - found.lower, 2 * stats.t.ppf(0.975, 1999) * found.standard_error)
    effect, error = model.effect([1.0], return_error=True)
    # The error belongs to the debiased value.
    assert (effect[0], error[0]) == (found.value[0], found.standard_error[0])


def test_the_moment_error_on_new_rows_takes_a_frame_or_arrays(frame):
    fitted = ProximalRegression(LinearIV(), seed=0).fit(frame, **ROLES)
    new = datasets.make_linear_proximal(800, seed=1)
    found = fitted.moment_error(new.frame())
    assert found == fitted.moment_error(**new.roles())
    assert abs(found.value) < 3 * found.standard_error
    wrong = fitted.moment_error(new.frame().assign(y=lambda f: f.y + f.v))
    assert wrong.verdict == "the moment is violated"


def test_a_contrast_has_the_standard_error_of_the_coefficient():
    from linearmodels.iv import IV2SLS

    data = datasets.make_linear_proximal(2000, seed=1)
    model = ProximalRegression(LinearIV(), seed=0).fit(**data.roles())
    exogenous = np.hstack([np.ones((2000, 1)), data.treatment])
    judge = IV2SLS(data.outcome, exogenous, data.outcome_proxy, data.treatment_proxy).fit(cov_type="robust")
    value, error = model.contrast([2.0, 3.0], [0.0], return_error=True)
    np.testing.assert_allclose(value, [2 * judge.params.iloc[1], 3 * judge.params.iloc[1]], rtol=1e-4)
    np.testing.assert_allclose(error, [2 * judge.std_errors.iloc[1], 3 * judge.std_errors.iloc[1]], rtol=1e-3)
    np.testing.assert_allclose(value, model.contrast([2.0, 3.0], [0.0]), rtol=1e-5)
    for ask in (model.contrast, lambda a, b: model.interval(a, baseline=b)):
        with pytest.raises(DataError, match="baseline needs one treatment or 2, got 3"):
            ask([2.0, 3.0], [0.0, 1.0, 2.0])


def test_standard_errors_hold_with_many_context_columns():
    from linearmodels.iv import IV2SLS

    data = datasets.make_linear_proximal(1000, seed=1)
    context = np.random.default_rng(0).standard_normal((1000, 30))
    model = ProximalRegression(LinearIV(), seed=0).fit(**data.roles(), context=context)
    exogenous = np.hstack([np.ones((1000, 1)), data.treatment, context])
    judge = IV2SLS(data.outcome, exogenous, data.outcome_proxy, data.treatment_proxy).fit(cov_type="robust")
    value, error = model.contrast([1.0], [0.0], return_error=True)
    assert value[0] == pytest.approx(judge.params.iloc[1], rel=1e-4)
    assert error[0] == pytest.approx(judge.std_errors.iloc[1], rel=2e-3)


def test_a_contrast_is_over_one_sample_of_proxies(frame, monkeypatch):
    model = ProximalRegression(LinearIV(), seed=0).fit(frame, **ROLES)
    monkeypatch.setattr(_pairs, "MAX_ROWS", 800)
    monkeypatch.setattr(_pairs, "MIN_UNITS", 10)
    assert model.effect([1.0])[0] != model.effect([1.0] * 20)[0]
    np.testing.assert_allclose(model.contrast([1.0] * 20, [1.0]), 0.0, atol=1e-12)


def test_a_constant_error_of_a_curved_bridge_is_corrected():
    from prudent.cmr._debias import Correction

    data = datasets.make_linear_proximal(500, seed=1)
    x, c = np.hstack([data.treatment, data.outcome_proxy]), np.hstack([data.treatment, data.treatment_proxy])
    at = np.hstack([np.full((500, 1), -2.0), data.outcome_proxy])
    found = []
    for constant in (0.0, 3.0):

        def bridge(rows, constant=constant):
            return 2 * rows[:, :1] + 2 * rows[:, 1:] + constant + 0.1 * np.tanh(rows[:, :1])

        correction = Correction.of(data.outcome, x, c, bridge(x), seed=0)
        found.append(correction.mean(correction.scores(at, bridge(at)))[0])
    assert found[1] == pytest.approx(found[0], abs=1e-6)


def test_outcomes_near_a_treatment_correct_the_bridge_there():
    from prudent.cmr._debias import Correction

    data = datasets.make_linear_proximal(4000, seed=1)
    x, c = np.hstack([data.treatment, data.outcome_proxy]), np.hstack([data.treatment, data.treatment_proxy])
    y, truth = data.outcome + np.sin(2 * data.treatment), data.truth([0.8])[0] + np.sin(1.6)

    def bridge(rows):  # without the wave
        return 2 * rows[:, :1] + 2 * rows[:, 1:] - 1.5 + 0.1 * np.tanh(rows[:, 1:])

    at = np.hstack([np.full((4000, 1), 0.8), data.outcome_proxy])
    (without, _), (with_bump, error) = (
        correction.mean(correction.scores(at, bridge(at)))
        for correction in (Correction.of(y, x, c, bridge(x), seed=0, is_local=b) for b in (False, True))
    )
    assert without[0] - truth < -0.3
    assert abs(with_bump[0] - truth) < 2 * error[0] < 0.3


@pytest.mark.filterwarnings("ignore:.*outside")
def test_far_from_all_treatments_many_rows_correct_the_bridge():
    from prudent.cmr._debias import Correction

    data = datasets.make_linear_proximal(500, seed=1)
    x, c = np.hstack([data.treatment, data.outcome_proxy]), np.hstack([data.treatment, data.treatment_proxy])

    def bridge(rows):
        return 2 * rows[:, :1] + 2 * rows[:, 1:] - 1.5 + 0.1 * np.tanh(rows[:, 1:])

    correction = Correction.of(data.outcome, x, c, bridge(x), seed=0, is_local=True)
    errors = []
    for a in (0.0, 3.5, 6.0, 60.0):
        at = np.hstack([np.full((500, 1), a), data.outcome_proxy])
        scores = correction.scores(at, bridge(at))
        errors.append(float(correction.mean(scores)[1][0]))
        # No single row carries the correction.
        part = np.abs(scores - bridge(at))
        assert part.max() < 0.2 * part.sum()
    assert errors == sorted(errors)


def test_intervals_say_what_share_of_the_average_has_no_data(frame):
    data = datasets.make_demand_proximal(1000, seed=1000)
    demand = ProximalRegression(LinearIV(), seed=0).fit(**data.roles())
    found = demand.interval([10.0, 20.0, 26.0])
    assert found.without_data[0] > 0.5 > found.without_data[1] > 0.2 > 0.1 > found.without_data[2]
    assert demand.interval([26.0], baseline=[10.0]).without_data == pytest.approx(found.without_data[:1])
    assert "69%" in str(found).splitlines()[1]
    spread = float(np.std(data.outcome))
    assert found.at_stake == pytest.approx(found.without_data * spread)
    both = demand.interval([26.0, 20.0], baseline=[10.0]).at_stake
    assert both == pytest.approx(found.at_stake[[2, 1]] + found.at_stake[0])
    linear = ProximalRegression(LinearIV(), seed=0).fit(frame, **ROLES)
    assert linear.interval([0.0]).without_data[0] < 0.03
    wide = ProximalRegression(LinearIV(), seed=0).fit(
        **datasets.make_linear_proximal(400, seed=0).roles(), context=np.random.default_rng(0).normal(size=(400, 8))
    )
    unknown = wide.interval([0.0], baseline=[1.0])
    assert unknown.without_data is None
    assert unknown.at_stake is None
    assert str(unknown).count("?") == 2
    wide.plot_effect()


def test_standard_errors_change_smoothly_with_the_treatment(model):
    error = model.interval(np.linspace(-1, 1, 41)).standard_error
    assert np.max(np.abs(np.diff(np.log(error)))) < 0.2


def test_debiasing_a_slightly_curved_bridge_does_not_explode():
    from prudent.cmr._debias import Correction

    n, errors = 300, []
    for seed in range(30):
        data = datasets.make_linear_proximal(n, seed=5000 + seed)
        x, c = np.hstack([data.treatment, data.outcome_proxy]), np.hstack([data.treatment, data.treatment_proxy])
        estimator = LinearIV().fit(data.outcome, x, c, seed=0)

        def bridge(rows, estimator=estimator):
            return estimator.predict(rows) + 0.01 * np.tanh(rows[:, :1]) * np.tanh(rows[:, 1:2])

        at = np.hstack([np.ones((n, 1)), data.outcome_proxy])
        correction = Correction.of(data.outcome, x, c, bridge(x), seed=0)
        value, _ = correction.mean(correction.scores(at, bridge(at)))
        errors.append(float(value[0] - data.truth([1.0])[0]))
    assert np.sqrt(np.mean(np.square(errors))) < 0.25


@pytest.mark.slow
def test_intervals_cover_at_the_nominal_rate():
    from prudent.cmr._debias import Correction

    n, runs = 500, 200
    hits = np.zeros(2)
    for seed in range(runs):
        data = datasets.make_linear_proximal(n, seed=2000 + seed)
        x, c = np.hstack([data.treatment, data.outcome_proxy]), np.hstack([data.treatment, data.treatment_proxy])
        estimator = LinearIV().fit(data.outcome, x, c, seed=0)
        at = np.hstack([np.ones((n, 1)), data.outcome_proxy])
        truth = data.truth([1.0])[0]
        # The second bridge is curved and shrunk by a tenth: the penalised score must make up for most of it.
        for number, (factor, curve) in enumerate(((1.0, 0.0), (0.9, 0.1))):

            def bridge(rows, estimator=estimator, factor=factor, curve=curve):
                return factor * estimator.predict(rows) + curve * np.tanh(rows[:, :1])

            correction = Correction.of(data.outcome, x, c, bridge(x), seed=seed)
            assert correction.features.is_linear == (curve == 0)
            value, error = correction.mean(correction.scores(at, bridge(at)))
            hits[number] += abs(value[0] - truth) < 1.96 * error[0]
    # Three binomial standard errors below 0.95.
    assert np.all(hits / runs > 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs)), hits / runs


def test_groups_widen_the_standard_error():
    data = datasets.make_linear_proximal(300, seed=2)
    tripled = {name: np.repeat(value, 3, axis=0) for name, value in data.roles().items()}
    unit = np.repeat(np.arange(300), 3)
    plain = ProximalRegression(LinearIV(), seed=0).fit(**tripled).interval([0.0])
    grouped = ProximalRegression(LinearIV(), seed=0).fit(**tripled, groups=unit).interval([0.0])
    assert grouped.standard_error[0] / plain.standard_error[0] == pytest.approx(np.sqrt(3), rel=0.1)


def test_few_groups_are_warned_about_and_widen_the_interval(frame):
    with pytest.warns(UserWarning, match="4 groups: standard errors from fewer than 30"):
        model = ProximalRegression(LinearIV(), seed=0).fit(frame, **ROLES, groups=np.arange(400) % 4)
    found = model.interval([0.0])
    np.testing.assert_allclose(found.upper - found.value, stats.t.ppf(0.975, 3) * found.standard_error)
    assert "in 4 groups" in str(model.diagnose())


def test_groups_must_be_known(frame):
    unit = np.repeat(np.arange(100.0), 4)
    unit[7] = np.nan
    text = np.repeat(["a", "b"], 200).astype(object)
    text[3] = None
    for groups, place in ((unit, 7), (text, 3)):
        with pytest.raises(DataError, match=f"groups has 1 missing values, the first at position {place}"):
            ProximalRegression(LinearIV(), seed=0).fit(frame, **ROLES, groups=groups)


def test_what_the_estimator_warned_about_stays_in_the_diagnosis(frame):
    class Noted(LinearIV):
        def fit(self, y, x, c, *, seed, groups=None):
            self.notes_ = ("something else was done",)
            return super().fit(y, x, c, seed=seed, groups=groups)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # The estimator warns by itself.
        model = ProximalRegression(Noted(), seed=0).fit(frame, **ROLES)
    assert model.diagnose().warnings() == ["something else was done"]


def test_levels_that_look_like_numbers_may_be_asked_for_as_numbers(frame):
    visits = np.where(frame["a"] > 1, "3+", np.where(frame["a"] > 0, "1", "0"))
    model = ProximalRegression(LinearIV(), seed=0).fit(frame.assign(a=visits), **ROLES)
    assert np.array_equal(model.effect([0.0, 1, "3+"]), model.effect(["0", "1", "3+"]))


def test_frames_and_arrays_give_the_same_model(frame, model, quick_estimator):
    polars = ProximalRegression(quick_estimator(), seed=0).fit(pl.from_pandas(frame), **ROLES)
    arrays = ProximalRegression(quick_estimator(), seed=0).fit(**datasets.make_linear_proximal(400, seed=0).roles())
    expected = model.effect([0.0, 1.0])
    assert np.array_equal(polars.effect([0.0, 1.0]), expected)
    assert np.array_equal(arrays.effect([0.0, 1.0]), expected)


def test_only_the_outcome_proxy_is_modelled(model):
    assert model.estimator_.report_.modelled == (1,)


def test_ablation_options_change_the_fit_and_are_checked(model, frame, quick_estimator):
    observed = ProximalRegression(quick_estimator(outcome="observed", draws=1), seed=0).fit(frame, **ROLES)
    assert observed.estimator_.report_.outcome_r2 == ()
    assert observed.effect([1.0])[0] != model.effect([1.0])[0]
    for name, value in (("outcome", "guessed"), ("draws", 3)):
        with pytest.raises(ValueError, match=f"{name} must be one of"):
            ProximalRegression(quick_estimator(**{name: value}), seed=0).fit(frame, **ROLES)


def test_effect_is_the_mean_of_the_bridge(model, frame):
    by_hand = model.bridge(1.5, frame[["w"]]).mean()
    assert model.effect([1.5])[0] == pytest.approx(by_hand, rel=1e-5)
    np.testing.assert_allclose(model.contrast([1.0], [0.0]), model.effect([1.0]) - model.effect([0.0]))
    assert model.bridge([0.0, 1.0, 2.0], [0.5]).shape == (3,)


def test_two_treatments_context_categories_and_two_outcomes():
    rng = np.random.default_rng(0)
    n = 1500
    u, x = rng.standard_normal(n), rng.standard_normal(n)
    v, w = u + 0.5 * rng.standard_normal(n), u + x + 0.5 * rng.standard_normal(n)
    dose, arm = 0.5 * u + 0.5 * v + rng.standard_normal(n), np.where(u + v + rng.standard_normal(n) > 0, "drug", "none")
    y = 2 * dose + (arm == "drug") + u + 0.5 * x + 0.1 * rng.standard_normal(n)
    frame = pd.DataFrame({"y": y, "y2": -y, "dose": dose, "arm": arm, "w": w, "v": v, "x": x})
    model = ProximalRegression(LinearIV(), seed=0).fit(
        frame,
        outcome=["y", "y2"],
        treatment=["dose", "arm"],
        outcome_proxy="w",
        treatment_proxy="v",
        context="x",
    )
    effect = model.effect([[1.0, "drug"], [0.0, "drug"], [0.0, "none"]])
    assert effect.shape == (3, 2)
    np.testing.assert_allclose(effect[:, 0] - effect[2, 0], [3.0, 1.0, 0.0], atol=0.15)
    np.testing.assert_allclose(effect[:, 1], -effect[:, 0], atol=1e-6)
    found = model.interval([[1.0, "drug"], [0.0, "none"]])
    assert found.standard_error.shape == found.at_stake.shape == (2, 2)
    assert len(str(found).splitlines()) == 5
    assert model.bridge([[1.0, "drug"]], {"w": 0.0}, {"x": 1.0}).shape == (1, 2)
    with pytest.raises(RoleError, match=r"needs a context with columns \['x'\]"):
        model.bridge([[1.0, "drug"]], {"w": 0.0})
    with pytest.raises(DataError, match="a curve needs a scalar treatment"):
        model.plot_effect()


def test_pictures_are_compressed():
    rng = np.random.default_rng(0)
    n = 400
    u = rng.standard_normal(n)
    v = u + 0.3 * rng.standard_normal(n)
    dose = 0.5 * u + v + rng.standard_normal(n)
    stripe, blob = np.zeros((12, 12)), np.zeros((12, 12))
    stripe[:, 4:6], blob[6:9, 6:9] = 1.0, 1.0
    treatment = dose[:, None, None] * stripe + 0.05 * rng.standard_normal((n, 12, 12))
    proxy = u[:, None, None] * blob + 0.05 * rng.standard_normal((n, 12, 12))
    y = 2 * dose + u + 0.1 * rng.standard_normal(n)
    roles = {
        "outcome": y,
        "treatment": treatment,
        "outcome_proxy": proxy,
        "treatment_proxy": np.column_stack([v, v**2]),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Most components of the proxy are noise.
        model = ProximalRegression(LinearIV(), seed=0).fit(**roles)
        whole = ProximalRegression(LinearIV(), seed=0, compress=False).fit(**roles)
    assert model.estimator_.coefficients_.shape == (1 + 64 + 16, 1)
    assert set(model.compression_) == {"treatment", "outcome_proxy"}
    assert model.effect(treatment[:3]).shape == (3,)
    directions = model.compression_["outcome_proxy"].directions
    np.testing.assert_allclose(directions.T @ directions, np.eye(16), atol=1e-10)
    spread = model.compression_["outcome_proxy"](proxy.reshape(n, -1)).std(axis=0)
    np.testing.assert_allclose(spread, spread[0], rtol=1e-3)
    assert "variance kept" in str(model.diagnose())
    assert whole.estimator_.coefficients_.shape == (1 + 144 + 144, 1)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_picture_as_proxy_is_judged_on_other_rows(is_told):
    """Of 16 components of noise one would always look strong on the rows on which it was chosen."""
    rng = np.random.default_rng(0)
    n = 400
    u = rng.standard_normal(n)
    v = u + 0.5 * rng.standard_normal(n) if is_told else rng.standard_normal(n)
    dose = u + rng.standard_normal(n)
    proxy = u[:, None, None] * np.eye(12) + 0.5 * rng.standard_normal((n, 12, 12))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = ProximalRegression(LinearIV(), seed=0).fit(
            outcome=dose + u, treatment=dose, outcome_proxy=proxy, treatment_proxy=np.column_stack([v, v**2])
        )
    assert (model.diagnose().weakest_f > 10) == is_told
    assert any("weak proxies" in text for text in model.diagnose().warnings()) != is_told


def test_diagnosis_and_summary_read_well(model):
    diagnosis = model.diagnose()
    assert diagnosis.weakest_f > 23.1
    assert diagnosis.warnings() == []
    text = model.summary()
    for words in ("proxy strength, v on w given a: effective F", "strong", "moment error, audited folds", "std. error"):
        assert words in text
    assert isinstance(model.plot_effect(truth=lambda a: 2 * a + 0.5), Axes)
    assert "95% interval" in str(model.interval([0.0, 1.0]))


def test_useless_proxies_are_warned_about(frame):
    rng = np.random.default_rng(5)
    for role, name in (("treatment proxy", "v"), ("outcome proxy", "w")):
        noise = frame.assign(**{name: rng.standard_normal(len(frame))})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")  # Such a fit may also be called diverged.
            model = ProximalRegression(LinearIV(), seed=0).fit(noise, **ROLES)
        assert any("weak proxies: given the treatment" in str(w.message) for w in caught)
        assert model.diagnose().weakest_f < 10, role


def test_swapped_proxies_are_noticed_where_data_can_tell():
    """With more outcome proxies than treatment proxies the bridge has more arguments than equations."""
    data = datasets.make_demand_proximal(1000, seed=1000)
    roles = data.roles()
    roles["outcome_proxy"], roles["treatment_proxy"] = roles["treatment_proxy"], roles["outcome_proxy"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ProximalRegression(LinearIV(), seed=0).fit(**roles)
    assert any("Are the proxies swapped" in str(w.message) for w in caught)


def test_violated_moment_is_reported(frame, quick_estimator):
    """A linear bridge cannot explain an outcome that is quadratic in the treatment."""
    from prudent.nn import MLPSpec

    curved = frame.assign(y=frame["y"] + 3 * frame["a"] ** 2)
    with pytest.warns(UserWarning, match="the moment is violated on held-out rows"):
        model = ProximalRegression(quick_estimator(network=MLPSpec(())), seed=0).fit(curved, **ROLES)
    assert "the moment is violated" in str(model.diagnose())


def test_pictures_may_have_a_blank_border():
    rng = np.random.default_rng(0)
    u = rng.normal(size=(800, 1))
    treatment = np.zeros((800, 12, 12))
    shade = u + rng.normal(size=u.shape)
    treatment[:, 3:9, 3:9] = shade[:, :, None] + 0.1 * rng.normal(size=(800, 6, 6))
    y = treatment.mean(axis=(1, 2))[:, None] + u
    roles = {"treatment": treatment, "outcome_proxy": u + rng.normal(size=u.shape)}
    model = ProximalRegression(LinearIV(), seed=0).fit(outcome=y, **roles, treatment_proxy=u + rng.normal(size=u.shape))
    assert np.isfinite(model.effect(treatment[:2])).all()


def test_copies_are_found_among_pixels_and_rare_pixels_are_no_copies():
    rng = np.random.default_rng(0)
    pictures = {"treatment": rng.normal(size=(50, 200)), "outcome_proxy": rng.normal(size=(50, 200))}
    for picture in pictures.values():
        picture[:, 100:] = 0.0
        picture[7, 150] = 1.0  # lit once, in the same picture
    names = [str(j) for j in range(200)]
    check_copies({role: (names, picture) for role, picture in pictures.items()})
    pictures["outcome_proxy"][:, 30] = 5 - 2 * pictures["treatment"][:, 60]
    with pytest.raises(DataError, match="Outcome proxy column '30' is a copy of treatment column '60'"):
        check_copies({role: (names, picture) for role, picture in pictures.items()})


def test_copies_beside_a_picture_are_judged_on_all_rows():
    rng = np.random.default_rng(0)
    picture = ([str(j) for j in range(200)], rng.normal(size=(3000, 200)))
    w = rng.normal(size=(3000, 1))
    v = np.where(np.arange(3000)[:, None] % 3 == 0, w, rng.normal(size=w.shape))
    # Equal in those rows that are looked at first; and varying in others only.
    check_copies({"treatment": picture, "outcome_proxy": (["w"], w), "treatment_proxy": (["v"], v)})
    late = np.where(np.arange(3000)[:, None] % 3 == 1, w, 0.0)
    with pytest.raises(DataError, match="Treatment proxy column 'v' is a copy of outcome proxy column 'w'"):
        check_copies({"treatment": picture, "outcome_proxy": (["w"], late), "treatment_proxy": (["v"], 2 * late)})


def test_strong_correlation_is_no_copy(frame):
    close = frame.assign(v=frame["w"] + 1e-3 * frame["v"])
    ProximalRegression(LinearIV(), seed=0).fit(close, **ROLES)


def test_treatments_outside_the_data_are_warned_about_once(frame):
    model = ProximalRegression(LinearIV(), seed=0).fit(frame, **ROLES)
    message = r"2 of 3 treatments lie outside the observed range \(a -?[\d.]+ to [\d.]+\)"
    for ask in (model.effect, model.interval, lambda a: model.effect(a, return_error=True)):
        with pytest.warns(UserWarning, match=message) as caught:
            ask([-100.0, 0.0, 100.0])
        assert len(caught) == 1
    model.effect([frame["a"].min(), frame["a"].max()])


def test_few_levels_are_shown_at_their_values(frame):
    model = ProximalRegression(LinearIV(), seed=0).fit(frame.assign(a=(frame["a"] > 0).astype(int)), **ROLES)
    assert model.treatment_levels_ == [0.0, 1.0]
    axes = model.plot_effect(truth=lambda a: 2 * a)
    assert list(axes.lines[0].get_xdata()) == [0.0, 1.0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["estimate", "truth", "95% interval, debiased"]


def test_fewer_treatment_proxies_are_named_in_the_words_of_the_question(frame):
    more = frame.assign(w2=frame["w"] + np.random.default_rng(0).standard_normal(len(frame)))
    message = r"The outcome proxies \(w, w2\) enter with 2 terms.*treatment proxies \(v\), got 1. Are they swapped\?"
    with pytest.raises(DataError, match=message):
        ProximalRegression(TwoStageLeastSquares()).fit(more, **{**ROLES, "outcome_proxy": ["w", "w2"]})


def test_least_squares_reports_by_column_name(frame):
    report = ProximalRegression(TwoStageLeastSquares()).fit(frame, **ROLES).estimator_.report_
    assert report.terms == ("constant", "a", "w")
    assert report.endogenous == ("w",)
    assert str(report).splitlines()[1] == "y"


def test_diverged_bridges_are_called_so(frame):
    class Wild(LinearIV):
        def predict(self, x):
            return super().predict(x) + 1e3 * x[:, :1]

    with pytest.warns(UserWarning, match="the fit diverged: on the training rows the bridge varies .* times as much"):
        diagnosis = ProximalRegression(Wild(), seed=0).fit(frame, **ROLES).diagnose()
    assert diagnosis.moment is None
    assert "not measured" in str(diagnosis)
    verdicts = {t: MomentError(t, 1.0, 100).verdict for t in (-5.0, -3.0, -1.0, 1.0, 3.0)}
    assert list(verdicts.values()) == [
        "not informative: the fit may have diverged",
        "no violation seen",
        *["consistent with zero"] * 2,
        "the moment is violated",
    ]


def test_an_unknown_estimator_in_a_saved_model_is_named(frame, tmp_path):
    folder = ProximalRegression(TwoStageLeastSquares()).fit(frame, **ROLES).save(tmp_path / "model")
    path = folder / "model.json"
    path.write_text(path.read_text().replace('"kind": "TwoStageLeastSquares"', '"kind": "Foo"'))
    with pytest.raises(ModelFileError, match="an estimator 'Foo' that this version does not know; it knows"):
        prudent.load(folder)


def test_a_failed_fit_leaves_the_earlier_one(frame, model):
    before = model.effect([0.0, 1.0])
    with pytest.raises(DataError):
        model.fit(frame.head(5), **ROLES)
    np.testing.assert_array_equal(model.effect([0.0, 1.0]), before)


def test_a_category_in_two_roles_is_refused(frame):
    copied = frame.assign(w=pd.cut(frame["w"], 3).astype(str), v=pd.cut(frame["w"], 3).astype(str))
    with pytest.raises(DataError, match="a variable cannot stand in two roles"):
        ProximalRegression(LinearIV(), seed=0).fit(copied, **ROLES)


def test_a_yes_no_proxy_is_one_proxy(frame):
    yes_no = frame.assign(w=np.where(frame["w"] > 0, "yes", "no"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ProximalRegression(LinearIV(), seed=0).fit(yes_no, **ROLES)
    assert model.diagnose().n_proxies == (1, 1)


def test_saved_model_gives_the_same_numbers(model, tmp_path):
    folder = model.save(tmp_path / "model")
    assert sorted(p.name for p in folder.iterdir()) == ["model.json", "weights.safetensors"]
    again = prudent.load(folder)
    assert isinstance(again, ProximalRegression)
    assert np.array_equal(again.effect([0.0, 1.0]), model.effect([0.0, 1.0]))
    assert np.array_equal(again.interval([0.0]).standard_error, model.interval([0.0]).standard_error)
    assert np.array_equal(again.bridge([0.0], [1.0]), model.bridge([0.0], [1.0]))
    assert str(again.diagnose()) == str(model.diagnose())
    assert again.diagnose() == model.diagnose()


@pytest.mark.parametrize(("is_picture", "activation"), [(False, "tanh"), (True, "silu")])
def test_default_units_depend_on_the_treatment(is_picture, activation):
    """Where there are no data the default bridge does not run away; pictures resemble those seen."""
    model = ProximalRegression(seed=0)
    parts = {name: np.zeros((3, 1)) for name in ("treatment", "outcome_proxy", "context")}
    estimator = model._prepared(parts, is_picture=is_picture)
    assert estimator.network.activation == activation
    assert model.estimator is None


@pytest.mark.parametrize(
    ("change", "roles", "error", "message"),
    [
        (lambda f: f, {"outcome": "sales"}, RoleError, "Outcome column 'sales' is not in the data"),
        (lambda f: f, {"treatment_proxy": "w"}, RoleError, "Column 'w' has two roles"),
        (lambda f: f, {"outcome_proxy": []}, RoleError, "outcome_proxy is missing"),
        (lambda f: f.assign(w=1.0), {}, DataError, "Outcome proxy column 'w' is constant"),
        (lambda f: f.assign(v=1.0), {}, DataError, "Treatment proxy column 'v' is constant"),
        (
            lambda f: f.assign(v=f["w"]),
            {},
            DataError,
            "Treatment proxy column 'v' is a copy of outcome proxy column 'w'",
        ),
        (lambda f: f.assign(w=f["a"]), {}, DataError, "Outcome proxy column 'w' is a copy of treatment column 'a'"),
        (lambda f: f.assign(v=1 - 3 * f["w"]), {}, DataError, "Treatment proxy column 'v' is a copy of outcome proxy"),
        (lambda f: f.assign(w=2 * f["a"]), {}, DataError, "Outcome proxy column 'w' is a copy of treatment column 'a'"),
        (lambda f: f.assign(w=2 * f["y"] + 1), {}, DataError, "Outcome proxy column 'w' is a copy of outcome column"),
        (lambda f: f.assign(w=f["y"].round(6)), {}, DataError, "Outcome proxy column 'w' is a copy of outcome column"),
        (
            lambda f: f.assign(w=f["w"].astype(str)),
            {},
            DataError,
            "Outcome proxy column 'w' is text that holds numbers",
        ),
        (
            lambda f: f.assign(v=f["v"].map(lambda v: f"{v:.2f}".replace(".", ","))),
            {},
            DataError,
            r"column 'v' is text: 400 of 400 values are no numbers, first '.*' \(row index 0\). Write decimals with a",
        ),
        (
            lambda f: f.assign(v=f["v"].astype(object).where(f.index != 3, "n/k")),
            {},
            DataError,
            r"column 'v' is text: 1 of 400 values are no numbers, first 'n/k' \(row index 3\)",
        ),
        (lambda f: f.assign(w=np.nan), {}, DataError, "must be finite"),
        (lambda f: f.assign(y="high"), {}, DataError, "Outcome must be numeric"),
        (lambda f: f.head(19), {}, DataError, "at least 20 rows, got 19"),
        (lambda f: f.head(0), {}, DataError, "at least one row"),
    ],
)
def test_bad_tables(frame, change, roles, error, message):
    with pytest.raises(error, match=message):
        ProximalRegression(LinearIV()).fit(change(frame), **{**ROLES, **roles})


def test_bad_calls(frame, model):
    with pytest.raises(NotFittedError, match="not fitted"):
        ProximalRegression().effect(1.0)
    with pytest.raises(DataError, match="Treatment must have 1 columns as in fit, got 2"):
        model.effect(np.zeros((4, 2)))
    with pytest.raises(RoleError, match="without context"):
        model.bridge(1.0, 1.0, {"x": 1.0})
    with pytest.raises(DataError, match="equally many rows"):
        model.bridge([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="level must be between 0 and 1, got 95"):
        model.interval([1.0], level=95)
    for estimator, words in (
        (object(), "got object. Classes with an effect method"),
        ("2sls", r"got the text '2sls'. Give TwoStageLeastSquares\(\), from prudent.cmr"),
        (TwoStageLeastSquares, r"got the class TwoStageLeastSquares. Give TwoStageLeastSquares\(\)"),
    ):
        with pytest.raises(TypeError, match=f"estimator must be a moment estimator such as DMLCMR.*{words}"):
            ProximalRegression(estimator).fit(frame, **ROLES)
    with pytest.raises(TypeError, match=r"ax must be Matplotlib axes, got 'a.png'.*savefig"):
        model.plot_effect("a.png")
    with pytest.raises(DataError, match=r"Treatment must be finite, got NaN .* Drop or impute these rows.$"):
        model.effect([np.nan])
    with pytest.raises(DataError, match="Treatment must be numeric, got 'high'"):
        model.effect([1.0, "high"])
    with pytest.raises(ValueError, match="seed must be a whole number"):
        ProximalRegression(seed=-1).fit(frame, **ROLES)
    with pytest.raises(DataError, match="must have 400 rows like the outcome, got 399"):
        ProximalRegression().fit(
            outcome=frame[["y"]],
            treatment=frame[["a"]],
            outcome_proxy=frame[["w"]].head(399),
            treatment_proxy=frame[["v"]],
        )
