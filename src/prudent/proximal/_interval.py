"""Debiased mean outcomes with standard errors, as a record that prints."""

import dataclasses

import numpy as np

from prudent.cmr._debias import half_width


@dataclasses.dataclass(frozen=True)
class Interval:
    """Debiased mean outcome under treatments that are set, with standard errors and a confidence interval.

    ``plug_in`` is what ``effect`` gives; the difference to ``value`` is the estimated bias of h. ``without_data`` is
    the share of the proxies and contexts averaged over that no row has together with about this treatment: there h is
    an extrapolation, which no interval accounts for. ``at_stake`` says what that may do: the change of the value if h
    is wrong there by one standard deviation of the outcome, for a difference on either side. (None where there are too
    many columns to say.)
    """

    value: np.ndarray
    standard_error: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    plug_in: np.ndarray
    level: float
    without_data: np.ndarray | None
    at_stake: np.ndarray | None

    @classmethod
    def of(
        cls,
        value: np.ndarray,
        error: np.ndarray,
        plug_in: np.ndarray,
        *,
        level: float,
        n_units: int,
        without_data: np.ndarray | None,
        at_stake: np.ndarray | None,
    ) -> "Interval":
        """Interval from estimates, their standard errors and the number of units."""
        half = half_width(level, n_units - 1) * error
        return cls(value, error, value - half, value + half, plug_in, level, without_data, at_stake)

    @property
    def shares(self) -> list[str]:
        """``without_data`` as text."""
        return ["?"] * len(self.value) if self.without_data is None else [f"{v:.0%}" for v in self.without_data]

    @property
    def stakes(self) -> list[str]:
        """``at_stake`` as text, one per treatment and outcome."""
        return ["?"] * self.value.size if self.at_stake is None else [f"{v:.3g}" for v in np.ravel(self.at_stake)]

    def __str__(self) -> str:
        lines = [
            f"{'value':>12} {'std. error':>12} {'lower':>12} {'upper':>12} {'without data':>13} {'at stake':>12}"
            f"   ({self.level:.0%} interval)"
        ]
        n_outcomes = self.value.size // len(self.value)
        columns = (np.ravel(v) for v in (self.value, self.standard_error, self.lower, self.upper))
        for share, stake, *row in zip(np.repeat(self.shares, n_outcomes), self.stakes, *columns, strict=True):
            lines.append(" ".join(f"{v:12.5g}" for v in row) + f" {share:>13} {stake:>12}")
        return "\n".join(lines)
