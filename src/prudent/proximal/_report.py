"""Words and pictures for a fitted proximal model."""

from typing import TYPE_CHECKING, Any

import numpy as np

from prudent._axes import axes_or_new
from prudent.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from prudent.proximal._regression import ProximalRegression

CURVE_POINTS = 40


def candidate_treatments(model: "ProximalRegression", count: int) -> list[Any]:
    """Treatments to show: the levels of a discrete one, else ``count`` points over the observed range."""
    role = model.roles_["treatment"]
    if role.is_categorical:
        return list(role.columns[0].levels or ())
    if model.treatment_levels_ is not None:
        return model.treatment_levels_
    if role.width > 1:
        raise DataError(
            f"The treatment has {role.width} columns; a curve needs a scalar treatment. Use effect(...) instead."
        )
    low, high = model.treatment_range_[:, 0]
    return list(np.linspace(low, high, count))


def summarise(model: "ProximalRegression") -> str:
    """Text of :meth:`prudent.ProximalRegression.summary`."""
    lines = ["Proximal regression: mean outcome if the treatment is set, E[outcome | do(treatment)]"]
    for name, role in model.roles_.items():
        names = role.names if len(role.names) <= 8 else [*role.names[:3], f"... ({len(role.names)} columns)"]
        lines.append(f"  {name:<16} {', '.join(names)}")
    lines += [f"  {'estimator':<16} {type(model.estimator_).__name__}, seed {model.seed}", "", str(model.diagnosis_)]
    if model.roles_["treatment"].is_categorical or model.roles_["treatment"].width == 1:
        treatments = candidate_treatments(model, 5)
        found = model.interval(treatments)
        columns = [np.reshape(v, (len(treatments), -1)) for v in (found.plug_in, found.value, found.standard_error)]
        stakes = np.reshape(found.stakes, (len(treatments), -1))
        names = model.roles_["outcome"].names
        for number, name in enumerate(names):
            lines += ["", *([name] if len(names) > 1 else [])]
            lines.append(
                f"{'treatment':>12}  {'effect':>12}  {'debiased':>12}  {'std. error':>12}  {'without data':>12}"
                f"  {'at stake':>12}"
            )
            for treatment, share, stake, *row in zip(
                treatments, found.shares, stakes[:, number], *(part[:, number] for part in columns), strict=True
            ):
                shown = f"{treatment:.4g}" if isinstance(treatment, int | float) else str(treatment)
                lines.append(f"{shown:>12}  " + "  ".join(f"{v:12.4g}" for v in row) + f"  {share:>12}  {stake:>12}")
    return "\n".join(lines)


def plot_effect(model: "ProximalRegression", ax: "Axes | None", *, truth: Any, level: float) -> "Axes":
    """Picture of :meth:`prudent.ProximalRegression.plot_effect`."""
    treatments = candidate_treatments(model, CURVE_POINTS)
    ax = axes_or_new(ax)
    found = model.interval(treatments, level=level)
    names = model.roles_["outcome"].names
    shape = (len(treatments), -1)
    plug_in, value, lower, upper = (
        np.reshape(v, shape) for v in (found.plug_in, found.value, found.lower, found.upper)
    )
    is_categorical = model.roles_["treatment"].is_categorical
    is_curve = not is_categorical and model.treatment_levels_ is None
    places = [str(a) for a in treatments] if is_categorical else treatments
    for number in range(plug_in.shape[1]):
        of = "" if plug_in.shape[1] == 1 else f", {names[number]}"
        # The marks of one outcome are explained; further ones differ by colour.
        label = f"{level:.0%} interval, debiased" if number == 0 else None
        middle, low, high = value[:, number], lower[:, number], upper[:, number]
        if not is_curve:
            (points,) = ax.plot(places, plug_in[:, number], "o", markersize=10, fillstyle="none", label=f"estimate{of}")
            reach, colour = [middle - low, high - middle], points.get_color()
            ax.errorbar(places, middle, reach, fmt=".", capsize=4, color=colour, label=label)
        else:
            (line,) = ax.plot(places, plug_in[:, number], label=f"estimate{of}")
            ax.plot(places, middle, ":", color=line.get_color(), label="debiased" if number == 0 else None)
            ax.fill_between(treatments, low, high, color=line.get_color(), alpha=0.2, label=label)
            if found.at_stake is not None:
                stake = np.reshape(found.at_stake, shape)[:, number]
                wider = (low - stake, high + stake)
                label = "the same and what is at stake" if number == 0 else None
                ax.fill_between(treatments, *wider, color=line.get_color(), alpha=0.08, linewidth=0, label=label)
    if truth is not None:
        known = [float(np.mean(truth(a))) for a in treatments]
        ax.plot(places, known, "k--" if is_curve else "kx", linewidth=1, label="truth")
    if not is_curve:
        ax.margins(x=0.2)
        if not is_categorical:
            ax.set_xticks(treatments)
    treatment = ", ".join(model.roles_["treatment"].names)
    ax.set_xlabel(treatment)
    ax.set_ylabel(f"mean {', '.join(names)} if {treatment} is set")
    ax.legend(frameon=False)
    return ax
