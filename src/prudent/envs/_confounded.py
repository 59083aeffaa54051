"""What all confounded environments share, and a wrapper that confounds any environment with a continuous action.

Two hidden variables: u_o moves what happens and is seen by the expert alone; u_e moves the observation and the recorded
action together and is seen by nobody. A learner that regresses actions on observations takes u_e for a rule.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from prudent._checks import check_count
from prudent.envs._checks import check_started
from prudent.envs._noise import Draw, NoiseQueue
from prudent.errors import DataError

NOISE_MODES = ("executed", "recorded")


class Demonstrable:
    """Mix-in: how a demonstration's action is recorded and executed. Needs ``action_space`` and ``u_e``."""

    action_space: spaces.Box
    u_e: float
    action_noise: float
    noise_horizon: int
    noise: str

    def _set_noise(self, noise_horizon: int, noise: str) -> None:
        if noise not in NOISE_MODES:
            raise DataError(f"noise must be one of {', '.join(NOISE_MODES)}, got {noise!r}.")
        check_count("noise_horizon", noise_horizon, 1)
        self.noise_horizon, self.noise = int(noise_horizon), noise

    def demonstrate(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What a demonstration records, and what it executes, when the expert wants ``action`` now."""
        clean = np.asarray(action, dtype=float)
        recorded = clean + self.action_noise * self.u_e
        executed = recorded if self.noise == "executed" else clean
        return recorded, np.clip(executed, self.action_space.low, self.action_space.high)


def checked_action(action: Any, space: spaces.Box) -> np.ndarray:
    """``action`` clipped to its space, or an error if it is not a finite array of the right shape."""
    action = np.asarray(action, dtype=np.float64)
    if action.shape != space.shape:
        raise DataError(f"an action must have shape {space.shape}, got {action.shape}.")
    # One sum instead of a scan: any NaN or infinity survives it.
    if not np.isfinite(action.sum()):
        raise DataError(f"actions must be finite, got {action}. Does the policy diverge?")
    return np.minimum(np.maximum(action, space.low), space.high)


def read_reset(
    seed: Any, options: dict[str, Any] | None, count: int, *, is_first: bool
) -> tuple[list[int | None], np.ndarray]:
    """The seed of every episode of a batch, and which of them start: all, or those of ``options["reset_mask"]``."""
    if isinstance(seed, int | np.integer):
        seed = range(int(seed), int(seed) + count)
    # Gymnasium takes Python's integers only.
    seeds: list[int | None] = [None if s is None else int(s) for s in ([None] * count if seed is None else seed)]
    if len(seeds) != count:
        raise DataError(f"a batch of {count} episodes needs {count} seeds or a single one, got {len(seeds)}.")
    mask = np.asarray((options or {}).get("reset_mask", np.ones(count, bool)))
    if mask.dtype != bool or mask.shape != (count,):
        raise DataError(
            f"reset_mask must have one truth value for each of the {count} episodes, got {mask.dtype} of shape "
            f"{mask.shape}. Give terminated | truncated."
        )
    if is_first and not mask.all():
        raise DataError("the first reset of a batch must start all episodes. Leave reset_mask out.")
    return seeds, mask


class ConfoundedWrapper(gymnasium.Wrapper, RecordConstructorArgs, Demonstrable):
    """Adds confounding to an environment with ``Box`` actions and flat ``Box`` observations.

    - u_o,t is the mean of the last ``window`` draws of ``u_o``: a disturbance added to every executed action.
    - u_e,t is the mean of the last k draws of N(0, ``state_noise`` sqrt(k)); it is added to every observed coordinate.
    - A demonstration records (and executes) pi_E + ``action_noise`` u_e,t.

    If ``policy`` solves the environment as it was, ``pi_E(s, u_o) = policy(s) - u_o`` solves the confounded one (as far
    as the action space allows it): :meth:`expert` makes it. So every trained policy gives an imitation problem.

    Parameters
    ----------
    env : gymnasium.Env
        The environment to confound.
    noise_horizon : int, default=1
        Number of steps k over which u_e is correlated.
    noise : {"executed", "recorded"}, default="executed"
        Whether a demonstration executes the noised action, or only records it.
    state_noise, action_noise : float
        Standard deviation of u_e, and its weight in the recorded action.
    u_o : callable, optional
        ``draw(rng, n)`` of independent values; uniform on [-1, 1] by default.
    window : int, default=30
        Number of draws that u_o averages over.
    apply : callable, optional
        ``apply(action, u_o)`` is what is executed; the sum by default.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        *,
        noise_horizon: int = 1,
        noise: str = "executed",
        state_noise: float = 0.01,
        action_noise: float = 20.0,
        u_o: Draw | None = None,
        window: int = 30,
        apply: Callable[[np.ndarray, float], np.ndarray] | None = None,
    ):
        RecordConstructorArgs.__init__(
            self,
            noise_horizon=noise_horizon,
            noise=noise,
            state_noise=state_noise,
            action_noise=action_noise,
            u_o=u_o,
            window=window,
            apply=apply,
        )
        if not isinstance(env, gymnasium.Env):
            raise DataError(
                f"env must be an environment of Gymnasium, got {type(env).__name__} {env!r}. Make it: "
                "gymnasium.make(...)."
            )
        gymnasium.Wrapper.__init__(self, env)
        if not isinstance(env.action_space, spaces.Box):
            raise DataError(
                f"the action space must be a Box, got {env.action_space}. Noise is added to actions: take an "
                "environment with continuous ones."
            )
        check_count("window", window, 1)
        for name, value in (("state_noise", state_noise), ("action_noise", action_noise)):
            if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value < np.inf:
                raise DataError(f"{name} must be a finite number that is not negative, got {value!r}.")
        for name, given, form in (("u_o", u_o, "u_o(rng, n)"), ("apply", apply, "apply(action, u_o)")):
            if given is not None and not callable(given):
                raise DataError(f"{name} must be a function {form}, got {given!r}. Leave it out for the default.")
        if not isinstance(env.observation_space, spaces.Box) or len(env.observation_space.shape) != 1:
            raise DataError(
                f"the observation space must be a flat Box, got {env.observation_space}. "
                "Wrap the environment with gymnasium.wrappers.FlattenObservation first."
            )
        self._set_noise(noise_horizon, noise)
        self.action_noise = float(action_noise)
        size = env.observation_space.shape[0]
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.expert_space = spaces.Box(-np.inf, np.inf, (size + 1,), np.float64)
        self._apply = apply or (lambda action, disturbance: action + disturbance)
        deviation = state_noise * noise_horizon**0.5
        self._u_o = NoiseQueue(window, u_o or (lambda rng, n: rng.uniform(-1.0, 1.0, n)))
        self._u_e = NoiseQueue(noise_horizon, lambda rng, n: rng.normal(0.0, deviation, n))
        self._rng = np.random.default_rng()

    @property
    def u_o(self) -> float:
        """The disturbance, which the expert sees."""
        return self._u_o.value

    @property
    def u_e(self) -> float:
        """The noise that nobody sees."""
        return self._u_e.value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode; the seed decides the environment's start and both noises."""
        state, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            # A stream of its own: the environment's generator is seeded with the number itself.
            self._rng = np.random.default_rng([seed, 1])
        self._u_o.reset(self._rng)
        self._u_e.reset(self._rng)
        return self._observe(state), self._add_hidden(info, state)

    def step(self, action: np.ndarray):
        """Execute ``action`` under the disturbance, clipped to the action space."""
        check_started(not np.isnan(self.u_e))
        space: Any = self.action_space
        executed = checked_action(self._apply(checked_action(action, space), self.u_o), space)
        state, reward, terminated, truncated, info = self.env.step(executed.astype(space.dtype))
        self._u_o.advance()
        self._u_e.advance()
        return self._observe(state), float(reward), terminated, truncated, self._add_hidden(info, state)

    @staticmethod
    def expert(policy: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        """``policy`` of the plain environment as an expert on ``info["expert_obs"]``, for the default ``apply``.

        ``policy`` is asked for batches: observations (n, d) to actions (n, a).
        """

        def act(expert_obs: np.ndarray) -> np.ndarray:
            return policy(expert_obs[..., :-1]) - expert_obs[..., -1:]

        return act

    def _observe(self, state: np.ndarray) -> np.ndarray:
        return np.asarray(state, dtype=np.float64) + self.u_e

    def _add_hidden(self, info: dict[str, Any], state: np.ndarray) -> dict[str, Any]:
        expert_obs = np.append(np.asarray(state, dtype=np.float64), self.u_o)
        return {**info, "hidden": {"u_o": self.u_o, "u_e": self.u_e}, "expert_obs": expert_obs}


def check_confounded(env: gymnasium.Env) -> None:
    """Refuse an environment without hidden noise."""
    if not env.has_wrapper_attr("demonstrate"):
        raise DataError(
            f"the environment must be confounded, got {env}, which has no hidden noise. Wrap it with "
            "prudent.envs.ConfoundedWrapper."
        )


class EpisodeBatch(VectorEnv):
    """Confounded environments stepped together, one episode each, so that one call of a policy serves them all.

    An episode that has ended stays as it is, with reward 0, until ``reset``: missing steps count nothing, as in the
    evaluation protocol. ``running`` says which episodes go on.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 (Gymnasium's own spelling)

    def __init__(self, envs: Sequence[gymnasium.Env]):
        if not envs:
            raise DataError("a batch needs at least one environment, got none.")
        for env in envs:
            check_confounded(env)
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.running = np.zeros(self.num_envs, bool)
        space: Any = self.observation_space
        self._obs = np.zeros(space.shape, space.dtype)
        self._infos: list[dict[str, Any]] = [{} for _ in self.envs]

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None):
        """Start all episodes, or those of ``options["reset_mask"]``.

        An integer seed s gives environment i the seed s + i; other options go to the environments.
        """
        seeds, starting = read_reset(seed, options, self.num_envs, is_first=not all(self._infos))
        others = {name: value for name, value in (options or {}).items() if name != "reset_mask"} or None
        for i in np.flatnonzero(starting):
            self._obs[i], self._infos[i] = self.envs[i].reset(seed=seeds[i], options=others)
        self.running |= starting
        return self._obs.copy(), self._stacked()

    def step(self, actions: np.ndarray):
        """One step of every running episode; ``actions`` (n, action)."""
        check_started(all(self._infos))
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for i in np.flatnonzero(self.running):
            self._obs[i], rewards[i], terminated[i], truncated[i], self._infos[i] = self.envs[i].step(actions[i])
        self.running &= ~(terminated | truncated)
        return self._obs.copy(), rewards, terminated, truncated, self._stacked()

    def demonstrate(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """:meth:`Demonstrable.demonstrate` of every environment: recorded and executed actions (n, action)."""
        pairs = [env.get_wrapper_attr("demonstrate")(a) for env, a in zip(self.envs, actions, strict=True)]
        return np.stack([recorded for recorded, _ in pairs]), np.stack([executed for _, executed in pairs])

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def _stacked(self) -> dict[str, Any]:
        # Numbers that every environment reports; one may say more than the others, or say it later.
        numbers = [name for name in self._infos[0] if all(isinstance(info.get(name), float) for info in self._infos)]
        return {
            "hidden": {name: np.array([info["hidden"][name] for info in self._infos]) for name in ("u_o", "u_e")},
            "expert_obs": np.stack([info["expert_obs"] for info in self._infos]),
            **{name: np.array([info[name] for info in self._infos]) for name in numbers},
        }
