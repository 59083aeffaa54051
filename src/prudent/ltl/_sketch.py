"""Automata under construction: states with symbolic guards, then a table over classes of letters."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from prudent.ltl._bdd import BDD


class TranslationLimitError(RuntimeError):
    """The formula needs more states or time than the translation was allowed."""


class Sketch:
    """A growing automaton; states are found by their key and expanded once. A missing edge leads to the trap."""

    def __init__(self, max_states: int) -> None:
        self.max_states = max_states
        self.number: dict[Hashable, int] = {}
        self.rows: list[list[tuple[int, int, bool]]] = []  # (guard, target, accepting)
        self.epsilon: list[list[int]] = []
        self.labels: list[str] = []
        self._todo: list[tuple[int, Callable[[], list[tuple[int, int, bool]]]]] = []

    def state(self, key: Hashable, label: str, expand: Callable[[], list[tuple[int, int, bool]]]) -> int:
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
            self.labels.append(label)
            self._todo.append((found, expand))
        return found

    def complete(self) -> None:
        while self._todo:
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
        labels: list[str],
    ) -> None:
        self.guards = guards
        self.target = target
        self.accepting = accepting
        self.epsilon = epsilon
        self.initial = initial
        self.labels = labels

    @property
    def n_states(self) -> int:
        return len(self.target)


def tabulate(sketch: Sketch, initial: int, bdd: BDD, max_classes: int) -> Table | None:
    """Turn symbolic guards into letter classes; None if there would be more than ``max_classes``."""
    rows: list[dict[int, Hashable]] = []
    distinct: dict[tuple[tuple[int, int, bool], ...], int] = {}
    for edges in sketch.rows:
        row: dict[int, Hashable] = {}
        covered = 0
        for guard, target, accepting in edges:
            row[guard] = (target, accepting)
            covered = bdd.disj(covered, guard)
        if covered != 1:
            row[bdd.negate(covered)] = (-1, False)
        rows.append(row)
    classes: list[tuple[int, tuple[int, ...]]] = [(1, ())]
    cuts = {tuple(sorted(row)) for row in rows}
    for cut in sorted(cuts):
        refined = []
        for condition, _ in classes:
            for guard in cut:
                both = bdd.conj(condition, guard)
                if both:
                    refined.append((both, ()))
        classes = refined
        if len(classes) > max_classes:
            return None
    guards = [condition for condition, _ in classes]
    target: list[list[int]] = []
    accepting: list[list[bool]] = []
    lookup: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        order = tuple(sorted(row))
        if order not in lookup:
            lookup[order] = [next(i for i, g in enumerate(order) if bdd.conj(g, c)) for c in guards]
        values = [row[g] for g in order]
        picks = lookup[order]
        target.append([values[i][0] for i in picks])
        accepting.append([values[i][1] for i in picks])
    table = Table(guards, target, accepting, [set(e) for e in sketch.epsilon], initial, list(sketch.labels))
    return merge_letters(table, bdd)


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
    return Table(guards, target, accepting, table.epsilon, table.initial, table.labels)
