"""``prudent ltl``: automata, learning and exact checking for temporal-logic goals."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prudent.cli._models import Json
from prudent.cli._tables import show
from prudent.errors import DataError, PrudentError

if TYPE_CHECKING:
    from prudent.ltl import Automaton, CertifiedRun, CertifiedRuns, Formula, LabelledMDP, LearningRun, LearningRuns

app = typer.Typer(help="Policies for temporal-logic goals, with exact probabilities.", no_args_is_help=True)

ENVIRONMENTS = {
    "probabilistic-gate": "probabilistic_gate",
    "frozen-lake": "frozen_lake",
    "office-world": "office_world",
}

Text = Annotated[str, typer.Argument(help='LTL formula, for example "(F G a) & (G !c)".')]
Goal = Annotated[str | None, typer.Option("--formula", help="LTL formula; default: the environment's own goal.")]
Hoa = Annotated[Path | None, typer.Option("--automaton", help="HOA file of an automaton, in place of a formula.")]
Model = Annotated[str, typer.Argument(help=f"PRISM file, or one of {', '.join(ENVIRONMENTS)}.")]
Constants = Annotated[str, typer.Option(help="Constants of a PRISM file, as N=3,p=0.5.")]
Backend = Annotated[str, typer.Option(help="native, storm or prism.")]
Exact = Annotated[bool, typer.Option("--exact", help="Rational arithmetic: the answer is a fraction.")]


@app.command()
def translate(
    formula: Text,
    hoa: Annotated[bool, typer.Option("--hoa", help="Print the automaton in HOA format.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print the automaton for Graphviz.")] = False,
    as_json: Json = False,
) -> None:
    """Translate a formula into a limit-deterministic Buechi automaton."""
    if hoa + dot + as_json > 1:
        raise DataError("Give at most one of --hoa, --dot and --json.")
    with _plain_messages():
        from prudent.ltl._product import as_automaton

        automaton = as_automaton(formula)
    if hoa:
        print(automaton.to_hoa(), end="")
    elif dot:
        print(automaton.to_dot(), end="")
    elif as_json:
        print(_json(_facts(formula, automaton) | {"hoa": automaton.to_hoa()}))
    else:
        facts = _facts(formula, automaton)
        show(formula, ["what", "value"], [[k, v] for k, v in facts.items() if k != "formula"], as_json=False)
        show("moves", ["from", "if", "to", ""], _moves(automaton), as_json=False)


@app.command()
def plot(
    formula: Text,
    out: Annotated[Path, typer.Option(help="Picture to write; .png, .pdf or .svg.")],
    trap: Annotated[bool, typer.Option("--trap", help="Draw the trap and the moves into it.")] = False,
    as_json: Json = False,
) -> None:
    """Draw the automaton of a formula."""
    if out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise DataError(f"--out must end in .png, .pdf or .svg, got {str(out)!r}.")
    with _plain_messages():
        from prudent import ltl

        automaton = ltl.translate(ltl.parse(formula))
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    automaton.plot(show_trap=trap).set_title(formula)
    out.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(out, dpi=150, bbox_inches="tight")
    plt.close()
    print(_json(_facts(formula, automaton) | {"picture": str(out)}) if as_json else f"picture {out}")


@app.command()
def learn(
    context: typer.Context,
    env: Annotated[str, typer.Option(help=f"PRISM file, or one of {', '.join(ENVIRONMENTS)}.")],
    formula: Goal = None,
    automaton: Hoa = None,
    method: Annotated[str, typer.Option(help="certified, cf+kc, kc, cf, bozkurt, hahn or hasanbeig.")] = "cf+kc",
    steps: Annotated[
        int | None,
        typer.Option(help="Steps of each run; default: the environment's budget, or a million if certified."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every random choice.")] = 0,
    runs: Annotated[int, typer.Option(help="Runs, with seeds SEED, SEED+1, ...")] = 1,
    gamma: Annotated[str, typer.Option(help="Discount of steps without reward: a number, or auto.")] = "0.99",
    largest_reward: Annotated[str, typer.Option("--U", help="Largest reward: a number, or auto.")] = "0.1",
    counter: Annotated[int | None, typer.Option("--K", help="Largest counter; default: the environment's.")] = None,
    confidence: Annotated[float, typer.Option(help="certified: probability that the bounds hold.")] = 0.95,
    p_min: Annotated[
        str | None,
        typer.Option("--p-min", help="certified: no possible move is rarer (0.1 or 1/3); default: the model's rarest."),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="certified: how closely the probability is to be known.")] = 0.05,
    gap: Annotated[
        float | None, typer.Option(help="certified: how close to the optimum it is to be; default: epsilon.")
    ] = None,
    no_resets: Annotated[bool, typer.Option("--no-resets", help="certified: learn in one run.")] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="certified: file to continue from, and to write.")] = None,
    constants: Constants = "",
    out: Annotated[Path | None, typer.Option(help="Folder for policy.json and pictures.")] = None,
    as_json: Json = False,
) -> None:
    """Learn a policy without using the transition probabilities; show its exact probability, or certified bounds."""
    if runs < 1:
        raise DataError(f"--runs must be at least 1, got {runs}.")
    _check_options(context, is_certified=method == "certified")
    if method == "certified":
        if checkpoint is not None and runs > 1:
            raise DataError(f"--checkpoint is for one run, got --runs {runs}.")
        with _plain_messages():
            from prudent import ltl

            mdp = _model(env, constants)
            goal = _goal(mdp, formula, automaton)
            options: dict[str, Any] = {
                "confidence": confidence,
                "epsilon": epsilon,
                "resets": not no_resets,
                "gap": gap,
            }
            options |= {"steps": steps, "p_min": mdp.minimum_probability if p_min is None else _fraction(p_min)}
            if checkpoint is not None:
                single = ltl.learn(
                    mdp, goal, method="certified", seed=seed, checkpoint=checkpoint, resume=True, **options
                )
                certified = ltl.CertifiedRuns((single,))
            else:
                certified = ltl.learn(mdp, goal, method="certified", seed=range(seed, seed + runs), **options)
        _show_certified(certified, _title(goal, automaton), mdp, out, as_json)
        return
    with _plain_messages():
        from prudent import ltl

        mdp = _model(env, constants)
        goal = _goal(mdp, formula, automaton)
        best = ltl.optimum(mdp, goal)
        found = ltl.learn(
            mdp,
            goal,
            method=method,
            steps=steps,
            seed=range(seed, seed + runs),
            gamma=_number("--gamma", gamma),
            U=_number("--U", largest_reward),
            K=counter,
        )
    rows = [
        [run.settings.method, run.seed, run.settings.steps, run.settings.gamma, run.curve.final, best]
        for run in found.runs
    ]
    show(_title(goal, automaton), ["method", "seed", "steps", "gamma", "probability", "optimum"], rows, as_json=as_json)
    if not as_json:
        _hint(found.runs, best)
    if out is not None:
        _write(found, best, out)
        if not as_json:
            print(f"policy {out / 'policy.json'}, learning curve {out / 'curve.png'}")


@app.command()
def check(
    model: Model,
    policy: Annotated[Path, typer.Argument(help="policy.json, as written by 'prudent ltl learn --out'.")],
    formula: Annotated[
        str | None, typer.Option("--formula", help="LTL formula; default: the policy's own goal, or the environment's.")
    ] = None,
    automaton: Hoa = None,
    backend: Backend = "native",
    exact: Exact = False,
    constants: Constants = "",
    as_json: Json = False,
) -> None:
    """Exact probability that a policy satisfies a formula."""
    with _plain_messages():
        from prudent import ltl

        mdp = _model(model, constants)
        chosen = ltl.Policy.load(policy)
        chosen.check_model(mdp)  # Before its goal, which another model need not know.
        goal = _goal(mdp, formula or (None if automaton else chosen.formula), automaton)
        value = ltl.check(mdp, chosen, goal, backend=backend, exact=exact)
    _show_value("probability of the policy", _title(goal, automaton), backend, value, as_json)


@app.command()
def optimum(
    model: Model,
    formula: Goal = None,
    automaton: Hoa = None,
    backend: Backend = "native",
    exact: Exact = False,
    constants: Constants = "",
    as_json: Json = False,
) -> None:
    """Largest probability of a formula over all policies."""
    with _plain_messages():
        from prudent import ltl

        mdp = _model(model, constants)
        goal = _goal(mdp, formula, automaton)
        value = ltl.optimum(mdp, goal, backend=backend, exact=exact)
    _show_value("largest probability", _title(goal, automaton), backend, value, as_json)


@contextmanager
def _plain_messages() -> Iterator[None]:
    """Errors of the LTL code as one line; its warnings as lines on standard error."""
    from prudent.ltl import FormulaError

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            yield
        except (PrudentError, ValueError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            # The further lines of a formula error repeat the formula, with a mark under the character.
            raise DataError(lines[0] if isinstance(error, FormulaError) else "; ".join(lines)) from error
        finally:
            for text in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)):
                sys.stderr.write(f"prudent: warning: {text}\n")


def _model(name: str, constants: str) -> "LabelledMDP":
    """An environment by its name, or a PRISM file."""
    from prudent import envs
    from prudent.ltl import LabelledMDP

    if name in ENVIRONMENTS:
        if constants:
            raise DataError(f"--constants is for PRISM files, got {constants!r} with {name}. Leave it out.")
        return getattr(envs, ENVIRONMENTS[name])()
    path = Path(name)
    if not path.is_file():
        raise DataError(f"{name!r} is neither a PRISM file nor an environment; these are {', '.join(ENVIRONMENTS)}.")
    return LabelledMDP.from_prism(path, constants=constants)


def _goal(mdp: "LabelledMDP", formula: str | None, automaton: Path | None) -> "Formula | Automaton":
    """The goal of the options; without any, the environment's own."""
    from prudent import ltl

    if automaton is None:
        return ltl.parse(formula if formula is not None else mdp.goal)
    if formula is not None:
        raise DataError("Give --formula or --automaton, not both.")
    if not automaton.is_file():
        raise DataError(f"--automaton needs a file in HOA format; {automaton} is none.")
    return ltl.Automaton.from_hoa(automaton.read_text(encoding="utf-8"))


def _title(goal: "Formula | Automaton", automaton: Path | None) -> str:
    return str(goal) if automaton is None else str(automaton)


def _fraction(text: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise DataError(f"--p-min must be a number or a fraction such as 1/3, got {text!r}.") from None


def _number(option: str, text: str) -> float | str:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise DataError(f"{option} must be a number or 'auto', got {text!r}.") from None


def _facts(formula: str, automaton: "Automaton") -> dict[str, Any]:
    return {
        "formula": formula,
        "states": automaton.n_states,
        "trap": automaton.has_trap,
        "epsilon moves": automaton.n_epsilon,
        "deterministic": automaton.is_deterministic(),
        "propositions": ", ".join(automaton.propositions),
    }


def _moves(automaton: "Automaton") -> list[list[Any]]:
    rows: list[list[Any]] = []
    for q in range(automaton.n_states):
        start = f"{q} (start)" if q == automaton.initial else f"{q} (trap)" if automaton.is_trap(q) else str(q)
        rows += [[start, str(e.guard), e.target, "accepting" if e.sets else ""] for e in automaton.edges(q)]
        rows += [[start, "epsilon: at will, takes no time", target, ""] for target in automaton.epsilon(q)]
    return rows


def _hint(runs: "tuple[LearningRun, ...]", best: float) -> None:
    settings = runs[0].settings
    short = max(run.curve.final for run in runs) < best - 0.01
    if short and settings.method in ("kc", "cf", "cf+kc", "bozkurt") and settings.gamma < settings.sufficient_gamma:
        print(
            f"below the optimum: more --steps, or discount bias; gamma {settings.sufficient_gamma:.6f} (--gamma auto) "
            "rules the bias out"
        )


def _write(found: "LearningRuns", best: float, out: Path) -> None:
    """The best run's policy, and the mean curve."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    out.mkdir(parents=True, exist_ok=True)
    found.policy.save(out / "policy.json")
    fig, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
    (found if len(found) > 1 else found[0]).plot(ax)
    ax.axhline(best, color="black", linestyle="--", linewidth=1, label="optimum")
    ax.legend(frameon=False)
    fig.savefig(out / "curve.png", dpi=130)
    plt.close(fig)


def _check_options(context: typer.Context, *, is_certified: bool) -> None:
    """Refuse options that the method has no use for."""
    of_certified = ("confidence", "p_min", "epsilon", "gap", "no_resets", "checkpoint")
    others = ("gamma", "largest_reward", "counter") if is_certified else of_certified
    for name in others:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = {"largest_reward": "--U", "counter": "--K"}.get(name, "--" + name.replace("_", "-"))
            which = "other methods than certified" if is_certified else "--method certified"
            raise DataError(f"{option} is for {which}. Leave it out, or change --method.")


def _certificate_record(run: "CertifiedRun") -> dict[str, Any]:
    return asdict(run.certificate) | {
        "assumption": run.certificate.assumption,
        "sentence": str(run.certificate),
        "seed": run.seed,
    }


def _show_certified(found: "CertifiedRuns", goal: str, mdp: "LabelledMDP", out: Path | None, as_json: bool) -> None:
    """Bounds as a table with the sentence that explains them; policy, certificate, bounds and visits as files."""
    from prudent.ltl._certificate import rounded_down, rounded_up

    columns = [
        "seed",
        "steps",
        "policy at least",
        "policy at most",
        "optimum at most",
        "confidence",
        "p_min",
        "certified",
    ]
    rows = []
    for run in found.runs:
        c = run.certificate
        bounds: list[Any] = [c.lower, c.policy_upper, c.upper]
        if not as_json:
            # Rounded such that they stay bounds.
            bounds = [rounded_down(c.lower), rounded_up(c.policy_upper), rounded_up(c.upper)]
        row = [run.seed, c.steps, *bounds, c.confidence, c.p_min, c.is_certified]
        rows.append([*row, _certificate_record(run)] if as_json else row)
    show(goal, [*columns, "certificate"] if as_json else columns, rows, as_json=as_json)
    best = found.best
    if not as_json:
        print(best.certificate)
        if len(found) > 1:
            confidence = max(0.0, 1 - len(found) * (1 - best.certificate.confidence))
            print(
                f"(seed {best.seed}, chosen among {len(found)} runs: its bounds hold with confidence {confidence:.4g})"
            )
    if out is None:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    out.mkdir(parents=True, exist_ok=True)
    best.policy.save(out / "policy.json")
    (out / "certificate.json").write_text(_json(_certificate_record(best)) + "\n", encoding="utf-8")
    for name, draw in (("bounds.png", best.plot), ("visits.png", lambda ax: best.plot_visits(mdp, ax))):
        fig, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
        draw(ax)
        fig.savefig(out / name, dpi=130)
        plt.close(fig)
    if not as_json:
        names = ("policy.json", "certificate.json", "bounds.png", "visits.png")
        print("written: " + ", ".join(str(out / name) for name in names))


def _show_value(what: str, goal: str, backend: str, value: float | Fraction, as_json: bool) -> None:
    fraction = str(value) if isinstance(value, Fraction) else None
    if as_json:
        print(_json({"formula": goal, "backend": backend, "probability": float(value), "exact": fraction}))
        return
    # Ten digits: `show` gives five, too few for a number that is exact.
    show(goal, ["what", "backend", "value"], [[what, backend, f"{float(value):.10g}"]], as_json=False)
    if fraction is not None:
        print(f"exactly {fraction}")  # Outside of the table, which would cut a long fraction.


def _json(record: dict[str, Any]) -> str:
    import json

    return json.dumps(record, indent=1)
