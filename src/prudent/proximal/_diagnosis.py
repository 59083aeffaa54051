"""What a fitted proximal model says about its own reliability, and what data can say about the roles.

The treatment proxy V and the outcome proxy W can only be related given the treatment through the hidden confounder. So
W must be predictable from V beyond what the treatment and the context predict: if it is not, one of the proxies knows
nothing about the confounder, and the bridge is not identified.

What data cannot say: whether the proxies are swapped, when there are as many of one kind as of the other. In a linear
design with one proxy each, both orders have an exact solution. With more outcome proxies than treatment proxies there
are more unknowns than equations, and the weakest direction shows it.
"""

import dataclasses
from typing import Any

import numpy as np

from prudent.cmr import FitReport, MomentError, MomentEstimator, Strength
from prudent.cmr._arrays import Matrix
from prudent.cmr._base import regress_out_of_fold, residual_moment
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._report import MAX_SPREAD, WEAK_F, partial_strength, r_squared, table_text

# Standard errors from fewer groups are themselves uncertain, and too small.
FEW_GROUPS = 30


@dataclasses.dataclass(frozen=True)
class ProximalDiagnosis:
    """Strength of the proxies, fit of the nuisances and the moment. ``print`` shows a table.

    ``strength`` has one entry per column of the outcome proxy, ``weakest`` that of the linear combination of columns
    that the treatment proxies move least (of a picture's components: most). ``n_proxies`` counts outcome and treatment
    proxies, a category of L levels as L - 1. ``moment`` is measured on rows that had no part in the fit, and None where
    there are none. ``kept`` is the share of variance that compressed roles retain. ``spread`` is the standard deviation
    of the bridge on the training rows over that of the outcome. ``link`` names the treatment proxies and the treatment.
    ``n_groups`` is None where rows are independent. ``notes`` are what the estimator warned about.
    """

    n_rows: int
    n_groups: int | None
    proxy_names: tuple[str, ...]
    n_proxies: tuple[int, int]
    strength: tuple[Strength, ...]
    weakest: Strength
    proxy_r2: tuple[float, ...]
    outcome_r2: tuple[float, ...]
    moment: MomentError | None
    moment_of_mean: MomentError
    kept: dict[str, float]
    spread: tuple[float, ...]
    link: tuple[str, str]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        estimator: MomentEstimator,
        y: Matrix,
        parts: dict[str, Matrix],
        h: Matrix,
        *,
        proxy_names: tuple[str, ...],
        link: tuple[str, str],
        n_proxies: tuple[int, int],
        kept: dict[str, float],
        seed: int,
        groups: Any = None,
    ) -> "ProximalDiagnosis":
        """From a fitted estimator, the encoded roles it was fitted on, and its bridge ``h`` there."""
        w, known = parts["outcome_proxy"], np.hstack([parts["treatment"], parts["context"]])
        c = np.hstack([known, parts["treatment_proxy"]])
        groups = None if groups is None else np.asarray(groups).reshape(-1)
        # One regression serves the outcome and the proxies.
        fitted = regress_out_of_fold(np.hstack([y, w]), c, seed=seed, groups=groups)
        predicted = fitted[:, y.shape[1] :]
        without = regress_out_of_fold(w, known, seed=seed, groups=groups)
        report = getattr(estimator, "report_", None)
        audited, proxy_r2 = None, r_squared(w, predicted)
        if isinstance(report, FitReport):
            # The estimator's own law of the proxy, where it has one.
            audited, proxy_r2 = report.moment, report.modelled_r2
        return cls(
            n_rows=len(y),
            n_groups=None if groups is None else len(np.unique(groups)),
            proxy_names=proxy_names,
            n_proxies=n_proxies,
            strength=tuple(
                partial_strength(*column, groups=groups) for column in zip(w.T, predicted.T, without.T, strict=True)
            ),
            # Most components of a picture are noise, which no proxy moves: there the strongest decides.
            weakest=(
                strongest_direction(w, parts["treatment_proxy"], known, seed, groups)
                if "outcome_proxy" in kept
                else weakest_direction(w, predicted, without, groups)
            ),
            proxy_r2=proxy_r2,
            outcome_r2=r_squared(y, fitted[:, : y.shape[1]]),
            moment=audited,
            moment_of_mean=residual_moment(y - y.mean(axis=0), c, seed=seed, groups=groups),
            kept=kept,
            spread=tuple(float(v) for v in h.std(axis=0) / y.std(axis=0)),
            link=link,
            notes=tuple(getattr(estimator, "notes_", ())),
        )

    @property
    def weakest_f(self) -> float:
        """Effective F of the weakest direction."""
        return self.weakest.effective_f

    def warnings(self) -> list[str]:
        """What speaks against the roles or the fit, one line each."""
        found = list(self.notes)
        if self.weakest_f < WEAK_F:
            found.append(
                "weak proxies: given the treatment, the treatment proxies hardly move the outcome proxies (effective "
                f"F = {self.weakest_f:.1f}, below {WEAK_F:.0f}). One of them may know nothing about the confounder, or "
                "the treatment may reveal it; the effect may be far off. See diagnose()."
            )
        if self.n_proxies[0] > self.n_proxies[1] and not {"outcome_proxy", "treatment_proxy"} & set(self.kept):
            found.append(
                f"{self.n_proxies[0]} outcome proxies but {self.n_proxies[1]} treatment proxies: the bridge "
                "has more arguments than the data give equations. Are the proxies swapped?"
            )
        if self.n_groups is not None and self.n_groups < FEW_GROUPS:
            found.append(
                f"{self.n_groups} groups: standard errors from fewer than {FEW_GROUPS} are uncertain themselves, and "
                "rather too small. Bring data of more groups."
            )
        if max(self.spread) > MAX_SPREAD:
            found.append(
                f"the fit diverged: on the training rows the bridge varies {max(self.spread):.3g} times as much as the "
                "outcome. Do not use its effects: mend the proxies if they are weak, else take another estimator "
                "or other settings."
            )
        if self.moment is not None and self.moment.value > 4 * self.moment.standard_error:
            share = self.moment.value / max(self.moment_of_mean.value, 1e-300)
            if share > 0.01:
                found.append(
                    f"the moment is violated on held-out rows ({share:.0%} of what there was to explain): the roles "
                    "are wrong, or the bridge is not flexible enough. See diagnose()."
                )
        return found

    def rows(self) -> list[tuple[str, str, str]]:
        """(what, value, how to read it)."""
        table = [("rows", f"{self.n_rows}", "" if self.n_groups is None else f"in {self.n_groups} groups")]
        for role, share in self.kept.items():
            table.append((f"{role}: variance kept by components", f"{share:.1%}", "the rest is treated as noise"))
        if len(self.strength) <= 8:
            for name, s in zip(self.proxy_names, self.strength, strict=True):
                pair = f"{self.link[0]} on {name} given {self.link[1]}"
                table.append((f"proxy strength, {pair}: effective F", f"{s.effective_f:.1f}", _verdict(s)))
                table.append(
                    (f"proxy strength, {pair}: partial R2", f"{s.partial_r2:.3f}", "share of its free variation")
                )
        if len(self.strength) > 1:
            which = "strongest" if "outcome_proxy" in self.kept else "weakest"
            table.append(
                (f"proxy strength, {which} combination", f"{self.weakest.effective_f:.1f}", _verdict(self.weakest))
            )
        names = self.proxy_names if len(self.proxy_r2) == len(self.proxy_names) else ()
        for name, r2 in zip(names[:8], self.proxy_r2, strict=False):
            table.append((f"proxy model, {name}: R2 out of fold", f"{r2:.3f}", "given the treatment and its proxies"))
        for number, r2 in enumerate(self.outcome_r2):
            table.append(
                (f"outcome model {number}: R2 out of fold", f"{r2:.3f}", "limited by the noise of the outcome")
            )
        table.append(("moment error of a constant", f"{self.moment_of_mean.value:.4g}", "what there was to explain"))
        if self.moment is None:
            advice = "training rows would flatter it; DMLCMR with n_folds > 1 holds rows out"
            table.append(("moment error, audited folds", "not measured", advice))
        else:
            value = f"{self.moment.value:.4g} +- {self.moment.standard_error:.2g}"
            table.append(("moment error, audited folds", value, self.moment.verdict))
        for number, spread in enumerate(self.spread):
            verdict = "the fit diverged" if spread > MAX_SPREAD else "1 is the outcome's"
            which = f" {number}" if len(self.spread) > 1 else ""
            table.append((f"spread of the bridge{which}", f"{spread:.3g}", verdict))
        return table

    def __str__(self) -> str:
        return "\n".join([table_text(self.rows()), *(f"warning: {text}" for text in self.warnings())])

    def to_json(self) -> dict[str, Any]:
        """Plain record."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "ProximalDiagnosis":
        """From the record of :meth:`to_json`."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
        fields["strength"] = tuple(Strength(**s) for s in record["strength"])
        fields["weakest"] = Strength(**record["weakest"])
        for name in ("moment", "moment_of_mean"):
            fields[name] = None if record[name] is None else MomentError(**record[name])
        return cls(**fields)


def weakest_direction(w: Matrix, predicted: Matrix, without: Matrix, groups: np.ndarray | None) -> Strength:
    """Strength of the linear combination of the columns of ``w`` that is explained least.

    ``predicted`` and ``without`` are out-of-fold means of ``w`` with and without the treatment proxies.
    """
    direction = _directions(w - without, predicted - without)[:, 0]
    return partial_strength(w @ direction, predicted @ direction, without @ direction, groups=groups)


def strongest_direction(
    w: Matrix, proxies: Matrix, known: Matrix, seed: int, groups: np.ndarray | None = None
) -> Strength:
    """The same for the combination that is explained best, found on one half of the rows and judged on the other.

    Of many columns of noise some combination is always explained on the rows on which it was chosen, and on any rows
    whose regressions have seen those; so each half has its own. ``known`` is what is not to count.
    """
    # Along the principal axes, so that regressions tell columns of noise from others.
    w = (w - w.mean(axis=0)) @ np.linalg.svd(w - w.mean(axis=0), full_matrices=False)[2].T
    rng = np.random.default_rng(seed)
    halves = cross_fit_folds(len(w), 2, rng, groups)
    parts, directions = [], []
    for rows in halves:
        own = None if groups is None else groups[rows]
        # Without the proxies: the same regression with their rows in disorder, twice, as in `partial_strength`.
        explaining = [proxies[rows], *(proxies[rng.permutation(rows)] for _ in range(2))]
        fitted = [regress_out_of_fold(w[rows], np.hstack([known[rows], v]), seed=seed, groups=own) for v in explaining]
        parts.append([w[rows], *fitted])
        directions.append(_directions(w[rows] - fitted[1], fitted[0] - fitted[2])[:, -1])
    judged = []
    for part, direction in zip(parts, reversed(directions), strict=True):
        along = np.stack([array @ direction for array in part])
        judged.append(along / max((along[0] - along[2]).std(), 1e-300))
    return partial_strength(*np.hstack(judged), groups=None if groups is None else groups[np.concatenate(halves)])


def _directions(free: Matrix, explained: Matrix) -> np.ndarray:
    """Combinations of the columns, from the one explained least to the one explained best."""
    from scipy.linalg import eigh

    free, explained = free - free.mean(axis=0), explained - explained.mean(axis=0)
    scale = np.maximum(free.std(axis=0), 1e-300)
    free, explained = free / scale, explained / scale
    cross = explained.T @ free / len(free)
    total = free.T @ free / len(free) + 1e-9 * np.eye(free.shape[1])
    return eigh((cross + cross.T) / 2, total)[1] / scale[:, None]


def _verdict(strength: Strength) -> str:
    f = strength.effective_f
    return "weak: do not trust the effect" if f < WEAK_F else "moderate" if f < 23.1 else "strong"
