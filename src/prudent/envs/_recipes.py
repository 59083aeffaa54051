"""How the shipped experts are trained: the task as the learner sees it, and settings per robot."""

import csv
import dataclasses
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from prudent._progress import Progress
from prudent._storage import check_folder
from prudent.envs._experts import Expert, ExpertScore, evaluate_expert, make_robots
from prudent.envs._locomotion import EPISODE_STEPS, ConfoundedLocomotion, find_robot
from prudent.envs._sac import SACConfig
from prudent.envs._training import Trainer, TrainingPlan
from prudent.errors import DataError

NOISE_HORIZONS = (1, 5, 10, 20)
# Evaluations stay away from the seeds of reporting protocols (small numbers) and from each other.
CURVE_SEED, SCORE_SEED = 500_000, 700_000
CURVE_EPISODES, SCORE_EPISODES = 10, 20
# A checkpoint holds the replay buffer, so it is not written after every block.
CHECKPOINT_SECONDS = 120.0
CHECKPOINT_NAME = "checkpoint.safetensors"
# Place of the quaternion's first number, the cosine of half the angle, in the ant's expert observation.
ANT_QUATERNION = 2
VERSIONS = ("equinox", "gymnasium", "jax", "mujoco", "numpy", "prudent")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of one robot."""

    steps: int
    """Environment steps of the shipped expert."""
    plan: TrainingPlan
    """Learner and schedule."""
    alive_bonus: float = 0.0
    """Added to every healthy step while training: without it, a robot that cannot walk yet had better fall at once."""
    ignored: tuple[int, ...] = ()
    """Coordinates of the expert observation that the network does not see."""
    noised_share: float = 0.5
    """Share of the training episodes that execute the noise of demonstrations, so that the expert stands it."""
    kicks: tuple[tuple[int, float], ...] = ()
    """Half of the training episodes start with a random velocity: (coordinate, largest). Motion is found faster so."""
    largest_turn: float | None = None
    """A training episode in which the ant's body has turned by more than this (radians, any axis) ends as if fallen.

    An ant on its back is healthy in Gymnasium's sense, never gets up, and would fill the memory with useless steps.
    """


RECIPES = {
    "half-cheetah": Recipe(222_000, TrainingPlan(SACConfig(discount=0.98))),
    # From a stand, the hopper learns to topple forwards slowly; thrown into the air, it learns to land and hop on.
    "hopper": Recipe(
        486_000,
        TrainingPlan(SACConfig(discount=0.99, n_steps=4, batch_size=64), update_ratio=1.0),
        alive_bonus=1.0,
        noised_share=0.25,
        kicks=((0, 2.0), (1, 2.5)),
    ),
    # The ant's own y, the first coordinate, is as arbitrary as its x.
    "ant": Recipe(
        462_000,
        TrainingPlan(SACConfig(discount=0.95, n_steps=3, batch_size=64), update_ratio=1.0, overlap=True, block=24_000),
        alive_bonus=1.0,
        ignored=(0,),
        noised_share=0.25,
        kicks=((0, 2.0),),
        largest_turn=1.0,
    ),
}


class SpeedTracking:
    """Eight robots that follow a target speed, seen as the expert sees them.

    Half of the episodes shift the target, so that all of [0.1, 2] is learnt and not its middle alone.
    """

    n_envs = 8

    def __init__(self, robot: str, recipe: Recipe):
        horizons = np.resize(NOISE_HORIZONS, self.n_envs)
        self.robot, self.recipe, self.ignored = robot, recipe, recipe.ignored
        self._envs = [ConfoundedLocomotion(robot, noise_horizon=int(k)) for k in horizons]
        self._judges = make_robots(robot, CURVE_EPISODES)
        self.obs_size = self._envs[0].expert_space.shape[0]
        self.action_size = self._envs[0].action_space.shape[0]
        self._noised, self._age = np.zeros(self.n_envs, bool), np.zeros(self.n_envs, int)

    @property
    def settings(self) -> dict[str, Any]:
        """The robot and its recipe, but for the plan, which is the trainer's, and for how long to train."""
        recipe = {name: value for name, value in vars(self.recipe).items() if name not in ("plan", "steps")}
        return {"robot": self.robot, **recipe}

    def reset(self, rng: np.random.Generator) -> np.ndarray:
        """Start all episodes."""
        self._rng = rng
        return np.stack([self._start(i) for i in range(self.n_envs)])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rewards, next observations, falls, and where to go on: ended episodes start anew."""
        next_obs = np.empty((self.n_envs, self.obs_size))
        reward, fallen = np.empty(self.n_envs), np.zeros(self.n_envs)
        for i, env in enumerate(self._envs):
            action = env.demonstrate(actions[i])[1] if self._noised[i] else actions[i]
            _, reward[i], fallen[i], _, info = env.step(action)
            next_obs[i] = info["expert_obs"]
        if self.recipe.largest_turn is not None:
            fallen[np.abs(next_obs[:, ANT_QUATERNION]) < np.cos(self.recipe.largest_turn / 2)] = 1.0
        reward += self.recipe.alive_bonus * (1.0 - fallen)
        self._age += 1
        go_on = next_obs.copy()
        for i in np.flatnonzero((fallen > 0) | (self._age >= EPISODE_STEPS)):
            go_on[i] = self._start(int(i))
        return reward, next_obs, fallen, go_on

    def evaluate(self, policy: Callable[[np.ndarray], np.ndarray], block: int) -> tuple[float, dict[str, float]]:
        """Mean reward under the protocol, with the two numbers that the targets are about."""
        score = evaluate_expert(policy, self._judges, seed=CURVE_SEED + 100 * block)
        return score.reward, {"tracking": score.tracking, "standing": score.standing}

    def _start(self, i: int) -> np.ndarray:
        offset = 0.0 if self._rng.random() < 0.5 else self._rng.uniform(-0.9, 1.0)
        self._noised[i], self._age[i] = self._rng.random() < self.recipe.noised_share, 0
        options: dict[str, Any] = {"speed_offset": offset}
        seed = int(self._rng.integers(2**31))
        if self.recipe.kicks and self._rng.random() < 0.5:
            options["kick"] = np.zeros(self._envs[i].n_velocities)
            for coordinate, largest in self.recipe.kicks:
                options["kick"][coordinate] = self._rng.uniform(0.0, largest)
        return self._envs[i].reset(seed=seed, options=options)[1]["expert_obs"]


def train_expert(
    robot: str,
    out: str | Path,
    *,
    steps: int | None = None,
    seed: int = 1000,
    resume: bool = False,
    recipe: Recipe | None = None,
    show_progress: bool | None = None,
) -> Expert:
    """Train an expert for ``robot`` and keep the best of its evaluations in the folder ``out``.

    The folder also holds a checkpoint and the learning curve (``curve.csv``, ``curve.png``). ``resume`` goes on from
    the checkpoint, and gives what an uninterrupted run would have given.
    """
    find_robot(robot)
    recipe = RECIPES[robot] if recipe is None else recipe
    out = check_folder(out, "Expert")
    checkpoint = out / CHECKPOINT_NAME
    if checkpoint.exists() and not resume:
        raise DataError(f"{out} holds a training run. Go on with it (--resume), or choose another folder.")
    trainer = Trainer(SpeedTracking(robot, recipe), recipe.plan, seed=seed)
    if resume:
        trainer.restore(checkpoint)
    blocks = trainer.blocks_for(recipe.steps if steps is None else steps)
    with Progress(show_progress) as progress:
        bar = progress.start(f"training {robot}", blocks)
        for _ in range(trainer.block):
            bar.advance()
        saved = time.monotonic()
        while trainer.block < blocks:
            point = trainer.run_block()
            bar.advance(f"tracking {point['tracking']:.2f}, standing {point['standing']:.0%}")
            # The model first: only a folder with a model may be written to again.
            make_expert(robot, recipe, trainer).save(out)
            write_curve(trainer.curve, out)
            if trainer.block < blocks and time.monotonic() - saved > CHECKPOINT_SECONDS:
                trainer.save(checkpoint)
                saved = time.monotonic()
    scores = score_expert(make_expert(robot, recipe, trainer))
    expert = make_expert(robot, recipe, trainer, scores)
    expert.save(out)
    trainer.save(checkpoint)
    draw_curve(trainer.curve, out)
    return expert


def score_expert(expert: Expert) -> dict[str, ExpertScore]:
    """Scores on fresh episodes: the expert alone, and executing the noise of demonstrations for two horizons."""
    clean = evaluate_expert(expert, make_robots(expert.robot, SCORE_EPISODES), seed=SCORE_SEED)
    scores = {"clean": clean}
    for k in (1, 20):
        envs = make_robots(expert.robot, SCORE_EPISODES, noise_horizon=k)
        scores[f"noised, k = {k}"] = evaluate_expert(expert, envs, seed=SCORE_SEED, noised=True)
    return scores


def make_expert(robot: str, recipe: Recipe, trainer: Trainer, scores: dict[str, ExpertScore] | None = None) -> Expert:
    """The best policy of a run so far, as an expert."""
    actor, actions = trainer.best_actor, trainer.task.action_size
    weights = {"mean": trainer.mean, "scale": trainer.scale}
    for number, layer in enumerate(actor.layers):
        weights[f"layer_{number}_weight"], weights[f"layer_{number}_bias"] = layer.weight, layer.bias
    last = len(actor.layers) - 1
    # Of the outputs, mean and log deviation, a deterministic policy needs the first half.
    for name in (f"layer_{last}_weight", f"layer_{last}_bias"):
        weights[name] = weights[name][..., :actions]
    weights["skip"], weights["skip_bias"] = actor.free_skip[:, :actions], actor.free_bias[:actions]
    best = max(trainer.curve, key=lambda point: point["value"]) if trainer.curve else {}
    record = {
        "robot": robot,
        "env_id": find_robot(robot).env_id,
        "algorithm": "soft actor-critic",
        "seed": trainer.seed,
        "steps": trainer.steps,
        "best_step": best.get("steps"),
        "seconds": round(trainer.seconds),
        "recipe": dataclasses.asdict(recipe),
        "scores": {name: dataclasses.asdict(score) for name, score in (scores or {}).items()},
        "versions": {name: version(name) for name in VERSIONS},
    }
    return Expert({name: np.asarray(array, np.float32) for name, array in weights.items()}, record)


def write_curve(curve: list[dict[str, Any]], folder: Path) -> None:
    """The learning curve as a table."""
    with (folder / "curve.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, fieldnames=list(curve[0]))
        table.writeheader()
        table.writerows(curve)


def draw_curve(curve: list[dict[str, Any]], folder: Path) -> None:
    """The learning curve as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = [point["steps"] for point in curve]
    labels = {"value": "reward per step", "tracking": "(v - u_o)²", "standing": "episodes without a fall"}
    figure, axes = plt.subplots(1, len(labels), figsize=(10, 3), constrained_layout=True)
    for axis, (name, label) in zip(axes, labels.items(), strict=True):
        axis.plot(steps, [point[name] for point in curve])
        axis.set(xlabel="environment steps", ylabel=label)
    figure.savefig(folder / "curve.png", dpi=120)
    plt.close(figure)
