"""Training loop of the experts: blocks of roll-outs and updates, each decided by the seed and its number alone.

Environments restart at every block, so that a checkpoint is the agent, the replay buffer and the curve, and a resumed
run gives the same numbers as an uninterrupted one.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from prudent.envs._experts import scale_obs
from prudent.envs._sac import Agent, Replay, SACConfig, numpy_policy, sum_rewards, update
from prudent.errors import DataError, ModelFileError
from prudent.nn import MLP

# One step of all environments: obs, actions, reward, next obs, ended, obs to go on with.
Step = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """Settings of a training run, besides those of the learner."""

    learner: SACConfig
    """The soft actor-critic."""
    warm_up: int = 6_000
    """Steps with random actions before the first update; they also fix the scaling of the inputs."""
    block: int = 12_000
    """Steps between evaluations; environments restart at each block."""
    chunk: int = 480
    """Steps between updates."""
    update_ratio: float = 0.5
    """Critic updates per step."""
    overlap: bool = False
    """Collect the next steps in a second thread while updating; the policy that collects is then one update older."""


class TrainingTask(Protocol):
    """Environments in lockstep, as the trainer sees them."""

    @property
    def obs_size(self) -> int: ...
    @property
    def action_size(self) -> int: ...
    @property
    def n_envs(self) -> int: ...
    @property
    def settings(self) -> dict[str, Any]:
        """What the task depends on, for JSON: a run is resumed with the same."""
        ...

    @property
    def ignored(self) -> Sequence[int]:
        """Coordinates that the networks do not see."""
        ...

    def reset(self, rng: np.random.Generator) -> np.ndarray:
        """Start all episodes; observations (n_envs, obs_size)."""
        ...

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rewards, next observations, ended (by a fall), and observations to go on with: new episodes start."""
        ...

    def evaluate(self, policy: Callable[[np.ndarray], np.ndarray], block: int) -> tuple[float, dict[str, float]]:
        """What is to be maximised, and what the learning curve shows, for a deterministic policy."""
        ...


class Trainer:
    """One training run: ``run`` goes on from wherever it stands."""

    def __init__(self, task: TrainingTask, plan: TrainingPlan, *, seed: int):
        self.task, self.plan, self.seed = task, plan, seed
        self.agent = Agent.start(task.obs_size, task.action_size, plan.learner, seed)
        self.replay = Replay(task.obs_size, task.action_size, plan.learner.capacity)
        self.mean, self.scale = np.zeros(task.obs_size, np.float32), np.ones(task.obs_size, np.float32)
        self.block = 0
        self.best_value, self.best_actor = -np.inf, self.agent.actor
        self.curve: list[dict[str, float]] = []
        self.seconds = 0.0

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self.plan.warm_up * (self.block > 0) + self.plan.block * self.block

    def blocks_for(self, steps: int) -> int:
        """Number of blocks that a run of (at least) ``steps`` steps has."""
        return max(1, -(-(steps - self.plan.warm_up) // self.plan.block))

    def run_block(self) -> dict[str, float]:
        """Steps, updates and an evaluation; returns the new point of the learning curve."""
        start = time.perf_counter()
        rng = np.random.default_rng([self.seed, self.block])
        # Two threads must not share a generator: the result would depend on who comes first.
        roll_rng = np.random.default_rng([self.seed, self.block, 1]) if self.plan.overlap else rng
        obs = self.task.reset(roll_rng)
        if self.block == 0:
            obs = self._warm_up(obs, roll_rng)
        returns, losses = [], []
        n_chunks = self.plan.block // self.plan.chunk
        with ThreadPoolExecutor(1) as second:
            coming = second.submit(self._collect, obs, self.agent.actor, roll_rng)
            for number in range(1, n_chunks + 1):
                obs, rows, mean_reward = coming.result()
                self._store(rows)
                returns.append(mean_reward)
                if self.plan.overlap and number < n_chunks:
                    coming = second.submit(self._collect, obs, self.agent.actor, roll_rng)
                losses.append(self._update(rng))
                if not self.plan.overlap and number < n_chunks:
                    coming = second.submit(self._collect, obs, self.agent.actor, roll_rng)
        value, shown = self.task.evaluate(self._policy(), self.block)
        if value > self.best_value:
            self.best_value, self.best_actor = value, self.agent.actor
        self.block += 1
        self.seconds += time.perf_counter() - start
        loss, log_density = np.mean(losses, axis=0)
        point = {
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "value": value,
            **shown,
            "training_reward": float(np.mean(returns)),
            "critic_loss": float(loss),
            "entropy": -float(log_density),
            "alpha": float(jnp.exp(self.agent.log_alpha)),
        }
        self.curve.append(point)
        return point

    def _policy(self) -> Callable[[np.ndarray], np.ndarray]:
        policy = numpy_policy(self.agent.actor)
        return lambda obs: policy(self._scaled(obs))

    def _warm_up(self, obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        rows = []
        for _ in range(-(-self.plan.warm_up // self.task.n_envs)):
            actions = rng.uniform(-1.0, 1.0, (self.task.n_envs, self.task.action_size))
            reward, next_obs, ended, go_on = self.task.step(actions)
            rows.append((obs, actions, reward, next_obs, ended, go_on))
            obs = go_on
        seen = np.concatenate([row[0] for row in rows])
        self.mean = seen.mean(axis=0).astype(np.float32)
        # A trained robot moves more than a flailing one in some coordinates: no scale above 10 per unit.
        self.scale = (1.0 / np.maximum(seen.std(axis=0), 0.1)).astype(np.float32)
        self.scale[list(self.task.ignored)] = 0.0
        self._store(rows)
        return obs

    def _collect(self, obs: np.ndarray, actor: MLP, rng: np.random.Generator) -> tuple[np.ndarray, list[Step], float]:
        policy = numpy_policy(actor)
        rows, rewards = [], []
        for _ in range(self.plan.chunk // self.task.n_envs):
            noise = rng.standard_normal((self.task.n_envs, self.task.action_size), dtype=np.float32)
            actions = policy(self._scaled(obs), noise)
            reward, next_obs, ended, go_on = self.task.step(actions)
            rows.append((obs, actions, reward, next_obs, ended, go_on))
            rewards.append(reward)
            obs = go_on
        return obs, rows, float(np.mean(rewards))

    def _store(self, rows: list[Step]) -> None:
        obs, actions, reward, next_obs, ended, go_on = (np.stack(part) for part in zip(*rows, strict=True))
        config = self.plan.learner
        # Where an episode ends, by a fall or by time, the next one starts somewhere else.
        cut = (ended > 0) | np.any(go_on != next_obs, axis=-1)
        total, last, weight = sum_rewards(reward, ended, cut, discount=config.discount, n_steps=config.n_steps)
        reached = np.take_along_axis(next_obs, last[..., None], axis=0)
        columns = [self._scaled(obs), actions, total[..., None], self._scaled(reached), weight[..., None]]
        self.replay.add(np.concatenate(columns, axis=-1, dtype=np.float32).reshape(-1, self.replay.rows.shape[1]))

    def _scaled(self, obs: np.ndarray) -> np.ndarray:
        return scale_obs(obs, self.mean, self.scale)

    def _update(self, rng: np.random.Generator) -> np.ndarray:
        config = self.plan.learner
        pairs = round(self.plan.chunk * self.plan.update_ratio / 2)
        batches = self.replay.draw(rng, pairs, 2, config.batch_size)
        noises = rng.standard_normal((pairs, 3, config.batch_size, self.task.action_size), dtype=np.float32)
        self.agent, trace = update(self.agent, jax.tree.map(jnp.asarray, batches), jnp.asarray(noises), config)
        return np.asarray(trace)

    def save(self, path: Path) -> None:
        """Write a checkpoint: one file, replaced as a whole."""
        from safetensors.numpy import save_file

        filled = min(self.replay.n_added, len(self.replay.rows))
        arrays = {
            **_named_leaves("agent", self.agent),
            **_named_leaves("best", self.best_actor),
            "replay": self.replay.rows[:filled],
            "mean": self.mean,
            "scale": self.scale,
        }
        state = {
            "plan": dataclasses.asdict(self.plan),
            "seed": self.seed,
            "task": self.task.settings,
            "block": self.block,
            "n_added": self.replay.n_added,
            "best_value": self.best_value,
            "curve": self.curve,
            "seconds": self.seconds,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.new")
        save_file(arrays, fresh, metadata={"state": json.dumps(state)})
        os.replace(fresh, path)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint of a run with the same task, plan and seed."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                state = json.loads(file.metadata()["state"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise ModelFileError(f"{path} does not exist. Start without --resume.") from None
        except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError) as cause:
            raise ModelFileError(f"{path} is not a readable checkpoint ({cause}). Start without --resume.") from None
        differing = self._differing(state)
        if differing:
            raise DataError(
                f"{path} belongs to a run with other settings: it differs in {'; '.join(differing)}. Give the same, or "
                "start anew."
            )
        self.agent = _fill_leaves("agent", self.agent, arrays)
        self.best_actor = _fill_leaves("best", self.best_actor, arrays)
        self.replay.rows[: len(arrays["replay"])] = arrays["replay"]
        self.replay.n_added = state["n_added"]
        self.mean, self.scale = arrays["mean"], arrays["scale"]
        self.block, self.best_value = state["block"], state["best_value"]
        self.curve, self.seconds = state["curve"], state["seconds"]

    def _differing(self, state: dict[str, Any]) -> list[str]:
        """Settings in which this run is not that of a checkpoint, with both values where they are short."""
        own = json.loads(json.dumps(self.task.settings))  # With lists for tuples, as in the file.
        saved = state.get("task", {})
        found = [f"{name} ({saved.get(name)} there, {own[name]} here)" for name in own if saved.get(name) != own[name]]
        if state["seed"] != self.seed:
            found.append(f"seed ({state['seed']} there, {self.seed} here)")
        if _plan_from_json(state["plan"]) != self.plan:
            found.append("plan")
        return found


def _plan_from_json(saved: dict[str, Any]) -> TrainingPlan | None:
    """The plan of a checkpoint; a setting that it does not name has its default. None if it is not such a plan."""
    try:
        learner = {**saved["learner"], "widths": tuple(saved["learner"]["widths"])}
        return TrainingPlan(**{**saved, "learner": SACConfig(**learner)})
    except (KeyError, TypeError):
        return None


def _named_leaves(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return {f"{prefix}_{number:03d}": np.asarray(leaf) for number, leaf in enumerate(leaves)}


def _fill_leaves(prefix: str, tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    dynamic, static = eqx.partition(tree, eqx.is_array)
    leaves, structure = jax.tree.flatten(dynamic)
    filled = [jnp.asarray(arrays[f"{prefix}_{number:03d}"]) for number in range(len(leaves))]
    return eqx.combine(jax.tree.unflatten(structure, filled), static)
