"""Learnt policies as agents: they keep the history that they need."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box

from prudent.errors import DataError
from prudent.imitation._windows import View

if TYPE_CHECKING:
    from prudent.imitation._base import Imitator


class HistoryPolicy:
    """Acts on one observation (d,) or on a batch (n, d) of episodes that run side by side.

    The history of an episode starts at its first observation, which stands for the steps before it, with zero actions;
    ``reset`` starts new episodes. With an ``action_space``, that of one episode or of the batch, actions are clipped.
    """

    def __init__(
        self,
        model: "Imitator",
        view: View,
        action_space: Any = None,
        *,
        columns: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None,
    ):
        self.model = model
        self._predict: Callable[[np.ndarray], np.ndarray] = model.predict
        self._view = view
        # From states, actions and the numbers of the steps.
        self._columns = columns or (lambda states, actions, step: view.columns(states, actions))
        self._space = action_space
        acted = model.n_acted_
        if action_space is not None and not (isinstance(action_space, Box) and action_space.shape[-1:] == (acted,)):
            raise DataError(
                f"action_space must be a Box of {acted} numbers as in the demonstrations, got {action_space}. Give "
                "env.action_space, or leave it out."
            )
        self.reset()

    def __repr__(self) -> str:
        clips = "" if self._space is None else ", clips its actions"
        return f"HistoryPolicy of {self.model!r}: sees {self._view.n_states} states{clips}"

    def reset(self, mask: Any = None) -> "HistoryPolicy":
        """Forget the history: the next observation begins an episode, in all rows or in those of ``mask`` (n,)."""
        if mask is None:
            self._states: np.ndarray | None = None
            self._actions: np.ndarray | None = None
        elif self._states is not None:
            mask, n = np.asarray(mask), len(self._states)
            if mask.dtype != bool or mask.shape != (n,):
                raise DataError(
                    f"mask must have one truth value for each of the {n} episodes, got {mask.dtype} of shape "
                    f"{mask.shape}. Give terminated | truncated."
                )
            self._is_new |= mask
        return self

    def act(self, observation: Any) -> np.ndarray:
        """The action for the observation that follows the last action, (a,) or (n, a)."""
        try:
            seen = np.asarray(observation, dtype=float)
        except (TypeError, ValueError):
            raise DataError(f"an observation must be an array of numbers, got {observation!r}.") from None
        if seen.ndim > 2:
            raise DataError(
                f"an observation must have shape (d,), a batch (n, d), got {seen.shape}. Give one step at a time."
            )
        is_single = seen.ndim < 2
        batch = seen.reshape(1, -1) if is_single else seen
        self._remember(batch)
        assert self._states is not None
        assert self._actions is not None
        action = self._predict(self._columns(self._states, self._actions, self._step))
        if self._space is not None:
            # The space of one episode, or that of the whole batch.
            low, high = (np.asarray(b).reshape(-1, action.shape[1]) for b in (self._space.low, self._space.high))
            action = np.clip(action, low, high)
        self._actions[:, -1] = action
        return action[0] if is_single else action

    __call__ = act

    def save(self, folder: str | Path) -> Path:
        """Save the model behind the policy; ``prudent.load(folder).policy(action_space)`` brings the policy back."""
        return self.model.save(folder)

    def _remember(self, batch: np.ndarray) -> None:
        n, width = batch.shape
        expected = self.model.n_observed_
        if width != expected:
            raise DataError(
                f"this policy was learnt from {expected} observed columns, got an observation of {width}. Is it the "
                "environment of the demonstrations?"
            )
        if not np.isfinite(batch).all():
            row, column = np.argwhere(~np.isfinite(batch))[0]
            where = f"column {column}" + (f" of row {row}" if n > 1 else "")
            raise DataError(f"observations must be finite, got {batch[row, column]} in {where} (counted from 0).")
        if self._states is None or self._actions is None:
            self._states = np.repeat(batch[:, None], self._view.length, axis=1)
            self._actions = np.zeros((n, self._view.length, self.model.n_acted_))
            self._is_new = np.zeros(n, bool)
            self._step = np.zeros(n, int)
            return
        if len(self._states) != n:
            raise DataError(f"the policy runs {len(self._states)} episodes, got {n} observations. Call reset() first.")
        self._states = np.concatenate([self._states[:, 1:], batch[:, None]], axis=1)
        self._actions = np.concatenate([self._actions[:, 1:], np.zeros_like(self._actions[:, :1])], axis=1)
        self._states[self._is_new] = batch[self._is_new, None]
        self._actions[self._is_new] = 0.0
        self._step = np.where(self._is_new, 0, self._step + 1)
        self._is_new[:] = False
