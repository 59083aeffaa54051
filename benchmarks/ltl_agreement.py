"""Native probabilities against Storm on random models, formulae and policies.

    python benchmarks/ltl_agreement.py --pairs 500 --specs /path/to/rl_specs.ltl

Storm runs in a child process, since some formulae crash it. Where it fails, the judge is native rational arithmetic;
those pairs are counted apart.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np

from prudent import envs, ltl

# Storm's own answers carry about 1e-12; exact rational answers are compared for equality.
TOLERANCE = 1e-8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    default = Path(os.environ.get("PRUDENT_DATA", "data")) / "ltl" / "rl_specs.ltl"
    parser.add_argument("--specs", type=Path, default=default)
    parser.add_argument("--exact-every", type=int, default=5, help="also compare exact fractions on every n-th pair")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    specs = read_specs(arguments.specs)
    storm = Storm()
    kinds = ("optimum", "check", "prism optimum", "prism check")
    worst = dict.fromkeys(kinds, 0.0)
    count, failed, interior = dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0)
    n_exact = 0
    seconds = {"native": 0.0, "storm": 0.0}
    problems = []
    for i in range(arguments.pairs):
        text = specs[i // 2 % len(specs)] if specs and i % 2 else random_formula(rng, 3)
        formula = ltl.parse(text)
        n_states, n_actions = int(rng.integers(4, 20)), int(rng.integers(1, 4))
        propositions = sorted(set(formula.propositions) | {"a"})
        shape: dict = {"density": rng.uniform(0.2, 0.6), "absorbing": rng.uniform(0.1, 0.4)}
        mdp = envs.random_mdp(n_states, n_actions, propositions, int(rng.integers(1 << 31)), **shape)
        automaton = ltl.translate(formula)
        policy = random_policy(rng, mdp, automaton)
        for kind in kinds:
            is_optimum = kind.endswith("optimum")
            model = mdp if is_optimum else policy.induced_chain(mdp)
            if kind.startswith("prism"):
                source = mdp.to_prism() if is_optimum else policy.to_prism(mdp)
                model = ltl.LabelledMDP.from_prism(source)
            began = time.perf_counter()
            value = ltl.optimum(model, automaton) if is_optimum else ltl.check(mdp, policy, automaton)
            seconds["native"] += time.perf_counter() - began
            began = time.perf_counter()
            judge = storm.ask(model, text, exact=False)
            seconds["storm"] += time.perf_counter() - began
            if judge is None:
                failed[kind] += 1
                judge = float(ltl.optimum(model, automaton, exact=True))
            count[kind] += 1
            interior[kind] += 1e-6 < value < 1 - 1e-6
            worst[kind] = max(worst[kind], abs(value - judge))
            if abs(value - judge) > TOLERANCE:
                problems.append((i, kind, text, value, judge))
            if i % arguments.exact_every == 0 and not kind.startswith("prism"):
                exact = storm.ask(model, text, exact=True)
                if exact is not None:
                    n_exact += 1
                    ours = ltl.optimum(model, automaton, exact=True)
                    if ours != exact:
                        problems.append((i, kind + " exact", text, ours, exact))
    print("| comparison | pairs | values inside (0, 1) | Storm failed, judged by fractions | largest difference |")
    print("|---|---|---|---|---|")
    for kind in kinds:
        print(f"| {kind} | {count[kind]} | {interior[kind]} | {failed[kind]} | {worst[kind]:.1e} |")
    print(f"{n_exact} pairs also compared as exact fractions")
    print(f"time: native {seconds['native']:.1f} s, Storm {seconds['storm']:.1f} s")
    for problem in problems:
        print("DIFFERENT", *problem)
    print(f"{len(problems)} disagreements above {TOLERANCE}")
    storm.close()
    raise SystemExit(bool(problems))


def read_specs(path: Path) -> list[str]:
    if not path.exists():
        print(f"no {path}: random formulae only")
        return []
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line]


def random_formula(rng: np.random.Generator, depth: int) -> str:
    if depth == 0 or rng.random() < 0.1:
        return str(rng.choice(["a", "b", "c", "!a", "!b", "!c"]))
    kind = rng.choice(["X", "F", "G", "FG", "GF", "U", "W", "R", "&", "|", "->"])
    left = random_formula(rng, depth - 1)
    if kind in ("X", "F", "G", "FG", "GF"):
        return f"{' '.join(kind)} ({left})"
    return f"({left}) {kind} ({random_formula(rng, depth - 1)})"


def random_policy(rng: np.random.Generator, mdp: ltl.LabelledMDP, automaton: ltl.Automaton) -> ltl.Policy:
    choices = np.zeros((mdp.n_states, automaton.n_states), np.int32)
    for s in range(mdp.n_states):
        for q in range(automaton.n_states):
            options = [*mdp.available(s), *(mdp.n_actions + p for p in automaton.epsilon(q))]
            choices[s, q] = rng.choice(options)
    return ltl.Policy(automaton, mdp.actions, choices)


class Storm:
    """Storm in a child process that is replaced when it dies."""

    def __init__(self):
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other,), daemon=True)
        self.process.start()

    def ask(self, model: ltl.LabelledMDP, text: str, *, exact: bool, timeout_seconds: float = 60.0):
        """The probability, or None where Storm fails, dies or takes too long."""
        try:
            self.pipe.send((model, text, exact))
            if self.pipe.poll(timeout_seconds):
                return self.pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
        self.close()
        self.start()
        return None

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def serve(pipe) -> None:
    import warnings

    warnings.simplefilter("ignore")
    while True:
        model, text, exact = pipe.recv()
        try:
            pipe.send(ltl.optimum(model, text, backend="storm", exact=exact))
        except ltl.CheckError:
            pipe.send(None)


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()
