"""Words and pictures for a fitted IV model."""

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent._axes import axes_or_new
from prudent.cmr._pairs import evenly
from prudent.cmr._report import WEAK_F
from prudent.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from prudent.iv._regression import IVRegression

MAX_CONTEXTS = 500
CURVE_POINTS = 60


def average_effect(model: "IVRegression", actions: Any, context: Any = None) -> np.ndarray:
    """Effect of each action, averaged over contexts (at most 500 of them, evenly chosen): (actions, outcomes)."""
    encoded = model.roles_["action"].encode(actions)
    return model.estimator_.pairs(encoded, _some_contexts(model, context)).mean(axis=1)


def _some_contexts(model: "IVRegression", context: Any) -> np.ndarray:
    return evenly(model._contexts(context), MAX_CONTEXTS)


def candidate_actions(model: "IVRegression", count: int) -> list[Any]:
    """Actions to show: the levels of a discrete action, or ``count`` points over the observed range."""
    role = model.roles_["action"]
    if role.is_categorical:
        return list(role.columns[0].levels or ())
    if model.diagnosis_.action_levels is not None:
        return model.diagnosis_.levels_as_actions()
    if role.width > 1:
        raise DataError(
            f"The action has {role.width} columns; averages and pictures need a scalar action. Use effect(...)."
        )
    low, high = model.action_range_[:, 0]
    return list(np.linspace(low, high, count))


def summarise(model: "IVRegression") -> str:
    """Text of :meth:`prudent.IVRegression.summary`."""
    lines = ["IV regression: E[outcome | do(action), context]"]
    lines += [f"  {name:<12} {', '.join(role.names)}" for name, role in model.roles_.items()]
    lines += [f"  {'estimator':<12} {type(model.estimator_).__name__}, seed {model.seed}", "", str(model.diagnosis_)]
    has_contexts = "context" not in model.roles_ or hasattr(model, "context_")
    if has_contexts and (model.roles_["action"].is_categorical or model.roles_["action"].width == 1):
        actions = candidate_actions(model, 5)
        lines += ["", "average effect over the observed contexts"]
        for action, value in zip(actions, average_effect(model, actions), strict=True):
            shown = f"{action:.4g}" if isinstance(action, int | float) else str(action)
            lines.append(f"  {shown:>12}  " + "  ".join(f"{v:.4g}" for v in value))
    return "\n".join(lines)


def plot_effect(model: "IVRegression", ax: "Axes | None", *, context: Any, truth: Any) -> "Axes":
    """Picture of :meth:`prudent.IVRegression.plot_effect`."""
    actions = candidate_actions(model, CURVE_POINTS)
    ax = axes_or_new(ax)
    values = average_effect(model, actions, context)
    is_curve = not model.roles_["action"].is_categorical and model.diagnosis_.action_levels is None
    names = model.roles_["outcome"].names
    for number in range(values.shape[1]):
        label = "estimated effect" if values.shape[1] == 1 else names[number]
        if is_curve:
            ax.plot(actions, values[:, number], label=label)
        else:
            ax.plot([str(a) for a in actions], values[:, number], "o", label=label)
    if truth is not None:
        lines = _true_effect(model, truth, actions, context)
        for number, line in enumerate(lines.T):
            label = "truth" if number == 0 else None
            ax.plot(actions if is_curve else [str(a) for a in actions], line, "k--", linewidth=1, label=label)
    if is_curve and hasattr(model, "action_"):
        low, high = np.quantile(model.action_[:, 0], [0.05, 0.95])
        ax.axvspan(low, high, color="tab:blue", alpha=0.08, label="90 % of observed actions")
    ax.set_xlabel(", ".join(model.roles_["action"].names))
    ax.set_ylabel(", ".join(names))
    weakest = model.diagnosis_.weakest_f
    if weakest is not None and weakest < WEAK_F:
        ax.set_title(f"weak instrument ({model.diagnosis_.strength_measure} {weakest:.1f}): do not trust this")
    ax.legend(frameon=False)
    return ax


def _true_effect(model: "IVRegression", truth: Any, actions: list[Any], context: Any) -> np.ndarray:
    """Effect of each action by ``truth``, averaged over the contexts of the picture if it takes contexts.

    One column, or one for each of several outcomes.
    """
    value: Any = truth.truth if hasattr(truth, "truth") else truth
    takes_context, n_outcomes = _n_arguments(value) > 1, model.roles_["outcome"].width
    if takes_context and model.image_ is not None:
        raise DataError("truth(action, context) cannot see the pixels that the model has left. Give truth(action).")
    contexts = _some_contexts(model, context) if takes_context else None

    def average(action: Any) -> np.ndarray:
        found = np.asarray(value(action) if contexts is None else value(np.full(len(contexts), action), contexts))
        has_columns = n_outcomes > 1 and found.ndim > takes_context and found.shape[-1] == n_outcomes
        return found.reshape(-1, n_outcomes if has_columns else 1).mean(axis=0)

    lines = np.array([average(action) for action in actions], dtype=float)
    if not np.isfinite(lines).all():
        raise DataError("truth must give finite numbers for every action that is drawn, got NaN or infinity.")
    return lines


def _n_arguments(truth: Any) -> int:
    """How many arguments a truth is called with; of optional ones only ``context`` counts, as that of a design."""
    if not callable(truth):
        raise DataError(f"truth must be a Design, truth(action, context) or truth(action), got {truth!r}.")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(truth).parameters.values()
    return sum(p.kind in kinds and (p.default is p.empty or p.name == "context") for p in parameters)
