"""Running one cell in this process: its metrics or its error, its cost and its surroundings."""

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prudent.bench._definition import Task

Outcome = dict[str, Any]

_PACKAGES = ("prudent", "numpy", "scipy", "scikit-learn", "jax", "jaxlib", "equinox", "optax", "numba")


def execute(run_cell: str, metrics: list[str], task: dict[str, Any]) -> Outcome:
    """Run a cell and return metrics or the error, with time, memory, versions and machine.

    Parameters
    ----------
    run_cell : str
        ``"module:function"``.
    metrics : list of str
        Metrics that the function must return.
    task : dict
        Fields of a `Task`.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    _reset_peak_memory()
    wall, cpu = time.perf_counter(), _cpu_seconds()
    try:
        values = _load(run_cell)(Task(**task))
        result = {"status": "ok", "metrics": dict(_checked(values, metrics))}
    except (Exception, SystemExit) as err:
        result = {"status": "error", "error": describe(err)}
    return result | {
        "started": started,
        "wall_seconds": round(time.perf_counter() - wall, 4),
        "cpu_seconds": round(_cpu_seconds() - cpu, 4),
        "peak_mb": round(peak_memory_mb(), 1),
        **surroundings(),
    }


def execute_alone(run_cell: str, metrics: list[str], task: Task) -> Outcome:
    """`execute` in a process of its own: no memory of earlier cells, and no program that they have compiled."""
    code = f"import json, sys; from {__name__} import execute; print(json.dumps(execute(**json.load(sys.stdin))))"
    job = {"run_cell": run_cell, "metrics": metrics, "task": dataclasses.asdict(task)}
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(job), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process of the cell ended with {done.returncode}: {done.stderr[-2000:]}")
    outcome = json.loads(done.stdout.splitlines()[-1])
    if outcome["status"] != "ok":
        raise RuntimeError(outcome["error"]["traceback"])
    return outcome


def surroundings() -> Outcome:
    """Versions and machine."""
    return {"versions": _versions(), "machine": _machine()}


def describe(err: BaseException) -> dict[str, str]:
    """An exception as plain data."""
    trace = "".join(traceback.format_exception(err))
    return {"type": type(err).__name__, "message": str(err), "traceback": trace}


def _load(path: str) -> Callable[[Task], Mapping[str, Any]]:
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(module), function)


def _checked(values: Mapping[str, Any], required: list[str]) -> Iterator[tuple[str, float | list[float]]]:
    """Metrics as JSON numbers; a non-finite one is a failure of the run, not a number to average."""
    missing = [name for name in required if name not in values]
    if missing:
        raise ValueError(f"run_cell returned no {', '.join(missing)}; it returned {', '.join(values) or 'nothing'}")
    for name, value in values.items():
        is_list = hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0
        plain = [float(item) for item in value] if is_list else float(value)
        if not all(math.isfinite(item) for item in (plain if isinstance(plain, list) else [plain])):
            raise ValueError(f"metric {name} is not finite: {value}")
        yield name, plain


def _cpu_seconds() -> float:
    """Processor time of this process, all its threads and its finished children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _reset_peak_memory() -> None:
    """Restart the kernel's high-water mark, so that a cell is not charged for an earlier one in the same worker."""
    # Not Linux, or not allowed: the peak is then that of the worker's life.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> float:
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1024**2 if sys.platform == "darwin" else 1024)


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@functools.cache
def _machine() -> dict[str, Any]:
    return {"host": platform.node(), "system": platform.platform(), "cpu": _cpu_model(), "cores": os.cpu_count()}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
