"""Automata under construction: states with symbolic guards, then a table over classes of letters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple

from prudent.errors import PrudentError
from prudent.ltl._bdd import BDD
from prudent.ltl._graph import components

Edges = list[tuple[int, int, bool]]  # (guard, target, accepting)


class TranslationLimitError(PrudentError, RuntimeError):
    """The formula needs more states or time than the translation was allowed."""


class Sketch:
    """A growing automaton; states are found by their key and expanded once. A missing edge leads to the trap."""

    def __init__(self, max_states: int, tick: Callable[[], None] = lambda: None) -> None:
        self.max_states = max_states
        self.tick = tick
        self.number: dict[Hashable, int] = {}
        self.rows: list[Edges] = []
        self.epsilon: list[list[int]] = []
        self._todo: list[tuple[int, Callable[[], Edges]]] = []

    def state(self, key: Hashable, expand: Callable[[], Edges]) -> int:
        """Return the state of ``key``; a new one gets its edges from ``expand()`` in :meth:`complete`."""
        found = self.number.get(key)
        if found is None:
            found = len(self.rows)
            if found >= self.max_states:
                raise TranslationLimitError(
                    f"a translation may build {self.max_states} states before reduction, and this formula needs more. "
                    "Raise max_states, or split the formula."
                )
            self.number[key] = found
            self.rows.append([])
            self.epsilon.append([])
            self._todo.append((found, expand))
        return found

    def complete(self) -> None:
        while self._todo:
            self.tick()
            q, expand = self._todo.pop()
            self.rows[q] = expand()


class Table:
    """A deterministic transition table with epsilon moves over finitely many classes of letters.

    Attributes
    ----------
    guards : list of int
        Decision diagram of each class of letters.
    target, accepting : list of lists, one row a state
        Next state (-1 is the trap) and whether the edge is accepting.
    epsilon : list of sets of int
    initial : int
        -1 if the language is empty.
    """

    def __init__(
        self,
        guards: list[int],
        target: list[list[int]],
        accepting: list[list[bool]],
        epsilon: list[set[int]],
        initial: int,
    ) -> None:
        self.guards = guards
        self.target = target
        self.accepting = accepting
        self.epsilon = epsilon
        self.initial = initial

    @property
    def n_states(self) -> int:
        return len(self.target)


def tabulate(sketch: Sketch, initial: int, bdd: BDD, max_classes: int) -> Table | None:
    """Turn symbolic guards into letter classes; None if there would be more than ``max_classes``."""
    rows: list[dict[int, tuple[int, bool]]] = []
    for edges in sketch.rows:
        row: dict[int, tuple[int, bool]] = {}
        covered = 0
        for guard, target, accepting in edges:
            row[guard] = (target, accepting)
            covered = bdd.disj(covered, guard)
        if covered != 1:
            row[bdd.negate(covered)] = (-1, False)
        rows.append(row)
    cuts = [tuple(sorted(row)) for row in rows]
    guards = [1]
    for cut in sorted(set(cuts)):
        sketch.tick()
        guards = [both for condition in guards for guard in cut if (both := bdd.conj(condition, guard))]
        if len(guards) > max_classes:
            return None
    pick = {cut: [next(g for g in cut if bdd.conj(g, c)) for c in guards] for cut in set(cuts)}
    target = [[row[g][0] for g in pick[cut]] for row, cut in zip(rows, cuts, strict=True)]
    accepting = [[row[g][1] for g in pick[cut]] for row, cut in zip(rows, cuts, strict=True)]
    epsilon = [set(e) for e in sketch.epsilon]
    return merge_letters(Table(guards, target, accepting, epsilon, initial), bdd)


def merge_letters(table: Table, bdd: BDD) -> Table:
    """Merge classes of letters that no state tells apart."""
    columns: dict[tuple[object, ...], int] = {}
    guards: list[int] = []
    keep: list[int] = []
    for c, guard in enumerate(table.guards):
        key = tuple((t[c], a[c]) for t, a in zip(table.target, table.accepting, strict=True))
        if key in columns:
            guards[columns[key]] = bdd.disj(guards[columns[key]], guard)
        else:
            columns[key] = len(guards)
            guards.append(guard)
            keep.append(c)
    target = [[row[c] for c in keep] for row in table.target]
    accepting = [[row[c] for c in keep] for row in table.accepting]
    return Table(guards, target, accepting, table.epsilon, table.initial)


class Rows(NamedTuple):
    """A finished automaton with symbolic guards, one entry a state."""

    edges: Sequence[Edges]
    epsilon: Sequence[Collection[int]]


def rows_of(table: Table, bdd: BDD) -> tuple[Rows, int]:
    """Return a table with symbolic guards again, and its initial state."""
    edges: list[Edges] = []
    for target, accepting in zip(table.target, table.accepting, strict=True):
        merged: dict[tuple[int, bool], int] = {}
        for guard, move in zip(table.guards, zip(target, accepting, strict=True), strict=True):
            if move[0] >= 0:
                merged[move] = bdd.disj(merged.get(move, 0), guard)
        edges.append([(guard, *move) for move, guard in merged.items()])
    return Rows(edges, table.epsilon), table.initial


def merge_rows(rows: Rows, initial: int, bdd: BDD) -> tuple[Rows, int]:
    """Drop hopeless states and merge bisimilar ones without a table, for automata with too many letter classes."""
    n = len(rows.edges)
    graph = [[t for _, t, _ in edges] + list(eps) for edges, eps in zip(rows.edges, rows.epsilon, strict=True)]
    component = components(graph)
    alive = [False] * (max(component, default=-1) + 1)
    for q in sorted(range(n), key=lambda state: component[state]):
        alive[component[q]] |= any(
            alive[component[t]] or (mark and component[t] == component[q]) for _, t, mark in rows.edges[q]
        ) or any(alive[component[t]] for t in rows.epsilon[q])
    for q in range(n):  # a component is known to be alive only once all of it has been seen
        alive[component[q]] |= any(mark and component[t] == component[q] for _, t, mark in rows.edges[q])
    block = [0 if alive[component[q]] else -1 for q in range(n)]
    n_blocks = 0
    while True:
        number: dict[object, int] = {}
        merged: list[dict[tuple[int, bool], int]] = []
        for edges in rows.edges:
            row: dict[tuple[int, bool], int] = {}
            for guard, target, mark in edges:
                if block[target] >= 0:
                    key = (block[target], mark)
                    row[key] = bdd.disj(row.get(key, 0), guard)
            merged.append(row)
        jumps = [frozenset(block[t] for t in eps if block[t] >= 0) for eps in rows.epsilon]
        block = [
            -1 if block[q] < 0 else number.setdefault((block[q], frozenset(merged[q].items()), jumps[q]), len(number))
            for q in range(n)
        ]
        if len(number) == n_blocks:
            break
        n_blocks = len(number)
    first = {b: q for q, b in reversed(list(enumerate(block))) if b >= 0}
    order = [block[initial]] if initial >= 0 and block[initial] >= 0 else []
    for b in order:
        order += [
            t for t in dict.fromkeys([*(t for t, _ in merged[first[b]]), *sorted(jumps[first[b]])]) if t not in order
        ]
    place = {b: i for i, b in enumerate(order)}
    kept = [[(guard, place[t], mark) for (t, mark), guard in merged[first[b]].items()] for b in order]
    return Rows(kept, [sorted(place[t] for t in jumps[first[b]]) for b in order]), 0 if order else -1
