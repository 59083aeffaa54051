"""How long a fit takes and how much memory it needs, per estimator and size."""

from prudent.bench._definition import Experiment, Figure, Method, Metric, Quick, Reference, Task
from prudent.bench.experiments._iv import ESTIMATORS, QUICK_METHODS, by, fit, tree

_SIZES = (1000, 5000, 10_000, 20_000)


def run_cell(task: Task) -> dict[str, float]:
    """Fit once on the demand design, in a process of its own: seconds, and peak memory."""
    from prudent.bench._cell import execute_alone

    outcome = execute_alone(f"{__name__}:time_fit", ["fit_seconds"], task)
    return outcome["metrics"] | {"memory": outcome["peak_mb"]}


def time_fit(task: Task) -> dict[str, float]:
    """Seconds of a fit, libraries loaded before the clock starts."""
    import time

    import prudent.nn  # noqa: F401
    from prudent import IVRegression, datasets
    from prudent.cmr import TwoStageLeastSquares

    IVRegression(TwoStageLeastSquares()).fit(**datasets.make_linear_gaussian(40, seed=0).roles())
    data = datasets.make_demand(int(task.point["n"]), seed=task.seed)
    start = time.perf_counter()
    fit(task, data)
    return {"fit_seconds": time.perf_counter() - start}


_METHODS: tuple[Method, ...] = (
    *ESTIMATORS.values(),
    tree("forest-dml", "DML-CMR, forests", 50, model="forest", n_folds=10),
    tree("boosting-dml", "DML-CMR, boosting", 20, model="boosting", n_folds=10),
)

speed = Experiment(
    name="iv/speed",
    title="Time and memory of a fit",
    protocol=(
        "one fit on the demand design in a process of its own, libraries loaded before; the compilation of programs "
        "counts unless the compilation cache has them; memory is the peak of the process, about 300 MB of it "
        "libraries. Run it with one worker on an idle machine."
    ),
    run_cell="prudent.bench.experiments.iv_speed:run_cell",
    methods=_METHODS,
    grid={"n": _SIZES},
    runs=3,
    metrics=(
        Metric(name="fit_seconds", label="fit, seconds", better="lower", format=".1f", slope_over="n"),
        Metric(name="memory", label="peak memory, MB", better="lower", format=".0f"),
    ),
    references=(
        Reference(
            label="to reach",
            metric="fit_seconds",
            values=by("n", (10_000,), (10.0,)),
            method="kiv",
            role="target",
            source="requirement of the project, with random features",
        ),
    ),
    figures=(Figure(kind="lines", x="n", y="fit_seconds", log_x=True, log_y=True),),
    quick=Quick(runs=1, grid={"n": (1000,)}, methods=QUICK_METHODS),
)
