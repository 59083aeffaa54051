"""DFPV: both stages against direct solutions, the gradients' ways, and a closed form."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from proxy_design import linear_problem, slopes

from prudent.cmr import DFPV, estimator_from_state
from prudent.cmr._deep_features import StageBuilder, TwoStageLoss, training_ridge
from prudent.cmr._dfpv import PENALTIES, _final_stages
from prudent.errors import DataError, NotFittedError
from prudent.nn import ImageSpec, MLPSpec, TrainConfig

SMALL = MLPSpec((4, 2))
BRIEF = TrainConfig(learning_rate=3e-3, weight_decay=0.1, batch_size=128, max_steps=60, evaluate_every=60)


def quick(**settings) -> DFPV:
    return DFPV(**{"network": SMALL, "n_functions": 2, "train": BRIEF, **settings})


@pytest.fixture(scope="module")
def problem():
    return linear_problem(1500, seed=1)


@pytest.fixture(scope="module")
def fitted(problem) -> DFPV:
    return quick().fit(*problem, seed=0)


def test_linear_design_has_its_closed_form(fitted):
    np.testing.assert_allclose(slopes(fitted), [2.0, 1.5], atol=0.25)


def test_same_seed_same_numbers_and_saving(problem, fitted):
    x = problem[1][:50]
    assert np.array_equal(quick().fit(*problem, seed=0).predict(x), fitted.predict(x))
    record, arrays = fitted.to_state()
    again = estimator_from_state(json.loads(json.dumps(record)), arrays)
    np.testing.assert_allclose(again.predict(x), fitted.predict(x), rtol=1e-5, atol=1e-6)


def test_ridge_is_the_closed_form():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)), rng.normal(size=(30, 2))
    direct = np.linalg.solve(x.T @ x + 30 * 0.1 * np.eye(4), x.T @ y)
    np.testing.assert_allclose(training_ridge(jnp.asarray(x), jnp.asarray(y), 0.1), direct, atol=1e-3)


def test_final_stages_are_two_nested_regressions():
    rng = np.random.default_rng(0)
    n, folds = 40, [np.arange(20), np.arange(20, 40)]
    one = np.ones((n, 1))
    a, v, w, y = (rng.normal(size=(n, 1)) for _ in range(4))
    known, modelled, given = np.hstack([one, a]), np.hstack([one, w]), np.hstack([one, a, v])
    coefficient, (first, second) = _final_stages(known, modelled, given, y, folds)
    assert {first, second} <= set(PENALTIES)
    expected = np.empty_like(w)
    for test, train in (folds, folds[::-1]):
        b = np.linalg.solve(given[train].T @ given[train] + 20 * first * np.eye(3), given[train].T @ w[train])
        expected[test] = given[test] @ b
    design = np.hstack([one, expected, a, a * expected])
    direct = np.linalg.solve(design.T @ design + n * second * np.eye(4), design.T @ y)
    np.testing.assert_allclose(coefficient, direct, rtol=1e-6, atol=1e-9)


def test_every_part_follows_its_own_stage():
    y, x, c = (jnp.asarray(part, jnp.float32) for part in linear_problem(64, seed=0))
    stages = StageBuilder(SMALL, SMALL, SMALL, (0,), (1,), (0,), (1,)).stages(2, 1, key=jax.random.key(0))

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(stages, y):
        return jnp.mean(TwoStageLoss(1e-2, 1e-2)(stages, {"y": y, "x": x, "c": c}, None))

    def sizes(part):
        return [float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(part)]

    first, second = gradient(stages, y), gradient(stages, -3 * y + x[:, :1] ** 2)
    # The outcome plays no part in stage 1, and everything in stage 2.
    assert sizes(first.instruments) == sizes(second.instruments)
    assert sizes(first.known) == sizes(second.known)
    assert sizes(first.function) != sizes(second.function)
    assert max(sizes(first.instruments)) > 0
    assert max(sizes(first.function.modelled)) > 0


def test_instruments_without_common_columns_and_two_outcomes():
    rng = np.random.default_rng(0)
    z, u = rng.normal(size=(1500, 1)), rng.normal(size=(1500, 1))
    y = 2 * (z + u) + 2 * u
    model = quick().fit(np.hstack([y, -y]), z + u, z, seed=0)
    f = model.predict([[-1.0], [1.0]])
    assert (f[1, 0] - f[0, 0]) / 2 == pytest.approx(2.0, abs=0.25)
    np.testing.assert_allclose(f[:, 0], -f[:, 1], atol=1e-3)


def test_pictures_on_both_sides():
    rng = np.random.default_rng(0)
    a, w, v = rng.normal(size=(60, 64)), rng.normal(size=(60, 64)), rng.normal(size=(60, 2))
    brief = TrainConfig(batch_size=32, max_steps=4, evaluate_every=2)
    image = ImageSpec((8, 8, 1), channels=(4,), widths=(8, 4))
    model = quick(known_network=image, modelled_network=image, train=brief)
    model.fit(a[:, :1], np.hstack([a, w]), np.hstack([a, v]), seed=0)
    assert np.isfinite(model.predict(np.hstack([a, w]))).all()


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({"ridge": (0.1,)}, lambda *a: a, r"ridge must be two positive numbers, got \(0.1,\)"),
        ({"n_functions": 0}, lambda *a: a, "n_functions must be a whole number of at least 1, got 0"),
        ({"network": 5}, lambda *a: a, r"network must be a network such as prudent.nn.MLPSpec\(...\), got 5"),
        ({}, lambda y, x, c: (y[:10], x[:10], c[:10]), "DFPV needs at least 20 rows, got 10"),
        ({}, lambda y, x, c: (y, c, c), "needs a column of x that is not in c"),
        ({}, lambda y, x, c: (y * np.nan, x, c), "y must be finite"),
    ],
)
def test_bad_input(settings, change, message):
    with pytest.raises(TypeError if "network" in settings else ValueError, match=message):
        quick(**settings).fit(*change(*linear_problem(80, seed=0)), seed=0)


def test_prediction_is_checked(fitted):
    with pytest.raises(NotFittedError, match="not fitted"):
        DFPV().predict([[1.0, 2.0]])
    with pytest.raises(DataError, match="x must have 2 columns as in fit, got 3"):
        fitted.predict(np.zeros((4, 3)))
