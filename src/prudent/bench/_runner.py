"""From experiments to records: plan the cells, claim them, hand them to an engine, append what comes back."""

import functools
import subprocess
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from prudent._progress import Progress
from prudent.bench._definition import BenchError, Cell, Experiment
from prudent.bench._folder import planned_experiment, record_path
from prudent.bench._pool import Finished, Job, Pool
from prudent.bench._records import Claims, RecordFile, best_results

_POLL_SECONDS = 0.5
"""How often cells that another process has claimed are looked at again."""

ENGINES = ("local", "ray")


def run(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    runs: int | None = None,
    quick: bool = False,
    engine: str = "local",
    workers: int | None = None,
    resume: bool = False,
    retry_errors: bool = False,
    methods: Sequence[str] | None = None,
    show_progress: bool | None = None,
) -> dict[str, int]:
    """Run all cells of the experiments that ``out`` does not have yet; returns when every cell is recorded.

    Several processes may run on one folder at the same time (those that find records, with ``resume``): each cell is
    run by one of them.

    Parameters
    ----------
    experiments : sequence of Experiment
    out : Path
        Folder of the records, made if needed.
    runs : int, optional
        Runs per cell instead of the definition's; seeds are 0..runs-1.
    quick : bool
        Run the quick versions.
    engine : {"local", "ray"}
    workers : int, optional
        Cells at a time; default one per core.
    resume : bool
        Continue records of the same definitions; without it, existing records are refused.
    retry_errors : bool
        Run cells again whose record is an error.
    methods : sequence of str, optional
        Run the cells of these methods only, and leave out experiments that have none of them. Plans keep all methods:
        a later call can run the others.
    show_progress : bool, optional
        Default: when standard error is a terminal.

    Returns
    -------
    dict
        By experiment, the number of cells that this call ran; the others were recorded before, or by another process.
    """
    if engine not in ENGINES:
        raise BenchError(f"the engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if workers is not None and workers < 1:
        raise BenchError(f"the number of workers must be at least 1, got {workers}")
    planned = [_planned(experiment, runs, quick) for experiment in experiments]
    if methods is not None:
        known = {method.name for experiment in planned for method in experiment.methods}
        unknown = set(methods) - known
        if unknown:
            raise BenchError(
                f"no experiment of this {'quick ' if quick else ''}run has a method {min(unknown)!r}; they have "
                f"{', '.join(sorted(known))}"
            )
        planned = [e for e in planned if any(method.name in methods for method in e.methods)]
    twice = {experiment.name for experiment in planned if [e.name for e in planned].count(experiment.name) > 1}
    if twice:
        raise BenchError(f"an experiment is run once, got {min(twice)!r} twice; name it once")
    commit = _commit()
    sweeps = [_OpenSweep(experiment, out, resume, retry_errors, methods) for experiment in planned]
    # The engine starts before anything is written: one that cannot start leaves no trace.
    pool = _start_pool(engine, workers)
    with ExitStack() as stack:
        stack.callback(pool.close)
        progress = stack.enter_context(Progress(show_progress))
        for sweep in sweeps:
            sweep.begin(progress, _command(sweep.experiment, engine), engine, commit)
            stack.callback(sweep.close)
        _drain(pool, sweeps)
    return {sweep.experiment.name: sweep.n_run for sweep in sweeps}


def _planned(experiment: Experiment, runs: int | None, quick: bool) -> Experiment:
    experiment = experiment.quick_version() if quick else experiment
    return experiment if runs is None else replace(experiment, runs=runs)


def _command(experiment: Experiment, engine: str) -> str:
    """The command that makes these records."""
    flags = (" --quick" if experiment.is_quick else "") + (f" --engine {engine}" if engine != "local" else "")
    return f"prudent bench run {experiment.name} --runs {experiment.runs}{flags}"


def _start_pool(engine: str, workers: int | None) -> Pool:
    if engine == "ray":
        from prudent.bench._ray import RayPool

        return RayPool(workers)
    from prudent.bench._local import LocalPool

    return LocalPool(workers)


def _drain(pool: Pool, sweeps: "list[_OpenSweep]") -> None:
    pending = deque((sweep, cell) for sweep in sweeps for cell in sweep.missing)
    running: dict[tuple[str, str], _OpenSweep] = {}
    while pending or pool.busy:
        # One look at every pending cell: those that others hold go to the back of the queue.
        for _ in range(len(pending)):
            if not pool.free:
                break
            sweep, cell = pending.popleft()
            state = sweep.claim(cell)
            if state == "mine":
                running[sweep.experiment.name, cell.key] = sweep
                pool.submit(Job(sweep.experiment, cell))
            elif state == "held":
                pending.append((sweep, cell))
        for finished in pool.wait(_POLL_SECONDS):
            job = finished.job
            sweep = running[job.experiment.name, job.cell.key]
            is_final = not finished.worker_lost or job.attempt == pool.attempts
            sweep.record(finished, is_final)
            if not is_final:
                pool.submit(replace(job, attempt=job.attempt + 1))
            else:
                sweep.release(job.cell)


class _OpenSweep:
    """An experiment's record file while it is being filled."""

    def __init__(
        self, experiment: Experiment, out: Path, resume: bool, retry_errors: bool, methods: Sequence[str] | None
    ):
        self.experiment, self.n_run = experiment, 0
        self._file = RecordFile(record_path(out, experiment.name))
        self._done: set[str] = set()
        self._digests = experiment.digests()
        entries = self._refresh()
        self._refuse_foreign(entries, resume)
        if retry_errors:
            results = best_results([entry for entry in entries if entry["kind"] == "run"])
            self._done -= {key for key, entry in results.items() if entry["status"] == "error"}
        asked = [cell for cell in experiment.cells() if methods is None or cell.method in methods]
        self.missing = [cell for cell in asked if cell.key not in self._done]

    def begin(self, progress: Progress, command: str, engine: str, commit: str) -> None:
        """Write the plan; from here on the sweep can be claimed from and must be closed."""
        self._engine, self._commit = engine, commit
        self._claims = Claims(self._file.path.with_suffix(".lock"))
        self._file.append({"kind": "plan", "command": command, "experiment": self.experiment.to_json()})
        # Again, with the own plan in the file: of two runs that start together, each now sees the other.
        self._refuse_foreign(self._refresh(), resume=True)
        self._bar = progress.start(self.experiment.name, len(self.missing))

    def claim(self, cell: Cell) -> str:
        """``mine``: run it; ``held``: another process is at it; ``done``: another process has recorded it."""
        if not self._claims.take(cell.key):
            return "held"
        # Only with the claim in hand is "not recorded" a lasting truth.
        self._refresh()
        if cell.key in self._done:
            self._claims.drop(cell.key)
            self._bar.advance()
            return "done"
        return "mine"

    def record(self, finished: Finished, is_final: bool) -> None:
        """Append the outcome; one that is not final (a lost worker, to be retried) does not count as done."""
        cell = finished.job.cell
        self._file.append(
            {
                "kind": "run",
                "key": cell.key,
                "experiment": self.experiment.name,
                "definition": self._digests[cell.method],
                "method": cell.method,
                "point": cell.point,
                "seed": cell.seed,
                "attempt": finished.job.attempt,
                "final": is_final,
                "worker_lost": finished.worker_lost,
                "engine": self._engine,
                "commit": self._commit,
                "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            | finished.outcome
        )

    def release(self, cell: Cell) -> None:
        self._claims.drop(cell.key)
        self.n_run += 1
        self._bar.advance(f"{cell.method} seed {cell.seed}")

    def close(self) -> None:
        self._claims.close()

    def _refresh(self) -> list[dict]:
        entries = self._file.read_records()
        own = [entry for entry in entries if entry["kind"] == "run" and entry["final"]]
        own = [entry for entry in own if entry["definition"] == self._digests.get(entry["method"])]
        self._done |= {entry["key"] for entry in own}
        return entries

    def _refuse_foreign(self, entries: list[dict], resume: bool) -> None:
        path, name = self._file.path, self.experiment.name
        if entries and not resume:
            raise BenchError(
                f"{path} already has records of {name}; add --resume to continue them, or choose another --out"
            )
        recorded = {(entry["method"], entry["definition"]) for entry in entries if entry["kind"] == "run"}
        for entry in entries:
            if entry["kind"] == "plan":
                recorded |= set(planned_experiment(path, entry).digests().items())
        foreign = sorted(method for method, digest in recorded if self._digests.get(method, digest) != digest)
        if foreign:
            raise BenchError(
                f"{path} has records or a plan of another definition of {name} (other settings of {foreign[0]}, or "
                "quick against full); choose another --out"
            )


@functools.cache
def _commit() -> str:
    """Commit that Prudent runs from, with ``+`` when the package has changes; empty outside of a working tree."""
    here = Path(__file__).parents[1]
    try:
        head = subprocess.run(
            ["git", "-C", here, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        )
        changes = subprocess.run(
            ["git", "-C", here, "status", "--porcelain", "--", "."], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")
