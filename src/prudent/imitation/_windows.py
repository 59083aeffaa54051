"""History windows: the last steps before every action, episode by episode."""

import dataclasses
from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.lib.stride_tricks import sliding_window_view

from prudent._checks import check_count
from prudent.imitation._trajectory import Trajectory, check_trajectories


@dataclasses.dataclass(frozen=True, eq=False)
class Windows:
    """One row per action a_t: the steps t - length + 1 .. t, oldest first.

    ``actions[:, -1]`` is a_t itself, the target; all earlier ones are history. ``is_real`` is False where a step before
    the episode was filled in: the first state repeated, with zero actions.
    """

    states: Float[np.ndarray, "n length d"]
    actions: Float[np.ndarray, "n length a"]
    is_real: Bool[np.ndarray, "n length"]
    episode: Int[np.ndarray, " n"]
    step: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.states)

    def take(self, rows: np.ndarray) -> "Windows":
        """Some of the rows."""
        return Windows(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    @property
    def complete(self) -> "Windows":
        """The rows in which no step was filled in."""
        return self.take(np.flatnonzero(self.is_real.all(axis=1)))


def history_windows(trajectories: Iterable[Trajectory], length: int) -> Windows:
    """Windows of ``length`` steps that end at every action; none crosses an episode."""
    found = check_trajectories(trajectories)
    check_count("length of a window", length, 1)
    states, actions, real = [], [], []
    for t in found:
        before = length - 1
        padded_states = np.concatenate([np.repeat(t.observations[:1], before, axis=0), t.observations[:-1]])
        padded_actions = np.concatenate([np.zeros((before, t.actions.shape[1])), t.actions])
        is_real = np.concatenate([np.zeros(before, bool), np.ones(len(t), bool)])
        states.append(sliding_window_view(padded_states, length, axis=0).swapaxes(1, 2))
        actions.append(sliding_window_view(padded_actions, length, axis=0).swapaxes(1, 2))
        real.append(sliding_window_view(is_real, length))
    return Windows(
        np.concatenate(states),
        np.concatenate(actions),
        np.concatenate(real),
        np.repeat(np.arange(len(found)), [len(t) for t in found]),
        np.concatenate([np.arange(len(t)) for t in found]),
    )


@dataclasses.dataclass(frozen=True)
class View:
    """Which part of a window a function sees, as columns: steps ``newest .. newest + n_states - 1`` back from t.

    ``relative`` columns of the state (an odometer) enter as differences to the step before, as their level means
    nothing. ``n_actions`` past actions follow, a_{t-1} first; an instrument that starts at ``newest`` > 0 may count
    from a_{t-newest}, which belongs to its newest step.
    """

    n_states: int
    n_actions: int = 0
    newest: int = 0
    relative: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Steps that a window needs."""
        back = self.newest + self.n_states + (1 if self.relative else 0)
        first_action = max(self.newest, 1)
        return max(back, first_action + self.n_actions, 1)

    def width(self, n_observed: int, n_acted: int) -> int:
        """Number of columns."""
        return self.n_states * n_observed + self.n_actions * n_acted

    def is_history(self, horizon: int, n_observed: int, n_acted: int) -> Bool[np.ndarray, " columns"]:
        """Which columns belong to steps up to t - ``horizon``."""
        lags = np.repeat(np.arange(self.newest, self.newest + self.n_states), n_observed)
        first = max(self.newest, 1)
        return np.concatenate([lags, np.repeat(np.arange(first, first + self.n_actions), n_acted)]) >= horizon

    def columns(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """(n, columns) from states (n, length, d) and actions (n, length, a), both ending at t; newest first."""
        n, length, _ = states.shape
        parts = []
        for lag in range(self.newest, self.newest + self.n_states):
            state = states[:, length - 1 - lag]
            if self.relative:
                state = state.copy()
                earlier = states[:, max(length - 2 - lag, 0)]
                state[:, self.relative] -= earlier[:, self.relative]
            parts.append(state)
        first = max(self.newest, 1)
        parts.extend(actions[:, length - 1 - lag] for lag in range(first, first + self.n_actions))
        return np.concatenate(parts, axis=1) if parts else np.zeros((n, 0))


def instrument_columns(windows: Windows, view: View) -> np.ndarray:
    """The history up to t - k, where k is ``view.newest``, in all rows; the first k of an episode have none.

    There a padded window would end with s_0, which carries their noise. Instead every column has its mean, and one more
    column, min(t, k), which no noise enters, tells these rows apart.
    """
    c = view.columns(windows.states, windows.actions)
    is_early = windows.step < view.newest
    if not is_early.any():
        return c
    c[is_early] = column_means(c[~is_early])
    return np.column_stack([c, np.minimum(windows.step, view.newest)])


def column_means(columns: np.ndarray) -> np.ndarray:
    """Means one by one: equal columns of two tables have equal means to the last bit, and constants stay constant."""
    return np.array([c[0] if np.ptp(c) == 0 else c.mean() for c in map(np.ascontiguousarray, columns.T)])
