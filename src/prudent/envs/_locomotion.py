"""Confounded locomotion: Gymnasium's MuJoCo robots follow a target speed that only the expert sees.

With true state (x_t, s_t), where x is the absolute position along the track, and hidden noise u_o, u_e:

- u_o,t is the mean of the last 30 draws from Unif[-2, 4], clipped to [0.1, 2]: the target speed;
- u_e,t is the mean of the last k draws from N(0, 0.01 sqrt(k)), so that its sd is 0.01 for every k;
- observation: (odo_t, s_t + u_e,t), where odo_t = odo_{t-1} + (x_t - x_{t-1}) / u_o,t and odo_0 = 0;
- the expert sees (s_t, u_o,t); a demonstration records and executes a_t = pi_E(s_t, u_o,t) + 20 u_e,t;
- reward: healthy - (v - u_o,t)^2 - 0.1 sum a^2, where v = (x_{t+1} - x_t) / dt and a is the executed (clipped) action.

The noise is added to what is observed and done; the simulator's state is never written to.
"""

import dataclasses
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from prudent.envs._checks import check_started
from prudent.envs._confounded import Demonstrable, checked_action
from prudent.envs._noise import NoiseQueue
from prudent.errors import DataError

SPEED_WINDOW = 30
SPEED_DRAWS = (-2.0, 4.0)
SPEED_RANGE = (0.1, 2.0)
STATE_NOISE = 0.01
ACTION_NOISE = 20.0
CONTROL_COST = 0.1
EPISODE_STEPS = 500


@dataclasses.dataclass(frozen=True)
class Robot:
    """One of the robots: its name in commands and files, the ids, and settings of Gymnasium's task."""

    name: str
    env_id: str
    base_id: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


ROBOTS = {
    robot.name: robot
    for robot in (
        Robot("half-cheetah", "ConfoundedHalfCheetah-v0", "HalfCheetah-v5"),
        Robot("hopper", "ConfoundedHopper-v0", "Hopper-v5"),
        Robot("ant", "ConfoundedAnt-v0", "Ant-v5", {"include_cfrc_ext_in_observation": False}),
    )
}


def find_robot(name: str) -> Robot:
    """The robot called ``name``, or an error that lists the known ones."""
    if name not in ROBOTS:
        raise DataError(f"robot must be one of {', '.join(ROBOTS)}, got {name!r}.")
    return ROBOTS[name]


class ConfoundedLocomotion(gymnasium.Env, Demonstrable):
    """A robot of Gymnasium under expert-observable (u_o) and expert-unobservable (u_e) confounding.

    Parameters
    ----------
    robot : str
        ``"half-cheetah"``, ``"hopper"`` or ``"ant"``.
    noise_horizon : int, default=1
        Number of steps k over which u_e is correlated.
    noise : {"executed", "recorded"}, default="executed"
        Whether a demonstration executes the noised action, or only records it and executes the clean one.
    """

    action_noise = ACTION_NOISE

    def __init__(self, robot: str, *, noise_horizon: int = 1, noise: str = "executed", render_mode: str | None = None):
        self.robot = find_robot(robot)
        self._set_noise(noise_horizon, noise)
        self.render_mode = render_mode
        self._base, self._advance = _make_simulator(self.robot, render_mode)
        self.metadata = self._base.metadata
        self.action_space: spaces.Box = self._base.action_space
        size = self._base.observation_space.shape[0]
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        # The state without x, and u_o: as many numbers.
        self.expert_space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.dt, self.n_velocities = float(self._base.dt), int(self._base.model.nv)
        deviation = STATE_NOISE * noise_horizon**0.5
        self._speed = NoiseQueue(SPEED_WINDOW, lambda rng, n: rng.uniform(*SPEED_DRAWS, n))
        self._noise = NoiseQueue(noise_horizon, lambda rng, n: rng.normal(0.0, deviation, n))

    @property
    def u_o(self) -> float:
        """The target speed, which the expert sees."""
        low, high = SPEED_RANGE
        return min(max(self._speed.value + self._speed_offset, low), high)

    @property
    def u_e(self) -> float:
        """The noise that nobody sees."""
        return self._noise.value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode.

        ``options`` serve training: ``"speed_offset"`` is added to every target speed before it is clipped, ``"kick"``
        to the start's velocities (of all joints).
        """
        super().reset(seed=seed)
        # One generator for everything: the robot's start and both noises follow from the seed.
        self._base.np_random = self.np_random
        state, _ = self._base.reset()
        options = options or {}
        if "kick" in options:
            self._base.set_state(self._base.data.qpos.copy(), self._base.data.qvel + options["kick"])
            state = self._base._get_obs()
        self._speed_offset = float(options.get("speed_offset", 0.0))
        self._speed.reset(self.np_random)
        self._noise.reset(self.np_random)
        self._odometer = 0.0
        return self._observe(state), self._info(state)

    def step(self, action: np.ndarray):
        """Execute ``action``, clipped to the action space."""
        check_started(hasattr(self, "_odometer"))
        action = checked_action(action, self.action_space)
        target, x = self.u_o, float(self._base.data.qpos[0])
        self._advance(action)
        state = self._base._get_obs()
        # The half-cheetah cannot fall.
        healthy = bool(getattr(self._base, "is_healthy", True))
        moved = float(self._base.data.qpos[0]) - x
        velocity = moved / self.dt
        error = (velocity - target) ** 2
        reward = float(healthy) - error - CONTROL_COST * float(action @ action)
        self._speed.advance()
        self._noise.advance()
        self._odometer += moved / self.u_o
        info = {**self._info(state), "velocity": velocity, "tracking_error": error}
        return self._observe(state), reward, not healthy, False, info

    def render(self):
        """The picture of Gymnasium's task."""
        return self._base.render()

    def close(self) -> None:
        """Close the renderer."""
        self._base.close()

    def _observe(self, state: np.ndarray) -> np.ndarray:
        observation = state + self._noise.value
        observation[0] = self._odometer
        return observation

    def _info(self, state: np.ndarray) -> dict[str, Any]:
        expert_obs = np.empty_like(state)
        expert_obs[:-1], expert_obs[-1] = state[1:], self.u_o
        return {"hidden": {"u_o": self.u_o, "u_e": self._noise.value}, "expert_obs": expert_obs}


def _make_simulator(robot: Robot, render_mode: str | None) -> tuple[Any, Callable[[np.ndarray], None]]:
    """Gymnasium's task, and a function that advances its physics by one step."""
    try:
        # Its functions live in an extension that type checkers cannot read.
        mujoco: Any = import_module("mujoco")
    except ImportError:
        raise ImportError(f"{robot.env_id} needs MuJoCo. Install it with: pip install 'prudent[mujoco]'") from None
    # MuJoCo's notes on Gymnasium's model files are of no use to our users, and would make a log file where they stand.
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        base: Any = gymnasium.make(
            robot.base_id, exclude_current_positions_from_observation=False, render_mode=render_mode, **robot.settings
        ).unwrapped
    finally:
        mujoco.set_mju_user_warning(handler)
    model, data, frames = base.model, base.data, base.frame_skip

    def advance(action: np.ndarray) -> None:
        data.ctrl[:] = action
        mujoco.mj_step(model, data, nstep=frames)

    return base, advance
