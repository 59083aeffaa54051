"""``prudent demo``: the methods end to end in about a minute, with pictures."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from prudent.cli._tables import show


def demo(
    out: Annotated[Path, typer.Option(help="Folder for pictures and models.")] = Path("prudent-demo"),
    seed: Annotated[int, typer.Option(help="Decides every random choice.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Run the methods end to end and write tables and pictures."""
    out.mkdir(parents=True, exist_ok=True)
    results = {
        "iv": _iv_demo(out, seed, as_json),
        "imitation": _imitation_demo(out, seed, as_json),
        "ltl": _ltl_demo(out, seed, as_json),
    }
    if as_json:
        print(json.dumps(results, indent=1))


def _iv_demo(out: Path, seed: int, as_json: bool) -> list[dict[str, Any]]:
    """Ticket pricing from confounded sales: plain regression, 2SLS and DML-CMR against the truth."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np
    from linearmodels.iv import IV2SLS
    from sklearn.ensemble import HistGradientBoostingRegressor

    from prudent import IVRegression, datasets
    from prudent.cmr import DMLCMR

    data = datasets.make_demand(2000, seed=seed)
    observed = data.roles()["context"]
    if not as_json:
        print(
            "Ticket sales, 2000 rows: a hidden event moves price and sales together; the fuel price is an instrument."
        )
    start = time.perf_counter()
    model = IVRegression(DMLCMR(n_folds=5), seed=seed).fit(data.frame(), **data.names)
    seconds = time.perf_counter() - start

    naive = HistGradientBoostingRegressor(random_state=seed).fit(np.hstack([data.action, observed]), data.outcome[:, 0])
    exogenous = np.hstack([np.ones((len(data.outcome), 1)), observed[:, :-1]])
    linear = IV2SLS(data.outcome, exogenous, data.action, data.instruments).fit()
    coefficients = np.asarray(linear.params)

    class Plain:
        def effect(self, action, context):
            return naive.predict(np.hstack([action, context]))

    class Linear:
        def effect(self, action, context):
            return np.hstack([np.ones((len(action), 1)), context[:, :-1], action]) @ coefficients

    rows = [
        ["boosted trees, no instrument", datasets.demand_error(Plain())],
        ["two-stage least squares", datasets.demand_error(Linear())],
        ["DML-CMR (prudent)", datasets.demand_error(model)],
    ]
    header = ["method", "mse"]
    if not as_json:
        title = "error of the effect (MSE on the test grid; the effect's variance is 1.31)"
        show(title, header, rows, as_json=False)
        print(model.summary())

    fig, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    price = np.linspace(10, 25, 40)
    scaled = ((price - 17.779) / 3.7)[:, None]
    month, customer = 5.0, 4
    context = np.tile(np.r_[month, np.eye(7)[customer - 1]], (len(price), 1))
    axes[0].plot(price, data.truth(scaled, context), "k--", label="truth")
    axes[0].plot(price, Plain().effect(scaled, context), color="tab:red", label="boosted trees, no instrument")
    axes[0].plot(price, Linear().effect(scaled, context), color="tab:gray", label="two-stage least squares")
    axes[0].plot(price, model.effect(scaled, context), color="tab:blue", label="DML-CMR")
    axes[0].set(
        xlabel="ticket price",
        ylabel="sales (scaled)",
        title=f"effect of the price, time {month:g}, customer {customer}",
    )
    axes[0].legend(frameon=False)
    times = np.linspace(0, 10, 120)
    for k, colour in ((1, "tab:green"), (4, "tab:blue"), (7, "tab:purple")):
        contexts = np.column_stack([times, np.tile(np.eye(7)[k - 1], (len(times), 1))])
        axes[1].plot(times, data.truth([[0.0]], contexts), "--", color=colour, linewidth=1)
        axes[1].plot(times, model.effect([[0.0]], contexts), color=colour, label=f"customer {k}")
    axes[1].set(
        xlabel="time of year", ylabel="sales (scaled)", title="effect over the year at price 17.8 (dashed: truth)"
    )
    axes[1].legend(frameon=False)
    fig.savefig(out / "iv.png", dpi=130)
    plt.close(fig)
    model.save(out / "iv-model")
    if not as_json:
        print(f"fitted in {seconds:.0f} s; picture {out / 'iv.png'}, model {out / 'iv-model'}/")
    return [dict(zip(header, row, strict=True)) for row in rows]


def _imitation_demo(out: Path, seed: int, as_json: bool) -> list[dict[str, Any]]:
    """Ticket pricing from an expert's prices: cloning imitates hidden costs, DML-IL does not."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from prudent import imitation
    from prudent.cmr import DMLCMR

    if not as_json:
        print(
            "A pricing expert, 20 episodes of 250 steps: hidden costs move the state and the recorded price together."
        )
    start = time.perf_counter()
    env = imitation.make_env("TicketPricing-v0", noise_horizon=1)
    demonstrations = imitation.demonstrate(env, episodes=20, steps=250, seed=seed)
    models = {
        "behaviour cloning": imitation.BehaviourCloning(seed=seed, n_networks=2).fit(demonstrations),
        "DML-IL (prudent)": imitation.CausalImitation(
            DMLCMR(n_folds=2, n_repeats=1, n_functions=2), noise_horizon=1, seed=seed
        ).fit(demonstrations),
    }
    results = {name: imitation.evaluate(m.policy(), env, episodes=20, seed=seed) for name, m in models.items()}
    references = results["DML-IL (prudent)"].references
    rows = [
        [name, r.mse, r.score]
        for name, r in (*results.items(), ("zero", references["zero"]), ("expert", references["expert"]))
    ]
    header = ["policy", "mse to the expert", "score"]
    if not as_json:
        show("roll-outs (random actions score 0, the expert 1)", header, rows, as_json=False)
    policies = {name: model.policy() for name, model in models.items()}
    picture = imitation.plot_rollout(policies, env, steps=80, seed=seed)
    picture.savefig(out / "imitation.png", dpi=130)
    plt.close(picture)
    models["DML-IL (prudent)"].save(out / "imitation-model")
    if not as_json:
        seconds = time.perf_counter() - start
        print(f"learnt in {seconds:.0f} s; picture {out / 'imitation.png'}, model {out / 'imitation-model'}/")
    return [dict(zip(header, row, strict=True)) for row in rows]


def _ltl_demo(out: Path, seed: int, as_json: bool) -> list[dict[str, Any]]:
    """The probabilistic gate: two learners on a temporal-logic goal, with exact probabilities beside the optimum."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from prudent import envs, ltl

    gate = envs.probabilistic_gate()
    if not as_json:
        print(
            f"A robot at a gate, goal {gate.goal}: stay in a for ever in the end, never enter c. The gate's odds are "
            "unknown to it."
        )
    start = time.perf_counter()
    best = ltl.optimum(gate, gate.goal)
    n_runs, steps = 10, 2_500_000
    rows, fig = [], plt.figure(figsize=(6.5, 4.2), layout="constrained")
    ax = fig.subplots()
    for method in ("cf+kc", "bozkurt"):
        runs = ltl.learn(gate, gate.goal, method=method, steps=steps, seed=range(seed, seed + n_runs))
        exact = ltl.check(gate, runs.policy, gate.goal)
        n_best = sum(run.curve.final > best - 0.01 for run in runs.runs)
        rows.append([method, runs.curve.final, exact, f"{n_best} of {n_runs}", best])
        runs.plot(ax)
        if method == "cf+kc":
            runs.policy.save(out / "ltl-policy.json")
    header = ["method", "mean over runs", "best run", "runs at the optimum", "optimum"]
    if not as_json:
        show(f"probability of the goal after {steps:,} steps", header, rows, as_json=False)
    ax.axhline(best, color="black", linestyle="--", linewidth=1, label="optimum")
    ax.set_title("probabilistic gate: exact probability while learning")
    ax.legend(frameon=False)
    fig.savefig(out / "ltl.png", dpi=130)
    plt.close(fig)
    if not as_json:
        seconds = time.perf_counter() - start
        print(f"learnt in {seconds:.0f} s; picture {out / 'ltl.png'}, policy {out / 'ltl-policy.json'}")
    return [dict(zip(header, row, strict=True)) for row in rows]
