"""Wall time of a sweep against workers, local processes and Ray, with the check that all give the same numbers.

    python benchmarks/scaling.py [--runs 20] [--workers 1 2]

The cells are real: CF+KC and KC in the office world at a quarter of the thesis's budget, about 0.13 s each. Ray has a
cluster of nodes with one core each, all on this machine; its start is not in the times, the connection to it is.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from prudent import bench
from prudent.bench.experiments.ltl_chapter import office


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    chosen = tuple(method for method in office.methods if method.name in ("cf+kc", "kc"))
    experiment = replace(office.quick_version(), methods=chosen, runs=arguments.runs)
    print("| engine | workers | wall s | against one worker | same numbers |")
    print("|---|---|---|---|---|")
    numbers = None
    for engine in ("local", "ray"):
        alone = 0.0
        with cluster(max(arguments.workers)) if engine == "ray" else contextlib.nullcontext():
            for workers in sorted({1, *arguments.workers}):
                with tempfile.TemporaryDirectory() as folder:
                    start = time.perf_counter()
                    bench.run([experiment], Path(folder), engine=engine, workers=workers, show_progress=False)
                    seconds = time.perf_counter() - start
                    (sweep,) = bench.load_folder(Path(folder))
                metrics = {key: entry["metrics"] for key, entry in sweep.results.items()}
                alone, numbers = alone or seconds, numbers or metrics
                same = "yes" if metrics == numbers else "NO"
                print(f"| {engine} | {workers} | {seconds:.1f} | {alone / seconds:.2f} x | {same} |", flush=True)


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[None]:
    """A Ray cluster on this machine: ``nodes`` nodes of one core each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(nodes - 1):
        made.add_node(num_cpus=1)
    made.wait_for_nodes()
    os.environ["RAY_ADDRESS"] = made.address
    try:
        yield
    finally:
        made.shutdown()


if __name__ == "__main__":
    main()
