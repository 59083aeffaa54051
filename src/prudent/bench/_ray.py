"""The Ray engine: the same cells on a cluster (address from ``RAY_ADDRESS``, else a local one)."""

import logging
import os
import re
import socket
import time
from dataclasses import asdict
from typing import Any

from prudent.bench._cell import describe, execute
from prudent.bench._definition import BenchError
from prudent.bench._pool import Finished, Job
from prudent.bench._threads import thread_environment

try:
    import ray
    from ray.exceptions import RayError
except ImportError as err:
    raise BenchError("--engine ray needs Ray, which is not installed: pip install 'prudent[ray]'") from err


class RayPool:
    """Runs jobs as Ray tasks of one core; the driver writes the records, so nodes need no shared disk.

    ``workers`` limits the tasks in flight (default: the cores of the cluster as it is at that moment).
    """

    attempts = 1
    """Ray itself retries tasks whose worker or node is lost."""

    def __init__(self, workers: int | None = None, retries: int = 3):
        self._owns_session = not ray.is_initialized()
        if self._owns_session:
            _check_reachable(os.environ.get("RAY_ADDRESS", ""))
            ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, logging_level=logging.ERROR)
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": retries}
        self._remote = ray.remote(**options, runtime_env={"env_vars": thread_environment(1)})(execute)
        self._workers = workers
        self._busy: dict[Any, Job] = {}

    @property
    def free(self) -> int:
        size = self._workers or int(ray.cluster_resources().get("CPU", 1))
        return max(0, size - len(self._busy))

    @property
    def busy(self) -> int:
        return len(self._busy)

    def submit(self, job: Job) -> None:
        ref = self._remote.remote(job.experiment.run_cell, job.metric_names, asdict(job.task))
        self._busy[ref] = job

    def wait(self, timeout: float) -> list[Finished]:
        """Jobs that finished, after at most ``timeout`` seconds."""
        if not self._busy:
            time.sleep(timeout)  # Others hold what is left; asking them all the time would keep a core busy.
            return []
        ready, _ = ray.wait(list(self._busy), num_returns=1, timeout=timeout)
        return [self._collect(ref, self._busy.pop(ref)) for ref in ready]

    def close(self) -> None:
        for ref in self._busy:
            ray.cancel(ref, force=True)
        if self._owns_session:
            ray.shutdown()

    def _collect(self, ref: Any, job: Job) -> Finished:
        try:
            return Finished(job, ray.get(ref))
        except RayError as err:
            return Finished(job, {"status": "error", "error": describe(err)}, worker_lost=True)


def _check_reachable(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself tries for minutes and then ends the process."""
    match = re.fullmatch(r"(?:ray://)?([^/]+):(\d+)", address)
    if match is None:
        return
    try:
        socket.create_connection((match[1], int(match[2])), timeout=10).close()
    except OSError as err:
        raise BenchError(f"no Ray cluster answers at RAY_ADDRESS={address!r} ({err}); start one, or unset it") from err
