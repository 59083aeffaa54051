"""Policies that choose the action with the best estimated effect, and their value."""

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent.errors import DataError

if TYPE_CHECKING:
    from prudent.iv._regression import IVRegression

GRID_POINTS = 101
REFINEMENTS = 2
MAX_CELLS = 2_000_000


@dataclasses.dataclass(frozen=True)
class PolicyValue:
    """Mean estimated outcome under a policy; the standard error is over contexts, not over the estimate of f."""

    value: float
    standard_error: float
    n_contexts: int

    @classmethod
    def of(cls, values: np.ndarray) -> "PolicyValue":
        """From one value per context."""
        error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
        return cls(float(values.mean()), error, len(values))

    def __str__(self) -> str:
        return f"{self.value:.4g} (spread over {self.n_contexts} contexts: standard error {self.standard_error:.2g})"


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """argmax (or argmin) of the estimated effect, over a list of candidates or an interval."""

    model: "IVRegression"
    candidates: np.ndarray
    labels: tuple[Any, ...] | None
    is_interval: bool
    outcome: int
    minimise: bool

    @classmethod
    def over(cls, model: "IVRegression", actions: Any, *, outcome: int, minimise: bool) -> "Policy":
        """See :meth:`prudent.IVRegression.policy`."""
        role = model.roles_["action"]
        n_outcomes = model.roles_["outcome"].width
        if not 0 <= outcome < n_outcomes:
            raise DataError(f"outcome must be in 0..{n_outcomes - 1}, got {outcome}.")
        if actions is None:
            if role.is_categorical:
                actions = list(role.columns[0].levels or ())
            elif all(column.levels is not None for column in role.columns):
                actions = list(itertools.product(*(column.levels or () for column in role.columns)))
            elif role.categorical_positions:
                raise DataError("The action mixes kinds of columns: give a list of candidates, actions=[[...], ...].")
            elif model.diagnosis_.action_levels is not None:
                actions = model.diagnosis_.levels_as_actions()
            elif role.width == 1:
                actions = tuple(float(v) for v in model.action_range_[:, 0])
            else:
                raise DataError(
                    f"The action has {role.width} columns: give a list of candidate actions, actions=[[...], ...]."
                )
        if isinstance(actions, tuple) and len(actions) == 2 and not role.is_categorical and role.width == 1:
            low, high = (float(v) for v in actions)
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise DataError(f"An action range must be (low, high) with low < high, got {actions}.")
            grid = np.linspace(low, high, GRID_POINTS)[:, None]
            return cls(model, grid, None, True, outcome, minimise)
        actions = list(actions)
        if not actions:
            raise DataError("actions must name at least one candidate, got an empty list.")
        labels = tuple(actions) if role.categorical_positions else None
        return cls(model, role.encode(actions), labels, False, outcome, minimise)

    def __repr__(self) -> str:
        verb = "least" if self.minimise else "greatest"
        names = ", ".join(self.model.roles_["action"].names)
        among = f"among {len(self.candidates)} candidates"
        if self.is_interval:
            among = f"in [{self.candidates[0, 0]:g}, {self.candidates[-1, 0]:g}]"
        return f"Policy: {names} {among}, {verb} effect; use .act(context)"

    def act(self, context: Any = None) -> np.ndarray:
        """The chosen action for every context: (n,) for a scalar or categorical action, else (n, columns)."""
        contexts = self.model._contexts(context)
        block = max(1, MAX_CELLS // len(self.candidates))
        chosen = [self._best(contexts[start : start + block]) for start in range(0, len(contexts), block)]
        best = np.concatenate(chosen)
        if self.labels is not None:
            one_column = len(self.model.roles_["action"].columns) == 1
            return np.array([self.labels[k] for k in best], dtype=None if one_column else object)
        if self.is_interval:
            return best
        actions = self.candidates[best]
        return actions[:, 0] if actions.shape[1] == 1 else actions

    def _scores(self, actions: np.ndarray, contexts: np.ndarray) -> np.ndarray:
        """Scores (contexts, actions) of ``actions`` (contexts, actions, columns)."""
        n, m, d = actions.shape
        rows = np.hstack([actions.reshape(n * m, d), np.repeat(contexts, m, axis=0)])
        values = self.model.estimator_.predict(rows)[:, self.outcome].reshape(n, m)
        return -values if self.minimise else values

    def _best(self, contexts: np.ndarray) -> np.ndarray:
        n = len(contexts)
        everywhere = np.broadcast_to(self.candidates, (n, *self.candidates.shape))
        best = np.argmax(self._scores(everywhere, contexts), axis=1)
        if not self.is_interval:
            return best
        low, high = self.candidates[0, 0], self.candidates[-1, 0]
        centre, width = self.candidates[best, 0], self.candidates[1, 0] - low
        for _ in range(REFINEMENTS):
            near = np.clip(centre[:, None] + width * np.linspace(-1, 1, 21), low, high)
            inner = np.argmax(self._scores(near[:, :, None], contexts), axis=1)
            centre, width = near[np.arange(n), inner], width / 10
        return centre
