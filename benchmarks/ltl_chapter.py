"""The LTL chapter as published: mean curves with half a standard deviation, from the records of ``prudent bench``.

    prudent bench run ltl/gate ltl/lake ltl/office ltl/sensitivity ltl/translated --out bench-out
    python benchmarks/ltl_chapter.py bench-out

The tables of ``prudent bench`` show medians. On the gate every run is at 0 or at 0.8, and the publication shows means:
this script adds ``chapter.md`` and ``chapter.png`` to the folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from prudent import bench, ltl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="as given to 'prudent bench run --out'")
    folder = parser.parse_args().folder
    sweeps = [sweep for sweep in bench.load_folder(folder) if sweep.experiment.name.startswith("ltl/")]
    lines = ["| experiment | method | runs | final level | million steps to within 0.05 of it | published |"]
    lines.append("|---|---|---|---|---|---|")
    for sweep in sweeps:
        lines += rows(sweep)
    text = "\n".join(lines)
    (folder / "chapter.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    draw(sweeps, folder / "chapter.png")


def mean_curve(sweep: bench.Sweep, method: str, point: dict) -> tuple[ltl.Curve, int] | None:
    """Mean and standard deviation over runs, and their number."""
    curves = sweep.values(method, point, "probability")
    if not curves:
        return None
    table = np.array(curves)
    steps = np.array(sweep.values(method, point, "steps")[0])
    return ltl.Curve(steps, table.mean(axis=0), table.std(axis=0)), len(table)


def rows(sweep: bench.Sweep) -> list[str]:
    lines = []
    for point in sweep.experiment.points():
        for method in sweep.experiment.methods:
            found = mean_curve(sweep, method.name, point)
            if found is None:
                continue
            curve, n_runs = found
            # Single evaluations still move, hence the mean of the last twentieth.
            level = float(curve.probability[-max(1, len(curve.probability) // 20) :].mean())
            above = np.flatnonzero(curve.probability >= level - 0.05)
            when = "-" if level < 0.05 or not len(above) else f"{curve.steps[above[0]]:.2f}"
            name = " ".join([sweep.experiment.name, *map(str, point.values())])
            published = published_text(sweep, method.name)
            lines.append(f"| {name} | {method.title} | {n_runs} | {level:.3f} | {when} | {published} |")
    return lines


def published_text(sweep: bench.Sweep, method: str) -> str:
    values = {ref.metric: ref.values.get("") for ref in sweep.experiment.references if ref.method == method}
    if values.get("level") is None:
        return ""
    return f"{values['level']:g}" + (f" from {values['reached']:g}" if values.get("reached") is not None else "")


def draw(sweeps: list[bench.Sweep], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    single = [sweep for sweep in sweeps if not sweep.experiment.grid]
    if not single:
        return
    figure, axes = plt.subplots(1, len(single), figsize=(5.5 * len(single), 5), squeeze=False, layout="constrained")
    for ax, sweep in zip(axes[0], single, strict=True):
        for method in sweep.experiment.methods:
            found = mean_curve(sweep, method.name, {})
            if found is not None:
                found[0].plot(ax, method.title)
        ax.set(title=sweep.experiment.title, xlabel="million steps")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
