"""Help for choosing the noise horizon k."""

import dataclasses
from typing import Any

import numpy as np

from prudent.cmr._base import check_seed, regress_out_of_fold
from prudent.errors import DataError
from prudent.imitation._base import Imitator, check_count
from prudent.imitation._trajectory import check_trajectories
from prudent.imitation._windows import View, history_windows

MAX_ROWS = 4000


@dataclasses.dataclass(frozen=True)
class HorizonReport:
    """Per candidate k: how strong the history up to t - k is, and how much residual action noise is left at lag k.

    ``strength`` is the share of the variance of the state s_t (mean over its columns) that the history up to t - k
    explains out of fold; ``autocorrelation`` is that of the residual action, with standard errors by episode.

    Assumptions. The noise is a moving average, so that its autocorrelation ends at the horizon; it is additive in the
    action; the residual is mostly noise. What only the expert sees and changes slowly keeps the autocorrelation up
    beyond the horizon: then look for where it stops falling steeply. No data can prove that a history is a valid
    instrument; an upper bound of k is safe, and costs strength.
    """

    horizon: tuple[int, ...]
    strength: tuple[float, ...]
    autocorrelation: tuple[float, ...]
    standard_error: tuple[float, ...]
    suggested: int

    def rows(self) -> list[list[Any]]:
        """A table: k, strength, autocorrelation, standard error."""
        return [
            list(row)
            for row in zip(self.horizon, self.strength, self.autocorrelation, self.standard_error, strict=True)
        ]

    def __str__(self) -> str:
        lines = [f"{'k':>4}{'strength':>10}{'autocorrelation':>17}{'(se)':>8}"]
        lines += [f"{k:4d}{s:10.3f}{r:17.3f}{e:8.3f}" for k, s, r, e in self.rows()]
        return "\n".join([*lines, f"suggested: k = {self.suggested} (see help(HorizonReport) for the assumptions)"])


def suggest_horizon(
    trajectories: Any, *, max_horizon: int = 20, model: Imitator | None = None, seed: int = 0
) -> HorizonReport:
    """Instrument strength and residual autocorrelation for k = 1 .. ``max_horizon``.

    The residual is a_t less the prediction of ``model``, a policy fitted with a generous horizon; without one it is a_t
    less its out-of-fold regression on the history at ``max_horizon`` and before, which no noise of t enters.

    The suggestion is the first k at which the autocorrelation is within two standard errors of the level that it keeps
    over the last quarter of the lags.
    """
    check_seed(seed)
    check_count("max_horizon", max_horizon, 2)
    found = check_trajectories(trajectories)
    if len(found) < 4:
        raise DataError(f"standard errors need at least four episodes, got {len(found)}.")
    length = max(max_horizon + 3, 1 if model is None else model.view_.length)
    windows = history_windows(found, length).complete
    if len(np.unique(windows.episode)) < 4:
        raise DataError(f"max_horizon={max_horizon} needs four episodes of at least {length} steps. Lower it.")
    rng = np.random.default_rng(seed)
    some = np.sort(rng.permutation(len(windows))[:MAX_ROWS])
    sample = windows.take(some)
    strengths = []
    for k in range(1, max_horizon + 1):
        c = View(3, 3, newest=k).columns(sample.states, sample.actions)
        s = sample.states[:, -1]
        fitted = regress_out_of_fold(s, c, seed=seed, groups=sample.episode)
        strengths.append(float(np.mean(1 - ((s - fitted) ** 2).mean(axis=0) / np.maximum(s.var(axis=0), 1e-300))))
    if model is None:
        c = View(3, 3, newest=max_horizon).columns(windows.states, windows.actions)
        residual = windows.actions[:, -1] - regress_out_of_fold(
            windows.actions[:, -1], c, seed=seed, groups=windows.episode
        )
    else:
        residual = windows.actions[:, -1] - model.predict_windows(windows)
    correlation, error = _autocorrelation(residual, windows.episode, windows.step, max_horizon)
    tail = correlation[-max(1, max_horizon // 4) :].mean()
    close = np.abs(correlation - tail) <= 2 * error
    suggested = int(np.argmax(close)) + 1 if close.any() else max_horizon
    return HorizonReport(
        tuple(range(1, max_horizon + 1)),
        tuple(strengths),
        tuple(float(v) for v in correlation),
        tuple(float(v) for v in error),
        suggested,
    )


def _autocorrelation(
    residual: np.ndarray, episode: np.ndarray, step: np.ndarray, max_lag: int
) -> tuple[np.ndarray, np.ndarray]:
    """Autocorrelation at lags 1 .. max_lag, averaged over columns, with standard errors over episodes."""
    residual = residual - residual.mean(axis=0)
    scale = residual.var(axis=0)
    per_episode = []
    for number in np.unique(episode):
        e = residual[episode == number][np.argsort(step[episode == number])]
        if len(e) > max_lag:
            per_episode.append([np.mean(e[lag:] * e[:-lag] / scale) for lag in range(1, max_lag + 1)])
    values = np.array(per_episode)
    return values.mean(axis=0), values.std(axis=0, ddof=1) / len(values) ** 0.5
