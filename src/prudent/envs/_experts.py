"""Experts for the confounded robots: networks on ``info["expert_obs"]`` that ship with the package."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from prudent._storage import load, save_model
from prudent.envs._confounded import EpisodeBatch
from prudent.envs._locomotion import EPISODE_STEPS, ConfoundedLocomotion, find_robot
from prudent.errors import DataError, ModelFileError

SHIPPED = Path(__file__).parent / "experts"
# A robot that has fallen must not send the network anywhere: inputs are cut at this many standard units.
INPUT_LIMIT = 10.0


class Expert:
    """A deterministic policy on expert observations: a small network with fixed input scaling, in NumPy.

    ``record`` says how it was trained and how it did: robot, seed, steps, score, versions.
    """

    def __init__(self, weights: dict[str, np.ndarray], record: dict[str, Any]):
        self.weights, self.record = weights, record
        depth = sum(name.endswith("_weight") for name in weights)
        self._layers = [(weights[f"layer_{i}_weight"], weights[f"layer_{i}_bias"]) for i in range(depth)]

    def __repr__(self) -> str:
        return f"Expert(robot={self.robot!r}, steps={self.record.get('steps')})"

    @property
    def robot(self) -> str:
        """Name of the robot."""
        return self.record["robot"]

    def act(self, expert_obs: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1], for one observation or for a batch."""
        obs, size = np.atleast_1d(expert_obs), len(self.weights["mean"])
        if obs.shape[-1] != size:
            raise DataError(f"expert_obs must have {size} numbers, got {obs.shape[-1]}. Pass info['expert_obs'].")
        if np.isnan(obs).any():
            raise DataError("expert_obs must be numbers, got NaN. Pass info['expert_obs'].")
        x = scaled = scale_obs(obs, self.weights["mean"], self.weights["scale"])
        for weight, bias in self._layers[:-1]:
            x = np.maximum(x @ weight + bias, 0.0)
        weight, bias = self._layers[-1]
        return np.tanh(x @ weight + bias + scaled @ self.weights["skip"] + self.weights["skip_bias"]).astype(float)

    __call__ = act

    def save(self, folder: str | Path) -> Path:
        """Write the expert; :func:`prudent.load` and :func:`load_expert` read it."""
        return save_model(folder, "Expert", self.record, self.weights)

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "Expert":
        """An expert from what :meth:`save` wrote."""
        find_robot(record["robot"])
        expert = cls(arrays, record)
        expert.act(np.zeros(len(arrays["mean"])))  # Shapes that do not fit together fail here, not in a roll-out.
        return expert


def scale_obs(obs: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Observations in standard units."""
    return np.clip((obs - mean) * scale, -INPUT_LIMIT, INPUT_LIMIT).astype(np.float32)


def load_expert(name: str | Path) -> Expert:
    """The expert that ships for a robot (``"half-cheetah"``, ``"hopper"``, ``"ant"``), or one from a folder.

    Raises
    ------
    ModelFileError
        If there is no such expert, or its files are damaged.
    """
    folder = SHIPPED / str(name)
    if not folder.is_dir():
        folder = Path(name)
        if not folder.is_dir():
            known = ", ".join(sorted(path.name for path in SHIPPED.iterdir()))
            raise ModelFileError(
                f"no expert {str(name)!r}: neither a folder nor one of {known}. Give one of these names, or train one "
                "with: prudent experts train"
            )
    expert = load(folder)
    if not isinstance(expert, Expert):
        raise ModelFileError(f"{folder} holds a {type(expert).__name__}, not an expert.")
    return expert


@dataclasses.dataclass(frozen=True)
class ExpertScore:
    """How a policy on expert observations does: means over episodes."""

    reward: float
    """Reward per step; the steps after a fall count 0."""
    reward_se: float
    """Its standard error over episodes."""
    tracking: float
    """(v - u_o)^2 per step taken."""
    standing: float
    """Share of the episodes without a fall."""
    episodes: int
    steps: int

    def meets_target(self, robot: str) -> bool:
        """Good enough to demonstrate: tracks its speed, and stays up in nine episodes of ten."""
        return self.tracking < TRACKING_TARGETS[robot] and self.standing >= 0.9


TRACKING_TARGETS = {"half-cheetah": 0.15, "hopper": 0.25, "ant": 0.25}


def evaluate_expert(
    policy: Callable[[np.ndarray], np.ndarray],
    envs: Sequence[gymnasium.Env],
    *,
    seed: int,
    steps: int = EPISODE_STEPS,
    noised: bool = False,
) -> ExpertScore:
    """Score of a policy on expert observations, one episode per environment; ``noised`` executes the noised action."""
    batch = EpisodeBatch(envs)
    _, info = batch.reset(seed=seed)
    rewards, tracking, taken = (np.zeros(batch.num_envs) for _ in range(3))
    for _ in range(steps):
        running = batch.running.copy()
        if not running.any():
            break
        actions = policy(info["expert_obs"])
        _, reward, _, _, info = batch.step(batch.demonstrate(actions)[1] if noised else actions)
        rewards += reward
        tracking += running * info["tracking_error"]
        taken += running
    return ExpertScore(
        reward=float(rewards.mean() / steps),
        reward_se=float(rewards.std(ddof=1) / steps / len(envs) ** 0.5) if len(envs) > 1 else float("nan"),
        tracking=float((tracking / taken).mean()),
        standing=float(np.mean(taken == steps)),
        episodes=len(envs),
        steps=steps,
    )


def make_robots(robot: str, count: int, *, noise_horizon: int = 1) -> list[ConfoundedLocomotion]:
    """Several environments of one robot, without a time limit."""
    return [ConfoundedLocomotion(robot, noise_horizon=noise_horizon) for _ in range(count)]
