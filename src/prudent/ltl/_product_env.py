"""A Gymnasium wrapper that runs any environment as a product with an automaton, for other people's agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from prudent.ltl._automaton import Automaton
from prudent.ltl._product import Goal, as_automaton, degeneralise, thin_acceptance
from prudent.ltl._rewards import reward_table

LabelFunction = Callable[[Any], Iterable[str]]


class ProductEnv(gymnasium.Wrapper, RecordConstructorArgs):
    """Product of an environment and the automaton of an LTL goal, with K-counter rewards.

    Observations are dictionaries: ``observation`` of the environment and ``automaton``, the automaton's state. With a
    discrete action space the epsilon moves are extra actions ``n``, ``n + 1``, ...: the environment does not move, no
    time passes. With another action space an action is a dictionary: ``action``, and ``epsilon``: 0 for none, or the
    number of the epsilon move to take first. An epsilon move that does not exist in the present state does nothing;
    ``info["action_mask"]`` says which exist.

    The reward is R_n on an accepting transition and 0 otherwise; ``info`` has ``accepting``, ``counter``, ``labels``
    (of the state that was left) and ``discount``: 1 - R_n on an accepting transition, ``gamma`` otherwise. Where the
    environment terminates, ``info["satisfied"]`` says whether the goal holds if the last state's labels stay for
    ever.

    Parameters
    ----------
    env : gymnasium.Env
    label_function : callable
        Propositions that are true in an observation of ``env``.
    goal : str, Formula or Automaton
    U, gamma, K, reward
        As for ``ltl.learn``.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        label_function: LabelFunction,
        goal: Goal,
        *,
        U: float = 0.1,
        gamma: float = 0.99,
        K: int = 10,
        reward: str = "linear",
    ):
        RecordConstructorArgs.__init__(
            self,
            label_function=label_function,
            goal=goal,
            U=U,
            gamma=gamma,
            K=K,
            reward=reward,
            _disable_deepcopy=True,
        )
        gymnasium.Wrapper.__init__(self, env)
        self.label_function = label_function
        self.automaton: Automaton = thin_acceptance(degeneralise(as_automaton(goal)))
        self.gamma = gamma
        self._rewards = reward_table(reward, U, K)
        self._moves = [self.automaton.epsilon(q) for q in range(self.automaton.n_states)]
        self.n_epsilon = max(len(targets) for targets in self._moves)
        self.observation_space = spaces.Dict(
            {"observation": env.observation_space, "automaton": spaces.Discrete(self.automaton.n_states)}
        )
        self._is_discrete = isinstance(env.action_space, spaces.Discrete)
        if isinstance(env.action_space, spaces.Discrete):
            space = env.action_space
            self._first_epsilon = int(space.start + space.n)
            self.action_space = spaces.Discrete(int(space.n) + self.n_epsilon, start=int(space.start))
        elif self.n_epsilon:
            self.action_space = spaces.Dict(
                {"action": env.action_space, "epsilon": spaces.Discrete(self.n_epsilon + 1)}
            )
        self._q = self.automaton.initial
        self._counter = 0
        self._observation: Any = None

    @property
    def automaton_state(self) -> int:
        return self._q

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._observation, info = self.env.reset(seed=seed, options=options)
        self._q, self._counter = self.automaton.initial, 0
        return self._joint(), info | {"action_mask": self._mask()}

    def step(self, action: Any):
        if self._is_discrete:
            number = int(action) - self._first_epsilon
            if number >= 0:
                self._jump(number)
                return self._joint(), 0.0, False, False, self._info(False, self.gamma, frozenset())
        elif self.n_epsilon:
            if action["epsilon"] > 0:
                self._jump(int(action["epsilon"]) - 1)
            action = action["action"]
        labels = frozenset(self.label_function(self._observation))
        self._observation, _, terminated, truncated, info = self.env.step(action)
        self._q, sets = self.automaton.step(self._q, labels)
        reward = 0.0
        if sets:
            reward = float(self._rewards[self._counter])
            self._counter = min(self._counter + 1, len(self._rewards) - 1)
        info = info | self._info(bool(sets), 1.0 - reward if sets else self.gamma, labels)
        if terminated:
            info["satisfied"] = self._accepts_for_ever(frozenset(self.label_function(self._observation)))
        return self._joint(), reward, terminated, truncated, info

    def _jump(self, number: int) -> None:
        if number < len(self._moves[self._q]):
            self._q = self._moves[self._q][number]

    def _joint(self) -> dict[str, Any]:
        return {"observation": self._observation, "automaton": np.int64(self._q)}

    def _mask(self) -> np.ndarray:
        """Which epsilon moves exist (after the environment's actions, which are always allowed)."""
        exists = np.arange(self.n_epsilon) < len(self._moves[self._q])
        n_actions = int(self.env.action_space.n) if isinstance(self.env.action_space, spaces.Discrete) else 1
        return np.concatenate([np.ones(n_actions, np.int8), exists.astype(np.int8)])

    def _info(self, accepting: bool, discount: float, labels: frozenset[str]) -> dict[str, Any]:
        return {
            "accepting": accepting,
            "counter": self._counter,
            "labels": labels,
            "discount": discount,
            "action_mask": self._mask(),
        }

    def _accepts_for_ever(self, labels: frozenset[str]) -> bool:
        """Whether the automaton accepts from here if ``labels`` hold for ever."""
        starts, seen = [self._q], {self._q}
        for q in starts:
            for target in [self.automaton.step(q, labels)[0], *self._moves[q]]:
                if target not in seen:
                    seen.add(target)
                    starts.append(target)
        # Reading one letter is deterministic, so that acceptance is an accepting edge on the cycle that a state runs
        # into.
        for start in starts:
            q = start
            for _ in range(self.automaton.n_states):
                q = self.automaton.step(q, labels)[0]
            cycle, accepted = q, False
            while True:
                q, sets = self.automaton.step(q, labels)
                accepted |= bool(sets)
                if q == cycle:
                    break
            if accepted:
                return True
        return False
