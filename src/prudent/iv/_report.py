"""Words and pictures for a fitted IV model."""

from typing import TYPE_CHECKING, Any

import numpy as np

from prudent._axes import axes_or_new
from prudent.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from prudent.iv._regression import IVRegression

MAX_CONTEXTS = 500
CURVE_POINTS = 60


def average_effect(model: "IVRegression", actions: Any, context: Any = None) -> np.ndarray:
    """Effect of each action, averaged over contexts (at most 500 of them, evenly chosen): (actions, outcomes)."""
    encoded = model.roles_["action"].encode(actions)
    contexts = model._contexts(context)
    if len(contexts) > MAX_CONTEXTS:
        contexts = contexts[np.linspace(0, len(contexts) - 1, MAX_CONTEXTS).astype(int)]
    return model.estimator_.pairs(encoded, contexts).mean(axis=1)


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
    """Picture of :meth:`prudent.IVRegression.plot_effect`; ``truth(action)`` adds a dashed reference line."""
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
        ax.plot(actions, [float(np.mean(truth(a))) for a in actions], "k--", linewidth=1, label="truth")
    if is_curve and hasattr(model, "action_"):
        low, high = np.quantile(model.action_[:, 0], [0.05, 0.95])
        ax.axvspan(low, high, color="tab:blue", alpha=0.08, label="90 % of observed actions")
    ax.set_xlabel(", ".join(model.roles_["action"].names))
    ax.set_ylabel(", ".join(names))
    ax.legend(frameon=False)
    return ax
