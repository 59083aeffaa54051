"""From LTL to limit-deterministic Buechi automata: simplify, build in several ways, reduce, keep the smallest."""

from __future__ import annotations

import time

from prudent.ltl._after import AfterSpace
from prudent.ltl._automaton import Automaton, Edge
from prudent.ltl._formula import Formula, expand_equivalences
from prudent.ltl._guard import GuardSpace
from prudent.ltl._ldba import LimitDeterministicBuilder
from prudent.ltl._parse import parse
from prudent.ltl._reduce import reduce_table
from prudent.ltl._simplify import simplify
from prudent.ltl._sketch import Sketch, Table, TranslationLimitError, tabulate

_MAX_CLASSES = 4096
_VARIANTS = (
    ("cubes", True, True),
    ("whole", True, False),
    ("guess", False, True),
    ("guess", True, True),
    ("whole", True, True),
    ("cubes", True, False),
)


def build_table(formula, space, variant, max_states, seen):
    sketch = Sketch(max_states)
    builder = LimitDeterministicBuilder(formula, space, sketch, *variant)
    key = (builder.initial, tuple(map(tuple, sketch.rows)), tuple(map(tuple, sketch.epsilon)))
    if key in seen:
        return None
    seen.add(key)
    return tabulate(sketch, builder.initial, space.bdd, _MAX_CLASSES)


def translate(formula, *, max_states: int = 20_000, budget_seconds: float = 60.0, variants=_VARIANTS, reduce=True) -> Automaton:
    if isinstance(formula, str):
        formula = parse(formula)
    deadline = time.monotonic() + budget_seconds

    def tick():
        if time.monotonic() > deadline:
            raise TranslationLimitError(f"time {budget_seconds}")

    simple = simplify(expand_equivalences(formula))
    space = AfterSpace(formula.propositions, tick)
    best = None
    failure = None
    seen = set()
    global WON
    for variant in variants:
        limit = max_states if best is None else min(max_states, 6 * best.n_states + 40)
        try:
            table = build_table(simple, space, variant, limit, seen)
            if table is None:
                continue
            if reduce:
                table = reduce_table(table, space.bdd, tick)
        except TranslationLimitError as error:
            failure = failure or error
            continue
        if best is None or table.n_states < best.n_states:
            best = table
            WON = variant
        if best.n_states <= 1:
            break
    if best is None:
        raise failure
    space.bdd.tick = None
    return finish(best, space)


def finish(table: Table, space: AfterSpace) -> Automaton:
    guard_space = GuardSpace(space.propositions, space.bdd)
    n = table.n_states
    trap = n
    need_trap = table.initial < 0
    rows = []
    for target, accepting in zip(table.target, table.accepting):
        merged = {}
        for c, (t, a) in enumerate(zip(target, accepting)):
            key = (t, a)
            merged[key] = space.bdd.disj(merged.get(key, 0), table.guards[c])
        row = []
        for (t, a), guard in merged.items():
            if t < 0:
                need_trap = True
                t = trap
            row.append(Edge(guard_space.formula(guard), t, frozenset([0]) if a else frozenset()))
        rows.append(row)
    eps = [sorted(e) for e in table.epsilon]
    if need_trap:
        rows.append([Edge(guard_space.formula(1), trap, frozenset())])
        eps.append([])
    return Automaton(space.propositions, table.initial if table.initial >= 0 else trap, rows, eps)
