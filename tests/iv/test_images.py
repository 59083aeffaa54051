"""A context with an image: as features for every estimator, and as pixels for convolutional networks."""

import numpy as np
import pytest

import prudent
from prudent import IVRegression, datasets
from prudent.cmr import ImageFeatures, TwoStageLeastSquares
from prudent.cmr._arrays import Scaler
from prudent.cmr._neural import Settings
from prudent.cmr._problem import Problem
from prudent.errors import DataError, RoleError
from prudent.nn import ImageSpec


@pytest.fixture(scope="module")
def data():
    return datasets.make_demand_images(300, seed=1000, images="digits")


@pytest.fixture(scope="module")
def enough():
    """Two columns in waves need 500 rows."""
    return datasets.make_demand_images(500, seed=1000, images="digits")


def test_features_tell_digits_apart():
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    images, labels = load_digits(return_X_y=True)
    features = ImageFeatures.fit(images[:1200], (8, 8))
    assert features.n_pixels == 64
    inside, outside = features(images[:1200]), features(images[1200:])
    assert inside.shape == (1200, 16)
    # Of equal variance, so that standardising the columns does not change their weight.
    np.testing.assert_allclose(inside.var(axis=0), inside.var(axis=0).mean(), rtol=1e-6)
    model = LogisticRegression(max_iter=2000).fit(inside / inside.std(), labels[:1200])
    assert model.score(outside / inside.std(), labels[1200:]) > 0.88
    beside = features.replace_last(np.column_stack([labels, images]))
    np.testing.assert_array_equal(beside[:, 0], labels)
    # Matrix products of more rows add up in another order.
    np.testing.assert_allclose(beside[:1200, 1:], inside, rtol=1e-9, atol=1e-9)


def test_features_of_simple_and_of_coloured_images():
    rng = np.random.default_rng(0)
    two = np.repeat(rng.random((2, 5 * 6 * 3)), 10, axis=0)
    assert ImageFeatures.fit(two, (5, 6, 3)).n_features == 1
    with pytest.raises(DataError, match="All 20 images are equal"):
        ImageFeatures.fit(np.ones((20, 64)), (8, 8))
    with pytest.raises(DataError, match="at least 4 x 4 pixels"):
        ImageFeatures.fit(two, (3, 30))
    with pytest.raises(DataError, match="take 100 columns, got 90"):
        ImageFeatures.fit(two, (10, 10))
    with pytest.raises(DataError, match="take 16 columns, got 32"):
        ImageFeatures.fit(np.zeros((100, 32)), (4, 4))


def test_images_with_as_many_pixels_as_features_are_encoded():
    rng = np.random.default_rng(0)
    pixels, z, u = rng.random((80, 16)), rng.normal(size=(80, 1)), rng.normal(size=(80, 1))
    y = z + 2 * u + pixels[:, :1]
    model = IVRegression(TwoStageLeastSquares()).fit(
        outcome=y, action=z + u, instruments=z, context=pixels, images=(4, 4)
    )
    assert model.image_.n_features == 16
    expected = model.estimator_.predict(np.hstack([np.zeros((5, 1)), model.image_(pixels[:5])]))[:, 0]
    np.testing.assert_allclose(model.effect(0.0, pixels[:5]), expected)
    policy = model.policy((-1.0, 1.0))
    value = model.policy_value(policy, pixels)
    assert value.value == pytest.approx(model.effect(policy.act(pixels), pixels).mean())
    assert value.value == pytest.approx(model.policy_value(policy).value)


def test_model_with_an_image(data, quick_estimator, tmp_path):
    model = IVRegression(quick_estimator(), seed=0).fit(**data.roles())
    assert model.estimator_.n_columns_ == 1 + 1 + 16
    effect = model.effect(0.0, data.context[:5])
    assert effect.shape == (5,)
    policy = model.policy(data.action_range)
    assert policy.act(data.context[:5]).shape == (5,)
    assert np.isfinite(model.policy_value(policy, data.context[:5]).value)
    again = prudent.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.effect(0.0, data.context[:5]), effect)
    assert np.isfinite(datasets.demand_images_error(model, images="digits"))
    with pytest.raises(DataError, match="must have 65 columns as in fit"):
        model.effect(0.0, np.zeros((2, 64)))


@pytest.mark.slow  # Minutes of compilation for what a network sees.
def test_default_networks_see_waves_of_time_and_not_of_features(enough):
    from prudent.cmr import DMLCMR
    from prudent.nn import TrainConfig

    brief = TrainConfig(batch_size=16, max_steps=4, evaluate_every=2)
    estimator = DMLCMR(n_folds=2, n_repeats=1, n_functions=1, n_components=2, train=brief, function_train=brief)
    model = IVRegression(estimator, seed=0).fit(**enough.roles())
    assert model.estimator_.network.embed == (1,)
    assert model.estimator_.nuisance_network.embed == (0, 1)


@pytest.mark.slow
def test_the_baselines_see_waves_of_time_too(enough):
    from prudent.cmr import DFIV, DeepGMM
    from prudent.nn import TrainConfig

    brief = TrainConfig(batch_size=16, max_steps=4, evaluate_every=2)
    game = IVRegression(DeepGMM(n_functions=1, train=brief), seed=0).fit(**enough.roles()).estimator_
    assert (game.network.embed, game.critic_network.embed) == ((1,), (0, 1))
    features = IVRegression(DFIV(n_functions=1, train=brief), seed=0).fit(**enough.roles()).estimator_
    assert (features.context_network.embed, features.instrument_network.embed) == ((0,), (0, 1))
    assert features.context_network.widths == (64, 4)


@pytest.mark.slow
def test_convolutions_on_pixels(data, quick_estimator):
    spec = ImageSpec(shape=(8, 8, 1), channels=(2, 3), widths=(8,), place="last")
    estimator = quick_estimator(network=spec, nuisance_network=spec)
    roles = {name: value for name, value in data.roles().items() if name != "images"}
    model = IVRegression(estimator, seed=0).fit(**roles)
    assert model.estimator_.n_columns_ == 1 + 65
    assert np.isfinite(model.effect(0.0, data.context[:5])).all()
    # One scale for all pixels: a pixel that is rarely lit is not blown up.
    scale = model.estimator_.function_.x_scaler.scale
    assert len(np.unique(scale[2:])) == 1


@pytest.mark.parametrize("kind", ["DeepIV", "DeepGMM", "DFIV"])
def test_every_network_estimator_scales_pixels_together(kind, data):
    from prudent import cmr
    from prudent.nn import TrainConfig

    brief = TrainConfig(batch_size=16, max_steps=2, evaluate_every=2)
    spec = ImageSpec(shape=(8, 8, 1), channels=(2, 3), widths=(4,), place="last")
    networks = {
        "DeepIV": {
            "network": spec,
            "nuisance_network": spec,
            "n_repeats": 1,
            "n_components": 2,
            "function_train": brief,
        },
        "DeepGMM": {"network": spec, "critic_network": spec},
        "DFIV": {"context_network": spec, "instrument_network": spec},
    }
    estimator = getattr(cmr, kind)(n_functions=1, train=brief, **networks[kind])
    x, c = np.hstack([data.action, data.context]), np.hstack([data.instruments, data.context])
    scale = estimator.fit(data.outcome, x, c, seed=0).function_.x_scaler.scale
    assert len(np.unique(scale[2:])) == 1
    assert scale[1] != scale[2]


def test_the_tuner_scales_pixels_together(data, quick_estimator):
    spec = ImageSpec(shape=(8, 8, 1), channels=(2, 3), widths=(4,), place="last")
    estimator = quick_estimator(network=spec, nuisance_network=spec)
    x, c = np.hstack([data.action, data.context]), np.hstack([data.instruments, data.context])
    problem = Problem.of("test", data.outcome, x, c, seed=0, groups=None)
    pixels = np.asarray([task.data["c"][:, 2:] for task in estimator.nuisance_tasks(problem)])
    np.testing.assert_allclose(pixels.std(axis=(1, 2)), 1.0, rtol=1e-4)
    settings = Settings(spec, estimator.function_train)
    (function,) = estimator.fit_candidates(data.outcome, x, c, [settings], seed=0)
    assert len(np.unique(function.x_scaler.scale[2:])) == 1


def test_pixels_share_a_scale():
    array = np.random.default_rng(0).random((30, 5))
    together = Scaler.of(array, together=slice(1, 5))
    assert together.scale[1:] == pytest.approx([array[:, 1:].std()] * 4)
    assert together.mean[1:] == pytest.approx([array[:, 1:].mean()] * 4)
    assert together.scale[0] == pytest.approx(array[:, 0].std())


def test_bad_image_declarations(data, quick_estimator):
    roles = data.roles()
    with pytest.raises(DataError, match="take 784 columns, got 65"):
        IVRegression(quick_estimator()).fit(**{**roles, "images": (28, 28)})
    roles.pop("context")
    with pytest.raises(RoleError, match="no context was given"):
        IVRegression(quick_estimator()).fit(**roles)
