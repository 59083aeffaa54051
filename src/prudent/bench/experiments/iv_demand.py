"""The demand design of Hartford et al. (2017), normalised convention: error of the structural function against n."""

from dataclasses import replace

from prudent.bench._definition import Experiment, Figure, Method, Metric, Quick, Reference, Task

_SIZES = (1000, 2000, 5000, 10000)
_FIGURE = "published values are medians read off the figures of the released DML-CMR code (±3 %)"


def run_cell(task: Task) -> dict[str, float]:
    """Fit on n rows drawn with the cell's seed; mean squared error on the 20 x 20 x 7 test grid."""
    import time

    from prudent import IVRegression, cmr, datasets

    settings = dict(task.settings)
    estimator = getattr(cmr, settings.pop("estimator"))(**settings)
    data = datasets.make_demand(int(task.point["n"]), seed=task.seed)
    start = time.perf_counter()
    model = IVRegression(estimator, seed=task.seed).fit(**data.roles())
    seconds = time.perf_counter() - start
    return {"mse": float(datasets.demand_error(model)), "fit_seconds": seconds}


def _by_size(*values: float) -> dict[str, float]:
    return {f"n={n}": value for n, value in zip(_SIZES, values, strict=True)}


def _published(label: str, *values: float) -> Reference:
    return Reference(label=label, metric="mse", values=_by_size(*values), source=_FIGURE)


def _to_reach(method: str, name: str, *values: float) -> tuple[Reference, Reference]:
    """The published medians as a target, and half of them as a goal."""
    target = Reference(
        label=f"published {name}", metric="mse", values=_by_size(*values), method=method, role="target", source=_FIGURE
    )
    halves = _by_size(*(value / 2 for value in values))
    return target, replace(target, label=f"half of published {name}", values=halves, role="goal")


def _baseline(method: str, label: str, *values: float) -> tuple[Reference, Reference]:
    """The published medians of a baseline, and what ours must reach: at most 15 % above them."""
    limits = _by_size(*(1.15 * value for value in values))
    limit = Reference(
        label=f"{label}, +15 %", metric="mse", values=limits, method=method, role="target", source=_FIGURE
    )
    return replace(_published(label, *values), method=method), limit


demand = Experiment(
    name="iv/demand",
    title="Demand with an instrument",
    protocol=(
        "Hartford's demand design, normalised convention, rho 0.9; mean squared error of f on the grid of "
        "20 prices x 20 times x 7 customer types."
    ),
    run_cell="prudent.bench.experiments.iv_demand:run_cell",
    methods=(
        Method(
            name="dml-cmr",
            label="DML-CMR",
            settings={"estimator": "DMLCMR", "n_folds": 10},
            quick={"n_folds": 2, "n_repeats": 1},
            seconds=60,
            quick_seconds=25,
        ),
        Method(
            name="ce-dml-cmr",
            label="CE-DML-CMR",
            settings={"estimator": "DMLCMR", "n_folds": 1},
            quick={"n_repeats": 2},
            seconds=30,
            quick_seconds=15,
        ),
        Method(name="deepiv", label="DeepIV", settings={"estimator": "DeepIV"}, seconds=30, quick_seconds=20),
        Method(name="deepgmm", label="DeepGMM", settings={"estimator": "DeepGMM"}, seconds=30, quick_seconds=20),
        Method(name="dfiv", label="DFIV", settings={"estimator": "DFIV"}, seconds=30, quick_seconds=20),
    ),
    grid={"n": _SIZES},
    runs=20,
    metrics=(
        Metric(name="mse", label="MSE", better="lower", format=".3f"),
        Metric(name="fit_seconds", label="fit, seconds", format=".1f"),
    ),
    references=(
        *_to_reach("dml-cmr", "DML-IV", 0.207, 0.130, 0.062, 0.037),
        *_to_reach("ce-dml-cmr", "CE-DML-IV", 0.221, 0.135, 0.071, 0.043),
        *_baseline("dfiv", "DFIV", 0.225, 0.183, 0.105, 0.061),
        _published("KIV", 0.270, 0.255, 0.233, 0.186),
        *_baseline("deepiv", "DeepIV", 0.275, 0.240, 0.116, 0.072),
        *_baseline("deepgmm", "DeepGMM", 0.348, 0.361, 0.253, 0.118),
    ),
    figures=(Figure(kind="boxes", x="n", y="mse", log_y=True),),
    quick=Quick(runs=2, grid={"n": (1000, 2000)}),
)
