"""Translate every formula of the reference sets, prove the automata right, and compare sizes and times.

    PRUDENT_DATA=... python benchmarks/ltl_translation.py --out build/ltl_translation.jsonl [--quick]

Each formula and its negation gives one JSON line; a second run continues where the first stopped. Languages are
compared with Spot (``pip install spottl``) in a process that is stopped after 10 seconds, and on random words where
Spot does not answer.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from prudent import ltl

SPOT_SECONDS = 10.0
N_WORDS = 200
REFERENCE = ("owl_ldba_default", "owl_ldba_eks20", "owl_best", "owl_dpa", "spot_dpa", "spot_buchi")


def formula_sets(data: Path) -> dict[str, list[str]]:
    """Return the formulae of each set, as text."""
    sets = {"reference": [row["formula"] for row in read_reference(data)]}
    for path in [*sorted((data / "owl_sets").glob("*.ltl")), data / "rl_specs.ltl"]:
        lines = []
        for line in path.read_text().splitlines():
            text = line.split("//")[0].split("#")[0].strip()
            if text:
                lines.append(text)
        sets[path.stem] = lines
    return sets


def read_reference(data: Path) -> list[dict[str, str]]:
    with (data / "reference_sizes.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


class Judge:
    """Spot in a process of its own, replaced when it takes too long."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._pipe, end = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=_judge, args=(end,), daemon=True)
        self._process.start()

    def same_language(self, hoa: str, formula: str) -> bool | None:
        """Return Spot's verdict, or None if there is none in time."""
        self._pipe.send((hoa, formula))
        if self._pipe.poll(SPOT_SECONDS):
            try:
                return self._pipe.recv()
            except EOFError:  # Spot ran out of memory
                pass
        self._process.kill()
        self._process.join()
        self._start()
        return None


def _judge(pipe: Connection) -> None:
    import spot

    while True:
        hoa, text = pipe.recv()
        try:
            automaton = spot.automaton(hoa)
            is_part = not automaton.intersects(spot.translate(f"!({text})"))
            verdict = is_part and not spot.translate(text).intersects(spot.complement(automaton))
        except (RuntimeError, MemoryError):
            verdict = None
        pipe.send(verdict)


def same_on_words(automaton: ltl.Automaton, formula: ltl.Formula, seed: int = 0) -> bool:
    """Compare automaton and formula on random ultimately periodic words."""
    rng = random.Random(seed)
    for _ in range(N_WORDS):
        density = rng.choice([0.1, 0.3, 0.5, 0.7, 0.9])
        letters = [{p for p in formula.propositions if rng.random() < density} for _ in range(rng.randint(1, 8))]
        cut = rng.randrange(len(letters))
        if automaton.accepts(letters[:cut], letters[cut:]) != formula.holds(letters[:cut], letters[cut:]):
            return False
    return True


def examine(text: str, is_negated: bool, judge: Judge, budget_seconds: float) -> dict[str, object]:
    """Translate one formula and check the result."""
    formula = ltl.parse(text)
    if is_negated:
        formula = formula.negate()
    start = time.process_time()
    try:
        automaton = ltl.translate(formula, budget_seconds=budget_seconds)
    except ltl.TranslationLimitError as error:
        return {"seconds": time.process_time() - start, "limit": str(error)}
    record: dict[str, object] = {
        "seconds": time.process_time() - start,
        "states": automaton.n_states - automaton.has_trap,
        "epsilon": automaton.n_epsilon,
        "limit_deterministic": automaton.is_limit_deterministic(),
    }
    record["spot"] = judge.same_language(automaton.remove_epsilon().to_hoa(), formula.to_infix(parenthesised=True))
    if record["spot"] is None:
        record["words"] = same_on_words(automaton, formula)
    return record


def report(records: list[dict[str, object]], data: Path) -> bool:
    """Print the tables; return whether everything that must hold does."""
    is_good = True
    done = [r for r in records if "limit" not in r]
    wrong = [r for r in done if r["spot"] is False or r.get("words") is False or not r["limit_deterministic"]]
    print(f"translated {len(done)} of {len(records)}; proved by Spot {sum(r['spot'] is True for r in done)}, "
          f"on random words only {sum(r['spot'] is None for r in done)}, wrong {len(wrong)}")  # fmt: skip
    for r in wrong:
        is_good = False
        print("  WRONG", r["set"], "negated" if r["negated"] else "", str(r["formula"])[:120])
    for r in records:
        if "limit" in r:
            print("  LIMIT", r["set"], "negated" if r["negated"] else "", str(r["formula"])[:120])
    seconds = sorted(float(str(r["seconds"])) for r in records)
    in_time = sum(s < 2.0 for s in seconds) / len(seconds)
    late = seconds[int(0.99 * len(seconds))]
    print(f"processor time: median {1e3 * statistics.median(seconds):.1f} ms, 99 % {late:.2f} s, "
          f"longest {seconds[-1]:.1f} s, under 2 s {100 * in_time:.2f} %")  # fmt: skip
    sizes = {r["formula"]: int(str(r["states"])) for r in done if r["set"] == "reference" and not r["negated"]}
    rows = [row for row in read_reference(data) if row["formula"] in sizes]
    print(f"states (trap excluded) on {len(rows)} reference formulae: {sum(sizes.values())}")
    for column in REFERENCE:
        print(f"  {column:18s} {sum(float(row[column]) for row in rows):8.0f}")
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines file, continued if it exists")
    parser.add_argument("--quick", action="store_true", help="every tenth formula only")
    parser.add_argument("--budget-seconds", type=float, default=60.0, help="limit for one translation")
    args = parser.parse_args()
    data = Path(os.environ.get("PRUDENT_DATA", ".")) / "ltl"
    if not data.is_dir():
        print(f"no formulae in {data}. Set PRUDENT_DATA to the directory that holds ltl/.", file=sys.stderr)
        return 2
    args.out.parent.mkdir(parents=True, exist_ok=True)
    records = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    known = {(r["set"], r["formula"], r["negated"]) for r in records}
    judge = Judge()
    wanted = set()
    with args.out.open("a") as file:
        for name, formulas in formula_sets(data).items():
            for text in dict.fromkeys(formulas[:: 10 if args.quick else 1]):
                for is_negated in (False, True):
                    wanted.add((name, text, is_negated))
                    if (name, text, is_negated) in known:
                        continue
                    record = {"set": name, "formula": text, "negated": is_negated}
                    record |= examine(text, is_negated, judge, args.budget_seconds)
                    records.append(record)
                    print(json.dumps(record), file=file, flush=True)
    return 0 if report([r for r in records if (r["set"], r["formula"], r["negated"]) in wanted], data) else 1


if __name__ == "__main__":
    raise SystemExit(main())
