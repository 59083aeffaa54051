"""Estimators of the dose response without a bridge function: doubly robust, latent variables, plain regressions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from sklearn.linear_model import LinearRegression, Ridge

from prudent import load
from prudent.cmr import PMMR, MomentEstimator
from prudent.cmr._pairs import all_pairs
from prudent.errors import DataError, NotFittedError
from prudent.nn import MLPSpec, TrainConfig
from prudent.proximal._cevae import CEVAE
from prudent.proximal._doubly_robust import PKDR
from prudent.proximal._latent_model import LatentModel, gaussian_head, negative_bound
from prudent.proximal._plain import PlainRegression

BRIEF = TrainConfig(learning_rate=5e-3, batch_size=128, max_steps=300, evaluate_every=100)
POINTS = np.array([-0.7, 0.0, 0.7])


def proxies(n: int, seed: int, noise: float = 0.5):
    """Linear and Gaussian; the effect of a is 2 a, a regression on a alone has a larger slope."""
    rng = np.random.default_rng(seed)
    u, e = rng.normal(size=n), rng.normal(size=(n, 4))
    a = 0.6 * u + e[:, 0]
    return 2 * a + 1.5 * u + 0.3 * e[:, 1], a, u + noise * e[:, 2], u + noise * e[:, 3]


class ZeroBridge(MomentEstimator):
    """A bridge that is wrong everywhere."""

    def fit(self, y, x, c, *, seed, groups=None):
        return self

    def predict(self, x):
        return np.zeros((len(x), 1))

    def to_state(self):
        return {}, {}


@pytest.fixture(scope="module")
def data():
    return proxies(3000, seed=1)


@pytest.fixture(scope="module")
def robust(data) -> PKDR:
    return PKDR(PMMR(n_landmarks=150), n_landmarks=150).fit(*data, seed=0)


def test_pkdr_is_right_when_both_bridges_are(robust):
    np.testing.assert_allclose(robust.effect(POINTS), 2 * POINTS, atol=0.25)


def test_pkdr_survives_a_wrong_outcome_bridge(data):
    model = PKDR(ZeroBridge(), n_landmarks=150).fit(*data, seed=0)
    slope = (model.effect([0.7]) - model.effect([-0.7]))[0] / 1.4
    confounded = LinearRegression().fit(data[1][:, None], data[0]).coef_[0]
    assert confounded > 2.5
    assert slope == pytest.approx(2.0, abs=0.25)


def test_pkdr_survives_a_wrong_treatment_bridge(data, robust):
    broken = PKDR(PMMR(n_landmarks=150), n_landmarks=150).fit(*data, seed=0)
    broken.correction_ = broken.correction_ / broken.weight_  # q = 1
    np.testing.assert_allclose(broken.effect(POINTS), 2 * POINTS, atol=0.25)


def test_treatment_bridge_is_the_density_ratio_in_the_mean(data, robust):
    # E[q | A, W] = p(A) p(W) / p(A, W), here Gaussian with correlation r.
    _, a, w, v = data
    q = robust.treatment_bridge(a, v)
    s, t = (a - a.mean()) / a.std(), (w - w.mean()) / w.std()
    r = np.corrcoef(a, w)[0, 1]
    joint = -0.5 * (s**2 - 2 * r * s * t + t**2) / (1 - r**2)
    ratio = np.exp(-0.5 * (s**2 + t**2) - joint) * np.sqrt(1 - r**2)
    inner = (np.abs(s) < 1) & (np.abs(t) < 1)
    assert q.mean() == pytest.approx(1.0, abs=0.05)
    slope = np.polyfit(ratio[inner], q[inner], 1)[0]
    assert slope == pytest.approx(1.0, abs=0.3)


def test_pkdr_matches_a_discrete_treatment_exactly():
    rng = np.random.default_rng(0)
    u = rng.normal(size=1500)
    a = (u + rng.normal(size=1500) > 0).astype(float)
    y = 2 * a + u + 0.1 * rng.normal(size=1500)
    w, v = u + 0.5 * rng.normal(size=1500), u + 0.5 * rng.normal(size=1500)
    model = PKDR(PMMR(n_landmarks=100), n_landmarks=100).fit(y, a, w, v, seed=0)
    effect = model.effect([0.0, 1.0])
    assert np.mean(y[a == 1]) - np.mean(y[a == 0]) > 2.8
    assert effect[1] - effect[0] == pytest.approx(2.0, abs=0.3)


@pytest.mark.parametrize("both", [False, True])
def test_plain_linear_regression_is_least_squares(data, both):
    y, a, w, v = data
    model = PlainRegression("both" if both else "outcome", model="linear").fit(y, a, w, v, seed=0)
    x = np.column_stack([a, w, v] if both else [a, w])
    direct = LinearRegression().fit(x, y)
    others = x[:, 1:].mean(axis=0)
    np.testing.assert_allclose(
        model.effect(POINTS), direct.intercept_ + direct.coef_[0] * POINTS + others @ direct.coef_[1:]
    )


def test_plain_networks_and_regressors_agree(data):
    y, a, w, v = data
    context = np.random.default_rng(0).normal(size=(len(y), 2))
    network = PlainRegression(network=MLPSpec((8,)), n_networks=2, train=BRIEF)
    first = network.fit(y, a, w, v, context=context, seed=0).effect(POINTS)
    second = PlainRegression(model=Ridge(1e-6)).fit(y, a, w, v, context=context, seed=0).effect(POINTS)
    np.testing.assert_allclose(first, second, atol=0.2)
    assert np.array_equal(first, network.fit(y, a, w, v, context=context, seed=0).effect(POINTS))


def test_bound_is_divergence_less_likelihood():
    model = LatentModel.of(MLPSpec((4,)), 2, 1, 1, 3, key=jax.random.key(0))
    rng = np.random.default_rng(0)
    batch = {k: jnp.asarray(rng.normal(size=(5, d)), jnp.float32) for k, d in (("x", 2), ("t", 1), ("y", 1))}
    rows = jnp.concatenate([batch["x"], batch["t"], batch["y"]], axis=1)
    mean, scale = (np.asarray(part, dtype=float) for part in model.posterior(rows))
    z = mean + scale * np.asarray(jax.random.normal(jax.random.key(0), mean.shape))
    expected = np.sum(0.5 * (mean**2 + scale**2 - 1) - np.log(scale), axis=1)
    t_and_z = jnp.concatenate([batch["t"], jnp.asarray(z, jnp.float32)], axis=1)
    inputs = {"x": t_and_z[:, 1:], "t": t_and_z[:, 1:], "y": t_and_z}
    for name, decoder in (("x", model.x_decoder), ("t", model.t_decoder), ("y", model.y_decoder)):
        expected -= norm.logpdf(batch[name], *gaussian_head(decoder(inputs[name]))).sum(axis=1)
    np.testing.assert_allclose(negative_bound(model, batch, None), expected, rtol=1e-4)


def test_cevae_is_right_where_the_proxies_show_the_confounder():
    y, a, w, v = proxies(1500, seed=2, noise=0.05)
    settings = {"n_latent": 2, "network": MLPSpec((16,)), "n_networks": 2}
    train = TrainConfig(learning_rate=1e-2, batch_size=128, max_steps=800, evaluate_every=100)
    model = CEVAE(**settings, train=train).fit(y, a, w, v, seed=0)
    slope = (model.effect([0.7]) - model.effect([-0.7]))[0] / 1.4
    assert slope == pytest.approx(2.0, abs=0.3)  # a regression on a alone has 2.66
    again = CEVAE(**settings, train=train).fit(y, a, w, v, seed=0)
    assert np.array_equal(model.effect(POINTS), again.effect(POINTS))


def test_pictures_several_outcomes_and_saving(tmp_path):
    rng = np.random.default_rng(0)
    a, w, v = rng.normal(size=(40, 8, 8)), rng.normal(size=(40, 8, 8)), rng.normal(size=(40, 2))
    y = np.column_stack([a[:, 0, 0], w[:, 0, 0]]) + 0.1 * rng.normal(size=(40, 2))
    brief = TrainConfig(batch_size=32, max_steps=4, evaluate_every=2)
    models = [
        PKDR(PMMR(n_landmarks=20), n_landmarks=20),
        PlainRegression("both", network=MLPSpec((4,)), n_networks=1, train=brief),
        CEVAE(n_latent=2, network=MLPSpec((4,)), n_networks=1, train=brief),
    ]
    for model in [*models, PlainRegression(model="linear")]:
        effect = model.fit(y, a, w, v, seed=0).effect(a[:3])
        assert effect.shape == (3, 2)
        assert np.isfinite(effect).all()
        loaded = load(model.save(tmp_path / type(model).__name__))
        np.testing.assert_allclose(loaded.effect(a[:3]), effect, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="A PlainRegression with Ridge cannot be saved"):
        PlainRegression(model=Ridge()).fit(y, a, w, v, seed=0).save(tmp_path / "ridge")


def test_pairs_go_block_by_block(monkeypatch):
    treatment, others = np.arange(5.0)[:, None], np.arange(4.0)[:, None]
    whole = all_pairs(lambda rows: rows[:, :1] * rows[:, 1:], treatment, others)
    monkeypatch.setattr("prudent.cmr._pairs.BLOCK_CELLS", 16)
    np.testing.assert_allclose(all_pairs(lambda rows: rows[:, :1] * rows[:, 1:], treatment, others), whole)
    np.testing.assert_allclose(whole[:, :, 0], np.outer(np.arange(5), np.arange(4)))


@pytest.mark.parametrize("estimator", [PKDR(), CEVAE(), PlainRegression(model="linear")])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y, a, w, v: (y, a, w[:-1], v), "outcome_proxy must have 60 rows like the other arrays, got 59"),
        (lambda y, a, w, v: (y, a * np.nan, w, v), "treatment must be finite"),
        (lambda y, a, w, v: (y, a, w, 0 * v), "treatment_proxy is constant"),
        (lambda y, a, w, v: (y[:9], a[:9], w[:9], v[:9]), "needs at least 20 rows, got 9"),
    ],
)
def test_bad_data(estimator, change, message):
    with pytest.raises(DataError, match=message):
        estimator.fit(*change(*proxies(60, seed=0)), seed=0)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (PKDR(n_landmarks=0), "n_landmarks must be a whole number of at least 1, got 0"),
        (PKDR(bandwidths=()), "bandwidths must be a sequence of one or more numbers above 0"),
        (PKDR(local_bandwidth=-1.0), "local_bandwidth must be a number above 0, got -1.0"),
        (CEVAE(n_latent=0), "n_latent must be a whole number of at least 1, got 0"),
        (PlainRegression("w"), r"proxies must be one of \('outcome', 'both'\), got 'w'"),
        (PlainRegression(model="forest"), r"model must be one of \('network', 'linear'\), got 'forest'"),
    ],
)
def test_bad_settings(estimator, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit(*proxies(60, seed=0), seed=0)


def test_effect_is_checked(robust):
    with pytest.raises(NotFittedError, match="This PKDR is not fitted"):
        PKDR().effect([1.0])
    with pytest.raises(DataError, match="treatment must have 1 columns as in fit, got 2"):
        robust.effect(np.zeros((2, 2)))
    with pytest.raises(TypeError, match="outcome_bridge must be a moment estimator, got Ridge"):
        PKDR(Ridge()).fit(*proxies(60, seed=0), seed=0)
