"""Networks: exact densities, correct sampling, cheap dropout, rebuildable specifications."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from prudent import nn
from prudent.nn._networks import dropout, start_at_linear, wave


def two_humps(n: int) -> nn.Mixture:
    return nn.Mixture(
        log_weight=jnp.log(jnp.tile(jnp.array([0.3, 0.7]), (n, 1))),
        mean=jnp.tile(jnp.array([[[-5.0, 0.0], [5.0, 1.0]]]), (n, 1, 1)),
        scale=jnp.tile(jnp.array([[[0.5, 1.0], [0.5, 2.0]]]), (n, 1, 1)),
    )


def test_mixture_density_is_exact():
    x = np.random.default_rng(0).normal(size=(50, 2)) * 4
    expected = 0.3 * norm.pdf(x[:, 0], -5, 0.5) * norm.pdf(x[:, 1], 0, 1) + 0.7 * norm.pdf(x[:, 0], 5, 0.5) * norm.pdf(
        x[:, 1], 1, 2
    )
    log_prob = np.asarray(two_humps(50).log_prob(jnp.asarray(x, dtype=jnp.float32)))
    keep = expected > 1e-30
    np.testing.assert_allclose(log_prob[keep], np.log(expected[keep]), rtol=1e-4, atol=1e-4)


def test_mixture_draws_a_component_and_does_not_average():
    draws = np.asarray(two_humps(20_000).sample(jax.random.key(0)))
    assert np.mean(np.abs(draws[:, 0]) < 2.0) == 0.0  # an average of components would lie between the humps
    assert np.mean(draws[:, 0] > 0) == pytest.approx(0.7, abs=0.02)
    np.testing.assert_allclose(np.asarray(two_humps(1).expectation())[0], [2.0, 0.7], rtol=1e-5)


def test_categorical_probabilities_sum_to_one():
    head = nn.Categorical(nn.MLPSpec((8,))(3, 4, key=jax.random.key(0)))
    np.testing.assert_allclose(np.exp(head(jnp.ones((5, 3)))).sum(axis=1), 1.0, rtol=1e-5)


def test_wave_is_close_to_a_sine():
    u = np.linspace(-3, 3, 10_001)
    assert np.abs(np.asarray(wave(jnp.asarray(u))) - np.sin(2 * np.pi * u)).max() < 1e-3


def test_members_may_have_their_own_dropout():
    def build(rate):
        return nn.MLPSpec((16,), dropout_rate=rate)(2, 1, key=jax.random.key(0))

    stack = nn.stack_networks(lambda key: build(0.4), 2, jax.random.key(0))
    x, key = jnp.ones((50, 2)), jax.random.key(3)
    hidden = eqx.filter_vmap(lambda network: network.hidden(x, key=key))(nn.with_dropout(stack, np.array([0.25, 0.0])))
    np.testing.assert_allclose(hidden[0], build(0.25).hidden(x, key=key), rtol=1e-6)
    np.testing.assert_allclose(hidden[1], build(0.0).hidden(x, key=key), rtol=1e-6)


def test_dropout_keeps_the_mean_and_drops_independently():
    x = jnp.ones((400, 500))
    first, second = (np.asarray(dropout(x, 0.25, jax.random.key(k))) for k in (0, 1))
    assert first.mean() == pytest.approx(1.0, abs=0.01)
    assert np.mean(first == 0) == pytest.approx(0.25, abs=0.005)
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] == pytest.approx(0.0, abs=0.01)
    assert np.corrcoef(first[:, :-1].ravel(), first[:, 1:].ravel())[0, 1] == pytest.approx(0.0, abs=0.01)
    assert np.array_equal(dropout(x, 0.25, None), x)


@pytest.mark.parametrize(
    "spec",
    [
        nn.MLPSpec((8, 4)),
        nn.MLPSpec(()),
        nn.TabularSpec((8,), embed=(0, 2)),
        nn.ImageSpec(shape=(6, 5, 1), channels=(2,), widths=(4,)),
    ],
)
def test_specification_builds_and_survives_json(spec):
    again = nn.spec_from_json(nn.spec_to_json(spec))
    assert again == spec
    network = again(32, 2, key=jax.random.key(0))
    assert network(jnp.ones((7, 32))).shape == (7, 2)
    assert network(jnp.ones((7, 3, 32))).shape == (7, 3, 2)


@pytest.mark.parametrize("spec", [nn.MLPSpec((8,)), nn.TabularSpec((8,), embed=(0,))])
def test_networks_can_start_at_a_linear_map(spec):
    weight, bias = jnp.array([[1.0], [2.0]]), jnp.array([0.5])
    network = start_at_linear(spec(2, 1, key=jax.random.key(0)), weight, bias, jnp.ones(1))
    x = jnp.array([[1.0, 1.0], [-1.0, 3.0]])
    np.testing.assert_allclose(network(x), x @ weight + bias, rtol=1e-6)


def test_mixture_started_at_a_linear_map_has_its_mean():
    network = nn.MixtureDensity(nn.MLPSpec((8,))(2, 3 * 5, key=jax.random.key(0)), 3, 2)
    weight, bias = jnp.array([[1.0, 0.0], [2.0, -1.0]]), jnp.array([0.5, 0.0])
    network = start_at_linear(network, weight, bias, jnp.array([0.3, 0.6]))
    x = jnp.array([[1.0, 1.0], [-1.0, 3.0]])
    np.testing.assert_allclose(network(x).expectation(), x @ weight + bias, rtol=1e-5, atol=1e-6)


def test_bad_specifications_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"activation must be one of .*'swish'"):
        nn.MLPSpec(activation="swish")(2, 1, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"dropout_rate must be in \[0, 1\), got 1.5"):
        nn.TabularSpec(dropout_rate=1.5)(2, 1, key=jax.random.key(0))
    with pytest.raises(ValueError, match="needs 784 columns, got 10"):
        nn.ImageSpec()(10, 1, key=jax.random.key(0))
    with pytest.raises(ValueError, match="place must be 'first' or 'last', got 'middle'"):
        nn.ImageSpec(place="middle")(784, 1, key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"Only models with a network specification of prudent\.nn"):
        nn.spec_to_json(lambda *_: None)


@pytest.mark.parametrize("shape", [(6, 5, 2), (7, 8, 1)])
def test_patches_times_a_kernel_are_a_convolution(shape):
    from prudent.nn._networks import _patches

    rng = np.random.default_rng(0)
    image, kernel = rng.normal(size=(4, *shape)).astype(np.float32), rng.normal(size=(3, 3, shape[2], 5))
    kernel = kernel.astype(np.float32)
    expected = jax.lax.conv_general_dilated(
        image,
        kernel,
        (2, 2),
        [(1, 1 + shape[0] % 2), (1, 1 + shape[1] % 2)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    ours = _patches(jnp.asarray(image)) @ kernel.reshape(-1, 5)
    np.testing.assert_allclose(ours, expected[:, : ours.shape[1], : ours.shape[2]], rtol=1e-4, atol=1e-4)


def test_image_may_come_first_or_last():
    x = np.random.default_rng(0).normal(size=(3, 22)).astype(np.float32)
    first, last = (
        nn.ImageSpec((4, 5, 1), channels=(2,), widths=(4,), place=place)(22, 1, key=jax.random.key(0))
        for place in ("first", "last")
    )
    moved = np.hstack([x[:, 20:], x[:, :20]])
    np.testing.assert_allclose(first._features(jnp.asarray(x)), last._features(jnp.asarray(moved)), rtol=1e-6)
