"""Ticket pricing: a pricing expert sees the seasonal demand u_o, nobody sees the cost fluctuation u_e.

- u_o,t is the mean of the last 30 draws from Unif[-1, 1]; u_e,t the mean of the last k draws from N(0, 0.1 sqrt(k));
- ``TicketPricing-v0``: s_{t+1} = sign(s_t) u_o,t - u_e,t+1, whatever is done (the equations of the thesis);
- ``TicketPricing-v1``: s_{t+1} = s_t + u_o,t a_t - u_e,t+1, a closed loop in which errors compound;
- expert: pi_E = clip(-s / u_o, -1, 1); a demonstration records a_t = pi_E + 10 u_e,t;
- reward: -(s_t + u_o,t a_t)^2 with a_t clipped to [-1, 1], which pi_E maximises; s_0 = 1.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from prudent._checks import check_count
from prudent.envs._checks import check_started
from prudent.envs._confounded import Demonstrable, checked_action, read_reset
from prudent.envs._noise import NoiseQueue

DEMAND_WINDOW = 30
COST_NOISE = 0.1
ACTION_NOISE = 10.0
FIRST_STATE = 1.0
# Draws that a batch makes at a time, per episode.
BLOCK = 512


def ticket_expert(expert_obs: np.ndarray) -> np.ndarray:
    """clip(-s / u_o, -1, 1) for expert observations (..., 2) = (s, u_o); 0 where u_o = 0."""
    expert_obs = np.asarray(expert_obs, dtype=float)
    s, u_o = expert_obs[..., :1], expert_obs[..., 1:]
    return np.clip(np.divide(-s, u_o, out=np.zeros_like(s), where=u_o != 0), -1.0, 1.0)


def _next_state(s: Any, u_o: Any, action: Any, u_e: Any, closed_loop: bool) -> Any:
    return (s + u_o * action if closed_loop else np.sign(s) * u_o) - u_e


def _draw_demand(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.uniform(-1.0, 1.0, n)


def _draw_cost(rng: np.random.Generator, n: int, horizon: int) -> np.ndarray:
    return rng.normal(0.0, COST_NOISE * horizon**0.5, n)


class TicketPricing(gymnasium.Env, Demonstrable):
    """One episode of ticket pricing.

    Parameters
    ----------
    closed_loop : bool, default=False
        Whether the price moves the state (``TicketPricing-v1``).
    noise_horizon : int, default=1
        Number of steps k over which u_e is correlated.
    noise : {"executed", "recorded"}, default="executed"
        Whether a demonstration executes the noised action, or only records it.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own spelling)
    action_noise = ACTION_NOISE
    expert = staticmethod(ticket_expert)

    def __init__(
        self,
        *,
        closed_loop: bool = False,
        noise_horizon: int = 1,
        noise: str = "executed",
        render_mode: str | None = None,
    ):
        self._set_noise(noise_horizon, noise)
        self.closed_loop, self.render_mode = bool(closed_loop), render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space: spaces.Box = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.expert_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self._demand = NoiseQueue(DEMAND_WINDOW, _draw_demand)
        self._cost = NoiseQueue(noise_horizon, lambda rng, n: _draw_cost(rng, n, noise_horizon))

    @property
    def u_o(self) -> float:
        """Seasonal demand, which the expert sees."""
        return self._demand.value

    @property
    def u_e(self) -> float:
        """Cost fluctuation, which nobody sees."""
        return self._cost.value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode at s = 1 with stationary noise."""
        super().reset(seed=seed)
        # A stream for each noise, so that a batch, which draws in blocks, sees the same episode.
        demand, cost = self.np_random.spawn(2)
        self._demand.reset(demand)
        self._cost.reset(cost)
        self._s = FIRST_STATE
        return np.array([self._s]), self._info()

    def step(self, action: np.ndarray):
        """Set the price; it is clipped to [-1, 1]."""
        check_started(hasattr(self, "_s"))
        price = float(checked_action(action, self.action_space)[0])
        reward = -((self._s + self.u_o * price) ** 2)
        u_o = self.u_o
        self._demand.advance()
        self._cost.advance()
        self._s = float(_next_state(self._s, u_o, price, self.u_e, self.closed_loop))
        return np.array([self._s]), reward, False, False, self._info()

    def _info(self) -> dict[str, Any]:
        return {"hidden": {"u_o": self.u_o, "u_e": self.u_e}, "expert_obs": np.array([self._s, self.u_o])}


class TicketPricingBatch(VectorEnv, Demonstrable):
    """Many episodes of :class:`TicketPricing` in one array; episode i is the one that the same seed gives there.

    The interface of :class:`prudent.envs.EpisodeBatch`: episodes do not restart by themselves.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 (Gymnasium's own spelling)
    action_noise = ACTION_NOISE
    expert = staticmethod(ticket_expert)

    def __init__(
        self,
        num_envs: int = 1,
        *,
        closed_loop: bool = False,
        noise_horizon: int = 1,
        noise: str = "executed",
        max_episode_steps: int | None = None,
    ):
        check_count("num_envs", num_envs, 1)
        self._set_noise(noise_horizon, noise)
        self.closed_loop, self.num_envs = bool(closed_loop), int(num_envs)
        self.max_episode_steps = max_episode_steps
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.single_action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._batch_actions = spaces.Box(-1.0, 1.0, (num_envs, 1), np.float32)
        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]
        self._streams: list[Any] = [None] * num_envs
        self.running = np.zeros(num_envs, bool)

    @property
    def u_o(self) -> np.ndarray:
        """Seasonal demand of every episode."""
        return self._demand[:, self._t : self._t + DEMAND_WINDOW].mean(axis=1)

    @property
    def u_e(self) -> np.ndarray:
        """Cost fluctuation of every episode."""
        return self._cost[:, self._t : self._t + self.noise_horizon].mean(axis=1)

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None):
        """Start all episodes, or those of ``options["reset_mask"]``; a seed s gives episode i the seed s + i."""
        seeds, starting = read_reset(seed, options, self.num_envs, is_first=None in self._streams)
        if starting.all():
            self._t = 0
            self._demand, self._cost = np.empty((2, self.num_envs, self._block))
            self._s, self._taken = np.empty(self.num_envs), np.empty(self.num_envs, int)
        for i in range(self.num_envs):
            if not starting[i]:
                continue
            if seeds[i] is not None:
                self._generators[i] = seeding.np_random(seeds[i])[0]
            self._streams[i] = self._generators[i].spawn(2)
            self._demand[i, self._t :], self._cost[i, self._t :] = self._draws(i, self._demand.shape[1] - self._t)
        self._s[starting], self._taken[starting] = FIRST_STATE, 0
        self.running |= starting
        return self._s[:, None].copy(), self._info()

    def step(self, actions: np.ndarray):
        """One step of every running episode; ``actions`` (n, 1), clipped to [-1, 1]."""
        check_started(hasattr(self, "_s"))
        price = checked_action(actions, self._batch_actions)[:, 0]
        u_o = self.u_o
        rewards = np.where(self.running, -((self._s + u_o * price) ** 2), 0.0)
        self._t += 1
        self._extend()
        moved = _next_state(self._s, u_o, price, self.u_e, self.closed_loop)
        self._s = np.where(self.running, moved, self._s)
        self._taken += 1
        ended = self.running & (self._taken == self.max_episode_steps)
        self.running &= ~ended
        return self._s[:, None].copy(), rewards, np.zeros(self.num_envs, bool), ended, self._info()

    def demonstrate(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What demonstrations record, and what they execute, when the expert wants ``action`` (n, 1) now."""
        clean = np.asarray(action, dtype=float)
        recorded = clean + self.action_noise * self.u_e[:, None]
        return recorded, np.clip(recorded if self.noise == "executed" else clean, -1.0, 1.0)

    def _extend(self) -> None:
        """More draws where the present step needs them; those of the past are dropped."""
        if self._t + max(DEMAND_WINDOW, self.noise_horizon) > self._demand.shape[1]:
            more = [self._draws(i, self._block) for i in range(self.num_envs)]
            self._demand = np.hstack([self._demand[:, self._t :], [demand for demand, _ in more]])
            self._cost = np.hstack([self._cost[:, self._t :], [cost for _, cost in more]])
            self._t = 0

    @property
    def _block(self) -> int:
        return BLOCK + max(DEMAND_WINDOW, self.noise_horizon)

    def _draws(self, i: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The next draws of demand and cost of episode ``i``."""
        demand, cost = self._streams[i]
        return _draw_demand(demand, count), _draw_cost(cost, count, self.noise_horizon)

    def _info(self) -> dict[str, Any]:
        hidden = {"u_o": self.u_o, "u_e": self.u_e}
        return {"hidden": hidden, "expert_obs": np.stack([self._s, hidden["u_o"]], axis=1)}
