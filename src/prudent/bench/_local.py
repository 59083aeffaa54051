"""The local engine: worker processes that live for many cells, each on its own cores."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from typing import IO, cast

from prudent.bench._cell import surroundings
from prudent.bench._pool import Finished, Job
from prudent.bench._threads import available_cores, cores_of_worker, thread_environment


class LocalPool:
    """Runs jobs in up to ``workers`` processes (default: one per core)."""

    attempts = 2
    """A worker killed by the system (out of memory, say) gets one more chance."""

    def __init__(self, workers: int | None = None):
        self.size = workers or len(available_cores())
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, Job] = {}
        self._selector = selectors.DefaultSelector()

    @property
    def free(self) -> int:
        return self.size - len(self._busy)

    @property
    def busy(self) -> int:
        return len(self._busy)

    def submit(self, job: Job) -> None:
        worker = self._idle.pop() if self._idle else self._start()
        self._busy[worker] = job
        worker.send(job)

    def wait(self, timeout: float) -> list[Finished]:
        """Jobs that finished, after at most ``timeout`` seconds."""
        finished = []
        for key, _ in self._selector.select(timeout):
            worker: _Worker = key.data
            answer = worker.receive()
            job = self._busy.pop(worker, None)
            if answer is None:
                error = self._bury(worker)
                if job is not None:
                    outcome = {"status": "error", "error": error} | surroundings()
                    finished.append(Finished(job, outcome, worker_lost=True))
            elif job is not None:
                self._idle.append(worker)
                finished.append(Finished(job, answer))
        return finished

    def close(self) -> None:
        for worker in [*self._idle, *self._busy]:
            worker.stop()
        self._selector.close()

    def _bury(self, worker: "_Worker") -> dict[str, str]:
        self._selector.unregister(worker.answers)
        if worker in self._idle:
            self._idle.remove(worker)
        error = {"type": "WorkerDied", "message": worker.obituary(), "traceback": worker.last_words()}
        worker.stop()
        return error

    def _start(self) -> "_Worker":
        taken = {worker.index for worker in self._busy}
        worker = _Worker(next(index for index in range(self.size) if index not in taken), self.size)
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)
        return worker


class _Worker:
    def __init__(self, index: int, workers: int):
        self.index = index
        cores = cores_of_worker(index, workers)
        # Children find modules where this process does, also when sys.path was changed by hand.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the worker
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prudent.bench._worker", ",".join(map(str, cores))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | thread_environment(len(cores)) | {"PYTHONPATH": path},
            # Ctrl-C goes to the parent only, which then stops its workers.
            start_new_session=True,
        )
        self.answers = cast(IO[bytes], self._process.stdout)

    def send(self, job: Job) -> None:
        line = {"run_cell": job.experiment.run_cell, "metrics": job.metric_names, "task": asdict(job.task)}
        pipe = cast(IO[bytes], self._process.stdin)
        try:
            pipe.write(json.dumps(line).encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            pass  # it died while idle; its closed answers tell the pool

    def receive(self) -> dict | None:
        """The answer, or None when the worker has died."""
        line = self.answers.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def obituary(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"the worker process ended with exit code {code}"
        return f"the worker process was killed by {signal.Signals(-code).name}"

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        return self._errors.read().decode(errors="replace")

    def stop(self) -> None:
        # The worker has a session of its own: this ends what its cells have started, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self.answers, self._errors):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:
                pass  # closing flushes what a dead worker did not read
