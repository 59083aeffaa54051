"""Wall time of a sweep against workers, local processes and Ray, with the check that all give the same numbers.

    python benchmarks/scaling.py [--runs 20] [--workers 1 2]

The cells are real: CF+KC and KC in the office world at a quarter of the thesis's budget, about 0.2 s each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
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
    print("| engine | workers | wall s | against one local worker | same numbers |")
    print("|---|---|---|---|---|")
    alone, numbers = 0.0, None
    for engine in ("local", "ray"):
        for workers in arguments.workers:
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                bench.run([experiment], Path(folder), engine=engine, workers=workers, show_progress=False)
                seconds = time.perf_counter() - start
                (sweep,) = bench.load_folder(Path(folder))
            metrics = {key: entry["metrics"] for key, entry in sweep.results.items()}
            alone, numbers = alone or seconds, numbers or metrics
            same = "yes" if metrics == numbers else "NO"
            print(f"| {engine} | {workers} | {seconds:.1f} | {alone / seconds:.2f} x | {same} |", flush=True)


if __name__ == "__main__":
    main()
