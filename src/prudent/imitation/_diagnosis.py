"""What a fitted causal imitation says about its own reliability."""

import dataclasses
from typing import Any

import numpy as np

from prudent.cmr import MomentError, MomentEstimator
from prudent.cmr._base import MIN_UNITS
from prudent.cmr._report import WEAK_F, FitReport, table_text

CORRECTIONS = {
    "made": "as far as the moment asks for it",
    "straight": "linear in states and in what they do not predict of each other",
    "not needed": "cloning it is: the history hardly speaks against it",
    "diverged": "cloning it is, although something speaks against it",
}


@dataclasses.dataclass(frozen=True)
class ImitationDiagnosis:
    """Strength of the older history, what was done to cloning, and the moment. ``print`` shows a table.

    ``effective_f`` has one number per column that the policy sees and the history does not contain; NaN where it is
    not known: of too few episodes, and of a column that does not vary once there is a history. ``correction`` is that
    of DML-IL, None of other estimators and of other starts; unless it is "made" (by a network), ``moment`` is
    that of the policy, out of fold.
    """

    n_rows: int
    n_episodes: int
    effective_f: tuple[float, ...]
    correction: str | None
    moment: MomentError | None
    moment_of_mean: MomentError | None

    @classmethod
    def of(cls, estimator: MomentEstimator, n_rows: int, n_episodes: int) -> "ImitationDiagnosis":
        """From a fitted estimator."""
        report: Any = getattr(estimator, "report_", None)
        if not isinstance(report, FitReport):
            return cls(n_rows, n_episodes, (), None, None, None)
        return cls(
            n_rows=n_rows,
            n_episodes=n_episodes,
            effective_f=tuple(part.effective_f for part in report.strength),
            correction=getattr(report, "correction", None),
            moment=report.moment,
            moment_of_mean=report.moment_of_mean,
        )

    @property
    def weakest_f(self) -> float | None:
        """Smallest effective F that is known; None if none is."""
        return min((f for f in self.effective_f if not np.isnan(f)), default=None)

    @property
    def has_power(self) -> bool | None:
        """Whether the moment speaks against a constant action; None where it was not measured."""
        if self.moment_of_mean is None:
            return None
        return self.moment_of_mean.value > self.moment_of_mean.standard_error

    def rows(self) -> list[tuple[str, str, str]]:
        """(what, value, how to read it)."""
        table = [("episodes", f"{self.n_episodes}", ""), ("steps", f"{self.n_rows}", "")]
        if not self.effective_f:
            table.append(("instrument strength", "not measured", "DMLCMR and KernelCMR measure it"))
        elif self.weakest_f is None:
            table.append(("instrument strength", "unknown", "too few episodes, or nothing varies"))
        else:
            reading = "weak: do not trust the policy" if self.weakest_f < WEAK_F else "of the column moved least"
            table.append(("instrument strength: effective F", f"{self.weakest_f:.1f}", reading))
        if self.correction is not None:
            reading = CORRECTIONS[self.correction]
            if self.correction == "not needed" and self.has_power is False:
                reading = "cloning it is: the data cannot tell"
            table.append(("correction of cloning", self.correction, reading))
        if self.moment_of_mean is not None:
            reading = (
                "what there was to explain" if self.has_power else "a constant passes, too: the moment says little"
            )
            table.append(("moment error of a constant action", _shown(self.moment_of_mean), reading))
        where = "audited folds" if self.correction in (None, "made") else "out of fold"
        if self.moment is not None:
            table.append((f"moment error, {where}", _shown(self.moment), self.moment.verdict))
        elif self.moment_of_mean is not None:
            cure = f"needs {MIN_UNITS} episodes in a fold of DMLCMR: fewer folds, or more episodes"
            table.append((f"moment error, {where}", "not measured", cure))
        return table

    def __str__(self) -> str:
        return table_text(self.rows())

    def to_json(self) -> dict[str, Any]:
        """Plain record; a strength that is not known is None."""
        forces = tuple(None if np.isnan(f) else f for f in self.effective_f)
        return dataclasses.asdict(self) | {"effective_f": forces}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "ImitationDiagnosis":
        """From the record of :meth:`to_json`."""
        forces = tuple(float("nan") if f is None else float(f) for f in record["effective_f"])
        moments = {
            name: None if record[name] is None else MomentError(**record[name]) for name in ("moment", "moment_of_mean")
        }
        return cls(**{**record, "effective_f": forces, **moments})


def _shown(moment: MomentError) -> str:
    return f"{moment.value:.4g} +- {moment.standard_error:.2g}"
