"""Words and pictures for a fitted proximal model."""

from typing import TYPE_CHECKING, Any

import numpy as np

from prudent.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from prudent.proximal._regression import ProximalRegression

CURVE_POINTS = 40


def candidate_treatments(model: "ProximalRegression", count: int) -> list[Any]:
    """Treatments to show: the levels of a categorical one, else ``count`` points over the observed range."""
    role = model.roles_["treatment"]
    if role.is_categorical:
        return list(role.columns[0].levels or ())
    if role.width > 1:
        raise DataError(
            f"The treatment has {role.width} columns; a curve needs a scalar treatment. Use effect(...) instead."
        )
    low, high = model.treatment_range_[:, 0]
    return list(np.linspace(low, high, count))


def summarise(model: "ProximalRegression") -> str:
    """Text of :meth:`prudent.ProximalRegression.summary`."""
    lines = ["Proximal regression: E[outcome | do(treatment)]"]
    for name, role in model.roles_.items():
        names = role.names if len(role.names) <= 8 else [*role.names[:3], f"... ({len(role.names)} columns)"]
        lines.append(f"  {name:<16} {', '.join(names)}")
    lines += [f"  {'estimator':<16} {type(model.estimator_).__name__}, seed {model.seed}", "", str(model.diagnosis_)]
    if model.roles_["treatment"].is_categorical or model.roles_["treatment"].width == 1:
        treatments = candidate_treatments(model, 5)
        found = model.interval(treatments)
        lines += ["", f"{'treatment':>12}  {'effect':>12}  {'debiased':>12}  {'std. error':>12}"]
        columns = (
            np.reshape(v, (len(treatments), -1))[:, 0] for v in (found.plug_in, found.value, found.standard_error)
        )
        for treatment, *row in zip(treatments, *columns, strict=True):
            shown = f"{treatment:.4g}" if isinstance(treatment, int | float) else str(treatment)
            lines.append(f"{shown:>12}  " + "  ".join(f"{v:12.4g}" for v in row))
    return "\n".join(lines)


def plot_effect(model: "ProximalRegression", ax: "Axes | None", *, truth: Any, level: float) -> "Axes":
    """Picture of :meth:`prudent.ProximalRegression.plot_effect`."""
    import matplotlib.pyplot as plt

    is_curve = not model.roles_["treatment"].is_categorical
    treatments = candidate_treatments(model, CURVE_POINTS)
    found = model.interval(treatments, level=level)
    if ax is None:
        _, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    names = model.roles_["outcome"].names
    shape = (len(treatments), -1)
    plug_in, value, lower, upper = (
        np.reshape(v, shape) for v in (found.plug_in, found.value, found.lower, found.upper)
    )
    for number in range(plug_in.shape[1]):
        label = "estimated effect" if plug_in.shape[1] == 1 else names[number]
        interval = f"debiased, {level:.0%} interval" if number == 0 else None
        middle, low, high = value[:, number], lower[:, number], upper[:, number]
        if is_curve:
            (line,) = ax.plot(treatments, plug_in[:, number], label=label)
            ax.plot(treatments, middle, ":", color=line.get_color(), linewidth=1)
            ax.fill_between(treatments, low, high, color=line.get_color(), alpha=0.2, label=interval)
        else:
            places = [str(a) for a in treatments]
            (points,) = ax.plot(places, plug_in[:, number], "o", label=label)
            ax.errorbar(
                places, middle, [middle - low, high - middle], fmt=".", color=points.get_color(), label=interval
            )
    if truth is not None:
        ax.plot(
            treatments if is_curve else [str(a) for a in treatments],
            [float(np.mean(truth(a))) for a in treatments],
            "k--",
            linewidth=1,
            label="truth",
        )
    ax.set_xlabel(", ".join(model.roles_["treatment"].names))
    ax.set_ylabel(", ".join(names))
    ax.legend(frameon=False)
    return ax
