"""What learning returns: policy, learning curve and the settings behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prudent.ltl._policy import Policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Settings:
    """Everything that decided a run, apart from model, goal and seed."""

    method: str
    steps: int
    reward: str
    U: float
    gamma: float
    discount_rewarded: bool
    K: int
    alpha: float
    epsilon: float
    zeta: float
    patience: int | None
    episode_length: int
    evaluate_every: int
    sufficient_gamma: float
    """The gamma that is enough for any model of this size; a smaller one may favour short paths over sure ones."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Exact satisfaction probability of the greedy policy during learning.

    For several runs ``probability`` is their mean and ``deviation`` their standard deviation.
    """

    steps: np.ndarray
    probability: np.ndarray
    deviation: np.ndarray | None = None

    @property
    def final(self) -> float:
        return float(self.probability[-1])

    def steps_to(self, threshold: float) -> int | None:
        """First evaluation from which the curve stays at or above ``threshold``; None if it ends below.

        >>> Curve(np.array([0, 10, 20, 30]), np.array([0.9, 0.2, 0.8, 0.8])).steps_to(0.8)
        20
        """
        below = np.flatnonzero(self.probability < threshold)
        if len(below) == 0:
            return int(self.steps[0])
        return int(self.steps[below[-1] + 1]) if below[-1] + 1 < len(self.steps) else None

    def first_at(self, threshold: float) -> int | None:
        """First evaluation at or above ``threshold``; None if there is none."""
        above = np.flatnonzero(self.probability >= threshold)
        return int(self.steps[above[0]]) if len(above) else None

    def plot(self, ax: Axes | None = None, label: str | None = None) -> Axes:
        """Draw the curve; the band is half a standard deviation, as in the thesis."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        (line,) = ax.plot(self.steps, self.probability, label=label)
        if self.deviation is not None:
            low, high = self.probability - self.deviation / 2, self.probability + self.deviation / 2
            ax.fill_between(self.steps, low, high, alpha=0.2, color=line.get_color())
        ax.set(xlabel="steps", ylabel="satisfaction probability", ylim=(-0.02, 1.02))
        if label:
            ax.legend()
        return ax


@dataclass(frozen=True, eq=False)
class LearningRun:
    """One run: the greedy policy at its end, and the curve that led there."""

    policy: Policy
    curve: Curve
    settings: Settings
    seed: int

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the learning curve."""
        return self.curve.plot(ax, self.settings.method)

    def __repr__(self) -> str:
        return (
            f"<{self.settings.method}, seed {self.seed}: probability {self.curve.final:.4f} "
            f"after {self.settings.steps:,} steps>"
        )


@dataclass(frozen=True, eq=False)
class LearningRuns:
    """Runs with the same settings and different seeds."""

    runs: tuple[LearningRun, ...]

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, i: int) -> LearningRun:
        return self.runs[i]

    @property
    def settings(self) -> Settings:
        return self.runs[0].settings

    @property
    def policy(self) -> Policy:
        """The policy of the run that ended best."""
        return max(self.runs, key=lambda run: run.curve.final).policy

    @property
    def curve(self) -> Curve:
        """Mean and standard deviation over the runs."""
        table = np.array([run.curve.probability for run in self.runs])
        return Curve(self.runs[0].curve.steps, table.mean(axis=0), table.std(axis=0))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the mean curve with a band of half a standard deviation."""
        return self.curve.plot(ax, f"{self.settings.method} ({len(self.runs)} runs)")

    def __repr__(self) -> str:
        return f"<{len(self.runs)} runs of {self.settings.method}: mean probability {self.curve.final:.4f}>"
