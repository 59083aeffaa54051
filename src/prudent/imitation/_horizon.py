"""Help for choosing the noise horizon k."""

import dataclasses
from typing import Any

import numpy as np

from prudent._checks import check_count
from prudent.cmr._base import check_seed, regress_out_of_fold
from prudent.errors import DataError
from prudent.imitation._base import Imitator, check_relative
from prudent.imitation._trajectory import check_trajectories
from prudent.imitation._windows import View, Windows, history_windows

MAX_ROWS = 2000
# Lags at the end that must show a level: so many, or a quarter of all.
MIN_TAIL = 4
# Share of the state below which the history explains too little to be worth much.
FAINT = 0.02


@dataclasses.dataclass(frozen=True)
class HorizonReport:
    """Per candidate k: how strong the history up to t - k is, and how much residual action noise is left at lag k.

    ``strength`` is the share of the variance of the state s_t (mean over its columns) that the history up to t - k
    explains out of fold; ``autocorrelation`` is that of the residual action, with standard errors by episode.
    ``suggested`` is None where the autocorrelation still changes at the last lags.

    Assumptions. The noise is a moving average, so that its autocorrelation ends at the horizon; it is additive in the
    action; the residual is mostly noise. What only the expert sees and changes slowly keeps the autocorrelation up
    beyond the horizon: then look for where it stops falling steeply. A correlation within its standard error, as just
    before the end of a long horizon, is not seen: add a margin. No data can prove that a history is a valid instrument;
    an upper bound of k is safe, and costs strength.
    """

    horizon: tuple[int, ...]
    strength: tuple[float, ...]
    autocorrelation: tuple[float, ...]
    standard_error: tuple[float, ...]
    suggested: int | None
    has_model: bool = True
    """Whether the residual is that of a model; else it holds some of the expert's own variation."""

    @property
    def advice(self) -> str:
        """The suggestion in words."""
        if self.suggested is None:
            return (
                f"no horizon found up to {self.horizon[-1]}: the correlation of the residual has not come to a level. "
                "Raise max_horizon."
            )
        words = f"suggested: k = {self.suggested}, if the noise is a moving average; a larger k is safe but weaker"
        strength = self.strength[self.suggested - 1]
        if strength < FAINT:
            words += f". At this k the history hardly moves the state (strength {strength:.3f}): expect little of a fit"
        if not self.has_model:
            words += (
                ". Without a model the expert's own slow variation counts as noise, and k comes out too large: fit "
                "with this k, then ask again with that model"
            )
        return words

    def rows(self) -> list[list[Any]]:
        """A table: k, strength, autocorrelation, standard error."""
        return [
            list(row)
            for row in zip(self.horizon, self.strength, self.autocorrelation, self.standard_error, strict=True)
        ]

    def __str__(self) -> str:
        lines = [f"{'k':>4}{'strength':>10}{'autocorrelation':>17}{'(se)':>8}"]
        lines += [f"{k:4d}{s:10.3f}{r:17.3f}{e:8.3f}" for k, s, r, e in self.rows()]
        return "\n".join([*lines, f"{self.advice} (see help(HorizonReport) for the assumptions)"])


def suggest_horizon(
    trajectories: Any,
    *,
    max_horizon: int = 20,
    model: Imitator | None = None,
    relative: tuple[int, ...] | None = None,
    seed: int = 0,
) -> HorizonReport:
    """Instrument strength and residual autocorrelation for k = 1 .. ``max_horizon``.

    The residual is a_t less the prediction of ``model``, a policy fitted with a generous horizon; without one it is a_t
    less its out-of-fold regression on the history at ``max_horizon`` and before, which no noise of t enters. (That
    holds some of the policy's own variation, too: a model sees the noise more clearly.)
    ``relative`` columns of the observation enter as differences, by default those of the model.

    The suggestion is the first k at which the autocorrelation is within two standard errors of the level that it keeps
    over the last quarter of the lags (four at least); there is none if it still falls or rises there.
    """
    check_seed(seed)
    check_count("max_horizon", max_horizon, MIN_TAIL)
    found = check_trajectories(trajectories)
    if model is not None and not isinstance(model, Imitator):
        raise DataError(f"model must be a fitted imitator such as CausalImitation, got {type(model).__name__}.")
    own = () if model is None else tuple(model.relative)
    check_relative(own if relative is None else relative, found[0].observations.shape[1])
    if model is not None and relative is not None and tuple(relative) != own:
        raise DataError(f"relative={tuple(relative)} is not that of the model, {own}. Leave it out.")
    relative = own if relative is None else relative
    length = View(3, 3, newest=max_horizon, relative=tuple(relative)).length
    if model is not None:
        length = max(length, model.policy_view.length)
    # Autocorrelations of an episode need more rows than lags.
    long_enough = [t for t in found if len(t) >= length + max_horizon]
    if len(long_enough) < 4:
        raise DataError(
            f"max_horizon={max_horizon} needs four episodes of at least {length + max_horizon} steps for standard "
            f"errors, got {len(long_enough)}. Lower it, or bring more or longer episodes."
        )
    windows = history_windows(long_enough, length).complete
    if not np.ptp(windows.states, axis=(0, 1)).any():
        raise DataError("observations never vary, so that no history moves the state. Bring what the expert sees.")
    per_episode = _autocorrelations(_residual(windows, max_horizon, model, relative, seed), windows, max_horizon)
    correlation, error = _mean_and_error(per_episode)
    return HorizonReport(
        tuple(range(1, max_horizon + 1)),
        tuple(_strengths(windows, max_horizon, relative, seed)),
        tuple(float(v) for v in correlation),
        tuple(float(v) for v in error),
        _first_flat(per_episode),
        model is not None,
    )


def _strengths(windows: Windows, max_horizon: int, relative: tuple[int, ...], seed: int) -> list[float]:
    """Share of the variance of the state that the history up to t - k explains, for every k."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(windows))[:MAX_ROWS])
    sample = windows.take(rows)
    s = View(1, relative=tuple(relative)).columns(sample.states, sample.actions)
    s = s[:, np.ptp(s, axis=0) > 0]
    shares = []
    for k in range(1, max_horizon + 1):
        c = View(3, 3, newest=k, relative=tuple(relative)).columns(sample.states, sample.actions)
        fitted = regress_out_of_fold(s, c, seed=seed, groups=sample.episode)
        shares.append(float(np.mean(1 - ((s - fitted) ** 2).mean(axis=0) / s.var(axis=0))) if s.size else 0.0)
    return shares


def _residual(
    windows: Windows, max_horizon: int, model: Imitator | None, relative: tuple[int, ...], seed: int
) -> np.ndarray:
    """Recorded actions less what a policy, or the history at ``max_horizon``, says of them; columns that vary."""
    actions = windows.actions[:, -1]
    varies = np.ptp(actions, axis=0) > 0
    if not varies.any():
        raise DataError("actions never vary, so that there is no noise to look at. Bring recorded actions.")
    if model is not None:
        residual = (actions - model.predict_windows(windows))[:, varies]
    else:
        c = View(3, 3, newest=max_horizon, relative=tuple(relative)).columns(windows.states, windows.actions)
        residual = actions[:, varies]
        residual = residual - regress_out_of_fold(residual, c, seed=seed, groups=windows.episode)
    if np.any(np.ptp(residual, axis=0) == 0):
        raise DataError("the model explains the actions exactly, so that there is no noise. Any horizon does.")
    return residual


def _autocorrelations(residual: np.ndarray, windows: Windows, max_lag: int) -> np.ndarray:
    """Autocorrelation at lags 1 .. max_lag, averaged over columns, of every episode (episodes, lags)."""
    residual = residual - residual.mean(axis=0)
    scale = residual.var(axis=0)
    # Complete windows of an episode stand one after the other, in order.
    episodes = np.split(residual, np.flatnonzero(np.diff(windows.episode)) + 1)
    return np.array([[np.mean(e[lag:] * e[:-lag] / scale) for lag in range(1, max_lag + 1)] for e in episodes])


def _mean_and_error(per_episode: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return per_episode.mean(axis=0), per_episode.std(axis=0, ddof=1) / len(per_episode) ** 0.5


def _first_flat(per_episode: np.ndarray) -> int | None:
    """The first lag at the level that the autocorrelation has at last; None while it is still on its way there."""
    n_tail = max(MIN_TAIL, per_episode.shape[1] // 4)
    tail = per_episode[:, -n_tail:]
    lags = np.arange(n_tail) - (n_tail - 1) / 2
    slope, slope_error = _mean_and_error(tail @ lags / (lags @ lags))
    if abs(slope) > 2 * slope_error:
        return None
    correlation, error = _mean_and_error(per_episode)
    close = np.abs(correlation - tail.mean()) <= 2 * error
    return int(np.argmax(close)) + 1 if close.any() else None
