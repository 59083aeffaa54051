"""Synthetic experiments for the tests, registered with ``PRUDENT_BENCH=tiny_bench``: milliseconds per cell, no JAX."""

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

from prudent.bench import Experiment, Figure, Method, Metric, Quick, Reference, Task


def run_cell(task: Task) -> dict[str, float | list[float]]:
    """An error that falls with n, decided by the cell alone; ``TINY_LOG`` counts the executions."""
    if log := os.environ.get("TINY_LOG"):
        with open(log, "a") as file:
            file.write(f"{task.method} {task.point} {task.seed}\n")
    time.sleep(task.budget.get("sleep", 0.0))
    n = float(task.point["n"])
    noise = random.Random(f"{task.method} {n} {task.seed}").uniform(0.8, 1.25)
    steps = [1.0, 2.0, 3.0]
    return {
        "error": task.settings["scale"] * noise / n**0.5,
        "steps": steps,
        "probability": [1 - noise / (1 + s) for s in steps],
    }


def raise_on_seed_one(task: Task) -> dict[str, float]:
    if task.seed == 1:
        raise RuntimeError("seed one is <unlucky>")
    return {"error": 1.0}


def die_on_seed_one(task: Task) -> dict[str, float]:
    """Killed as the kernel kills for memory: always, or only the first time when ``TINY_FLAG`` names a file."""
    flag = os.environ.get("TINY_FLAG")
    if task.seed == 1 and not (flag and Path(flag).exists()):
        if flag:
            Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"error": 1.0}


def report_threads(task: Task) -> dict[str, float]:
    time.sleep(0.2)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "core": min(os.sched_getaffinity(0)),
        "threads": float(os.environ["OMP_NUM_THREADS"]),
    }


def return_nan(task: Task) -> dict[str, float]:
    return {"error": float("nan")}


_ERROR = (Metric(name="error", label="error", better="lower", format=".4f", slope_over="n"),)
_ONE = (Method(name="one"),)

curve = Experiment(
    name="tiny/curve",
    title="Tiny errors",
    protocol="a synthetic error that falls like n to the power -1/2.",
    run_cell="tiny_bench:run_cell",
    methods=(
        Method(name="good", label="Good method", settings={"scale": 1.0}, quick={"scale": 1.5}),
        Method(name="bad", label="Bad method", settings={"scale": 2.0}),
    ),
    grid={"n": (100, 400)},
    runs=5,
    metrics=(
        *_ERROR,
        Metric(name="steps", in_tables=False),
        Metric(name="probability", in_tables=False),
    ),
    references=(
        Reference(label="target", metric="error", values={"n=100": 0.12, "n=400": 0.06}, method="good", role="target"),
        Reference(label="hard target", metric="error", values={"n=400": 0.01}, method="bad", role="target"),
        Reference(label="Elsewhere", metric="error", values={"n=100": 0.3}, source="a synthetic source"),
    ),
    figures=(
        Figure(kind="boxes", x="n", y="error", log_y=True),
        Figure(kind="lines", x="n", y="error", log_x=True, log_y=True),
        Figure(kind="curves", x="steps", y="probability"),
    ),
    quick=Quick(runs=1, grid={"n": (100,)}),
)

means = replace(
    curve,
    name="tiny/means",
    methods=(Method(name="good", settings={"scale": 1.0}),),
    grid={"n": (100,)},
    metrics=(
        *curve.metrics,
        Metric(name="when", label="steps to within 0.05", reach_of=("steps", "probability")),
    ),
    references=(Reference(label="Elsewhere", metric="error", values={"n=100": 0.3}, method="good"),),
    statistic="mean",
)

slow = Experiment(
    name="tiny/slow",
    title="Tiny and slow",
    protocol="as tiny/curve, with a pause in each cell.",
    run_cell="tiny_bench:run_cell",
    methods=(Method(name="good", settings={"scale": 1.0}),),
    grid={"n": (100, 400)},
    runs=8,
    budget={"sleep": 0.1},
    metrics=_ERROR,
)


def _failing(name: str, function: str, runs: int = 3) -> Experiment:
    return Experiment(
        name=f"tiny/{name}",
        title=f"Tiny: {name}",
        protocol="fails.",
        run_cell=f"tiny_bench:{function}",
        methods=_ONE,
        runs=runs,
        metrics=(Metric(name="error"),),
    )


raises = _failing("raises", "raise_on_seed_one")
dies = _failing("dies", "die_on_seed_one")
nan = _failing("nan", "return_nan", runs=1)

threads = Experiment(
    name="tiny/threads",
    title="What a worker may use",
    protocol="cores and threads that a cell sees.",
    run_cell="tiny_bench:report_threads",
    methods=_ONE,
    runs=4,
    metrics=(Metric(name="cores"), Metric(name="core"), Metric(name="threads")),
)
