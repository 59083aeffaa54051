"""Soft actor-critic, its checkpoints, and the experts that ship."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import prudent
from prudent import envs
from prudent.envs._experts import SHIPPED, TRACKING_TARGETS, make_robots
from prudent.errors import DataError, ModelFileError

ROBOTS = ("half-cheetah", "hopper", "ant")


@pytest.fixture(scope="module")
def learner():
    """The modules that load JAX, and small settings."""
    from prudent.envs import _sac, _training

    config = _sac.SACConfig(widths=(16, 16), batch_size=32, capacity=2_000, learning_rate=3e-3, discount=0.5)
    plan = _training.TrainingPlan(config, warm_up=200, block=400, chunk=40, update_ratio=0.5)
    return _sac, _training, plan


class Chase:
    """Follow a drifting number: the best action is the first coordinate; the second is of no use."""

    obs_size, action_size, n_envs = 2, 1, 4
    ignored = (1,)

    def __init__(self, robot="point"):
        self.settings = {"robot": robot, "ignored": self.ignored}

    def reset(self, rng):
        self._rng = rng
        self._obs = rng.uniform(-0.8, 0.8, (self.n_envs, 2))
        return self._obs

    def step(self, actions):
        reward = -((actions[:, 0] - self._obs[:, 0]) ** 2)
        self._obs = self._rng.uniform(-0.8, 0.8, (self.n_envs, 2))
        return reward, self._obs, np.zeros(self.n_envs), self._obs

    def evaluate(self, policy, block):
        obs = np.random.default_rng(block).uniform(-0.8, 0.8, (500, 2))
        error = float(np.mean((policy(obs)[:, 0] - obs[:, 0]) ** 2))
        return -error, {"error": error}


class TestLearner:
    def test_density_of_actions_integrates_to_one(self, learner):
        import jax
        import jax.numpy as jnp

        sac, _, plan = learner
        agent = sac.Agent.start(2, 1, plan.learner, 0)
        noise = np.linspace(-6, 6, 4001, dtype=np.float32)[:, None]
        actions, log_density = sac.act(agent.actor, jnp.zeros((len(noise), 2)), jnp.asarray(noise))
        # Along the curve noise -> action, density times d(action) is the law of the noise.
        mass = np.sum(np.exp(np.asarray(log_density))[:-1] * np.diff(np.asarray(actions)[:, 0]))
        assert mass == pytest.approx(1.0, abs=2e-3)
        assert jax.numpy.all(jnp.abs(actions) < 1.0)

    def test_policy_on_the_host_is_the_actor(self, learner):
        import jax
        import jax.numpy as jnp

        sac, _, plan = learner
        actor = sac.Agent.start(3, 2, plan.learner, 1).actor
        # New networks end in zeros; shift every weight so that all of them matter.
        actor = jax.tree.map(lambda leaf: leaf + 0.1, actor)
        rng = np.random.default_rng(1000)
        obs, noise = rng.standard_normal((5, 3), dtype=np.float32), rng.standard_normal((5, 2), dtype=np.float32)
        expected, _ = sac.act(actor, jnp.asarray(obs), jnp.asarray(noise))
        np.testing.assert_allclose(sac.numpy_policy(actor)(obs, noise), expected, atol=1e-5)

    def test_replay_forgets_the_oldest(self, learner):
        sac, _, _ = learner
        replay = sac.Replay(2, 1, 4)
        replay.add(np.arange(6.0)[:, None] * np.ones(7))
        obs, action, reward, next_obs, weight = replay.draw(np.random.default_rng(0), 50, 2)
        assert set(np.unique(reward)) == {2.0, 3.0, 4.0, 5.0}
        assert (obs.shape, action.shape, weight.shape) == ((50, 2, 2), (50, 2, 1), (50, 2))
        np.testing.assert_array_equal(next_obs[..., 0], reward)

    def test_sums_of_rewards_stop_at_the_end_of_an_episode(self, learner):
        sac, _, _ = learner
        reward = np.array([[1.0], [10.0], [100.0], [1000.0]])
        ended = np.array([[0.0], [1.0], [0.0], [0.0]])
        cut = ended > 0
        total, last, weight = sac.sum_rewards(reward, ended, cut, discount=0.5, n_steps=3)
        assert total[:, 0].tolist() == [6.0, 10.0, 600.0, 1000.0]
        assert last[:, 0].tolist() == [1, 1, 3, 3]
        # After a fall the next value counts nothing; where the array ends, it counts as after so many steps.
        assert weight[:, 0].tolist() == [0.0, 0.0, 0.25, 0.5]
        # An episode that ends by time goes on in value.
        _, _, weight = sac.sum_rewards(reward, 0.0 * ended, cut, discount=0.5, n_steps=3)
        assert weight[:, 0].tolist() == [0.25, 0.5, 0.25, 0.5]

    def test_learns_a_small_task(self, learner):
        _, training, plan = learner
        trainer = training.Trainer(Chase(), plan, seed=1000)
        for _ in range(4):
            trainer.run_block()
        assert [point["steps"] for point in trainer.curve] == [600, 1000, 1400, 1800]
        # The policy that does nothing has an error of 0.8^2 / 3 = 0.21.
        assert trainer.best_value > -0.03

    @pytest.mark.parametrize("overlap", [False, True])
    def test_resumed_run_equals_an_uninterrupted_one(self, learner, tmp_path, overlap):
        _, training, plan = learner
        plan = dataclasses.replace(plan, overlap=overlap)
        whole, first = (training.Trainer(Chase(), plan, seed=1001) for _ in range(2))
        for _ in range(3):
            whole.run_block()
        for _ in range(2):
            first.run_block()
        first.save(tmp_path / "checkpoint")
        second = training.Trainer(Chase(), plan, seed=1001)
        second.restore(tmp_path / "checkpoint")
        second.run_block()
        for a, b in ((whole.agent, second.agent), (whole.best_actor, second.best_actor)):
            leaves = zip(training._named_leaves("", a).values(), training._named_leaves("", b).values(), strict=True)
            assert all(np.array_equal(x, y) for x, y in leaves)
        assert [p["value"] for p in whole.curve] == [p["value"] for p in second.curve]

    def test_checkpoint_of_another_run_is_refused(self, learner, tmp_path):
        _, training, plan = learner
        trainer = training.Trainer(Chase(), plan, seed=1002)
        trainer.save(tmp_path / "checkpoint")
        for task, other, seed, what in (
            (Chase(), plan, 1003, r"differs in seed \(1002 there, 1003 here\)"),
            (Chase(), dataclasses.replace(plan, block=800), 1002, r"differs in plan\."),
            (Chase("line"), plan, 1002, r"differs in robot \(point there, line here\)"),
        ):
            with pytest.raises(DataError, match=what):
                training.Trainer(task, other, seed=seed).restore(tmp_path / "checkpoint")
        with pytest.raises(ModelFileError, match="does not exist"):
            trainer.restore(tmp_path / "absent")
        damaged = (tmp_path / "checkpoint").read_bytes()[:100]
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(ModelFileError, match="not a readable checkpoint"):
            trainer.restore(tmp_path / "damaged")


class TestShipped:
    @pytest.mark.parametrize("robot", ROBOTS)
    def test_expert_says_where_it_comes_from(self, robot):
        expert = envs.load_expert(robot)
        assert expert.robot == robot
        assert {"seed", "steps", "scores", "versions"} <= expert.record.keys()
        assert sum(path.stat().st_size for path in (SHIPPED / robot).iterdir()) < 1_000_000
        score = expert.record["scores"]["clean"]
        assert score["tracking"] < TRACKING_TARGETS[robot]
        assert score["standing"] >= 0.9
        assert score["episodes"] >= 10

    @pytest.mark.parametrize("robot", ROBOTS)
    def test_expert_does_what_its_record_says(self, robot):
        pytest.importorskip("mujoco")
        expert = envs.load_expert(robot)
        score = envs.evaluate_expert(expert, make_robots(robot, 2), seed=1000, steps=200)
        assert score.tracking < 1.5 * TRACKING_TARGETS[robot]
        assert score.standing == 1.0

    @pytest.mark.slow
    @pytest.mark.parametrize("robot", ROBOTS)
    def test_expert_meets_its_target_under_the_protocol(self, robot):
        pytest.importorskip("mujoco")
        score = envs.evaluate_expert(envs.load_expert(robot), make_robots(robot, 10), seed=2000)
        assert score.meets_target(robot)

    def test_one_observation_is_a_batch_of_one(self):
        expert = envs.load_expert("half-cheetah")
        obs = np.random.default_rng(1000).standard_normal((4, 18))
        np.testing.assert_allclose(expert.act(obs)[2], expert.act(obs[2]), atol=1e-6)
        assert np.all(np.abs(expert.act(1e9 * obs)) <= 1.0)
        for wrong, count in ((np.zeros(5), 5), (3.0, 1)):
            with pytest.raises(DataError, match=f"must have 18 numbers, got {count}"):
                expert.act(wrong)

    def test_folder_round_trip_and_damage(self, tmp_path):
        expert = envs.load_expert("half-cheetah")
        expert.save(tmp_path / "mine")
        again = prudent.load(tmp_path / "mine")
        obs = np.ones((3, 18))
        np.testing.assert_array_equal(again.act(obs), expert.act(obs))
        shutil.copytree(tmp_path / "mine", tmp_path / "bad")
        weights = tmp_path / "bad" / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-10])
        with pytest.raises(ModelFileError, match="damaged or truncated"):
            envs.load_expert(tmp_path / "bad")
        header = json.loads((tmp_path / "mine" / "model.json").read_text())
        header["model"]["robot"] = "cat"
        (tmp_path / "mine" / "model.json").write_text(json.dumps(header))
        with pytest.raises(ModelFileError, match="cat"):
            envs.load_expert(tmp_path / "mine")
        with pytest.raises(ModelFileError, match="no expert 'cat'"):
            envs.load_expert("cat")


class TestTraining:
    def test_command_trains_resumes_and_reports(self, tmp_path, monkeypatch, learner):
        pytest.importorskip("mujoco")
        from typer.testing import CliRunner

        from prudent.cli import app
        from prudent.envs import _recipes

        _, _, plan = learner
        monkeypatch.setattr(_recipes, "CURVE_EPISODES", 2)
        monkeypatch.setattr(_recipes, "SCORE_EPISODES", 2)
        monkeypatch.setitem(_recipes.RECIPES, "hopper", _recipes.Recipe(500, plan, alive_bonus=1.0))
        out, run = tmp_path / "hopper", CliRunner().invoke
        result = run(app, ["experts", "train", "hopper", "--out", str(out), "--json"])
        assert result.exit_code == 0, result.output
        assert {row["actions"] for row in json.loads(result.stdout)} == {"clean", "noised, k = 1", "noised, k = 20"}
        assert {path.name for path in out.iterdir()} == {
            "checkpoint.safetensors",
            "curve.csv",
            "curve.png",
            "model.json",
            "weights.safetensors",
        }
        again = run(app, ["experts", "train", "hopper", "--out", str(out)])
        assert isinstance(again.exception, DataError)
        assert "--resume" in str(again.exception)
        longer = run(app, ["experts", "train", "hopper", "--out", str(out), "--steps", "900", "--resume", "--json"])
        assert longer.exit_code == 0, longer.output
        assert len((out / "curve.csv").read_text().splitlines()) == 3
        # The length of a run is free; what it learns from is not.
        monkeypatch.setitem(_recipes.RECIPES, "hopper", _recipes.Recipe(700, plan, noised_share=0.1))
        other = run(app, ["experts", "train", "hopper", "--out", str(out), "--resume"])
        assert "alive_bonus (1.0 there, 0.0 here); noised_share (0.5 there, 0.1 here)" in str(other.exception)
        judged = run(app, ["experts", "evaluate", str(out), "--episodes", "2", "--json"])
        assert judged.exit_code == 0, judged.output
        assert json.loads(judged.stdout)[0]["episodes"] == 2

    def test_unknown_robot_and_foreign_folder_are_refused(self, tmp_path):
        from prudent.envs._recipes import train_expert

        with pytest.raises(DataError, match="robot must be one of"):
            train_expert("cat", tmp_path / "new")
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(ModelFileError, match="not a saved model"):
            train_expert("hopper", tmp_path)
