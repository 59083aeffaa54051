"""NMMR: its loss against a double sum, its estimate against a closed form."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from proxy_design import linear_problem, slopes

from prudent.cmr import NMMR, estimator_from_state
from prudent.cmr._nmmr import anchored_scaler
from prudent.cmr._pair_loss import PairLoss
from prudent.cmr._problem import Problem
from prudent.errors import DataError, NotFittedError
from prudent.nn import MLPSpec, TrainConfig

BRIEF = TrainConfig(learning_rate=2e-2, weight_decay=0.0, batch_size=128, max_steps=300, evaluate_every=300)


def quick(statistic="u", **settings) -> NMMR:
    return NMMR(statistic, **{"network": MLPSpec(()), "n_networks": 2, "train": BRIEF, **settings})


@pytest.fixture(scope="module")
def problem():
    return linear_problem(1500, seed=1)


@pytest.fixture(scope="module")
def fitted(problem) -> NMMR:
    return quick().fit(*problem, seed=0)


@pytest.mark.parametrize("statistic", ["u", "v"])
def test_loss_is_the_double_sum(statistic):
    rng = np.random.default_rng(0)
    n = 17
    y, f, c = rng.normal(size=(n, 2)), rng.normal(size=(n, 2)), rng.normal(size=(n, 3))
    own = 0.0 if statistic == "u" else 1.0 / n
    batch = {"x": f, "y": y, "c": c, "own": np.full(n, own)}
    batch = {name: jnp.asarray(value, jnp.float32) for name, value in batch.items()}
    value = float(jnp.mean(PairLoss()(lambda x, key: x, batch, None)))
    direct = 0.0
    for i in range(n):
        for j in range(n):
            if i != j or statistic == "v":
                direct += np.exp(-0.5 * np.sum((c[i] - c[j]) ** 2)) * (y[i] - f[i]) @ (y[j] - f[j])
    direct /= n * (n - 1) if statistic == "u" else n**2
    assert value == pytest.approx(direct, rel=1e-4, abs=1e-6)


def test_a_batch_estimates_the_statistic_of_all_rows_without_bias():
    rng = np.random.default_rng(0)
    n = 6
    data = {"x": rng.normal(size=(n, 1)), "y": rng.normal(size=(n, 1)), "c": rng.normal(size=(n, 1))}
    data["own"] = np.full(n, 1.0 / n)

    def loss(rows):
        batch = {k: jnp.asarray(v[list(rows)], jnp.float32) for k, v in data.items()}
        return float(jnp.mean(PairLoss()(lambda x, key: x, batch, None)))

    batches = [(i, j) for i in range(n) for j in range(i)]
    assert np.mean([loss(rows) for rows in batches]) == pytest.approx(loss(range(n)), abs=1e-5)


def test_columns_far_from_zero_are_centred():
    y, x, c = linear_problem(50, seed=0)
    scaler = anchored_scaler(Problem.of("NMMR", y, x + [3.0, 1e6], c, seed=0, groups=None))
    assert scaler.mean[0] == 0.0
    assert scaler.mean[1] == pytest.approx(1e6, rel=1e-3)
    np.testing.assert_allclose(scaler.scale, x.std(axis=0))


def test_linear_design_has_its_closed_form(problem, fitted):
    np.testing.assert_allclose(slopes(fitted), [2.0, 1.5], atol=0.25)
    v = quick("v").fit(*problem, seed=0)
    np.testing.assert_allclose(slopes(v), [2.0, 1.5], atol=0.25)
    assert not np.array_equal(slopes(v), slopes(fitted))


def test_same_seed_same_numbers_and_saving(problem, fitted):
    x = problem[1][:50]
    assert np.array_equal(quick().fit(*problem, seed=0).predict(x), fitted.predict(x))
    record, arrays = fitted.to_state()
    again = estimator_from_state(json.loads(json.dumps(record)), arrays)
    np.testing.assert_allclose(again.predict(x), fitted.predict(x), rtol=1e-6)


def test_pictures_on_both_sides():
    rng = np.random.default_rng(0)
    a, w, v = rng.normal(size=(60, 100)), rng.normal(size=(60, 100)), rng.normal(size=(60, 2))
    brief = TrainConfig(batch_size=32, max_steps=10, evaluate_every=5)
    model = quick(network=MLPSpec((8,)), train=brief).fit(a[:, :1], np.hstack([a, w]), np.hstack([a, v]), seed=0)
    assert np.isfinite(model.predict(np.hstack([a, w]))).all()


@pytest.mark.parametrize(
    ("settings", "rows", "message"),
    [
        ({"statistic": "w"}, 80, r"statistic must be one of \('u', 'v'\), got 'w'"),
        ({"bandwidth": 0.0}, 80, "bandwidth must be a number above 0, got 0.0"),
        ({"n_networks": 0}, 80, "n_networks must be a whole number of at least 1, got 0"),
        ({"train": 5}, 80, r"train must be a prudent.nn.TrainConfig\(...\), got 5"),
        ({}, 10, "NMMR needs at least 20 rows, got 10"),
    ],
)
def test_bad_input(settings, rows, message):
    with pytest.raises(TypeError if "train" in settings else ValueError, match=message):
        quick(**settings).fit(*linear_problem(rows, seed=0), seed=0)


def test_prediction_is_checked(fitted):
    with pytest.raises(NotFittedError, match="not fitted"):
        NMMR().predict([[1.0, 2.0]])
    with pytest.raises(DataError, match="x must have 2 columns as in fit, got 3"):
        fitted.predict(np.zeros((4, 3)))


def test_a_u_statistic_without_minimum_gives_way_to_v():
    rng = np.random.default_rng(0)
    n = 200
    # x says nothing about c: residuals of either sign can be put beside each other at will.
    y, x, c = rng.normal(size=(n, 1)), rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    train = TrainConfig(learning_rate=2e-2, weight_decay=0.0, batch_size=200, max_steps=1500, evaluate_every=1500)
    with pytest.warns(UserWarning, match="U-statistic has no minimum"):
        model = NMMR(network=MLPSpec((64, 64)), n_networks=1, train=train).fit(y, x, c, seed=0)
    assert model.statistic_ == "v"
    assert np.std(model.predict(x)) < 5
