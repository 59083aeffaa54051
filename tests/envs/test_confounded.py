"""The confounded environments: their equations, seeds, checks, and the wrapper that confounds any other."""

import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from prudent import envs
from prudent.envs._locomotion import ROBOTS
from prudent.envs._noise import NoiseQueue
from prudent.errors import DataError

ROBOT_NAMES = list(ROBOTS)
OBS_SIZE = {"half-cheetah": 18, "hopper": 12, "ant": 29}


def check_quietly(env):
    """Gymnasium's checker; unbounded observations, as in its own MuJoCo tasks, are the only thing it may remark."""
    with warnings.catch_warnings():
        for remark in ("minimum value is -infinity", "maximum value is infinity", "symmetric and normalized"):
            warnings.filterwarnings("ignore", message=f".*{remark}.*")
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version.*")
        check_env(env, skip_render_check=True)


class TestNoiseQueue:
    def test_is_stationary_from_the_start_with_a_triangular_correlation(self):
        k, n = 5, 40_000
        rng = np.random.default_rng(1000)
        queue = NoiseQueue(k, lambda r, size: r.normal(0.0, 0.1 * k**0.5, size))
        starts = np.array([queue.reset(rng) for _ in range(4_000)])
        queue.reset(rng)
        path = np.array([queue.advance() for _ in range(n)])
        # Four standard errors; those of the path are larger because it is correlated.
        assert starts.std() == pytest.approx(0.1, abs=4 * 0.1 / (2 * 4_000) ** 0.5)
        assert path.std() == pytest.approx(0.1, abs=4 * 0.1 * (k / n) ** 0.5)
        for lag, expected in ((1, 0.8), (3, 0.4), (5, 0.0), (8, 0.0)):
            assert np.corrcoef(path[:-lag], path[lag:])[0, 1] == pytest.approx(expected, abs=4 * (k / n) ** 0.5)

    def test_drops_the_oldest_draw(self):
        values = iter(np.arange(10.0))
        queue = NoiseQueue(3, lambda r, size: np.array([next(values) for _ in range(size)]))
        assert queue.reset(np.random.default_rng(0)) == 1.0
        assert [queue.advance() for _ in range(3)] == [2.0, 3.0, 4.0]

    def test_needs_a_length(self):
        with pytest.raises(ValueError, match="at least 1, got 0"):
            NoiseQueue(0, lambda r, size: np.zeros(size))


class TestRobots:
    @pytest.fixture(autouse=True)
    def _needs_mujoco(self):
        pytest.importorskip("mujoco")

    @pytest.mark.parametrize("robot", ROBOT_NAMES)
    def test_gymnasium_finds_nothing_to_remark(self, robot):
        env = gymnasium.make(ROBOTS[robot].env_id, noise_horizon=5)
        assert env.observation_space.shape == (OBS_SIZE[robot],)
        assert env.spec.max_episode_steps == 500
        check_quietly(env.unwrapped)

    @pytest.mark.parametrize("robot", ROBOT_NAMES)
    def test_observation_and_reward_follow_the_equations(self, robot):
        env = envs.ConfoundedLocomotion(robot, noise_horizon=3)
        obs, info = env.reset(seed=1000)
        data, rng = env._base.data, np.random.default_rng(0)
        assert obs[0] == 0.0
        odometer, x = 0.0, data.qpos[0]
        for _ in range(40):
            u_o = info["hidden"]["u_o"]
            action = rng.uniform(-1.5, 1.5, env.action_space.shape)
            obs, reward, terminated, _, info = env.step(action)
            hidden, moved = info["hidden"], data.qpos[0] - x
            x = data.qpos[0]
            odometer += moved / hidden["u_o"]
            velocities = np.clip(data.qvel, -10, 10) if robot == "hopper" else data.qvel
            state = np.concatenate([data.qpos, velocities])
            assert obs[0] == pytest.approx(odometer, abs=1e-12)
            np.testing.assert_allclose(obs[1:], state[1:] + hidden["u_e"], atol=1e-12)
            np.testing.assert_allclose(info["expert_obs"], [*state[1:], hidden["u_o"]], atol=1e-12)
            control = 0.1 * np.sum(np.clip(action, -1, 1) ** 2)
            assert reward == pytest.approx((not terminated) - (moved / env.dt - u_o) ** 2 - control)
            assert 0.1 <= hidden["u_o"] <= 2.0
            if terminated:
                break

    @pytest.mark.parametrize("robot", ROBOT_NAMES)
    def test_simulator_is_that_of_gymnasium(self, robot, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # Gymnasium's own task makes MuJoCo write a log file where it stands.
        env = envs.ConfoundedLocomotion(robot, noise_horizon=2)
        env.reset(seed=1001)
        settings = {"exclude_current_positions_from_observation": False, **ROBOTS[robot].settings}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = gymnasium.make(ROBOTS[robot].base_id, **settings).unwrapped
        plain.reset(seed=0)
        plain.set_state(env._base.data.qpos.copy(), env._base.data.qvel.copy())
        rng = np.random.default_rng(1)
        for _ in range(20):
            action = rng.uniform(-0.5, 0.5, env.action_space.shape)
            _, _, terminated, _, info = env.step(action)
            state, _, plain_terminated, _, _ = plain.step(action)
            np.testing.assert_allclose(info["expert_obs"][:-1], state[1:], rtol=1e-9, atol=1e-9)
            assert terminated == plain_terminated

    @pytest.mark.parametrize("robot", ROBOT_NAMES)
    def test_seed_decides_everything(self, robot):
        def roll_out(seed):
            env = gymnasium.make(ROBOTS[robot].env_id, noise_horizon=4)
            rows = [env.reset(seed=seed)[0]]
            rows += [env.step(np.full(env.action_space.shape, 0.1))[0] for _ in range(10)]
            # A second episode goes on with the same generator.
            return np.array([*rows, env.reset()[0]])

        np.testing.assert_array_equal(roll_out(1000), roll_out(1000))
        assert not np.array_equal(roll_out(1000), roll_out(1001))

    def test_noise_has_one_size_for_every_horizon(self):
        for k in (1, 4, 20):
            env = envs.ConfoundedLocomotion("hopper", noise_horizon=k)
            values = np.array([env.reset(seed=1000 + s)[1]["hidden"]["u_e"] for s in range(400)])
            assert values.std() == pytest.approx(0.01, abs=4 * 0.01 / 800**0.5)

    def test_demonstrations_record_noise_and_execute_it_on_request(self):
        for noise in ("executed", "recorded"):
            env = gymnasium.make("ConfoundedHalfCheetah-v0", noise=noise)
            _, info = env.reset(seed=1003)
            wanted = np.linspace(-1, 1, 6)
            recorded, executed = env.unwrapped.demonstrate(wanted)
            np.testing.assert_allclose(recorded, wanted + 20 * info["hidden"]["u_e"])
            np.testing.assert_allclose(executed, np.clip(recorded, -1, 1) if noise == "executed" else wanted)

    def test_hopper_falls_and_half_cheetah_does_not(self):
        for robot, falls in (("hopper", True), ("half-cheetah", False)):
            env = envs.ConfoundedLocomotion(robot)
            env.reset(seed=1000)
            ended = [env.step(np.ones(env.action_space.shape))[2] for _ in range(60)]
            assert any(ended) == falls

    def test_bad_input_is_named(self):
        with pytest.raises(DataError, match="robot must be one of half-cheetah, hopper, ant, got 'cat'"):
            envs.ConfoundedLocomotion("cat")
        with pytest.raises(DataError, match="noise must be one of executed, recorded, got 'none'"):
            gymnasium.make("ConfoundedHopper-v0", noise="none")
        with pytest.raises(DataError, match="noise_horizon must be a whole number of at least 1, got 0"):
            gymnasium.make("ConfoundedHopper-v0", noise_horizon=0)
        env = envs.ConfoundedLocomotion("hopper")
        env.reset(seed=1000)
        with pytest.raises(DataError, match="must be finite"):
            env.step(np.array([0.0, np.nan, 0.0]))
        with pytest.raises(DataError, match=r"shape \(3,\), got \(2,\)"):
            env.step(np.zeros(2))

    def test_leaves_no_log_file(self, tmp_path, monkeypatch, capfd):
        monkeypatch.chdir(tmp_path)
        envs.ConfoundedLocomotion("half-cheetah").reset(seed=1000)
        assert not list(tmp_path.iterdir())
        assert not capfd.readouterr().err


def test_missing_mujoco_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ImportError, match=r"pip install 'prudent\[mujoco\]'"):
        envs.ConfoundedLocomotion("ant")


class TestWrapper:
    def test_gymnasium_finds_nothing_to_remark(self):
        check_quietly(envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1"), noise_horizon=3))

    def test_expert_undoes_the_disturbance(self):
        def policy(obs):
            return -0.3 * obs[..., 2:]

        plain = gymnasium.make("Pendulum-v1")
        env = envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1"), noise_horizon=3)
        expert = env.expert(policy)
        state, _ = plain.reset(seed=1000)
        obs, info = env.reset(seed=1000)
        for _ in range(50):
            np.testing.assert_allclose(info["expert_obs"][:-1], state, atol=1e-5)
            np.testing.assert_allclose(obs, info["expert_obs"][:-1] + info["hidden"]["u_e"])
            state, reward, *_ = plain.step(policy(state))
            obs, confounded_reward, _, _, info = env.step(expert(info["expert_obs"]))
            assert confounded_reward == pytest.approx(reward, abs=1e-4)

    def test_learner_feels_the_disturbance(self):
        env = envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1"), u_o=lambda rng, n: np.full(n, 0.5))
        still = envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1"), u_o=lambda rng, n: np.zeros(n))
        for each in (env, still):
            each.reset(seed=1000)
        pushed, free = (each.step(np.zeros(1))[4]["expert_obs"][2] for each in (env, still))
        # Pendulum: velocity gains 3 / (m l^2) * torque * dt.
        assert pushed - free == pytest.approx(3.0 * 0.5 * 0.05, abs=1e-5)

    def test_apply_replaces_the_sum(self):
        env = envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1"), apply=lambda action, u_o: 0.0 * action)
        other = envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1"), apply=lambda action, u_o: 0.0 * action)
        env.reset(seed=1000), other.reset(seed=1000)
        np.testing.assert_array_equal(env.step(np.ones(1))[0], other.step(-np.ones(1))[0])

    def test_seed_decides_everything(self):
        env = envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1"), noise_horizon=2)
        first = [env.reset(seed=1000)[0], env.step(np.zeros(1))[0]]
        again = [env.reset(seed=1000)[0], env.step(np.zeros(1))[0]]
        np.testing.assert_array_equal(first, again)

    def test_spaces_that_do_not_fit_are_named(self):
        with pytest.raises(DataError, match=r"action space must be a Box, got Discrete\(2\)"):
            envs.ConfoundedWrapper(gymnasium.make("CartPole-v1"))
        for value in (True, -1.0, float("inf"), "1"):
            with pytest.raises(DataError, match="action_noise must be a finite number"):
                envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1"), action_noise=value)


class TestEpisodeBatch:
    def make(self, count, **settings):
        return envs.EpisodeBatch(
            [envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1"), **settings) for _ in range(count)]
        )

    def test_equals_single_environments(self):
        batch = self.make(3, noise_horizon=2)
        obs, info = batch.reset(seed=1000)
        actions = np.array([[-1.0], [0.0], [1.0]])
        next_obs, rewards, _, _, next_info = batch.step(actions)
        for i in range(3):
            env = envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1"), noise_horizon=2)
            single_obs, single_info = env.reset(seed=1000 + i)
            np.testing.assert_array_equal(obs[i], single_obs)
            assert info["hidden"]["u_e"][i] == single_info["hidden"]["u_e"]
            single_obs, reward, _, _, single_info = env.step(actions[i])
            np.testing.assert_array_equal(next_obs[i], single_obs)
            np.testing.assert_array_equal(next_info["expert_obs"][i], single_info["expert_obs"])
            assert rewards[i] == reward
        recorded, executed = batch.demonstrate(actions)
        np.testing.assert_allclose(recorded, actions + 20 * next_info["hidden"]["u_e"][:, None])
        assert executed.shape == (3, 1)

    def test_an_ended_episode_stays_and_earns_nothing(self):
        batch = envs.EpisodeBatch(
            [envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1", max_episode_steps=limit)) for limit in (2, 5)]
        )
        batch.reset(seed=1000)
        for _ in range(2):
            obs, *_ = batch.step(np.zeros((2, 1)))
        assert batch.running.tolist() == [False, True]
        later, rewards, *_ = batch.step(np.zeros((2, 1)))
        np.testing.assert_array_equal(later[0], obs[0])
        assert rewards[0] == 0.0
        assert rewards[1] != 0.0

    def test_single_episodes_start_anew(self):
        batch = self.make(2, noise_horizon=2)
        batch.reset(seed=np.int64(1000))
        before, *_ = batch.step(np.zeros((2, 1)))
        obs, info = batch.reset(seed=1000, options={"reset_mask": np.array([False, True])})
        np.testing.assert_array_equal(obs[0], before[0])
        env = envs.ConfoundedWrapper(gymnasium.make("Pendulum-v1"), noise_horizon=2)
        single, single_info = env.reset(seed=1001)
        np.testing.assert_array_equal(obs[1], single)
        np.testing.assert_array_equal(info["expert_obs"][1], single_info["expert_obs"])

    def test_numbers_that_only_some_environments_report_are_left_out(self):
        class Talkative(gymnasium.Wrapper):
            def step(self, action):
                *result, info = super().step(action)
                return *result, {**info, "speed": 1.0, **({"bonus": 2.0} if self.says_more else {})}

        talkers = []
        for says_more in (True, False):
            talkers.append(Talkative(gymnasium.make("Pendulum-v1")))
            talkers[-1].says_more = says_more
        batch = envs.EpisodeBatch([envs.ConfoundedWrapper(env) for env in talkers])
        batch.reset(seed=1000)
        *_, info = batch.step(np.zeros((2, 1)))
        assert info["speed"].tolist() == [1.0, 1.0]
        assert "bonus" not in info

    def test_needs_confounded_environments(self):
        with pytest.raises(DataError, match="at least one environment"):
            envs.EpisodeBatch([])
        with pytest.raises(DataError, match="must be confounded"):
            envs.EpisodeBatch([gymnasium.make("Pendulum-v1")])

    def test_gymnasium_vectorises_the_robots_too(self):
        pytest.importorskip("mujoco")
        vector = gymnasium.make_vec("ConfoundedHopper-v0", num_envs=2, noise_horizon=2)
        _, info = vector.reset(seed=1000)
        assert info["expert_obs"].shape == (2, 12)
        vector.close()
