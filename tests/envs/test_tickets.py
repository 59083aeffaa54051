"""Ticket pricing: the equations, the batch, the expert."""

import gymnasium
import numpy as np
import pytest

from prudent.envs import TicketPricing, TicketPricingBatch, ticket_expert
from prudent.errors import DataError


@pytest.mark.filterwarnings("ignore:.*Box observation space")  # Unbounded noise: infinite bounds are meant.
@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("version", [0, 1])
def test_checker_is_content(version):
    from gymnasium.utils.env_checker import check_env

    env = gymnasium.make(f"TicketPricing-v{version}", noise_horizon=3)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.spec.max_episode_steps == 500


@pytest.mark.parametrize("closed_loop", [False, True])
def test_equations(closed_loop):
    env = TicketPricing(closed_loop=closed_loop, noise_horizon=4)
    obs, info = env.reset(seed=5)
    assert obs.tolist() == [1.0]
    for price in (0.5, -0.2, 3.0):
        s, u_o, clipped = obs[0], info["hidden"]["u_o"], min(price, 1.0)
        obs, reward, terminated, truncated, info = env.step(np.array([price], np.float32))
        moved = s + u_o * clipped if closed_loop else np.sign(s) * u_o
        assert obs[0] == pytest.approx(moved - info["hidden"]["u_e"], abs=1e-7)
        assert reward == pytest.approx(-((s + u_o * clipped) ** 2), abs=1e-7)
        assert not terminated
        assert not truncated


@pytest.mark.parametrize("closed_loop", [False, True])
def test_a_batch_runs_the_same_episodes(closed_loop):
    settings = {"closed_loop": closed_loop, "noise_horizon": 7}
    batch = TicketPricingBatch(3, **settings)
    obs, info = batch.reset(seed=[4, 9, 2])
    one = TicketPricing(**settings)
    single, single_info = one.reset(seed=9)
    for _ in range(700):
        assert np.allclose(obs[1], single)
        assert np.allclose(info["expert_obs"][1], single_info["expert_obs"])
        action = ticket_expert(info["expert_obs"])
        recorded, executed = one.demonstrate(action[1])
        all_recorded, all_executed = batch.demonstrate(action)
        assert np.allclose(recorded, all_recorded[1])
        obs, rewards, _, _, info = batch.step(all_executed)
        single, reward, _, _, single_info = one.step(executed)
        assert rewards[1] == pytest.approx(reward)


def test_noise_has_the_promised_moments():
    batch = TicketPricingBatch(400, noise_horizon=5)
    batch.reset(seed=1000)
    values = []
    for _ in range(11):
        values.append(np.stack([batch.u_o, batch.u_e]))
        batch.step(np.zeros((400, 1)))
    u_o, u_e = np.stack(values, axis=1)
    assert u_o.std() == pytest.approx(90**-0.5, rel=0.15)
    assert u_e.std() == pytest.approx(0.1, rel=0.15)
    assert np.corrcoef(u_e[0], u_e[1])[0, 1] == pytest.approx(0.8, abs=0.1)
    assert abs(np.corrcoef(u_e[0], u_e[5])[0, 1]) < 0.15


def test_the_expert_maximises_the_reward():
    rng = np.random.default_rng(0)
    seen = rng.normal(0, 0.2, (200, 2))
    prices = np.linspace(-1, 1, 201)
    rewards = -((seen[:, :1] + seen[:, 1:] * prices) ** 2)
    best = -((seen[:, :1] + seen[:, 1:] * ticket_expert(seen)) ** 2)
    assert np.all(best[:, 0] >= rewards.max(axis=1) - 1e-12)


def test_a_time_limit_ends_all_episodes_of_a_batch():
    batch = TicketPricingBatch(2, max_episode_steps=3)
    batch.reset(seed=0)
    ended = [batch.step(np.zeros((2, 1)))[3].all() for _ in range(3)]
    assert ended == [False, False, True]
    assert np.all(batch.step(np.zeros((2, 1)))[1] == 0.0)
    with pytest.raises(DataError, match="num_envs must be a whole number of at least 1, got 0"):
        TicketPricingBatch(0)
    with pytest.raises(DataError, match=r"noise_horizon must be a whole number of at least 1, got 2\.5"):
        TicketPricing(noise_horizon=2.5)


def test_single_episodes_of_a_batch_start_anew():
    batch = TicketPricingBatch(3, noise_horizon=4, max_episode_steps=600)
    batch.reset(seed=np.int64(10))
    others, fresh = TicketPricing(noise_horizon=4), TicketPricing(noise_horizon=4)
    others.reset(seed=10)
    for _ in range(5):
        batch.step(np.zeros((3, 1)))
        others.step(np.zeros(1))
    obs, info = batch.reset(seed=[None, 77, None], options={"reset_mask": np.array([False, True, False])})
    single, single_info = fresh.reset(seed=77)
    assert np.array_equal(obs[1], single)
    for _ in range(595):
        obs, _, _, ended, info = batch.step(np.full((3, 1), 0.1))
        single, _, _, _, single_info = fresh.step(np.full(1, 0.1))
        going_on, *_ = others.step(np.full(1, 0.1))
    assert np.allclose(obs[1], single)
    assert np.allclose(info["expert_obs"][1], single_info["expert_obs"])
    assert np.allclose(obs[0], going_on)
    # The time limit counts the steps of each episode.
    assert ended.tolist() == [True, False, True]


def test_a_reset_that_does_not_fit_is_refused():
    batch = TicketPricingBatch(2)
    with pytest.raises(DataError, match="first reset of a batch must start all"):
        batch.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(DataError, match="2 seeds or a single one, got 3"):
        batch.reset(seed=[1, 2, 3])
    with pytest.raises(DataError, match="one truth value for each of the 2 episodes"):
        batch.reset(options={"reset_mask": np.array([1, 0])})
