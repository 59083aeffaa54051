"""Mean outcome under a policy, debiased, with a standard error; ``prudent.cmr._debias`` has the formulas."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent.cmr._debias import check_level, covariance_of_mean, half_width
from prudent.errors import DataError
from prudent.iv._policy import Policy, act, outcome_number

if TYPE_CHECKING:
    from prudent.iv._regression import IVRegression


@dataclasses.dataclass(frozen=True)
class PolicyValue:
    """Debiased mean outcome under a policy (or its difference to a baseline), with a confidence interval.

    ``plug_in`` is the mean of the estimated effect; the difference to ``value`` is its estimated bias. ``without_data``
    is the share of contexts in which no row was near the chosen action, so that f is an extrapolation that no interval
    accounts for (of a difference the greater one), and ``at_stake`` what the value changes by if f is wrong there by
    one standard deviation of the outcome. Both are None of a loaded model, which carries no rows, and of more than six
    columns (twelve with indicators of categories). ``n_contexts`` is 0 of a model without context.
    """

    value: float
    standard_error: float
    lower: float
    upper: float
    plug_in: float
    level: float
    n_contexts: int
    without_data: float | None
    at_stake: float | None

    def __str__(self) -> str:
        parts = [f"standard error {self.standard_error:.2g}"]
        if self.n_contexts:
            parts.append(f"{self.n_contexts} context" + "s" * (self.n_contexts != 1))
        if self.without_data is not None:
            parts.append(f"without data {self.without_data:.0%}")
        if self.without_data:
            parts.append(f"at stake {self.at_stake:.2g}")
        interval = f"{100 * self.level:g} % interval {self.lower:.4g} to {self.upper:.4g}"
        return f"{self.value:.4g} ({interval}; {', '.join(parts)})"


def policy_value(
    model: "IVRegression", policy: Any, context: Any, *, baseline: Any, outcome: int | str | None, level: float
) -> PolicyValue:
    """See :meth:`prudent.IVRegression.policy_value`."""
    number = outcome_number(model, getattr(policy, "outcome", 0) if outcome is None else outcome)
    check_level(level)
    if model.sums_ is None:
        raise DataError(
            "The error of a value needs what this model does not have: it was fitted on fewer than four groups, or "
            "saved by an earlier version. Fit it again, with more groups."
        )
    contexts = model._contexts(context)
    rows = [_rows(model, policy, contexts)]
    if baseline is not None:
        rows.append(_rows(model, baseline, contexts))
    f = [model.estimator_.predict(part) for part in rows]
    plug_in = (f[0] if baseline is None else f[0] - f[1])[:, number]
    correction = getattr(model, "correction_", None)
    if correction is not None and context is None and "context" in model.roles_:
        terms = [model.estimator_.terms(part) for part in rows]
        scores = [correction.scores(*part) for part in zip(terms, f, strict=True)]
        value, error = correction.mean(scores[0] if baseline is None else scores[0] - scores[1])
        value, error, freedom = float(value[number]), float(error[number]), correction.n_units - 1
    else:
        value, error, freedom = _elsewhere(model, rows, f, plug_in, number)
    support = model._support()
    shares = None if support is None else [support.share_outside(part) for part in rows]
    # Of a policy against itself nothing is unknown.
    half = half_width(level, freedom) * error if error > 0 else 0.0
    return PolicyValue(
        value=value,
        standard_error=error,
        lower=value - half,
        upper=value + half,
        plug_in=float(plug_in.mean()),
        level=level,
        n_contexts=len(contexts) if "context" in model.roles_ else 0,
        without_data=None if shares is None else max(shares),
        at_stake=None if shares is None else sum(shares) * float(model.sums_.spread[number]),
    )


def _elsewhere(
    model: "IVRegression", rows: list[np.ndarray], f: list[np.ndarray], plug_in: np.ndarray, outcome: int
) -> tuple[float, float, float]:
    """(value, standard error, degrees of freedom) in contexts that are a sample of their own."""
    sums: Any = model.sums_
    targets = [sums.features(model.estimator_.terms(x), h).mean(axis=0) for x, h in zip(rows, f, strict=True)]
    change, variance = (part[outcome] for part in sums.mean(targets[0] - targets[1] if len(rows) > 1 else targets[0]))
    # A single context is a question about this context, and has no spread.
    spread = 0.0
    if len(plug_in) > 1:
        spread = covariance_of_mean(plug_in[:, None], np.arange(len(plug_in))).item()
    # Satterthwaite's: of few contexts the spread is hardly known.
    parts = ((variance, sums.n_units - 1), (spread, max(len(plug_in) - 1, 1)))
    freedom = (variance + spread) ** 2 / max(sum(part**2 / own for part, own in parts), 1e-300)
    return float(plug_in.mean() + change), float(np.sqrt(variance + spread)), float(freedom)


def _rows(model: "IVRegression", policy: Any, contexts: np.ndarray) -> np.ndarray:
    """Rows (policy(c), c)."""
    role = model.roles_["action"]
    if isinstance(policy, Policy):
        return model._beside(role.encode(policy.act_encoded(contexts)), contexts)
    if not callable(policy) and not hasattr(policy, "act"):
        try:
            return model._beside(role.encode([policy]), contexts)
        except DataError as cause:
            raise DataError(
                f"policy must be a Policy, a callable of contexts, or one action, got {policy!r}: {cause}"
            ) from None
    actions = role.encode(act(policy, contexts))
    if len(actions) not in (1, len(contexts)):
        raise DataError(f"The policy must give one action per context ({len(contexts)}), got {len(actions)}.")
    return model._beside(actions, contexts)
