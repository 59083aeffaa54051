"""Roll-outs of a learnt policy beside reference policies, under one protocol.

The policy runs in the confounded environment. Its error is measured against the expert's own action at the states that
the policy visits, its reward per step is put on the scale on which random actions are 0 and the un-noised expert is 1.
Steps that an episode misses because it ended count as reward 0.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from prudent.cmr._base import check_seed
from prudent.errors import DataError
from prudent.imitation._base import check_count
from prudent.imitation._rollout import (
    EVALUATION,
    REFERENCE,
    Expert,
    batches,
    episode_seeds,
    find_expert,
    make_env,
)

# Rows of a cell of the state in which the best history-free policy is constant.
CELL_ROWS = 400

# An actor maps (observations, expert's actions, recorded expert's actions) of a batch to actions.
Actor = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Result:
    """Means over episodes of one policy."""

    mse: float
    """Squared distance to the expert's action per step and dimension, with actions clipped to the action space."""
    mse_unclipped: float
    reward: float
    """Reward per step."""
    reward_se: float
    """Its standard error over episodes."""
    score: float
    """(reward - random) / (expert - random)."""
    score_se: float


@dataclasses.dataclass(frozen=True)
class Evaluation(Result):
    """A policy's result with those of the reference policies, all on the same episodes."""

    episodes: int
    steps: int
    references: dict[str, Result] = dataclasses.field(hash=False)

    def rows(self) -> list[list[Any]]:
        """A table: policy, score, its standard error, reward, mse, mse_unclipped."""
        named = {"policy": self, **self.references}
        return [[name, r.score, r.score_se, r.reward, r.mse, r.mse_unclipped] for name, r in named.items()]

    def __str__(self) -> str:
        lines = [f"{'':20}{'score':>8}{'(se)':>8}{'reward':>10}{'mse':>8}{'unclipped':>10}"]
        for name, score, error, reward, mse, unclipped in self.rows():
            lines.append(f"{name:20}{score:8.3f}{error:8.3f}{reward:10.4f}{mse:8.3f}{unclipped:10.3f}")
        return "\n".join([*lines, f"{self.episodes} episodes of {self.steps} steps"])


def evaluate(
    policy: Any,
    env: Any,
    *,
    episodes: int = 50,
    steps: int = 500,
    seed: int = 0,
    expert: Expert | None = None,
) -> Evaluation:
    """Score of a policy in a confounded environment, with reference lines.

    Parameters
    ----------
    policy : object with ``act`` (and ``reset``), or callable
        Maps a batch of observations (n, d) to actions (n, a).
    env : gymnasium.Env or str
        A confounded environment or its id.
    expert : callable, optional
        Actions from ``info["expert_obs"]``; by default the environment's own.
    """
    check_seed(seed)
    check_count("episodes", episodes, 1)
    check_count("steps", steps, 1)
    env = make_env(env)
    space = env.action_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise DataError(f"the action space must be a Box, got {space}.")
    judge = find_expert(env, expert)
    seeds = episode_seeds(seed, EVALUATION, episodes)
    act = policy.act if hasattr(policy, "act") else policy
    if not callable(act):
        raise TypeError(f"policy must be callable or have act(observations), got {type(policy).__name__}.")

    def restart() -> None:
        if hasattr(policy, "reset"):
            policy.reset()

    actors: dict[str, Actor] = {"policy": lambda obs, wanted, recorded: np.asarray(act(obs), dtype=float)}
    actors |= _reference_actors(env, judge, seed=seed, steps=steps)
    raw = {}
    for name, actor in actors.items():
        rng = np.random.default_rng([seed, REFERENCE])
        raw[name] = _roll_out(env, judge, actor, seeds, steps, rng, restart if name == "policy" else None)
    random, best = raw["random"][0].mean(), raw["expert"][0].mean()
    results = {name: _summarise(parts, random, best) for name, parts in raw.items()}
    own = results.pop("policy")
    return Evaluation(**dataclasses.asdict(own), episodes=episodes, steps=steps, references=results)


def _reference_actors(env: gymnasium.Env, judge: Expert, *, seed: int, steps: int) -> dict[str, Any]:
    space = env.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    actors: dict[str, Any] = {
        "expert": lambda obs, wanted, recorded: wanted,
        "noised expert": lambda obs, wanted, recorded: recorded,
        "zero": lambda obs, wanted, recorded: np.zeros_like(wanted),
        # A marker: random actions need the generator of the roll-out.
        "random": None,
    }
    if env.observation_space.shape == (1,):
        actors["best history-free"] = _history_free(env, judge, seed=seed, steps=steps)
    return actors


def _history_free(env: gymnasium.Env, judge: Expert, *, seed: int, steps: int) -> Actor:
    """E[pi_E | s_t] for a scalar state: means of the expert's action in cells of equal probability."""
    states, wanted = [], []
    seeds = episode_seeds(seed, REFERENCE, 50)
    for number, batch in enumerate(batches(env, 50)):
        obs, info = batch.reset(seed=seeds[number * batch.num_envs : (number + 1) * batch.num_envs])
        for _ in range(steps):
            action = np.asarray(judge(info["expert_obs"]))
            states.append(obs[batch.running, 0])
            wanted.append(action[batch.running])
            obs, _, _, _, info = batch.step(action)
            if not batch.running.any():
                break
    s, a = np.concatenate(states), np.concatenate(wanted)
    n_cells = max(10, len(s) // CELL_ROWS)
    edges = np.unique(np.quantile(s, np.linspace(0, 1, n_cells + 1)[1:-1]))
    cell = np.searchsorted(edges, s)
    count = np.maximum(np.bincount(cell, minlength=len(edges) + 1), 1)
    means = np.stack([np.bincount(cell, weights=column, minlength=len(edges) + 1) / count for column in a.T], axis=1)
    return lambda obs, wanted, recorded: means[np.searchsorted(edges, obs[:, 0])]


def _roll_out(
    env: gymnasium.Env,
    judge: Expert,
    actor: Actor | None,
    seeds: list[int],
    steps: int,
    rng: np.random.Generator,
    restart: Callable[[], None] | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per episode: reward per step, and squared errors of clipped and of raw actions."""
    space: Any = env.action_space
    rewards, errors, raw_errors = [], [], []
    done = 0
    for batch in batches(env, len(seeds)):
        n = batch.num_envs
        obs, info = batch.reset(seed=seeds[done : done + n])
        done += n
        if restart is not None:
            restart()
        reward, error, raw_error, taken = (np.zeros(n) for _ in range(4))
        for _ in range(steps):
            running = batch.running.copy()
            if not running.any():
                break
            wanted = np.asarray(judge(info["expert_obs"]), dtype=float)
            if actor is None:
                action = rng.uniform(space.low, space.high, wanted.shape)
            else:
                action = actor(obs, wanted, batch.demonstrate(wanted)[0])
            if action.shape != wanted.shape or not np.isfinite(action).all():
                raise DataError(f"the policy must give finite actions of shape {wanted.shape}, got {action.shape}.")
            clipped = np.clip(action, space.low, space.high)
            error += running * np.mean((clipped - wanted) ** 2, axis=1)
            raw_error += running * np.mean((action - wanted) ** 2, axis=1)
            taken += running
            obs, step_reward, _, _, info = batch.step(clipped)
            reward += step_reward
        rewards.append(reward / steps)
        errors.append(error / taken)
        raw_errors.append(raw_error / taken)
    return np.concatenate(rewards), np.concatenate(errors), np.concatenate(raw_errors)


def _summarise(parts: tuple[np.ndarray, np.ndarray, np.ndarray], random: float, best: float) -> Result:
    reward, error, raw = parts
    spread = float(reward.std(ddof=1) / len(reward) ** 0.5) if len(reward) > 1 else float("nan")
    scale = best - random
    return Result(
        mse=float(error.mean()),
        mse_unclipped=float(raw.mean()),
        reward=float(reward.mean()),
        reward_se=spread,
        score=float((reward.mean() - random) / scale),
        score_se=float(spread / abs(scale)),
    )
