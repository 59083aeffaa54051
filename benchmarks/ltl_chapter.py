"""The thesis's LTL chapter: three tasks, six methods, exact evaluation every 10,000 steps.

    python benchmarks/ltl_chapter.py --runs 100 --out bench-out/ltl         # everything; run again to resume
    python benchmarks/ltl_chapter.py --runs 3 --quick --out bench-out/ltl   # a tenth of the budgets

Each run appends one JSON line to ``runs.jsonl``; runs already there are not repeated. Tables and figures are made from
that file alone.

How the published curves differ from these records:

* Published steps are nominal: an episode of the office world counts as 1,000 steps although the patience of 300 steps
  without acceptance ends most of them after about 320. Here steps are those taken. 0.25 million steps of CF+KC are 766
  episodes, or 0.77 million nominal steps (published: 0.75); KC 3.4 (3.5), CF 2.0 (2.05), Bozkurt 4.1 (4.1); and after 2
  million steps (6 million nominal) Hasanbeig is at 0.17 (published: 0.17).
* The automata of the thesis's translator commit to a disjunct by an epsilon move (seen in its figure for the gate,
  inferred for the other tasks, whose published curves come out with such automata and not with others).
  ``--automata thesis`` uses them. With the smaller ones of ``ltl.translate`` the frozen lake is easier for all but CF:
  KC needs 0.44 instead of 0.94 million steps and Bozkurt ends at 0.77 instead of 0.09.
* The plateaus of CF and Bozkurt on the gate are higher here (0.66 and 0.61 against 0.40 and 0.32). There the right and
  the wrong first move are worth 0.72 and 0.60, and a learning rate of 0.1 leaves noise of 0.08 on the first, so that
  the greedy policy flips back and forth; how often depends on details that the publication does not give.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Lock

import numba
import numpy as np

from prudent import envs, ltl

TASKS = {"gate": envs.probabilistic_gate, "lake": envs.frozen_lake, "office": envs.office_world}
METHODS = ("cf+kc", "kc", "cf", "bozkurt", "hahn", "hasanbeig")
# Read off the thesis's figures: (level, million steps from which the mean is there), or the level at the end alone.
PUBLISHED = {
    "gate": ("0.75 from 0.65", "0.75 from 1.6", "0.40", "0.32", "0.06", "0"),
    "lake": ("0.80 from 0.13", "0.80 from 1.0", "0.80 from 0.13", "0.05", "0.04", "0.01"),
    "office": ("1.0 from 0.75", "1.0 from 3.5", "1.0 from 2.05", "1.0 from 4.1", "0", "0.17"),
}


def one_disjunct_each(task: str) -> ltl.Automaton:
    """Automata of the kind that the thesis's translator (Rabinizer 4) makes: an epsilon move commits to a disjunct."""
    edge, none, mark = ltl.Edge, frozenset(), frozenset([0])

    def watch(state: int, trap: int, bad: str, event: str, target: int, sets: frozenset) -> list:
        return [
            edge(ltl.parse(bad), trap, none),
            edge(ltl.parse(f"({event}) & !({bad})"), target, sets),
            edge(ltl.parse(f"!({event}) & !({bad})"), state, none),
        ]

    if task == "gate":
        rows = [watch(0, 2, "c", "false", 0, none)[::2], watch(1, 2, "c | !a", "a", 1, mark)[:2]]
        rows.append([edge(ltl.parse("true"), 2, none)])
        return ltl.Automaton(("a", "c"), 0, rows, [(1,), (), ()])
    if task == "lake":
        rows = [watch(0, 3, "h", "false", 0, none)[::2]]
        rows += [watch(1, 3, "h", "a", 1, mark), watch(2, 3, "h", "b", 2, mark), [edge(ltl.parse("true"), 3, none)]]
        return ltl.Automaton(("a", "b", "h"), 0, rows, [(1, 2), (), (), ()])
    rows = [watch(0, 6, "o", "l", 1, none), watch(1, 6, "o", "false", 1, none)[::2]]
    rows += [watch(2, 6, "o", "a", 4, none), watch(3, 6, "o", "t", 5, none)]
    rows += [watch(4, 6, "o", "b", 2, mark), watch(5, 6, "o", "w", 3, mark), [edge(ltl.parse("true"), 6, none)]]
    return ltl.Automaton(("a", "b", "l", "o", "t", "w"), 0, rows, [(2,), (2, 3), (), (), (), (), ()])


SENSITIVITY = (
    {"U": 0.1},
    {"U": 0.5},
    {"U": 0.01},
    {"gamma": 0.9},
    {"gamma": 0.95},
    {"gamma": 0.995},
    {"K": 0},
    {"K": 5},
    {"K": 20},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="seeds for each task and method")
    parser.add_argument("--out", type=Path, default=Path("bench-out/ltl"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument(
        "--automata",
        choices=("thesis", "translated"),
        default="thesis",
        help="thesis: an epsilon move for each disjunct, as the published translator makes them; translated: ours",
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the published budgets")
    parser.add_argument("--part", choices=("chapter", "sensitivity", "auto", "report"), default="chapter")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    seeds = range(arguments.runs)
    jobs = []
    if arguments.part == "chapter":
        jobs = [(t, m, {}, s) for t in arguments.tasks for m in arguments.methods for s in seeds]
    elif arguments.part == "sensitivity":
        jobs = [("gate", "cf+kc", options, s) for options in SENSITIVITY for s in seeds]
    elif arguments.part == "auto":
        jobs = [("lake", "cf+kc", {"gamma": "auto"}, s) for s in seeds]
    started = time.perf_counter()
    n_new = run_missing(jobs, arguments)
    print(f"{n_new} new runs of {len(jobs)} in {time.perf_counter() - started:.1f} s with {arguments.jobs} threads")
    report(arguments)


def run_missing(jobs, arguments) -> int:
    """Run what the records lack."""
    path = arguments.out / "runs.jsonl"
    done = {(key(r["task"], r["method"], r["options"], r["seed"]), r["automata"], r["quick"]) for r in read(path)}
    todo = [job for job in jobs if (key(*job), arguments.automata, arguments.quick) not in done]
    models = {}
    for task, make in TASKS.items():
        model = make()
        translated = ltl.translate(ltl.parse(model.goal))
        models[task] = model, one_disjunct_each(task) if arguments.automata == "thesis" else translated
    machine = {"python": platform.python_version(), "numba": numba.__version__, "numpy": np.__version__}
    machine["commit"] = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lock = Lock()

    def one(job) -> None:
        task, method, options, seed = job
        model, automaton = models[task]
        steps = model.task.steps // (10 if arguments.quick else 1)
        began = time.perf_counter()
        run = ltl.learn(model, automaton, method=method, steps=steps, seed=seed, progress=False, **options)
        record = {
            "task": task,
            "method": method,
            "options": options,
            "seed": seed,
            "automata": arguments.automata,
            "quick": arguments.quick,
            "seconds": time.perf_counter() - began,
            "settings": asdict(run.settings),
            "automaton_states": automaton.n_states,
            "steps": run.curve.steps[[1, -1]].tolist(),
            "probability": [round(float(x), 6) for x in run.curve.probability],
            "machine": machine,
        }
        with lock, path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, todo))
    return len(todo)


def key(task, method, options, seed):
    return task, method, json.dumps(options, sort_keys=True), seed


def read(path: Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def collect(records, automata, quick):
    """Mean curves: {(task, method, options): (Curve, number of runs, seconds)}."""
    groups: dict = {}
    for r in records:
        if r["quick"] == quick and r["automata"] == automata:
            groups.setdefault((r["task"], r["method"], json.dumps(r["options"], sort_keys=True)), []).append(r)
    curves = {}
    for name, rows in groups.items():
        table = np.array([r["probability"] for r in rows])
        every, last = rows[0]["steps"]
        steps = np.minimum(np.arange(table.shape[1]) * every, last)
        curve = ltl.Curve(steps, table.mean(axis=0), table.std(axis=0))
        curves[name] = (curve, len(rows), sum(r["seconds"] for r in rows))
    return curves


def final_level(curve: ltl.Curve) -> float:
    """Mean of the last twentieth of the curve: single evaluations still move."""
    return float(curve.probability[-max(1, len(curve.probability) // 20) :].mean())


def report(arguments) -> None:
    curves = collect(read(arguments.out / "runs.jsonl"), arguments.automata, arguments.quick)
    lines = ["| task | method | runs | final level | million steps to within 0.05 of it | published | M steps/s |"]
    lines.append("|---|---|---|---|---|---|---|")
    for task in TASKS:
        for place, method in enumerate(METHODS):
            if (task, method, "{}") not in curves:
                continue
            curve, n_runs, seconds = curves[task, method, "{}"]
            level = final_level(curve)
            reached = curve.first_at(level - 0.05)
            when = "-" if level < 0.05 or reached is None else f"{reached / 1e6:.2f}"
            rate = n_runs * curve.steps[-1] / seconds / 1e6
            published = PUBLISHED[task][place]
            lines.append(f"| {task} | {method} | {n_runs} | {level:.3f} | {when} | {published} | {rate:.1f} |")
    for name in sorted(name for name in curves if name[2] != "{}"):
        curve, n_runs, _ = curves[name]
        level = final_level(curve)
        reached = curve.first_at(level - 0.05)
        when = "-" if level < 0.05 or reached is None else f"{reached / 1e6:.2f}"
        lines.append(f"| {name[0]} | {name[1]} {name[2]} | {n_runs} | {level:.3f} | {when} | | |")
    text = "\n".join(lines)
    (arguments.out / f"table_{arguments.automata}.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    draw(curves, arguments.out / f"chapter_{arguments.automata}.png")


def draw(curves, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(22, 5))
    for ax, task in zip(axes, TASKS):
        for method in METHODS:
            if (task, method, "{}") in curves:
                curves[task, method, "{}"][0].plot(ax, method)
        ax.set_title(task)
    for name in sorted(name for name in curves if name[2] != "{}" and name[0] == "gate"):
        curves[name][0].plot(axes[3], name[2])
    axes[3].set_title("gate, CF+KC: sensitivity")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
