"""``prudent proximal``: effects from two proxies of a hidden confounder, from the command line."""

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prudent.cli._tables import pair_rows, parse_grid, parse_list, read_table, show, split_names, warn_outside
from prudent.errors import DataError

if TYPE_CHECKING:
    from prudent.proximal import ProximalRegression

app = typer.Typer(help="Causal effects from a table with two proxies of a hidden confounder.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Model = Annotated[Path, typer.Argument(help="Folder of a saved model.")]


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="CSV, TSV or Parquet file.")],
    outcome: Annotated[str, typer.Option(help="Outcome column(s), comma separated.")],
    treatment: Annotated[str, typer.Option(help="Treatment column(s).")],
    outcome_proxy: Annotated[str, typer.Option(help="Proxy column(s) that the treatment does not move.")],
    treatment_proxy: Annotated[str, typer.Option(help="Proxy column(s) that do not act on the outcome.")],
    out: Annotated[Path, typer.Option(help="Folder for the model and its picture.")],
    context: Annotated[str | None, typer.Option(help="Context column(s).")] = None,
    group: Annotated[str | None, typer.Option(help="Column that names the unit of a row.")] = None,
    folds: Annotated[int, typer.Option(help="Cross-fitting folds; 1 is the fast variant.")] = 10,
    seed: Annotated[int, typer.Option(help="Decides every random choice.")] = 0,
    as_json: Json = False,
) -> None:
    """Fit a bridge function and save the model."""
    from prudent._storage import check_folder

    check_folder(out)
    frame = read_table(data)
    from prudent.cmr import DMLCMR
    from prudent.proximal import ProximalRegression

    with warnings.catch_warnings():
        # The diagnosis says the same, in one place.
        warnings.simplefilter("ignore", UserWarning)
        model = ProximalRegression(DMLCMR(n_folds=folds), seed=seed).fit(
            frame,
            outcome=split_names(outcome),
            treatment=split_names(treatment),
            outcome_proxy=split_names(outcome_proxy),
            treatment_proxy=split_names(treatment_proxy),
            context=split_names(context) or None,
            groups=group,
        )
    folder = model.save(out)
    if model.roles_["treatment"].is_categorical or model.roles_["treatment"].width == 1:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        model.plot_effect()
        plt.savefig(folder / "effect.png", dpi=150)
        plt.close()
    _show_diagnosis(model, as_json)
    _warn(model)
    if not as_json:
        print(f"saved in {folder}/" + (" with effect.png" if (folder / "effect.png").exists() else ""))


@app.command()
def effect(
    model: Model,
    grid: Annotated[str | None, typer.Option(help="Treatments, as name=low:high:count.")] = None,
    treatment: Annotated[str | None, typer.Option(help="Treatments, as values: 10,12.5 or red,blue.")] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Mean outcome under treatments, with debiased intervals."""
    if not 0 < level < 1:
        raise DataError(f"--level must be between 0 and 1, got {level:g}.")
    fitted = _load(model)
    role = fitted.roles_["treatment"]
    treatments = parse_grid(grid, role) if grid else parse_list(treatment, "treatment")
    warn_outside(role, fitted.treatment_range_, treatments)
    found = fitted.interval(treatments, level=level)
    header = [", ".join(role.names), "effect", "debiased", "standard error", "lower", "upper"]
    columns = (found.plug_in, found.value, found.standard_error, found.lower, found.upper)
    show("E[outcome | do(treatment)]", header, pair_rows(treatments, *columns), as_json=as_json)


@app.command()
def diagnose(model: Model, as_json: Json = False) -> None:
    """Strength of the proxies, nuisance fit and moment error of a saved model."""
    _show_diagnosis(_load(model), as_json)


def _load(folder: Path) -> "ProximalRegression":
    from prudent import load
    from prudent.proximal import ProximalRegression

    model = load(folder)
    if not isinstance(model, ProximalRegression):
        raise DataError(f"{folder} holds a {type(model).__name__}, not a proximal model. Use its own command.")
    _warn(model)
    return model


def _warn(model: "ProximalRegression") -> None:
    for text in model.diagnose().warnings():
        sys.stderr.write(f"prudent: warning: {text}\n")


def _show_diagnosis(model: "ProximalRegression", as_json: bool) -> None:
    if as_json:
        print(json.dumps(model.diagnose().to_json(), indent=1))
        return
    show("diagnosis", ["what", "value", "reading"], model.diagnose().rows(), as_json=False)
