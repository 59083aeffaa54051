"""Policies that choose the action with the best estimated effect, and their value."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent.cmr._arrays import as_matrix
from prudent.errors import DataError

if TYPE_CHECKING:
    from prudent.iv._regression import IVRegression

GRID_POINTS = 101
REFINEMENTS = 2
# Numbers in one block of rows that are scored at a time (a quarter of a gigabyte).
MAX_NUMBERS = 32_000_000


def outcome_number(model: "IVRegression", outcome: Any) -> int:
    """The number of an outcome that is given by name or number."""
    names = model.roles_["outcome"].names
    if isinstance(outcome, str) and outcome in names:
        return names.index(outcome)
    if isinstance(outcome, bool) or not isinstance(outcome, int | np.integer) or not 0 <= outcome < len(names):
        raise DataError(f"outcome must be one of {names} or its number, in 0..{len(names) - 1}, got {outcome!r}.")
    return int(outcome)


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
    def over(cls, model: "IVRegression", actions: Any, *, outcome: int | str, minimise: bool) -> "Policy":
        """See :meth:`prudent.IVRegression.policy`."""
        role = model.roles_["action"]
        outcome = outcome_number(model, outcome)
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
        check_actions(actions)
        if isinstance(actions, tuple) and len(actions) == 2 and not role.is_categorical and role.width == 1:
            return cls(model, interval_grid(actions), None, True, outcome, minimise)
        actions = list(actions)
        if not actions:
            raise DataError("actions must name at least one candidate, got an empty list.")
        if len(role.columns) > 1 and all(np.ndim(action) == 0 for action in actions):
            raise DataError(
                f"An action has {len(role.columns)} columns here, got single values as candidates: {actions!r}. Give a "
                "list of actions, actions=[[...], ...]; a range (low, high) is for an action of one column."
            )
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
        return self.act_encoded(self.model._contexts(context))

    def act_encoded(self, contexts: np.ndarray) -> np.ndarray:
        """As :meth:`act`, for contexts as the estimator sees them."""
        best = best_actions(self._scores, self.candidates, contexts, refine=self.is_interval, compare=self._compare)
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

    def _compare(self, contexts: np.ndarray) -> np.ndarray:
        """Scores (contexts, candidates) of all candidates."""
        values = self.model.estimator_.pairs(self.candidates, contexts)[:, :, self.outcome].T
        return -values if self.minimise else values


def best_actions(
    score: Callable[[np.ndarray, np.ndarray], np.ndarray],
    candidates: np.ndarray,
    contexts: np.ndarray,
    *,
    refine: bool,
    compare: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """For every context the number of the best candidate; with ``refine`` the best action itself, on a finer grid.

    ``score`` maps actions (contexts, actions, columns) and contexts to values (contexts, actions); ``compare`` gives
    those of all candidates, where there is a faster way than to ask for them one by one. Refinement takes
    ``candidates`` as an even grid of a scalar action and looks again, twice, around the best point.
    """
    block = max(1, MAX_NUMBERS // (len(candidates) * (contexts.shape[1] + candidates.shape[1])))
    found = []
    for start in range(0, len(contexts), block):
        rows = contexts[start : start + block]
        n = len(rows)
        everywhere = np.broadcast_to(candidates, (n, *candidates.shape))
        best = np.argmax(score(everywhere, rows) if compare is None else compare(rows), axis=1)
        if not refine:
            found.append(best)
            continue
        low, high = candidates[0, 0], candidates[-1, 0]
        centre, width = candidates[best, 0], candidates[1, 0] - low
        for _ in range(REFINEMENTS):
            near = np.clip(centre[:, None] + width * np.linspace(-1, 1, 21), low, high)
            inner = np.argmax(score(near[:, :, None], rows), axis=1)
            centre, width = near[np.arange(n), inner], width / 10
        found.append(centre)
    return np.concatenate(found)


@dataclasses.dataclass(frozen=True)
class Suboptimality:
    """What a policy loses against the best one, per context on average; ``standard_error`` is over contexts."""

    value: float
    standard_error: float
    reward: float
    optimum: float
    n_contexts: int

    def __str__(self) -> str:
        loss = f"{self.value:.4g} (standard error {self.standard_error:.2g})"
        return f"{loss}: reward {self.reward:.4g} of {self.optimum:.4g}"


def suboptimality(policy: Any, truth: Any, context: Any, *, actions: Any) -> Suboptimality:
    """Loss of a policy against the best actions, judged by the true effect.

    Parameters
    ----------
    policy : object with ``act(context)``, or callable
        Gives one action for every context, or a single one for all.
    truth : callable or Design
        ``truth(action, context) -> (n,)``, or an object with such a method ``truth``.
    context : (n, columns) array
        Contexts to act in; they may lie outside the training data.
    actions : (low, high) tuple, or list of actions
        What the best policy may choose from, as in :meth:`prudent.IVRegression.policy`.
    """
    value = truth.truth if hasattr(truth, "truth") else truth
    if not callable(value):
        raise DataError(f"truth must be a Design or truth(action, context), got {value!r}.")
    if np.ndim(context) != 2 or len(context) == 0:
        raise DataError(f"context must be (n, columns) with at least one row, got shape {np.shape(context)}.")
    contexts = as_matrix("context", context)
    is_interval = isinstance(actions, tuple) and len(actions) == 2
    check_actions(actions)
    candidates = interval_grid(actions) if is_interval else as_matrix("actions", actions)

    def score(tried: np.ndarray, rows: np.ndarray) -> np.ndarray:
        n, m, d = tried.shape
        found = np.asarray(value(tried.reshape(n * m, d), np.repeat(rows, m, axis=0)), dtype=float)
        if not np.isfinite(found).all():
            raise DataError("truth must give finite numbers for every action and context, got NaN or infinity.")
        return found.reshape(n, m)

    best = best_actions(score, candidates, contexts, refine=is_interval)
    best = best[:, None] if is_interval else candidates[best]
    chosen = as_matrix("What the policy chooses", np.atleast_1d(act(policy, contexts)), cure="Mend the policy.")
    if len(chosen) == 1:
        # A policy of a model without context has only one action.
        chosen = np.repeat(chosen, len(contexts), axis=0)
    if len(chosen) != len(contexts):
        raise DataError(f"The policy must give one action per context ({len(contexts)}), got {len(chosen)}.")
    _check_chosen(chosen, candidates, is_interval)
    optimum = score(best[:, None, :], contexts)[:, 0]
    reward = score(chosen[:, None], contexts)[:, 0]
    loss = optimum - reward
    error = float(loss.std(ddof=1) / np.sqrt(len(loss))) if len(loss) > 1 else float("nan")
    return Suboptimality(float(loss.mean()), error, float(reward.mean()), float(optimum.mean()), len(contexts))


def act(policy: Any, contexts: np.ndarray) -> Any:
    """Actions of a policy (an object with ``act``, or a callable) in contexts."""
    chosen = policy.act if hasattr(policy, "act") else policy
    if not callable(chosen):
        raise DataError(f"policy must have act(context), or be a callable of contexts, got {policy!r}.")
    if isinstance(policy, Policy) and "context" not in policy.model.roles_:
        return policy.act()
    return chosen(contexts)


def _check_chosen(chosen: np.ndarray, candidates: np.ndarray, is_interval: bool) -> None:
    """Raise where a policy chose what the best policy may not choose: their difference would mean nothing."""
    if chosen.shape[1] != candidates.shape[1]:
        raise DataError(f"The policy must give actions of {candidates.shape[1]} columns, got {chosen.shape[1]}.")
    slack = 1e-6 * (1 + np.abs(candidates).max())
    if is_interval:
        is_allowed = (chosen >= candidates[0] - slack) & (chosen <= candidates[-1] + slack)
        allowed = f"outside [{candidates[0, 0]:g}, {candidates[-1, 0]:g}]"
    else:
        nearest = np.abs(chosen[:, None] - candidates).max(axis=2).min(axis=1)
        is_allowed, allowed = (nearest <= slack)[:, None], f"not among the {len(candidates)} actions"
    if not is_allowed.all():
        first = chosen[int(np.argmin(is_allowed.all(axis=1)))]
        raise DataError(f"The policy chose {first.tolist()}, {allowed}. Give both the same actions.")


def check_actions(actions: Any) -> None:
    """Raise unless ``actions`` is a range or a list of candidates, of whatever kind."""
    if isinstance(actions, str) or not np.iterable(actions):
        raise DataError(f"actions must be a range (low, high) or a list of candidates, got {actions!r}.")


def interval_grid(actions: tuple[Any, Any], n_points: int = GRID_POINTS) -> np.ndarray:
    """An even grid (n_points, 1) over a range of a scalar action."""
    try:
        low, high = (float(v) for v in actions)
    except (TypeError, ValueError):
        raise DataError(
            f"An action range must be two numbers (low, high), got {actions}. To choose among actions, give a list."
        ) from None
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise DataError(f"An action range must be (low, high) with low < high, got {actions}.")
    return np.linspace(low, high, n_points)[:, None]
