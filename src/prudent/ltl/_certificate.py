"""What certified learning returns: the certificate, the bounds on the way to it, and the policy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._policy import Policy
from prudent.ltl._run import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class CertifiedSettings:
    """Everything that decided a run, apart from environment, goal and seed."""

    confidence: float
    p_min: float
    epsilon: float
    gap: float
    resets: bool
    steps: int
    method: str = "certified"


@dataclass(frozen=True)
class Certificate:
    """Bounds that hold together with probability ``confidence``, at whatever step learning stopped.

    ``lower <= probability of the policy <= policy_upper <= upper`` and ``lower <= optimum <= upper``.
    """

    lower: float
    """No less than this is the policy's probability, and so the optimum. 0 until ``epsilon`` can be guaranteed."""
    upper: float
    """No policy has a larger probability."""
    policy_upper: float
    """The policy's own probability is no larger."""
    confidence: float
    epsilon: float
    p_min: float
    steps: int
    """Draws from the environment: moves and resets."""
    resets: int
    is_certified: bool
    """Whether the bounds are as narrow as was asked."""
    reason: str
    """Why learning stopped."""
    conflict: str | None = None
    """How the data contradict ``p_min``; the bounds are then 0 and 1."""
    first_state: str | None = None
    """For learning without resets: the state from which the probabilities are meant."""

    @property
    def assumption(self) -> str:
        """What the bounds rest on."""
        return (
            f"every transition that is possible at all, into a first state included, has probability {self.p_min:.10g} "
            "or more"
        )

    def __str__(self) -> str:
        if self.conflict is not None:
            return f"No guarantee after {self.steps:,} steps: {self.conflict}"
        if (self.lower, self.upper) == (0.0, 1.0):
            return f"Nothing is known after {self.steps:,} steps: the probability may be anything; {self.reason}."
        where = f", from state {self.first_state}" if self.first_state is not None else ""
        head = (
            f"With confidence {self.confidence:.4g}, if {self.assumption}: the policy satisfies the goal with "
            f"probability {_span(self.lower, self.policy_upper)}{where}, and no policy exceeds {rounded_up(self.upper)}"
        )
        return f"{head}. {self.steps:,} steps; {self.reason}."


def _span(low: float, high: float) -> str:
    return rounded_down(low) if low == high else f"{rounded_down(low)} to {rounded_up(high)}"


def rounded_down(value: float) -> str:
    """A lower bound in four digits that is one, too; 0 and 1 are exact and have none."""
    return f"{value:.0f}" if value in (0.0, 1.0) else f"{math.floor(value * 1e4) / 1e4:.4f}"


def rounded_up(value: float) -> str:
    """The same for an upper bound."""
    return f"{value:.0f}" if value in (0.0, 1.0) else f"{math.ceil(value * 1e4) / 1e4:.4f}"


@dataclass(frozen=True, eq=False)
class Bounds:
    """Bounds at each planning, as in :class:`Certificate`; ``lower`` rises and ``upper`` falls."""

    steps: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    policy_upper: np.ndarray

    def steps_to(self, width: float, *, of: str = "optimum") -> int | None:
        """First step at which ``upper - lower`` is at most ``width`` (for ``of="policy"``: its own upper bound).

        Before a lower bound exists a policy counts as unknown.
        """
        if of not in ("optimum", "policy"):
            raise ValueError(f"of must be 'optimum' or 'policy', got {of!r}.")
        high = self.upper if of == "optimum" else self.policy_upper
        narrow = high - self.lower <= width + 1e-12
        if of == "policy":
            narrow &= (self.lower > 0) | (self.upper <= width)
        found = np.flatnonzero(narrow)
        return int(self.steps[found[0]]) if len(found) else None


@dataclass(frozen=True, eq=False)
class CertifiedRun:
    """A policy with its certificate.

    ``curve`` (for a model only) holds the exact probability of the policy that would have been returned at each
    planning. It is for reporting: no decision uses it. ``visits`` counts the draws of each state and action.
    """

    policy: Policy
    certificate: Certificate
    bounds: Bounds
    settings: CertifiedSettings
    seed: int
    visits: np.ndarray
    curve: Curve | None = None

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the bounds against steps."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        b = self.bounds
        ax.fill_between(b.steps, b.lower, b.upper, step="post", alpha=0.15, color="C0", label="optimum within")
        ax.fill_between(b.steps, b.lower, b.policy_upper, step="post", alpha=0.3, color="C2", label="policy within")
        ax.step(b.steps, b.lower, where="post", color="C0", linewidth=1.2)
        ax.step(b.steps, b.upper, where="post", color="C0", linewidth=1.2)
        if self.curve is not None:
            ax.step(self.curve.steps, self.curve.probability, where="post", color="C1", label="policy, exact")
        ax.set(xlabel="steps", ylabel="satisfaction probability", ylim=(-0.02, 1.02))
        ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=3)
        return ax

    def plot_visits(self, mdp: LabelledMDP | None = None, ax: Axes | None = None) -> Axes:
        """Draw how often each state was sampled: on the map of a grid, else as bars.

        On the map walls are dark, and cells never sampled light grey.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        total = self.visits.sum(axis=1).astype(float)
        if not isinstance(mdp, LabelledMDP) or mdp.shape is None or mdp.state_cells is None:
            ax.bar(np.arange(len(total)), total, width=1.0)
            ax.set(xlabel="state", ylabel="samples")
            return ax
        from matplotlib.colors import LogNorm

        picture = np.full(mdp.shape, np.nan)
        cells = np.asarray(mdp.state_cells)
        picture[cells[:, 0], cells[:, 1]] = np.where(total > 0, total, np.nan)
        is_cell = np.zeros(mdp.shape)
        is_cell[cells[:, 0], cells[:, 1]] = 1.0
        ax.imshow(0.45 + 0.45 * is_cell, cmap="gray", vmin=0.0, vmax=1.0)
        image = ax.imshow(picture, norm=LogNorm(vmin=1, vmax=max(2.0, total.max())))
        ax.figure.colorbar(image, ax=ax, label="samples")
        if mdp.n_states <= 400:
            for s, (r, c) in enumerate(cells):
                text = "".join(sorted(mdp.labels(s)))
                if text:
                    ax.text(c, r, text, ha="center", va="center", color="C3", fontweight="bold")
        ax.set(xticks=[], yticks=[])
        return ax

    def __repr__(self) -> str:
        c = self.certificate
        kind = "certified" if c.is_certified else "not certified"
        lower = rounded_down(c.lower)
        return (
            f"<{kind}, seed {self.seed}: policy in [{lower}, {rounded_up(c.policy_upper)}], optimum in "
            f"[{lower}, {rounded_up(c.upper)}] with confidence {c.confidence:g} after {c.steps:,} steps>"
        )


@dataclass(frozen=True, eq=False)
class CertifiedRuns:
    """Runs with the same settings and different seeds."""

    runs: tuple[CertifiedRun, ...]

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, i: int) -> CertifiedRun:
        return self.runs[i]

    @property
    def best(self) -> CertifiedRun:
        """The run with the largest lower bound. Chosen among n runs, its bounds fail n times as often as said."""
        return max(self.runs, key=lambda run: run.certificate.lower)

    @property
    def policy(self) -> Policy:
        """The policy of the best run."""
        return self.best.policy

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the bounds of the best run."""
        return self.best.plot(ax)

    def __repr__(self) -> str:
        n = sum(run.certificate.is_certified for run in self.runs)
        return f"<{len(self.runs)} certified runs, {n} of them certified>"
