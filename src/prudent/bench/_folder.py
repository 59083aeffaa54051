"""The output folder: one record file per experiment, read back as sweeps."""

from dataclasses import dataclass, replace
from pathlib import Path

from prudent.bench._definition import COSTS, BenchError, Cell, Experiment, cell_key
from prudent.bench._records import Entry, RecordFile, best_results


@dataclass(frozen=True)
class Sweep:
    """An experiment as it was last planned in a folder, with what is recorded of it."""

    experiment: Experiment
    command: str
    results: dict[str, Entry]
    """Best entry by cell key; only cells of this definition."""
    lost_workers: int
    """Attempts that ended with the death of the worker."""
    folder: Path

    def at(self, method: str, point: dict) -> list[Entry]:
        """Recorded cells of a method at a grid point, by seed."""
        keys = [cell_key(method, point, seed) for seed in range(self.experiment.runs)]
        return [self.results[key] for key in keys if key in self.results]

    def values(self, method: str, point: dict, metric: str) -> list:
        """A metric of the successful runs of a method at a grid point, by seed.

        Runs recorded before the metric was added to the definition are passed over.
        """
        ok = [entry for entry in self.at(method, point) if entry["status"] == "ok"]
        found = ok if metric in COSTS else [entry["metrics"] for entry in ok]
        return [numbers[metric] for numbers in found if metric in numbers]

    def curves(self, method: str, point: dict, x: str, y: str) -> list[tuple[list, list]]:
        """Two list-valued metrics of the runs that have both, by seed."""
        found = [entry["metrics"] for entry in self.at(method, point) if entry["status"] == "ok"]
        return [(metrics[x], metrics[y]) for metrics in found if x in metrics and y in metrics]

    def missing(self) -> list[Cell]:
        return [cell for cell in self.experiment.cells() if cell.key not in self.results]

    def errors(self) -> list[Entry]:
        return [entry for entry in self.results.values() if entry["status"] == "error"]


def record_path(out: Path, name: str) -> Path:
    return out / f"{name}.jsonl"


def load_folder(folder: Path, names: list[str] | None = None) -> list[Sweep]:
    """All sweeps in a folder, or those named, sorted by name."""
    if folder.is_file():
        raise BenchError(f"{folder} is a file; give the folder of records, as 'prudent bench run --out' had it")
    if not folder.is_dir():
        raise BenchError(f"no such folder: {folder}; run 'prudent bench run NAME --out {folder}' first")
    found = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.jsonl"))
    unknown = sorted(set(names or []) - set(found))
    if unknown:
        raise BenchError(f"{folder} has no records of {unknown[0]!r}; it has: {', '.join(found) or 'none'}")
    sweeps = [load_sweep(folder, name) for name in (names or found)]
    sweeps = [sweep for sweep in sweeps if sweep is not None]
    if not sweeps:
        raise BenchError(f"no records in {folder}; run 'prudent bench run NAME --out {folder}' first")
    return sweeps


def load_sweep(folder: Path, name: str) -> Sweep | None:
    """The sweep recorded in one file; None for a file without a plan."""
    path = record_path(folder, name)
    entries = RecordFile(path).read_records()
    plans = [entry for entry in entries if entry["kind"] == "plan"]
    if not plans:
        return None
    experiment = planned_experiment(path, plans[-1])
    digests = experiment.digests()
    # A plan of another definition may have been left by a run that was killed before its first cell.
    plans = [plan for plan in plans if planned_experiment(path, plan).digests().items() & digests.items()]
    # A later plan for fewer runs does not hide the runs that are there.
    longest = max(plans, key=lambda plan: plan["experiment"]["runs"])
    experiment = replace(experiment, runs=longest["experiment"]["runs"])
    keys = {cell.key for cell in experiment.cells()}
    runs = [entry for entry in entries if entry["kind"] == "run" and entry["key"] in keys]
    runs = [entry for entry in runs if digests.get(entry["method"]) == entry["definition"]]
    finished = best_results([entry for entry in runs if entry["final"]])
    return Sweep(experiment, longest["command"], finished, sum(entry["worker_lost"] for entry in runs), folder)


def planned_experiment(path: Path, plan: Entry) -> Experiment:
    """The experiment of a plan in a record file."""
    try:
        return Experiment.from_json(plan["experiment"])
    except (TypeError, KeyError, AttributeError) as err:
        raise BenchError(
            f"{path} has a plan that this release cannot read ({err}); use the release that wrote it, or another folder"
        ) from err
