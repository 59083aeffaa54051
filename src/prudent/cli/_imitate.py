"""``prudent imitate``: policies from demonstrations in which hidden noise moves states and actions together."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prudent.cli._models import Json, Seed, show_diagnosis
from prudent.cli._tables import finite, show, split_names
from prudent.errors import DataError

if TYPE_CHECKING:
    from prudent.imitation import Imitator

app = typer.Typer(help="Policies from confounded demonstrations.", no_args_is_help=True)

Data = Annotated[Path, typer.Argument(help="Demonstrations: an .npz file, as save_trajectories writes it.")]
Policy = Annotated[Path, typer.Argument(help="Folder of a saved policy.")]
Env = Annotated[
    str,
    typer.Option(
        help="Confounded environment: TicketPricing-v0 or -v1, ConfoundedHalfCheetah-v0, ConfoundedHopper-v0, "
        "ConfoundedAnt-v0, or an id of your own."
    ),
]
Horizon = Annotated[int, typer.Option(help="Steps k over which the hidden noise is correlated.")]
Relative = Annotated[str | None, typer.Option(help="Observation columns that enter as differences: 0 or 0,3.")]
Steps = Annotated[int | None, typer.Option(help="Steps of an episode; 500, or the time limit if that is less.")]
METHODS = ("dml-il", "bc", "bc-seq", "residuil")


@app.command()
def demonstrate(
    env: Env,
    out: Annotated[Path, typer.Option(help=".npz file for the demonstrations.")],
    noise_horizon: Horizon = 1,
    noise: Annotated[str, typer.Option(help="executed, or recorded: the clean action is executed.")] = "executed",
    episodes: Annotated[int, typer.Option(help="Episodes.")] = 40,
    steps: Steps = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Let the environment's expert demonstrate, with the noise that it does not know of."""
    if out.suffix != ".npz" or out.is_dir():
        raise DataError(f"--out must be a file that ends in .npz, got {out.name!r}.")
    from prudent import imitation

    world = imitation.make_env(env, noise_horizon=noise_horizon, noise=noise)
    out.parent.mkdir(parents=True, exist_ok=True)  # Better before the roll-outs than after them.
    found = imitation.demonstrate(world, episodes=episodes, steps=steps, seed=seed)
    imitation.save_trajectories(out, found)
    header = ["file", "episodes", "steps", "observed columns", "action columns"]
    row = [str(out), len(found), sum(len(t) for t in found), found[0].observations.shape[1], found[0].actions.shape[1]]
    show("demonstrations", header, [row], as_json=as_json)


@app.command()
def horizon(
    data: Data,
    max_horizon: Annotated[int, typer.Option(help="Largest k to look at.")] = 20,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of a policy, fitted with a generous horizon, whose errors are looked at: sees more."),
    ] = None,
    relative: Relative = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Instrument strength and residual noise per horizon k: help for choosing k."""
    columns = None if relative is None else _columns(relative)
    from prudent import imitation

    found = imitation.load_trajectories(data)
    fitted = None if model is None else _load(model)
    report = imitation.suggest_horizon(found, max_horizon=max_horizon, model=fitted, relative=columns, seed=seed)
    header = ["k", "strength", "residual autocorrelation", "standard error"]
    show("candidates for the noise horizon", header, report.rows(), as_json=as_json)
    if not as_json:
        print(report.advice)


@app.command()
def fit(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for the policy.")],
    noise_horizon: Annotated[
        int | None, typer.Option(help="Steps k over which the hidden noise is correlated, at most (not for bc).")
    ] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "dml-il",
    policy_states: Annotated[int | None, typer.Option(help="Newest states that the policy sees (dml-il).")] = None,
    relative: Relative = None,
    correction: Annotated[
        str | None, typer.Option(help="What corrects cloning (dml-il): network, the default, or straight.")
    ] = None,
    folds: Annotated[
        int | None, typer.Option(help="Cross-fitting folds over episodes (dml-il), 10 by default.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Learn a policy and save it."""
    if method not in METHODS:
        raise DataError(f"--method must be one of {', '.join(METHODS)}, got {method!r}.")
    if noise_horizon is None and method != "bc":
        raise DataError(f"{method} needs --noise-horizon. `prudent imitate horizon` helps to choose it.")
    if noise_horizon is not None and method == "bc":
        raise DataError("--noise-horizon is not for bc, which sees one state and no history. Leave it out.")
    k = noise_horizon or 0
    for option, value in (("--policy-states", policy_states), ("--correction", correction), ("--folds", folds)):
        if value is not None and method != "dml-il":
            raise DataError(f"{option} is for dml-il; {method} has no use for it. Leave it out.")
    columns = _columns(relative)
    from prudent._storage import check_folder

    check_folder(out, "CausalImitation")
    from prudent import imitation
    from prudent.cmr import DMLCMR

    found = imitation.load_trajectories(data)
    shared: dict[str, Any] = {"relative": columns, "seed": seed}
    if method == "dml-il":
        model: Any = imitation.CausalImitation(
            DMLCMR(n_folds=10 if folds is None else folds),
            noise_horizon=k,
            policy_states=policy_states,
            correction=correction or "network",
            **shared,
        )
    elif method == "residuil":
        model = imitation.ResiduIL(noise_horizon=k, **shared)
    elif method == "bc-seq":
        model = imitation.SequenceCloning(window=k + 3, **shared)
    else:
        model = imitation.BehaviourCloning(**shared)
    model.fit(found)
    model.save(out)
    error, title = model.action_error(found), method if noise_horizon is None else f"{method}, k = {k}"
    counts = {"n_episodes": len(found), "n_rows": sum(len(t) for t in found)}
    diagnosis = model.diagnose() if method == "dml-il" else None
    if as_json:
        facts = counts if diagnosis is None else diagnosis.to_json()
        print(json.dumps(finite({**facts, "action_error": error}), indent=1))
        return
    plain = [("episodes", counts["n_episodes"], ""), ("steps", counts["n_rows"], "")]
    rows: list[Any] = plain if diagnosis is None else diagnosis.rows()
    rows.append(("error of recorded actions", f"{error:.4g}", "in sample; it says little of how the policy acts"))
    show(title, ["what", "value", "reading"], rows, as_json=False)
    print(f"saved in {out}/")


@app.command()
def diagnose(model: Policy, as_json: Json = False) -> None:
    """Instrument strength, correction of cloning and moment error of a saved policy of dml-il."""
    fitted = _load(model)
    if not hasattr(fitted, "diagnose"):
        raise DataError(f"{model} holds a {type(fitted).__name__}, which has nothing to diagnose: only dml-il has.")
    show_diagnosis(fitted, as_json)


@app.command()
def evaluate(
    model: Policy,
    env: Env,
    noise_horizon: Annotated[
        int | None,
        typer.Option(
            help="Steps k over which the hidden noise is correlated; by default that of a dml-il or residuil fit."
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(help="Episodes.")] = 50,
    steps: Steps = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a picture of one roll-out.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Roll a saved policy out beside the reference policies."""
    from prudent import imitation

    fitted = _load(model)
    k = noise_horizon if noise_horizon is not None else fitted.noise_horizon
    if not k and noise_horizon is None:
        raise DataError(f"--noise-horizon is needed: a {type(fitted).__name__} does not know that of its fit.")
    world = imitation.make_env(env, noise_horizon=k)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    result = imitation.evaluate(fitted.policy(), world, episodes=episodes, steps=steps, seed=seed)
    header = ["policy", "score", "score_se", "reward", "mse", "mse_unclipped"]
    title = f"{env}, k = {k}: {result.episodes} episodes of {result.steps} steps"
    show(title, header, result.rows(), as_json=as_json)
    if not as_json:
        print(result.legend)
    if out is not None:
        import matplotlib

        matplotlib.use("Agg")
        picture = imitation.plot_rollout({type(fitted).__name__: fitted.policy()}, world, seed=seed)
        picture.savefig(out / "rollout.png", dpi=130)
        if not as_json:
            print(f"picture {out / 'rollout.png'}")


def _load(folder: Path) -> "Imitator":
    from prudent import imitation, load

    fitted = load(folder)
    if not isinstance(fitted, imitation.Imitator):
        raise DataError(f"{folder} holds no policy but {type(fitted).__name__}. Give the --out of prudent imitate fit.")
    return fitted


def _columns(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in split_names(text))
    except ValueError:
        raise DataError(f"--relative must be column numbers such as 0 or 0,3, got {text!r}.") from None
