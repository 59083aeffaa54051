"""Two-stage least squares against linearmodels, the closed form and known functions."""

import json

import numpy as np
import pytest
from linearmodels.iv import IV2SLS

import prudent
from prudent import IVRegression, datasets
from prudent.cmr import TwoStageLeastSquares
from prudent.cmr._features import Series, independent_columns
from prudent.errors import DataError, NotFittedError


def problem(design: datasets.Design):
    context = np.empty((len(design.outcome), 0)) if design.context is None else design.context
    return design.outcome, np.hstack([design.action, context]), np.hstack([design.instruments, context])


@pytest.fixture(scope="module")
def design() -> datasets.Design:
    return datasets.make_linear_gaussian(500, seed=0)


def test_agrees_with_linearmodels_and_with_the_closed_form(design):
    y, x, c = problem(design)
    model = TwoStageLeastSquares().fit(y, x, c)
    slope = model.predict([[1.0, 0.0]]) - model.predict([[0.0, 0.0]])
    ones = np.ones_like(y)
    reference = IV2SLS(y, np.hstack([ones, design.context]), design.action, design.instruments).fit(cov_type="robust")
    assert slope[0, 0] == pytest.approx(reference.params.iloc[-1], rel=1e-9)
    z, w = np.hstack([ones, c]), np.hstack([ones, x])
    projected = z @ np.linalg.lstsq(z, w, rcond=None)[0]
    theta = np.linalg.solve(projected.T @ w, projected.T @ y)
    np.testing.assert_allclose(model.predict(x), w @ theta, rtol=1e-8, atol=1e-8)
    report = model.report_
    assert report.endogenous == ("x0",)
    # In the units of the data.
    assert report.coefficients[0][-1] == pytest.approx(reference.params.iloc[-1], rel=1e-9)
    assert report.standard_errors[0][-1] == pytest.approx(reference.std_errors.iloc[-1], rel=1e-6)
    first = reference.first_stage.diagnostics
    # linearmodels gives the Wald statistic, which is the number of instruments times F.
    assert report.first_stage_f[0] == pytest.approx(first["f.stat"].iloc[0] / 2, rel=1e-6)
    assert report.partial_r2[0] == pytest.approx(first["partial.rsquared"].iloc[0], rel=1e-6)
    assert "first stage, 2 excluded instruments" in str(report)


def test_clustered_errors_follow_the_groups(design):
    y, x, c = (np.repeat(a, 4, axis=0) for a in problem(design))
    groups = np.repeat(np.arange(500), 4)
    alone, grouped = TwoStageLeastSquares().fit(y, x, c), TwoStageLeastSquares().fit(y, x, c, groups=groups)
    assert alone.report_.errors == "robust"
    assert grouped.report_.errors == "clustered"
    # Four copies of every row: clustering doubles the standard error that ignores it.
    assert grouped.report_.standard_errors[0][-1] == pytest.approx(2 * alone.report_.standard_errors[0][-1], rel=0.05)


def test_few_clusters_have_no_first_stage_f(design):
    y, x, c = problem(design)
    few = TwoStageLeastSquares().fit(y, x, c, groups=np.arange(500) % 2).report_
    assert np.isnan(few.first_stage_f[0])
    assert few.partial_r2[0] > 0
    assert TwoStageLeastSquares().fit(y, x, c, groups=np.arange(500) % 3).report_.first_stage_f[0] < 1e6
    with pytest.raises(DataError, match=r"at least two groups, got 1.*errors='robust'"):
        TwoStageLeastSquares().fit(y, x, c, groups=np.zeros(500))


def test_an_unknown_first_stage_f_is_saved_as_valid_json(design):
    model = TwoStageLeastSquares().fit(*problem(design), groups=np.arange(500) % 2)
    record, arrays = model.to_state()
    loaded = TwoStageLeastSquares.from_state(json.loads(json.dumps(record, allow_nan=False)), arrays)
    assert np.isnan(loaded.report_.first_stage_f[0])
    assert loaded.report_.partial_r2 == model.report_.partial_r2


@pytest.mark.parametrize("features", ["polynomial", "spline"])
def test_series_follow_a_curve(features):
    design = datasets.make_curve(4000, curve="sin", seed=0)
    y, x, c = problem(design)
    model = TwoStageLeastSquares(features, degree=5 if features == "polynomial" else 3).fit(y, x, c)
    grid = np.linspace(-2.5, 2.5, 30)[:, None]
    assert np.mean((model.predict(grid)[:, 0] - np.sin(grid[:, 0])) ** 2) < 0.05


def test_collinear_indicators_and_interactions_are_no_obstacle():
    # Y = A (1 + B) + U with an indicator B and its complement, whose sum is the constant.
    rng = np.random.default_rng(0)
    z, u, b = rng.normal(size=(2000, 1)), rng.normal(size=(2000, 1)), rng.integers(2, size=(2000, 1))
    a, k = z + u, np.hstack([b, 1 - b]).astype(float)
    x, c = np.hstack([a, k]), np.hstack([z, k])
    model = TwoStageLeastSquares(interactions=True).fit(a * (1 + b) + u, x, c)
    slopes = np.diff(model.predict([[0, 0, 1], [1, 0, 1], [0, 1, 0], [1, 1, 0]])[:, 0])[[0, 2]]
    np.testing.assert_allclose(slopes, [1.0, 2.0], atol=0.15)
    assert len(model.report_.endogenous) == 2


def test_several_outcomes_and_a_known_action(design):
    y, x, c = problem(design)
    both = TwoStageLeastSquares().fit(np.hstack([y, 1 - 2 * y]), x, c).predict(x[:5])
    np.testing.assert_allclose(both[:, 1], 1 - 2 * both[:, 0])
    plain = TwoStageLeastSquares().fit(y, x, x)  # nothing is modelled: ordinary least squares
    w = np.hstack([np.ones_like(y), x])
    np.testing.assert_allclose(plain.predict(x), w @ np.linalg.lstsq(w, y, rcond=None)[0])
    assert plain.report_.endogenous == ()


def test_saved_model_is_the_same(design, tmp_path):
    model = IVRegression(TwoStageLeastSquares("spline", interactions=True)).fit(**design.roles())
    loaded = prudent.load(model.save(tmp_path / "model"))
    assert np.array_equal(loaded.effect([0.0, 5.0], [0.3]), model.effect([0.0, 5.0], [0.3]))
    assert loaded.estimator_.report_ == model.estimator_.report_


def test_bad_input(design):
    y, x, c = problem(design)
    with pytest.raises(DataError, match="1 endogenous terms need at least as many excluded instruments, got 0"):
        TwoStageLeastSquares().fit(y, x, c[:, 2:])
    with pytest.raises(DataError, match="errors='clustered' needs groups, got none"):
        TwoStageLeastSquares(errors="clustered").fit(y, x, c)
    with pytest.raises(DataError, match="terms need more rows than 25"):
        TwoStageLeastSquares("spline", interactions=True).fit(y[:25], x[:25], c[:25])
    with pytest.raises(DataError, match="x must be finite"):
        TwoStageLeastSquares().fit(y, x * np.nan, c)
    with pytest.raises(DataError, match="Column 0 of x is constant"):
        TwoStageLeastSquares().fit(y, x * 0, c)
    with pytest.raises(DataError, match="needs at least 20 rows, got 3"):
        TwoStageLeastSquares().fit(y[:3], x[:3], c[:3])
    with pytest.raises(ValueError, match="features must be one of"):
        TwoStageLeastSquares("cubic").fit(y, x, c)
    with pytest.raises(NotFittedError):
        TwoStageLeastSquares().predict(x)


def test_independent_columns_keep_the_earlier_ones():
    a = np.arange(5.0)[:, None]
    columns = np.hstack([a, 2 * a + 1, a**2, np.zeros_like(a)])
    assert independent_columns(np.ones_like(a), columns).tolist() == [0, 2]


def test_series_names_its_columns():
    array = np.random.default_rng(0).normal(size=(50, 2))
    series = Series.of(array, kind="polynomial", degree=2, n_knots=5, interactions=True)
    names, needed = series.terms()
    assert names[:4] == ["x0[0]", "x0[1]", "x1[0]", "x1[1]"]
    assert needed[-1] == (0, 1)
    assert series.transform(array).shape == (50, len(names))


@pytest.mark.parametrize(("scale", "shift"), [(1e12, 0.0), (1e-12, 0.0), (1.0, 1e8), (1.0, 1.7e18)])
@pytest.mark.parametrize("place", ["action", "instruments", "context"])
def test_units_change_nothing(design, place, scale, shift):
    # Days in nanoseconds since 1970, sizes in dollars.
    scale = 864e11 if shift > 1e10 else scale
    roles = design.roles()
    changed = roles | {place: roles[place] * scale + shift}
    plain, other = (IVRegression(TwoStageLeastSquares()).fit(**part) for part in (roles, changed))
    points = {name: (changed if name == place else roles)[name][:5] for name in ("action", "context")}
    expected = plain.effect(roles["action"][:5], roles["context"][:5])
    np.testing.assert_allclose(other.effect(points["action"], points["context"]), expected, rtol=1e-4, atol=1e-4)
    assert other.diagnose().weakest_f == pytest.approx(plain.diagnose().weakest_f, rel=1e-4)


def test_an_action_that_follows_from_the_context_is_refused(design):
    roles = design.roles()
    copied = roles | {"context": np.hstack([roles["context"], 2 * roles["action"] + roles["context"]])}
    with pytest.raises(DataError, match="Column 0 of x is a linear combination of columns that x and c share"):
        IVRegression(TwoStageLeastSquares()).fit(**copied)
