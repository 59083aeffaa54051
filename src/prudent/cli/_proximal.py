"""``prudent proximal``: effects from two proxies of a hidden confounder, from the command line."""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prudent.cli._models import (
    ContextColumns,
    Data,
    Folds,
    Group,
    Json,
    Model,
    Out,
    Outcome,
    Seed,
    check_single,
    load_model,
    make_estimator,
    save_model,
    show_diagnosis,
)
from prudent.cli._tables import pair_rows, parse_grid, parse_list, parse_values, read_table, show, split_names
from prudent.errors import DataError

if TYPE_CHECKING:
    from prudent.proximal import ProximalRegression

app = typer.Typer(help="Causal effects from a table with two proxies of a hidden confounder.", no_args_is_help=True)

ESTIMATORS = ("dml-cmr", "kernel-cmr", "nmmr", "pmmr", "kpv", "dfpv", "2sls")
DEFAULT_POINTS = 11


@app.command()
def fit(
    data: Data,
    outcome: Outcome,
    treatment: Annotated[str, typer.Option(help="Treatment column(s).")],
    outcome_proxy: Annotated[str, typer.Option(help="Proxy column(s) that the treatment does not move.")],
    treatment_proxy: Annotated[str, typer.Option(help="Proxy column(s) that do not act on the outcome.")],
    out: Out,
    context: ContextColumns = None,
    group: Group = None,
    estimator: Annotated[str, typer.Option(help=f"One of {', '.join(ESTIMATORS)}.")] = "dml-cmr",
    folds: Folds = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Fit a bridge function and save the model."""
    from prudent._storage import check_folder

    check_folder(out, "ProximalRegression")
    frame = read_table(data)
    from prudent.proximal import ProximalRegression

    with warnings.catch_warnings():
        # The diagnosis says the same, in one place.
        warnings.simplefilter("ignore", UserWarning)
        model = ProximalRegression(make_estimator(estimator, folds, ESTIMATORS), seed=seed).fit(
            frame,
            outcome=split_names(outcome),
            treatment=split_names(treatment),
            outcome_proxy=split_names(outcome_proxy),
            treatment_proxy=split_names(treatment_proxy),
            context=split_names(context) or None,
            groups=group,
        )
    save_model(model, out, "treatment", as_json)
    _warn(model)


@app.command()
def effect(
    model: Model,
    grid: Annotated[str | None, typer.Option(help="Treatments, as name=low:high:count.")] = None,
    treatment: Annotated[str | None, typer.Option(help="Treatments, as values: 10,12.5 or red,blue.")] = None,
    at: Annotated[
        list[str] | None, typer.Option(help="One treatment of several columns, as name=value,name=value; repeatable.")
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Mean outcome E[outcome | do(treatment)] if the treatment is set, with debiased intervals.

    Without --grid, --treatment or --at: at the levels of the treatment, or over its observed range.
    """
    if not 0 < level < 1:
        raise DataError(f"--level must be between 0 and 1, got {level:g}.")
    if sum(option is not None for option in (grid, treatment, at or None)) > 1:
        raise DataError("Give one of --grid, --treatment and --at.")
    fitted = _load(model)
    role = fitted.roles_["treatment"]
    if at:
        import pandas as pd

        asked: Any = pd.DataFrame([parse_values(text, "--at", role) for text in at])
        rows = asked.reindex(columns=role.names).to_numpy().tolist()
    else:
        check_single(role, "--at name=value,name=value")
        asked = _treatments(fitted, grid, treatment)
        rows = [[value] for value in asked]
    found = fitted.interval(asked, level=level)
    columns = (found.plug_in, found.value, found.standard_error, found.lower, found.upper)
    unknown = [None if as_json else "?"] * len(rows)
    shares: list[Any] = unknown if found.without_data is None else found.without_data.tolist()
    stakes: list[Any] = unknown if found.at_stake is None else found.at_stake.tolist()
    table = [
        [*row, *values, share, stake]
        for row, (_, *values), share, stake in zip(
            rows, pair_rows(range(len(rows)), *columns), shares if as_json else found.shares, stakes, strict=True
        )
    ]
    header = [*role.names, "effect", "debiased", "standard error", "lower", "upper", "without data", "at stake"]
    show("mean outcome if the treatment is set, E[outcome | do(treatment)]", header, table, as_json=as_json)


@app.command()
def diagnose(model: Model, as_json: Json = False) -> None:
    """Strength of the proxies, nuisance fit and moment error of a saved model."""
    show_diagnosis(_load(model), as_json)


def _treatments(fitted: "ProximalRegression", grid: str | None, values: str | None) -> list[Any]:
    """What the options ask about, values of one column."""
    from prudent.proximal._report import candidate_treatments

    if grid is not None:
        return parse_grid(grid, fitted.roles_["treatment"]).tolist()
    return candidate_treatments(fitted, DEFAULT_POINTS) if values is None else parse_list(values, "treatment")


def _load(folder: Path) -> "ProximalRegression":
    model = load_model(folder, "ProximalRegression")
    _warn(model)
    return model


def _warn(model: "ProximalRegression") -> None:
    for text in model.diagnose().warnings():
        sys.stderr.write(f"prudent: warning: {text}\n")
