"""Sensitivity of DML-CMR to its hyper-parameters on the demand design, each from one call of ``prudent.tune``."""

from typing import Any

from prudent.bench._definition import Experiment, Figure, Method, Metric, Quick, Task

# The third value of each list is the default for f; that of the nuisances' weight decay depends on n.
_VALUES: dict[str, list[Any]] = {
    "learning_rate": [5e-4, 1e-3, 2e-3, 4e-3, 8e-3],
    "weight_decay": [0.03, 0.1, 0.3, 1.0, 3.0],
    "dropout_rate": [0.0, 0.05, 0.1, 0.2, 0.4],
    "width": [32, 64, 128, 256, 512],
}
_DEFAULT = 2


def run_cell(task: Task) -> dict[str, Any]:
    """Tune one hyper-parameter of both stages; compare what the data choose with what the truth would have chosen."""
    from prudent import datasets, tune
    from prudent.bench.experiments._iv import make_estimator

    name = str(task.point["vary"])
    values = _VALUES[name][:: int(task.budget["every"])]
    # A width is that of the first layer; the second has half of it, as in the default.
    space = {"widths": [(w, w // 2) for w in values]} if name == "width" else {name: values}
    action, context, truth = datasets.demand_grid()

    def error(f: Any) -> float:
        import numpy as np

        return float(np.mean((f.predict(np.hstack([action, context]))[:, 0] - truth) ** 2))

    result = tune(
        make_estimator({"estimator": "DMLCMR", **task.settings}),
        space,
        datasets.make_demand(int(task.budget["n"]), seed=task.seed),
        n_splits=int(task.budget["splits"]),
        seed=task.seed,
        metric=error,
    )
    setting = next(iter(space))
    nuisance = {str(t.settings[setting]): t.score for t in result.trials if t.stage == "nuisance"}
    trials = {str(t.settings[setting]): t for t in result.trials if t.stage == "function"}
    order = [str(value) for value in space[setting]]
    errors = [trials[key].losses["metric"] for key in order]
    return {
        "chosen": result.stage("function")[0].losses["metric"],
        "best": min(errors),
        "worst": max(errors),
        "place": [float(_VALUES[name].index(value) - _DEFAULT) for value in values],
        "mse": errors,
        "moment": [trials[key].score for key in order],
        "nuisance_loss": [nuisance[key] for key in order],
    }


def _method(name: str, label: str, n_folds: int, seconds: float) -> Method:
    return Method(
        name=name,
        label=label,
        settings={"n_folds": n_folds},
        quick={"n_repeats": 1, "n_folds": min(n_folds, 2), "brief": True},
        seconds=seconds,
        quick_seconds=30,
    )


sensitivity = Experiment(
    name="iv/sensitivity",
    title="Sensitivity to hyper-parameters",
    protocol=(
        "Demand design, normalised convention, n = 5000. One call of prudent.tune per hyper-parameter, three folds: "
        "values are compared for the nuisances by held-out loss, then for f (one network, two thirds of the rows) by "
        "the moment error on the rest; MSE on the test grid, averaged over folds, of the value chosen and of the best "
        "and the worst value. Values: "
        + "; ".join(f"{name} {', '.join(str(value) for value in values)}" for name, values in _VALUES.items())
        + "."
    ),
    run_cell="prudent.bench.experiments.iv_sensitivity:run_cell",
    methods=(_method("dml-cmr", "DML-CMR", 10, 240), _method("ce-dml-cmr", "CE-DML-CMR", 1, 120)),
    grid={"vary": tuple(_VALUES)},
    runs=5,
    budget={"n": 5000, "splits": 3, "every": 1},
    metrics=(
        Metric(name="chosen", label="MSE of the value chosen", better="lower"),
        Metric(name="best", label="of the best value"),
        Metric(name="worst", label="of the worst value"),
        Metric(name="place", label="values above the default", in_tables=False),
        Metric(name="mse", label="MSE", in_tables=False),
        Metric(name="moment", label="moment error", in_tables=False),
        Metric(name="nuisance_loss", label="held-out loss of the nuisances", in_tables=False),
    ),
    figures=(Figure(kind="curves", x="place", y="mse", log_y=True),),
    quick=Quick(
        runs=1,
        grid={"vary": ("learning_rate",)},
        budget={"n": 500, "splits": 2, "every": 2},
        methods=("ce-dml-cmr",),
    ),
)
