"""Sharing the cores among workers: each gets its own, and its libraries are told how many there are."""

import os

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def available_cores() -> list[int]:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores_of_worker(index: int, workers: int) -> list[int]:
    """The cores of one of ``workers`` workers: disjoint while there are enough, shared in turn after that."""
    cores = available_cores()
    share = max(1, len(cores) // workers)
    first = (index * share) % len(cores)
    return cores[first : first + share]


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables that hold numerical libraries to ``threads`` threads."""
    variables = {name: str(threads) for name in _VARIABLES}
    if threads == 1:
        # XLA has no thread-count variable; with one core its worker pool only adds hand-overs.
        variables["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    return variables
