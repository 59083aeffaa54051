"""``prudent iv``: instrumental-variable regression from the command line."""

import sys
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
from prudent.cli._tables import (
    pair_rows,
    parse_grid,
    parse_list,
    parse_values,
    read_table,
    show,
    split_names,
    warn_outside,
)
from prudent.errors import DataError

if TYPE_CHECKING:
    from prudent.iv import IVRegression

app = typer.Typer(help="Causal effects and policies from a table with instruments.", no_args_is_help=True)

ESTIMATORS = ("dml-cmr", "kernel-cmr", "tree-cmr", "deepiv", "dfiv", "deepgmm", "kiv", "control", "2sls")
Context = Annotated[str | None, typer.Option(help="One context, as name=value,name=value.")]
Contexts = Annotated[Path | None, typer.Option(help="Table with one context per row.")]


@app.command()
def fit(
    data: Data,
    outcome: Outcome,
    action: Annotated[str, typer.Option(help="Action column(s).")],
    instrument: Annotated[str, typer.Option(help="Instrument column(s).")],
    out: Out,
    context: ContextColumns = None,
    group: Group = None,
    estimator: Annotated[str, typer.Option(help=f"One of {', '.join(ESTIMATORS)}.")] = "dml-cmr",
    folds: Folds = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Fit an effect model and save it."""
    from prudent._storage import check_folder

    check_folder(out, "IVRegression")
    frame = read_table(data)
    from prudent.iv import IVRegression

    model = IVRegression(make_estimator(estimator, folds, ESTIMATORS), seed=seed).fit(
        frame,
        outcome=split_names(outcome),
        action=split_names(action),
        instruments=split_names(instrument),
        context=split_names(context) or None,
        groups=group,
    )
    save_model(model, out, "action", as_json)


@app.command()
def effect(
    model: Model,
    grid: Annotated[str | None, typer.Option(help="Actions, as name=low:high:count.")] = None,
    action: Annotated[str | None, typer.Option(help="Actions, as values: 10,12.5 or red,blue.")] = None,
    context: Context = None,
    as_json: Json = False,
) -> None:
    """Effect of actions in a context; of a categorical action all levels, if none are named."""
    fitted = _load(model)
    check_single(fitted.roles_["action"], "prudent.load(folder).effect(rows, context) in Python")
    name = ", ".join(fitted.roles_["action"].names)
    if not grid and not action and fitted.roles_["action"].is_categorical:
        actions = list(fitted.roles_["action"].columns[0].levels or ())
    else:
        actions = parse_grid(grid, fitted.roles_["action"]) if grid else parse_list(action)
    if not context and "context" in fitted.roles_:
        raise DataError(f"Name the context: --context with values for {fitted.roles_['context'].names}.")
    warn_outside(fitted.roles_["action"], fitted.action_range_, actions)
    values = fitted.effect(actions, _one_context(fitted, context))
    show(
        f"effect of {name} in this context; intervals: prudent iv value",
        [name, "effect"],
        pair_rows(actions, values),
        as_json=as_json,
    )


@app.command()
def policy(
    model: Model,
    actions: Annotated[str | None, typer.Option(help="A range low:high, or candidates 1,2,3.")] = None,
    context: Context = None,
    contexts: Contexts = None,
    minimise: Annotated[bool, typer.Option("--minimise", help="Make the outcome small.")] = False,
    as_json: Json = False,
) -> None:
    """Best action for one context, or for every row of a table."""
    fitted = _load(model)
    given = _given(fitted, context, contexts)
    best = fitted.policy(_action_set(actions), minimise=minimise).act(given)
    warn_outside(fitted.roles_["action"], fitted.action_range_, best)
    rows = [[number, *row] for number, row in enumerate(pair_rows(best, fitted.effect(best, given)))]
    header = ["row", ", ".join(fitted.roles_["action"].names), "effect"]
    show("best action", header, rows, as_json=as_json)


@app.command()
def value(
    model: Model,
    actions: Annotated[str | None, typer.Option(help="What the best policy chooses from: low:high, or 1,2,3.")] = None,
    action: Annotated[str | None, typer.Option(help="Fixed actions in place of the best policy: 10,12.5.")] = None,
    baseline: Annotated[str | None, typer.Option(help="A fixed action: show differences to it.")] = None,
    context: Context = None,
    contexts: Contexts = None,
    minimise: Annotated[bool, typer.Option("--minimise", help="Make the outcome small.")] = False,
    level: Annotated[float, typer.Option(help="Level of the interval.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Mean outcome if the best action, or a fixed one, is taken in these contexts, with an interval."""
    fitted = _load(model)
    role = fitted.roles_["action"]
    if action and (actions or minimise):
        raise DataError("--actions and --minimise are about the best policy: leave them out with --action.")
    fixed, below = (
        parse_list(text, name) if text else [] for text, name in ((action, "action"), (baseline, "baseline"))
    )
    if len(below) > 1:
        raise DataError(f"--baseline must be one action, got {baseline!r}.")
    if fixed or below:
        check_single(role, "prudent.load(folder).policy_value(policy, context) in Python")
    given = _given(fitted, context, contexts)
    best = None if fixed else fitted.policy(_action_set(actions), minimise=minimise)
    warn_outside(role, fitted.action_range_, [*below, *(fixed if best is None else best.act(given))])
    columns = ("value", "standard_error", "lower", "upper", "plug_in")
    rows = []
    for name in fixed or ["best"]:
        tried = name if best is None else best
        found = fitted.policy_value(tried, given, baseline=below[0] if below else None, level=level)
        rows.append([name, *(getattr(found, column) for column in columns)])
    less = f" less that under {baseline}" if baseline else ""
    title = f"mean {fitted.roles_['outcome'].names[0]} under a policy{less}, {100 * level:g} % interval"
    show(title, [", ".join(role.names), *columns], rows, as_json=as_json)


@app.command()
def diagnose(model: Model, as_json: Json = False) -> None:
    """Instrument strength, nuisance fit and moment error of a saved model."""
    show_diagnosis(_load(model), as_json)


def _given(fitted: "IVRegression", context: str | None, contexts: Path | None) -> Any:
    """The contexts that the options name; None of a model without."""
    if context and contexts:
        raise DataError("Give --context or --contexts, not both.")
    given: Any = read_table(contexts, min_columns=1) if contexts else _one_context(fitted, context)
    if given is None and "context" in fitted.roles_:
        raise DataError(f"Name the context: --context or --contexts with columns {fitted.roles_['context'].names}.")
    return given


def _one_context(fitted: "IVRegression", text: str | None) -> dict[str, Any] | None:
    return parse_values(text, "--context", fitted.roles_.get("context")) or None


def _load(folder: Path) -> "IVRegression":
    from prudent.iv import WEAK_F

    model = load_model(folder, "IVRegression")
    diagnosis = model.diagnose()
    weakest = diagnosis.weakest_f
    if weakest is not None and weakest < WEAK_F:
        sys.stderr.write(
            f"prudent: warning: the instruments are weak ({diagnosis.strength_measure} {weakest:.1f}); do not trust "
            "this.\n"
        )
    return model


def _action_set(text: str | None) -> Any:
    if text is None:
        return None
    if ":" in text:
        try:
            low, high = (float(v) for v in text.split(":"))
        except ValueError:
            raise DataError(f"--actions must be low:high or a list, got {text!r}. Example: 10:25") from None
        return (low, high)
    return parse_list(text)
