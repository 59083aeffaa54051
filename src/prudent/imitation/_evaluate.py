"""Roll-outs of a learnt policy beside reference policies, under one protocol.

The policy runs in the confounded environment. Its error is measured against the expert's own action at the states that
the policy visits, its reward per step is put on the scale on which random actions are 0 and the un-noised expert is 1.
Steps that an episode misses because it ended count as reward 0.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from prudent._checks import check_count
from prudent.cmr._base import check_seed
from prudent.errors import DataError
from prudent.imitation._rollout import (
    EVALUATION,
    REFERENCE,
    Expert,
    batches,
    check_steps,
    episode_seeds,
    expert_actions,
    find_expert,
    make_env,
    plain_tickets,
)

# Episodes from which the best history-free policy is learnt, and cells of the state in which it is constant. By
# symmetry it is zero for k = 1 and small for others, so that the means of the cells must have little noise.
FREE_EPISODES, FREE_CELLS = 400, 20
# Reference lines, and steps of the first episode, that tell environments apart: together they meet all that any line
# depends on, the dynamics, the reward, the expert and the hidden noise. Few steps with the expert: on another machine
# rounding errors of its network would grow.
TELLING = {"random": 500, "noised expert": 20}

# An actor maps (observations, expert's actions, recorded expert's actions) of a batch to actions; it is started with
# the seeds of the batch's episodes.
Actor = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
Start = Callable[[list[int]], Actor]


@dataclasses.dataclass(frozen=True)
class Result:
    """Means over episodes of one policy."""

    mse: float
    """Squared distance to the expert's action per step and dimension, both clipped to the action space."""
    mse_unclipped: float
    reward: float
    """Reward per step."""
    reward_se: float
    """Its standard error over episodes."""
    score: float
    """(reward - random) / (expert - random)."""
    score_se: float
    """Its standard error over episodes, which all policies share: zero for random actions and the expert."""
    rewards: tuple[float, ...] = dataclasses.field(repr=False, compare=False)
    """Reward per step of every episode."""


@dataclasses.dataclass(frozen=True)
class Evaluation(Result):
    """A policy's result with those of the reference policies, all on the same episodes."""

    episodes: int
    steps: int
    seed: int
    environment: str
    """The environment with its settings."""
    first_episode: tuple[float, ...] = dataclasses.field(repr=False, compare=False)
    """Rewards and errors of two reference lines in the first episode, by which the environment is known again."""
    references: dict[str, Result] = dataclasses.field(hash=False)

    def rows(self) -> list[list[Any]]:
        """A table: policy, score, its standard error, reward, mse, mse_unclipped."""
        named = {"policy": self, **self.references}
        return [[name, r.score, r.score_se, r.reward, r.mse, r.mse_unclipped] for name, r in named.items()]

    def __str__(self) -> str:
        lines = [f"{'':20}{'score':>8}{'(se)':>8}{'reward':>10}{'mse':>8}{'unclipped':>10}"]
        for name, score, error, reward, mse, unclipped in self.rows():
            lines.append(f"{name:20}{score:8.3f}{error:8.3f}{reward:10.4f}{mse:8.3f}{unclipped:10.3f}")
        return "\n".join([*lines, f"{self.episodes} episodes of {self.steps} steps. {self.legend}"])

    @property
    def legend(self) -> str:
        """What the columns mean."""
        words = (
            "score: reward per step between random actions (0) and the expert without noise (1); (se): its standard "
            "error, all policies having met the same episodes. mse: squared distance "
            "to the expert's own action at the states that the policy visits, both clipped."
        )
        has_free = "best history-free" in self.references
        return words + (" best history-free: the best policy of s_t alone." if has_free else "")


def evaluate(
    policy: Any,
    env: Any,
    *,
    episodes: int = 50,
    steps: int | None = None,
    seed: int = 0,
    expert: Expert | None = None,
    beside: Evaluation | None = None,
) -> Evaluation:
    """Score of a policy in a confounded environment, with reference lines.

    Parameters
    ----------
    policy : object with ``act`` (and ``reset``), or callable
        Maps a batch of observations (n, d) to actions (n, a).
    env : gymnasium.Env or str
        A confounded environment or its id; its actions must be bounded, as random ones are drawn from all of them.
    episodes, steps : int
        How many, and how long (500 by default, or the time limit if that is less); ``steps`` at most the time limit,
        since missing steps count as reward 0.
    expert : callable, optional
        Actions (n, a) from ``info["expert_obs"]`` of a batch, (n, d); by default the environment's own.
    beside : Evaluation, optional
        Of another policy in the same environment with the same episodes, steps, seed and expert: the
        reference lines are taken over, which are most of the work. Two of them run one episode again: what the
        environment does must be the same, whatever it is called.
    """
    check_seed(seed)
    check_count("episodes", episodes, 1)
    start = start_policy(policy)
    env = make_env(env)
    space: Any = env.action_space
    if not space.is_bounded():
        raise DataError(
            f"the action space must be bounded, as random actions are a reference, got {space}. Wrap the environment "
            "with gymnasium.wrappers.RescaleAction."
        )
    judge = find_expert(env, expert)
    steps = check_steps(env, steps)
    protocol: dict[str, Any] = {"episodes": int(episodes), "steps": int(steps), "seed": int(seed)}
    protocol["environment"] = _describe(env, "its own expert" if expert is None else "an expert that was given")
    seeds, starts = episode_seeds(seed, EVALUATION, episodes), _references(env, judge, seed=seed, steps=steps)
    first = tuple(
        value.item()
        for name, most in TELLING.items()
        for value in _roll_out(env, judge, starts[name], seeds[:1], min(steps, most))
    )
    if beside is not None:
        _check_beside(beside, protocol, first)

    def result(start: Start) -> Result:
        return _summarise(*_roll_out(env, judge, start, seeds, steps))

    references = {} if beside is None else dict(beside.references)
    if not references:
        references = {name: result(start) for name, start in starts.items()}
        references = {name: _scored(line, references) for name, line in references.items()}
    random, best = references["random"].reward, references["expert"].reward
    if not best > random:
        warnings.warn(
            f"no score: it needs an expert that earns more than random actions, which have {random:.4g} per step, and "
            f"this one has {best:.4g}. Is it the right expert, and is a larger reward better?",
            stacklevel=2,
        )
    own = _scored(result(start), references)
    fields = {f.name: getattr(own, f.name) for f in dataclasses.fields(Result)}
    return Evaluation(**fields, **protocol, first_episode=first, references=references)


def _describe(env: gymnasium.Env, judge: str) -> str:
    settings = env.spec.kwargs if env.spec is not None else {}
    return ", ".join([str(env), *(f"{name}={value}" for name, value in sorted(settings.items())), judge])


def _check_beside(beside: Evaluation, protocol: dict[str, Any], first: tuple[float, ...]) -> None:
    """Refuse reference lines of other episodes, or of an environment that is or does something else."""
    differing = [name for name, value in protocol.items() if getattr(beside, name) != value]
    if not differing and not np.allclose(beside.first_episode, first, rtol=1e-4):
        differing = ["what the environment or the expert does in the first episode"]
    if differing:
        raise DataError(
            "beside must be an evaluation with the same episodes, steps and seed in the same environment, judged by "
            f"the same expert; it differs in {', '.join(differing)}. Leave beside out."
        )


def start_policy(policy: Any) -> Start:
    """A policy as an actor, which begins its episodes anew."""
    act = policy.act if hasattr(policy, "act") else policy
    if not callable(act):
        cure = " Give its policy()." if hasattr(policy, "policy") else ""
        raise TypeError(f"policy must be callable or have act(observations), got {type(policy).__name__}.{cure}")

    def start(seeds: list[int]) -> Actor:
        if hasattr(policy, "reset"):
            policy.reset()
        return lambda obs, wanted, recorded: np.asarray(act(obs), dtype=float)

    return start


def _references(env: gymnasium.Env, judge: Expert, *, seed: int, steps: int) -> dict[str, Start]:
    space: Any = env.action_space

    def random(seeds: list[int]) -> Actor:
        # One generator per episode, so that nothing depends on which episodes run side by side.
        draws = [
            np.random.default_rng([s, REFERENCE]).uniform(space.low, space.high, (steps, *space.shape)) for s in seeds
        ]
        step = iter(np.stack(draws, axis=1))
        return lambda obs, wanted, recorded: next(step)

    def constant(actor: Actor) -> Start:
        return lambda seeds: actor

    starts: dict[str, Start] = {
        "expert": constant(lambda obs, wanted, recorded: wanted),
        "noised expert": constant(lambda obs, wanted, recorded: recorded),
        "zero": constant(lambda obs, wanted, recorded: np.zeros_like(wanted)),
        "random": random,
    }
    tickets = plain_tickets(env)
    # In a closed loop a policy meets other states than the expert, where the expert's mean action is not the best one.
    if tickets is not None and not tickets.closed_loop:
        # Learnt only where it runs: not beside an evaluation that has it.
        starts["best history-free"] = lambda seeds: _history_free(env, judge, seed=seed, steps=steps)
    return starts


def _history_free(env: gymnasium.Env, judge: Expert, *, seed: int, steps: int) -> Actor:
    """E[pi_E | s_t] for a scalar state that no action moves: the expert's mean in cells of equal probability."""
    batch = next(batches(env, FREE_EPISODES))
    obs, info = batch.reset(seed=episode_seeds(seed, REFERENCE, FREE_EPISODES))
    states, wanted = [], []
    for _ in range(steps):
        states.append(obs[:, 0])
        wanted.append(expert_actions(judge, info["expert_obs"], batch)[:, 0])
        obs, _, _, _, info = batch.step(wanted[-1][:, None])
    s, a = np.concatenate(states), np.concatenate(wanted)
    edges = np.unique(np.quantile(s, np.linspace(0, 1, FREE_CELLS + 1)[1:-1]))
    cell = np.searchsorted(edges, s)
    count = np.maximum(np.bincount(cell, minlength=len(edges) + 1), 1)
    means = np.bincount(cell, weights=a, minlength=len(edges) + 1) / count
    return lambda obs, wanted, recorded: means[np.searchsorted(edges, obs)]


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a batch of episodes: which still ran, the expert's actions and the actor's (n, a), rewards (n,)."""

    running: np.ndarray
    wanted: np.ndarray
    action: np.ndarray
    clipped: np.ndarray
    """What was executed: the action within the action space."""
    reward: np.ndarray


def run_steps(batch: Any, judge: Expert, start: Start, seeds: list[int], steps: int) -> Iterator[Step]:
    """Start a batch and an actor and let them run, until all episodes have ended or for ``steps`` steps."""
    space = batch.single_action_space
    obs, info = batch.reset(seed=seeds)
    actor = start(seeds)
    for _ in range(steps):
        running = batch.running.copy()
        if not running.any():
            return
        wanted = expert_actions(judge, info["expert_obs"], batch)
        action = actor(obs, wanted, batch.demonstrate(wanted)[0])
        if action.shape != wanted.shape or not np.isfinite(action).all():
            what = action.shape if action.shape != wanted.shape else "NaN or infinity"
            raise DataError(
                f"the policy must give finite actions of shape {wanted.shape} for observations of shape "
                f"{obs.shape}, got {what}. It is asked for all episodes at once."
            )
        clipped = np.clip(action, space.low, space.high)
        obs, reward, _, _, info = batch.step(clipped)
        yield Step(running, wanted, action, clipped, reward)


def _roll_out(
    env: gymnasium.Env, judge: Expert, start: Start, seeds: list[int], steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per episode: reward per step, and squared errors of clipped and of raw actions."""
    space: Any = env.action_space
    rewards, errors, raw_errors = [], [], []
    done = 0
    for batch in batches(env, len(seeds)):
        n = batch.num_envs
        own = seeds[done : done + n]
        done += n
        reward, error, raw_error, taken = (np.zeros(n) for _ in range(4))
        for step in run_steps(batch, judge, start, own, steps):
            best = np.clip(step.wanted, space.low, space.high)
            error += step.running * np.mean((step.clipped - best) ** 2, axis=1)
            raw_error += step.running * np.mean((step.action - step.wanted) ** 2, axis=1)
            taken += step.running
            reward += step.reward
        rewards.append(reward / steps)
        errors.append(error / taken)
        raw_errors.append(raw_error / taken)
    return np.concatenate(rewards), np.concatenate(errors), np.concatenate(raw_errors)


def _summarise(reward: np.ndarray, error: np.ndarray, raw: np.ndarray) -> Result:
    """Means over episodes; scores are still open."""
    nothing = float("nan")
    spread = float(reward.std(ddof=1) / len(reward) ** 0.5) if len(reward) > 1 else nothing
    return Result(
        float(error.mean()), float(raw.mean()), float(reward.mean()), spread, nothing, nothing, tuple(reward.tolist())
    )


def _scored(result: Result, references: dict[str, Result]) -> Result:
    """The result with its place between random actions and the expert."""
    random, expert = references["random"], references["expert"]
    scale = expert.reward - random.reward
    if not scale > 0:
        return result  # Where random actions earn as much as the expert, or more, there is no scale.
    score, n = (result.reward - random.reward) / scale, len(result.rewards)
    # The score is a ratio of means over the same episodes: to first order, the mean of these.
    own, low, high = (np.array(line.rewards) for line in (result, random, expert))
    parts = (own - low - score * (high - low)) / scale
    error = float(parts.std(ddof=1) / n**0.5) if n > 1 else float("nan")
    return dataclasses.replace(result, score=score, score_se=error)
