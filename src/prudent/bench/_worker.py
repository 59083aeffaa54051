"""A local worker process: reads jobs as JSON lines on standard input, answers one JSON line each.

Run as ``python -m prudent.bench._worker CORES``, with cores as comma-separated numbers. End of input, that is the death
of the parent, ends the worker, also in the middle of a cell.
"""

import ctypes
import json
import os
import queue
import signal
import sys
import threading

from prudent.bench._cell import execute


def main() -> None:
    _die_with_parent()
    cores = {int(core) for core in sys.argv[1].split(",")}
    if hasattr(os, "sched_setaffinity"):
        # Before NumPy and JAX are imported: their thread pools take their size from it.
        os.sched_setaffinity(0, cores)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what cells print must not mix with the answers
    jobs: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    while True:
        answers.write(json.dumps(execute(**json.loads(jobs.get()))) + "\n")
        answers.flush()


def _die_with_parent() -> None:
    """Let Linux kill this process with its parent: the thread that reads jobs may have to wait for the interpreter."""
    if sys.platform == "linux":
        parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


def _read_jobs(jobs: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
