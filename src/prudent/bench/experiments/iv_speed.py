"""How long a fit takes and how much memory it needs, per estimator and size."""

from prudent.bench._definition import Experiment, Figure, Method, Metric, Quick, Reference, Task
from prudent.bench.experiments._iv import ESTIMATORS, QUICK_METHODS, by, fit, tree

_SIZES = (1000, 5000, 10_000, 20_000)


def run_cell(task: Task) -> dict[str, float]:
    """Fit once on the demand design: seconds, and the growth of the process's peak memory."""
    import threading

    import numpy as np

    import prudent.nn  # noqa: F401
    from prudent import IVRegression, datasets
    from prudent.cmr import TwoStageLeastSquares

    # Libraries are loaded before the clock and the memory count start.
    IVRegression(TwoStageLeastSquares()).fit(**datasets.make_linear_gaussian(40, seed=0).roles())

    data = datasets.make_demand(int(task.point["n"]), seed=task.seed)
    before = _resident_mb()
    peak, done = [before], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak.append(_resident_mb())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        _, seconds = fit(task, data)
    finally:
        done.set()
        watcher.join()
    return {"fit_seconds": seconds, "extra_mb": float(np.max(peak) - before)}


def _resident_mb() -> float:
    """Memory of this process; the peak of its life where the system does not say."""
    import resource
    from pathlib import Path

    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


_METHODS: tuple[Method, ...] = (
    *ESTIMATORS.values(),
    tree("forest-dml", "DML-CMR, forests", 120, model="forest", n_folds=10),
    tree("boosting-dml", "DML-CMR, boosting", 120, model="boosting", n_folds=10),
)

speed = Experiment(
    name="iv/speed",
    title="Time and memory of a fit",
    protocol=(
        "one fit on the demand design, libraries loaded before; the compilation of programs counts unless the "
        "compilation cache has them; memory is the growth of the resident set at its peak. Run it with one worker on "
        "an idle machine."
    ),
    run_cell="prudent.bench.experiments.iv_speed:run_cell",
    methods=_METHODS,
    grid={"n": _SIZES},
    runs=3,
    metrics=(
        Metric(name="fit_seconds", label="fit, seconds", better="lower", format=".1f", slope_over="n"),
        Metric(name="extra_mb", label="peak memory, MB", better="lower", format=".0f"),
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
