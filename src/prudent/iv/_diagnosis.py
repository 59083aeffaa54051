"""What a fitted IV model says about its own reliability."""

import dataclasses
from typing import Any

import numpy as np

from prudent.cmr import MomentError, MomentEstimator
from prudent.cmr._controlfunction import ControlReport
from prudent.cmr._report import FitReport, strengths_by_regression, table_text
from prudent.cmr._twostage import TwoStageReport
from prudent.iv._table import IVTable

# Where instruments explain so much of an action's free variation, nothing is left that they could be free of.
DETERMINED = 0.999


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Strength of the instruments, fit of the nuisances and the moment. ``print`` shows a table.

    Everything is out of fold but the first stage of two-stage least squares, which is a regression with few terms:
    there ``strength_measure`` is "first-stage F". Of estimators without a law of the action (KernelIV, DeepGMM, DFIV,
    series in 2SLS), kernel regressions beside the fit measure the strength.
    """

    n_rows: int
    action_names: tuple[str, ...]
    action_levels: tuple[tuple[float, ...], ...] | None
    effective_f: tuple[float, ...]
    partial_r2: tuple[float, ...]
    action_r2: tuple[float, ...]
    outcome_r2: tuple[float, ...]
    moment: MomentError | None
    moment_of_mean: MomentError | None
    strength_measure: str = "effective F"

    @classmethod
    def of(cls, estimator: MomentEstimator, table: IVTable, *, discrete: set[int], seed: int) -> "Diagnosis":
        """From an estimator and the table that it was fitted to; ``discrete`` columns of the action have levels."""
        action, names = table.action, table.roles["action"].encoded_names
        report: Any = getattr(estimator, "report_", None)
        levels = None
        if set(range(action.shape[1])) <= discrete:
            levels = tuple(tuple(float(v) for v in row) for row in np.unique(action, axis=0))
        modelled = table.modelled
        empty = cls(len(action), tuple(names[j] for j in modelled), levels, (), (), (), (), None, None)
        if isinstance(report, TwoStageReport):
            of_terms = dict(
                zip(report.endogenous, zip(report.first_stage_f, report.partial_r2, strict=True), strict=True)
            )
            places = [j for j in range(len(names)) if f"x{j}" in of_terms]
            # With a series of terms per action, F of a single one says nothing of the action.
            if len(places) == len(of_terms):
                return dataclasses.replace(
                    empty,
                    action_names=tuple(names[j] for j in places),
                    effective_f=tuple(of_terms[f"x{j}"][0] for j in places),
                    partial_r2=tuple(of_terms[f"x{j}"][1] for j in places),
                    strength_measure="first-stage F",
                )
        if isinstance(report, ControlReport):
            return dataclasses.replace(
                empty,
                effective_f=(report.strength.effective_f,),
                partial_r2=(report.strength.partial_r2,),
                action_r2=(report.action_r2,),
            )
        if not isinstance(report, FitReport):
            action_r2, strength = strengths_by_regression(
                action[:, modelled], table.c, table.instruments, table.groups, seed
            )
            return dataclasses.replace(
                empty,
                effective_f=tuple(s.effective_f for s in strength),
                partial_r2=tuple(s.partial_r2 for s in strength),
                action_r2=action_r2,
            )
        return cls(
            n_rows=len(action),
            action_names=tuple(names[j] for j in report.modelled if j < len(names)),
            action_levels=levels,
            effective_f=tuple(s.effective_f for s in report.strength),
            partial_r2=tuple(s.partial_r2 for s in report.strength),
            action_r2=report.modelled_r2,
            outcome_r2=report.outcome_r2,
            moment=report.moment,
            moment_of_mean=report.moment_of_mean,
        )

    @property
    def weakest_f(self) -> float | None:
        """Smallest effective F over the action columns for which it is known."""
        return min((f for f in self.effective_f if not np.isnan(f)), default=None)

    def levels_as_actions(self) -> list[Any]:
        """Levels of a discrete action in the form in which ``effect`` takes actions."""
        return [next(iter(level)) if len(level) == 1 else list(level) for level in self.action_levels or ()]

    def rows(self) -> list[tuple[str, str, str]]:
        """(what, value, how to read it)."""
        table = [("rows", f"{self.n_rows}", "")]
        for name, f, r2 in zip(self.action_names, self.effective_f, self.partial_r2, strict=False):
            if np.isnan(f):
                table.append((f"instrument strength, {name}", "not measured", "too few groups"))
                continue
            verdict = "weak: do not trust the effect" if f < 10 else "moderate" if f < 23.1 else "strong"
            table.append((f"instrument strength, {name}: {self.strength_measure}", f"{f:.1f}", verdict))
            share = "share of the action's free variation" if r2 < DETERMINED else "all of it: a plain regression"
            table.append((f"instrument strength, {name}: partial R2", f"{r2:.3f}", share))
        for name, r2 in zip(self.action_names, self.action_r2, strict=False):
            table.append((f"action model, {name}: R2 out of fold", f"{r2:.3f}", "instruments and context together"))
        for number, r2 in enumerate(self.outcome_r2):
            table.append(
                (f"outcome model {number}: R2 out of fold", f"{r2:.3f}", "limited by the noise of the outcome")
            )
        if self.moment_of_mean is not None:
            table.append(
                ("moment error of a constant", f"{self.moment_of_mean.value:.4g}", "what there was to explain")
            )
        if self.moment is not None:
            value = f"{self.moment.value:.4g} +- {self.moment.standard_error:.2g}"
            table.append(("moment error, audited folds", value, self.moment.verdict))
        elif self.moment_of_mean is not None:
            table.append(
                (
                    "moment error, audited folds",
                    "not measured",
                    "use moment_error on new rows, or DMLCMR with n_folds > 1",
                )
            )
        return table

    def __str__(self) -> str:
        return table_text(self.rows())

    def to_json(self) -> dict[str, Any]:
        """Plain record; a strength that is not known is None."""
        known = {
            name: tuple(None if np.isnan(v) else v for v in getattr(self, name))
            for name in ("effective_f", "partial_r2")
        }
        return dataclasses.asdict(self) | known

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Diagnosis":
        """From the record of :meth:`to_json`."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
        for name in ("effective_f", "partial_r2"):
            fields[name] = tuple(float("nan") if v is None else v for v in record[name])
        for name in ("moment", "moment_of_mean"):
            fields[name] = None if record[name] is None else MomentError(**record[name])
        if record["action_levels"] is not None:
            fields["action_levels"] = tuple(tuple(level) for level in record["action_levels"])
        return cls(**fields)
