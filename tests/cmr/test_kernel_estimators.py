"""PMMR and KPV against direct implementations with full kernel matrices, and against a closed form."""

import json

import numpy as np
import pytest
from proxy_design import linear_problem, slopes
from sklearn.base import clone

from prudent.cmr import KPV, PMMR, ControlFunction, KernelCMR, KernelIV, estimator_from_state
from prudent.cmr._arrays import Scaler, shared_columns
from prudent.cmr._base import PENALTIES, _ridge
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._pairs import all_pairs
from prudent.cmr._product_kernel import KernelBasis, ProductKernel, fit_ridge
from prudent.errors import DataError, NotFittedError

ESTIMATORS = [PMMR, KPV]
QUICK = {"n_landmarks": 60, "n_folds": 2}


def standard(array):
    return (array - array.mean(axis=0)) / array.std(axis=0)


def gauss(u, v, factor=1.0):
    """Gaussian kernel with ``factor`` times the median distance within u as bandwidth."""
    within = np.sqrt(((u[:, None] - u[None]) ** 2).sum(axis=2))[np.triu_indices(len(u), 1)]
    return np.exp(-((u[:, None] - v[None]) ** 2).sum(axis=2) / (2 * (factor * np.median(within)) ** 2))


def test_pmmr_is_the_solution_with_full_kernel_matrices():
    y, x, c = linear_problem(60, seed=0)
    model = PMMR(n_landmarks=60, bandwidths=(1.0,), penalties=(1e-3,), moment_bandwidth=0.7).fit(y, x, c, seed=0)
    u, g, t = standard(x), standard(c), standard(y)
    kernel = gauss(u[:, :1], u[:, :1]) * gauss(u[:, 1:], u[:, 1:]) + 1 + u @ u.T
    weight = gauss(g[:, :1], g[:, :1], 0.7) * gauss(g[:, 1:], g[:, 1:], 0.7) / 60**2
    # Stationary point of (t - K a)' W (t - K a) + penalty a' K a.
    direct = kernel @ np.linalg.solve(weight @ kernel + 1e-3 * np.eye(60), weight @ t)
    np.testing.assert_allclose(model.predict(x), y.mean() + y.std() * direct, atol=1e-4 * y.std())


def test_kpv_is_the_solution_with_full_kernel_matrices():
    y, x, c = linear_problem(60, seed=0)
    penalty = 1e-3
    model = KPV(n_landmarks=60, bandwidths=(1.0,), instrument_bandwidths=(1.0,), penalties=(penalty,), n_folds=2).fit(
        y, x, c, seed=0
    )
    u, g, t = standard(x), standard(c), standard(y)
    k_c = gauss(g[:, :1], g[:, :1]) * gauss(g[:, 1:], g[:, 1:]) + 1 + g @ g.T
    k_a, k_w = gauss(u[:, :1], u[:, :1]), gauss(u[:, 1:], u[:, 1:])
    # Row i of the stage-1 weights says how E[phi(W) | c_i] is made of the rows of the other fold.
    weights = np.zeros((60, 60))
    for rows in cross_fit_folds(60, 2, np.random.default_rng(0)):
        other = np.setdiff1d(np.arange(60), rows)
        ridge = k_c[np.ix_(other, other)] + len(other) * penalty * np.eye(len(other))
        weights[np.ix_(rows, other)] = np.linalg.solve(ridge, k_c[np.ix_(other, rows)]).T
    mean_w = weights @ u[:, 1:]
    linear, mean_linear = np.hstack([np.ones((60, 1)), u]), np.hstack([np.ones((60, 1)), u[:, :1], mean_w])
    # f in the span of the sections k((a_l, w_l), .) of the rows, as in the estimator but for its cut of eigenvalues.
    design = np.hstack([k_a * (weights @ k_w), mean_linear])
    norm = np.zeros((63, 63))
    norm[:60, :60], norm[60:, 60:] = k_a * k_w, np.eye(3)
    b = np.linalg.lstsq(design.T @ design + 60 * penalty * norm, design.T @ t, rcond=1e-13)[0]
    direct = np.hstack([k_a * k_w, linear]) @ b
    np.testing.assert_allclose(model.predict(x), y.mean() + y.std() * direct, atol=2e-3 * y.std())
    # f in the whole product space, which has a section for every pair (a_i, w_l).
    gram = k_a * (weights @ k_w @ weights.T) + mean_linear @ mean_linear.T
    dual = np.linalg.solve(gram + 60 * penalty * np.eye(60), t)
    whole = (k_a * (k_w @ weights.T) + linear @ mean_linear.T) @ dual
    np.testing.assert_allclose(model.predict(x), y.mean() + y.std() * whole, atol=1e-2 * y.std())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_linear_design_has_its_closed_form(estimator):
    model = estimator(n_landmarks=150).fit(*linear_problem(2000, seed=1), seed=0)
    np.testing.assert_allclose(slopes(model), [2.0, 1.5], atol=0.25)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_instruments_without_common_columns(estimator):
    rng = np.random.default_rng(0)
    z, u = rng.normal(size=(1500, 1)), rng.normal(size=(1500, 1))
    a = z + u
    model = estimator(n_landmarks=100).fit(2 * a + 2 * u, a, z, seed=0)
    f = model.predict([[-1.0], [1.0]])
    assert (f[1, 0] - f[0, 0]) / 2 == pytest.approx(2.0, abs=0.25)  # a plain regression has slope 3


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_same_seed_same_numbers_and_saving(estimator):
    y, x, c = linear_problem(80, seed=0)
    model = estimator(**QUICK).fit(y, x, c, seed=3)
    assert np.array_equal(model.predict(x), estimator(**QUICK).fit(y, x, c, seed=3).predict(x))
    record, arrays = model.to_state()
    again = estimator_from_state(json.loads(json.dumps(record)), arrays)
    assert np.array_equal(again.predict(x), model.predict(x))
    assert again.get_params() == model.get_params()
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_units_several_outcomes_and_groups(estimator):
    y, x, c = linear_problem(80, seed=0)
    groups = np.repeat(np.arange(20), 4)
    one = estimator(**QUICK).fit(y, x, c, seed=0, groups=groups)
    both = estimator(**QUICK).fit(np.hstack([y, 5 - 3 * y]), 10 * x + 1, 10 * c + 1, seed=0, groups=groups)
    f = both.predict(10 * x + 1)
    np.testing.assert_allclose(f[:, :1], one.predict(x), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(f[:, 1], 5 - 3 * f[:, 0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_pictures_on_both_sides(estimator):
    rng = np.random.default_rng(0)
    a, w, v = rng.normal(size=(60, 256)), rng.normal(size=(60, 256)), rng.normal(size=(60, 2))
    a[:, 5] = 0.0  # A blank pixel of the treatment is fine.
    model = estimator(**QUICK).fit(a[:, :1] + w[:, :1], np.hstack([a, w]), np.hstack([a, v]), seed=0)
    assert np.isfinite(model.predict(np.hstack([a, w]))).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({}, lambda y, x, c: (y, np.where(np.arange(80)[:, None] == 3, np.nan, x), c), "x must be finite.*row index 3"),
        ({}, lambda y, x, c: (y[:-1], x, c), "y must have 80 rows like the other arrays, got 79"),
        ({}, lambda y, x, c: (y, np.hstack([x[:, :1], np.ones_like(y)]), c), "Column 1 of x is constant"),
        ({}, lambda y, x, c: (y[:10], x[:10], c[:10]), "needs at least 20 rows, got 10"),
        ({"n_landmarks": 0}, lambda *a: a, "n_landmarks must be a whole number of at least 1, got 0"),
        ({"n_folds": 1}, lambda *a: a, "n_folds must be a whole number of at least 2, got 1"),
        ({"bandwidths": (1.0, -1.0)}, lambda *a: a, "every one of bandwidths must be a number above 0, got -1.0"),
    ],
)
def test_bad_input(estimator, settings, change, message):
    with pytest.raises((DataError, ValueError), match=message):
        estimator(**{**QUICK, **settings}).fit(*change(*linear_problem(80, seed=0)), seed=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_prediction_is_checked(estimator):
    with pytest.raises(NotFittedError, match="not fitted"):
        estimator().predict([[1.0, 2.0]])
    model = estimator(**QUICK).fit(*linear_problem(80, seed=0), seed=0)
    with pytest.raises(DataError, match="x must have 2 columns as in fit, got 3"):
        model.predict(np.zeros((4, 3)))


@pytest.mark.parametrize("n_contexts", [0, 1])
@pytest.mark.parametrize("estimator", [PMMR(**QUICK), KPV(**QUICK), KernelCMR(n_folds=2, n_landmarks=60)], ids=str)
def test_pairs_are_predictions(estimator, n_contexts):
    rng = np.random.default_rng(0)
    u = rng.normal(size=(120, 1))
    first = np.hstack([u + rng.normal(size=u.shape), rng.integers(0, 2, u.shape)])
    context = rng.normal(size=(120, n_contexts))
    others = np.hstack([u + rng.normal(size=(120, 2)), context])
    c = np.hstack([first, u + rng.normal(size=u.shape), context])
    y = first[:, :1] + np.sin(u)
    model = clone(estimator).fit(np.hstack([y, -2 * y]), np.hstack([first, others]), c, seed=0)
    np.testing.assert_allclose(model.pairs(first[:4], others), all_pairs(model.predict, first[:4], others), atol=1e-9)


@pytest.mark.parametrize(
    "estimator",
    [
        *(PMMR(**QUICK), KPV(**QUICK), KernelCMR(n_folds=2, n_landmarks=60)),
        *(KernelIV(features="exact"), KernelIV(features="random", n_features=50)),
        *(ControlFunction(n_landmarks=60), ControlFunction(second="spline")),
    ],
    ids=str,
)
def test_pairs_of_actions_and_contexts_are_predictions(estimator):
    rng = np.random.default_rng(0)
    z, u, context = (rng.normal(size=(120, 1)) for _ in range(3))
    action = z + u
    y = np.sin(action) + context * action + u
    model = clone(estimator).fit(y, np.hstack([action, context]), np.hstack([z, context]), seed=0)
    expected = all_pairs(model.predict, action[:4], context)
    np.testing.assert_allclose(model.pairs(action[:4], context), expected, atol=1e-9)


def test_features_give_back_the_kernel():
    x = np.random.default_rng(0).normal(size=(50, 3))
    kernel = ProductKernel.median(x, [[0, 1], [2]], np.random.default_rng(0))
    basis = KernelBasis.of(kernel, x, 50, np.random.default_rng(0))
    features = basis(x)
    expected = kernel(x, x) + 1 + Scaler.of(x).forward(x) @ Scaler.of(x).forward(x).T
    np.testing.assert_allclose(features @ features.T, expected, atol=1e-5)
    np.testing.assert_allclose(kernel(x, x), kernel.factor(0, x, x) * kernel.factor(1, x, x))
    white = kernel.whitened(x)
    np.testing.assert_allclose(
        kernel(x, x), np.exp(-0.5 * ((white[:, None] - white[None]) ** 2).sum(axis=2)), atol=1e-5
    )


@pytest.mark.parametrize(("n", "p"), [(40, 6), (25, 60)])
def test_ridge_of_moments_leaves_out_one_row_at_a_time(n, p):
    rng = np.random.default_rng(0)
    design = rng.normal(size=(n + 5, p))
    design[:, 1] = 3.0
    target = np.hstack([design[:, :1] + 0.1 * rng.normal(size=(n + 5, 1)), 5 + rng.normal(size=(n + 5, 1))])
    train, test = np.arange(n), np.arange(n, n + 5)

    def fit(rows, penalty):
        centre, mean = design[rows].mean(axis=0), target[rows].mean(axis=0)
        inside = design[rows] - centre
        weight = np.linalg.solve(inside.T @ inside + penalty * np.eye(p), inside.T @ (target[rows] - mean))
        return lambda at: mean + (design[at] - centre) @ weight

    losses = [
        np.mean([(fit(np.delete(train, i), penalty)([i])[0] - target[i]) ** 2 for i in train], axis=0)
        for penalty in PENALTIES
    ]
    expected = np.column_stack([fit(train, PENALTIES[k])(test)[:, j] for j, k in enumerate(np.argmin(losses, axis=0))])
    np.testing.assert_allclose(_ridge(design, target, train, test), expected, rtol=1e-8)


def test_ridge_chooses_the_cross_validated_penalty():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)), rng.normal(size=(40, 2))
    folds, penalties = [np.arange(20), np.arange(20, 40)], np.array([1e-3, 1e-1, 10.0])
    loss = []
    for penalty in penalties:
        total = 0.0
        for test, train in (folds, folds[::-1]):
            b = np.linalg.solve(x[train].T @ x[train] + 20 * penalty * np.eye(5), x[train].T @ y[train])
            total += np.sum((y[test] - x[test] @ b) ** 2)
        loss.append(total / 40)
    fit = fit_ridge(x, y, folds, penalties)
    assert fit.penalty == penalties[np.argmin(loss)]
    assert fit.loss == pytest.approx(min(loss))


def test_common_columns_are_found_quickly_and_once_each():
    rng = np.random.default_rng(0)
    a, w = rng.normal(size=(30, 2000)), rng.normal(size=(30, 2000))
    assert shared_columns(np.hstack([a, w]), np.hstack([w[:, :1], a])) == {i: i + 1 for i in range(2000)} | {2000: 0}
    assert shared_columns(np.array([[-0.0], [1.0]]), np.array([[0.0], [1.0]])) == {0: 0}
