"""Speed of learning and of exact checking, on one core.

    python benchmarks/ltl_speed.py            # learners, checks, and optimum against Storm up to 10^5 product states
    python benchmarks/ltl_speed.py --no-storm

Times are processor time, the best of several repeats: other jobs on the machine only ever make a repeat slower.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings

import numpy as np

from prudent import envs, ltl
from prudent.ltl._kernels import UNSTARTED, Rates, make_q, make_tables, run_counter
from prudent.ltl._rewards import reward_table
from prudent.ltl._rng import seed_state
from prudent.ltl._unfold import unfold

TASKS = (envs.probabilistic_gate, envs.frozen_lake, envs.office_world)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-storm", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="*", default=[18, 58, 183], help="sides of the grids for optimum")
    parser.add_argument("--plain", metavar="TASK", help="only the speed of CF+KC on one task, as a number")
    arguments = parser.parse_args()
    if arguments.plain:
        print(kernel_speed(getattr(envs, arguments.plain)(), True, 20_000, 1))
        return
    time_learners(arguments)
    time_checks(arguments)
    time_optimum(arguments)


def best_seconds(repeats: int, function, *arguments, **options) -> float:
    times = []
    for _ in range(repeats):
        began = time.process_time()
        function(*arguments, **options)
        times.append(time.process_time() - began)
    return min(times)


def check_often(checker: ltl.Checker, policy: ltl.Policy, times: int) -> None:
    for _ in range(times):
        checker(policy)


def kernel_speed(mdp: ltl.LabelledMDP, is_counterfactual: bool, steps: int, repeats: int) -> float:
    """Steps per second of the learning loop, without evaluations."""
    checker = ltl.Checker(mdp, mdp.goal)
    task = mdp.task
    assert task is not None
    rates = Rates(0.1, 0.1, 0.99, task.episode_length, task.patience or -1)
    q_table, best = make_q(checker.product, 0.2)
    position, rng = np.array([UNSTARTED, 0, 0, 0, 0]), seed_state(0)
    rewards = reward_table("linear", 0.1, task.counter)
    state = (make_tables(checker.product), rates, q_table, best, position, rng, rewards, is_counterfactual)
    run_counter(100, *state)
    return steps / best_seconds(repeats, run_counter, steps, *state)


def plain_speed(task: str) -> float:
    """Steps per second of the same loop for CF+KC in plain Python, in a process of its own."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, __file__, "--plain", task]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def time_learners(arguments) -> None:
    print(
        "| task | automaton states | KC, million steps/s | CF+KC | with evaluation every 10,000 steps | plain Python |"
    )
    print("|---|---|---|---|---|---|")
    for make in TASKS:
        mdp = make()
        automaton = ltl.Checker(mdp, mdp.goal).automaton
        kc, both = (kernel_speed(mdp, with_cf, arguments.steps, arguments.repeats) / 1e6 for with_cf in (False, True))
        options = {"steps": arguments.steps, "progress": False}
        whole = arguments.steps / best_seconds(arguments.repeats, ltl.learn, mdp, automaton, **options) / 1e6
        plain = plain_speed(make.__name__) / 1e6
        ratio = f"{plain:.4f} (1 / {both / plain:.0f})"
        print(f"| {make.__name__} | {automaton.n_states} | {kc:.1f} | {both:.1f} | {whole:.1f} | {ratio} |", flush=True)


def time_checks(arguments) -> None:
    print("\n| task | check on a prebuilt product, ms | whole check with translation, ms | Storm, ms |")
    print("|---|---|---|---|")
    for make in TASKS:
        mdp = make()
        formula = ltl.parse(mdp.goal)
        policy = ltl.learn(mdp, formula, steps=500_000, progress=False).policy
        checker = ltl.Checker(mdp, formula)
        checker(policy)
        prebuilt = best_seconds(arguments.repeats, check_often, checker, policy, 100) / 100
        whole = best_seconds(arguments.repeats, ltl.check, mdp, policy, formula)
        storm = float("nan")
        if not arguments.no_storm:
            storm = best_seconds(arguments.repeats, ltl.check, mdp, policy, formula, backend="storm")
        print(f"| {make.__name__} | {prebuilt * 1e3:.3f} | {whole * 1e3:.1f} | {storm * 1e3:.1f} |")


def corridor(size: int) -> ltl.LabelledMDP:
    """A slippery square cut by three columns of holes, with gaps: crossing has probability 0.8^3 at best.

    Unlike a square with scattered holes, which a patient walker avoids surely, this has values between 0 and 1, so that
    numbers and not only the graph must be computed.
    """
    rows = ["~" * size] * size
    holes = []
    for r in range(size):
        if r % 7 != 3:
            columns = range(size // 2, size // 2 + 3)
            rows[r] = rows[r][: columns[0]] + "TTT" + rows[r][columns[-1] + 1 :]
            holes += [(r, c) for c in columns]
    return envs.grid(rows, {"a": [(size - 1, 0)], "b": [(size - 1, size - 1)], "h": holes})


def time_optimum(arguments) -> None:
    cases = (
        ("scattered holes", lambda size: envs.slippery_grid(size, seed=1), "(G F a) & (G F b) & (G !h)"),
        ("scattered holes", lambda size: envs.slippery_grid(size, seed=1), "(F a) & (F b) & (G !h)"),
        ("corridors", corridor, "(F a) & (F b) & (G !h)"),
    )
    if not arguments.sizes:
        return
    print("\n| grid | goal | product states | value | native, s | Storm, s | difference |")
    print("|---|---|---|---|---|---|---|")
    for name, make, goal in cases:
        formula = ltl.parse(goal)
        automaton = ltl.translate(formula)
        for size in arguments.sizes:
            mdp = make(size)
            n_product = len(unfold(ltl.Checker(mdp, automaton).product).state)
            value = ltl.optimum(mdp, formula)
            native = best_seconds(2, ltl.optimum, mdp, formula)
            storm, difference = float("nan"), float("nan")
            if not arguments.no_storm:
                began = time.process_time()
                difference = abs(ltl.optimum(mdp, formula, backend="storm") - value)
                storm = time.process_time() - began
            row = f"| {name} {size} x {size} | `{goal}` | {n_product:,} | {value:.10f} "
            print(row + f"| {native:.3f} | {storm:.3f} | {difference:.1e} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
