"""What the commands of models share: options of a fit, estimators by name, saving and loading."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prudent.cli._tables import finite, show
from prudent.errors import DataError

if TYPE_CHECKING:
    from prudent._roles import Role
    from prudent.cmr import MomentEstimator

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Model = Annotated[Path, typer.Argument(help="Folder of a saved model.")]
Data = Annotated[Path, typer.Argument(help="CSV, TSV or Parquet file.")]
Outcome = Annotated[str, typer.Option(help="Outcome column(s), comma separated.")]
Out = Annotated[Path, typer.Option(help="Folder for the model and its picture.")]
ContextColumns = Annotated[str | None, typer.Option("--context", help="Context column(s).")]
Group = Annotated[str | None, typer.Option(help="Column that names the unit of a row.")]
Folds = Annotated[int | None, typer.Option(help="Cross-fitting folds, 10 by default; 1 is the fast variant.")]
Seed = Annotated[int, typer.Option(help="Decides every random choice.")]


def make_estimator(name: str, folds: int | None, names: Sequence[str]) -> "MomentEstimator":
    """The estimator that an option names, one of ``names``."""
    if name not in names:
        raise DataError(f"--estimator must be one of {', '.join(names)}, got {name!r}.")
    from prudent import cmr
    from prudent.cmr._names import NAMES

    kind = getattr(cmr, NAMES[name])
    if folds is None:
        return kind()
    if "n_folds" not in kind().get_params():
        raise DataError(f"--folds is for estimators that cross-fit; {name} does not. Leave it out.")
    return kind(n_folds=folds)


def save_model(model: Any, out: Path, role: str, as_json: bool) -> None:
    """Save a fitted model, with the picture of its effect where ``role`` is one column, and show its diagnosis."""
    is_replaced = (out / "model.json").exists()
    folder = model.save(out)
    has_picture = model.roles_[role].is_categorical or model.roles_[role].width == 1
    if has_picture:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        model.plot_effect()
        plt.savefig(folder / "effect.png", dpi=150)
        plt.close()
    show_diagnosis(model, as_json)
    if not as_json:
        columns = f"; no picture, which needs one {role} column, not {model.roles_[role].width}"
        picture = " with effect.png" if has_picture else columns
        print(f"saved in {folder}/{picture}" + (", in place of the model that was there" if is_replaced else ""))


def check_single(role: "Role", cure: str) -> None:
    """Raise where values of a role cannot be given as one list."""
    if len(role.names) > 1:
        raise DataError(
            f"These options ask about one column; the {role.title.lower()} has {', '.join(role.names)}. Use {cure}."
        )


def load_model(folder: Path, kind: str) -> Any:
    """The saved model in a folder, which must be of the class ``kind``."""
    from prudent import load

    model = load(folder)
    if type(model).__name__ != kind:
        raise DataError(f"{folder} holds a {type(model).__name__}, not {kind}. Use its own command.")
    return model


def show_diagnosis(model: Any, as_json: bool) -> None:
    """What can be said against a fit, as a table or as JSON."""
    report: Any = getattr(getattr(model, "estimator_", None), "report_", None)
    has_coefficients = hasattr(report, "coefficients")
    if as_json:
        record = model.diagnose().to_json()
        record |= {"two_stage": dataclasses.asdict(report)} if has_coefficients else {}
        print(json.dumps(finite(record), indent=1))
        return
    if has_coefficients:
        print(report, end="\n\n")
    show("diagnosis", ["what", "value", "reading"], model.diagnose().rows(), as_json=False)
