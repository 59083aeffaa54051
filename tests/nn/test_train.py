"""The training loop: every member has its own rows, its own stopping time and its own best weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prudent import nn
from prudent.nn._crossfit import apply_in_blocks
from prudent.nn._train import GROUP, learning_rates

CONFIG = nn.TrainConfig(learning_rate=0.05, weight_decay=0.0, batch_size=32, max_steps=120, evaluate_every=20)


def squared(network, batch, key):
    return jnp.sum((network(batch["c"], key=key) - batch["y"]) ** 2, axis=-1)


def linear_stack(n_members: int, seed: int = 0):
    return nn.stack_networks(lambda key: nn.MLPSpec(())(1, 1, key=key), n_members, jax.random.key(seed))


def two_populations(n: int = 200):
    """Slope 1 in the first half of the rows, slope -1 in the second."""
    c = np.random.default_rng(0).normal(size=(n, 1)).astype(np.float32)
    y = np.where(np.arange(n)[:, None] < n // 2, c, -c).astype(np.float32)
    return {"c": c, "y": y}, np.arange(n // 2), np.arange(n // 2, n)


def test_members_see_only_their_own_rows():
    data, first, second = two_populations()
    networks, _ = nn.fit_stack(
        linear_stack(2), squared, data, [first, second], [first[:20], second[:20]], CONFIG, seed=0
    )
    slopes = np.asarray(networks.free_skip)[:, 0, 0]
    np.testing.assert_allclose(slopes, [1.0, -1.0], atol=0.05)


def test_the_best_held_out_weights_are_kept():
    data, first, second = two_populations()
    # Held-out rows follow the opposite slope: every step makes the held-out loss worse.
    networks, log = nn.fit_stack(linear_stack(1), squared, data, [first], [second], CONFIG, seed=0)
    assert log.best_step[0] == CONFIG.evaluate_every
    assert np.argmin(log.held_out_loss[:, 0]) == 0
    prediction = apply_in_blocks(networks, data["c"][second])[0]
    assert np.mean((prediction - data["y"][second]) ** 2) == pytest.approx(log.best_loss[0], rel=1e-4)


def test_early_stopping_ends_the_run():
    data, first, second = two_populations()
    config = nn.TrainConfig(**{**CONFIG.__dict__, "max_steps": 2000, "patience": 2})
    _, log = nn.fit_stack(linear_stack(1), squared, data, [first], [second], config, seed=0)
    assert log.steps[-1] == 3 * CONFIG.evaluate_every


def test_a_stack_larger_than_a_group_is_fitted_whole():
    data, first, second = two_populations()
    rows = [first if m % 2 == 0 else second for m in range(GROUP + 3)]
    networks, log = nn.fit_stack(linear_stack(GROUP + 3), squared, data, rows, [r[:20] for r in rows], CONFIG, seed=0)
    slopes = np.asarray(networks.free_skip)[:, 0, 0]
    np.testing.assert_allclose(slopes, [1.0 if m % 2 == 0 else -1.0 for m in range(GROUP + 3)], atol=0.05)
    assert log.best_loss.shape == (GROUP + 3,)


def test_same_seed_same_weights():
    data, first, second = two_populations()
    fits = [
        nn.fit_stack(linear_stack(2), squared, data, [first, second], [first, second], CONFIG, seed=3)[0]
        for _ in range(2)
    ]
    assert np.array_equal(fits[0].free_skip, fits[1].free_skip)


def test_decay_acts_on_matrices_but_not_on_free_ones():
    data, first, _ = two_populations()
    networks = nn.stack_networks(lambda key: nn.MLPSpec((4,))(1, 1, key=key), 2, jax.random.key(0))
    still = {"c": data["c"], "y": np.zeros_like(data["y"])}
    fitted, _ = nn.fit_stack(
        networks, squared, still, [first] * 2, [first[:0]] * 2, CONFIG, seed=0, weight_decay=np.array([0.0, 5.0])
    )
    before = np.abs(np.asarray(networks.layers[0].weight)).mean(axis=(1, 2))
    after = np.abs(np.asarray(fitted.layers[0].weight)).mean(axis=(1, 2))
    assert after[0] == pytest.approx(before[0], rel=1e-3)  # zero gradient: the output starts at zero
    assert after[1] < 0.5 * before[1]


def test_members_may_have_their_own_learning_rates():
    data, first, _ = two_populations()
    rates = np.array([1e-7, 0.05])
    networks, _ = nn.fit_stack(
        linear_stack(2), squared, data, [first] * 2, [first[:0]] * 2, CONFIG, seed=0, learning_rate=rates
    )
    np.testing.assert_allclose(np.asarray(networks.free_skip)[:, 0, 0], [0.0, 1.0], atol=0.05)


def test_a_hook_may_judge_the_networks():
    data, first, _ = two_populations()
    seen = []

    def evaluate(networks, members):
        seen.append(np.asarray(networks.free_skip)[:, 0, 0])
        # The first member is best at the start, the second at the end.
        return np.array([len(seen), -len(seen)], dtype=float)

    networks, log = nn.fit_stack(
        linear_stack(2), squared, data, [first] * 2, [first[:0]] * 2, CONFIG, seed=0, evaluate=evaluate
    )
    assert list(log.best_step) == [CONFIG.evaluate_every, CONFIG.max_steps]
    np.testing.assert_allclose(np.asarray(networks.free_skip)[:, 0, 0], [seen[0][0], seen[-1][1]])


class Duel(eqx.Module):
    """min over x, max over y of x y: plain gradient steps circle around the solution at zero."""

    x: jax.Array
    critic: jax.Array


def bilinear(duel, batch, key):
    stop = jax.lax.stop_gradient
    return duel.x * stop(duel.critic) - stop(duel.x) * duel.critic + 0.0 * batch["y"][:, 0]


@pytest.mark.parametrize("optimistic", [False, True])
def test_optimism_ends_a_game_that_would_circle(optimistic):
    data, first, _ = two_populations()
    config = nn.TrainConfig(learning_rate=0.05, max_steps=400, evaluate_every=200, optimistic=optimistic)
    start = nn.stack_networks(lambda key: Duel(jnp.ones(()), jnp.ones(())), 1, jax.random.key(0))
    end, _ = nn.fit_stack(start, bilinear, data, [first], [first[:0]], config, seed=0)
    distance = float(jnp.hypot(end.x, end.critic)[0])
    assert distance < 0.5 if optimistic else distance > 1.4


def test_the_critic_may_be_faster():
    data, first, _ = two_populations()
    config = nn.TrainConfig(learning_rate=1e-3, max_steps=10, evaluate_every=10, critic_rate=4.0)
    start = nn.stack_networks(lambda key: Duel(jnp.ones(()), jnp.ones(())), 1, jax.random.key(0))
    end, _ = nn.fit_stack(start, bilinear, data, [first], [first[:0]], config, seed=0)
    assert float((end.critic - 1)[0] / (1 - end.x)[0]) == pytest.approx(4.0, rel=0.05)


def test_rates_warm_up_and_come_down():
    rates = learning_rates(CONFIG, 0, CONFIG.max_steps)
    assert rates[0] < rates[5] == pytest.approx(CONFIG.learning_rate, rel=0.02)
    assert rates[-1] < 0.01 * CONFIG.learning_rate


@pytest.mark.parametrize(("field", "value"), [("learning_rate", 0.0), ("batch_size", 0), ("weight_decay", -1.0)])
def test_bad_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=rf"TrainConfig\.{field} must"):
        nn.TrainConfig(**{field: value}).check()


def test_cache_can_be_turned_off(monkeypatch):
    nn.enable_compilation_cache.cache_clear()
    monkeypatch.setenv("PRUDENT_COMPILATION_CACHE", "off")
    assert nn.enable_compilation_cache() is None
    nn.enable_compilation_cache.cache_clear()
