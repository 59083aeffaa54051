"""What the runner asks of an engine."""

from dataclasses import dataclass
from typing import Any, Protocol

from prudent.bench._definition import Cell, Experiment, Task


@dataclass(frozen=True)
class Job:
    """A cell on its way through an engine."""

    experiment: Experiment
    cell: Cell
    attempt: int = 1

    @property
    def task(self) -> Task:
        return self.experiment.task(self.cell)

    @property
    def metric_names(self) -> list[str]:
        return [metric.name for metric in self.experiment.metrics if metric.is_returned]


@dataclass(frozen=True)
class Finished:
    """A job with its outcome; ``worker_lost`` when the process died rather than the cell raised."""

    job: Job
    outcome: dict[str, Any]
    worker_lost: bool = False


class Pool(Protocol):
    """An engine that is running."""

    attempts: int
    """How often the runner submits a job whose worker is lost."""

    @property
    def free(self) -> int: ...

    @property
    def busy(self) -> int: ...

    def submit(self, job: Job) -> None: ...

    def wait(self, timeout: float) -> list[Finished]: ...

    def close(self) -> None: ...
