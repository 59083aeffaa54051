"""Comparing the languages of states of one table: exact tests, after a cheap filter by random words.

The states that reach no epsilon move form the deterministic part, where inclusion is decided on the product. For a
state of the initial part the tests are sound (a "yes" is proved) and nearly complete: they ask that each jump is
answered by one jump.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache

from prudent.ltl._graph import components
from prudent.ltl._sketch import Table

_N_WORDS = 40
_MAX_PAIRS = 20_000
# A pair of states, and whether moving to it is accepting; None: a move that is no part of a counter-example.
_Move = tuple[tuple[int, int], bool | None]


def deterministic_part(table: Table) -> list[bool]:
    """Return, for each state, whether it reaches no epsilon move."""
    n = table.n_states
    before: list[list[int]] = [[] for _ in range(n)]
    for q in range(n):
        for p in {*table.target[q], *table.epsilon[q]}:
            if p >= 0:
                before[p].append(q)
    chooses = [bool(e) for e in table.epsilon]
    stack = [q for q in range(n) if chooses[q]]
    while stack:
        for p in before[stack.pop()]:
            if not chooses[p]:
                chooses[p] = True
                stack.append(p)
    return [not c for c in chooses]


@lru_cache(maxsize=64)
def random_words(n_letters: int) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return pairs (word, position where its cycle starts), the same in every run."""
    rng = random.Random(0)
    lengths = [rng.randint(1, 6) for _ in range(_N_WORDS)]
    return tuple((tuple(rng.randrange(n_letters) for _ in range(n)), rng.randrange(n)) for n in lengths)


def accepts_word(table: Table, q: int, word: tuple[int, ...], start: int) -> bool:
    """Run a deterministic state on one word."""
    for c in word[:start]:
        q = table.target[q][c]
        if q < 0:
            return False
    lap: dict[int, int] = {}
    marks: list[bool] = []
    while q not in lap:
        lap[q] = len(marks)
        seen = False
        for c in word[start:]:
            seen |= table.accepting[q][c]
            q = table.target[q][c]
            if q < 0:
                return False
        marks.append(seen)
    return any(marks[lap[q] :])


class Languages:
    """Language tests on a table whose states all have non-empty languages."""

    def __init__(
        self, table: Table, tick: Callable[[], None] = lambda: None, signature: list[int] | None = None
    ) -> None:
        self.table = table
        self.tick = tick
        self.is_det = deterministic_part(table)
        self._yes: set[tuple[int, int]] = set()
        self._no: set[tuple[int, int]] = set()
        self.signature = self._signatures() if signature is None else signature

    def _signatures(self) -> list[int]:
        """Return one bit for each random word: whether the state accepts it."""
        table, n = self.table, self.table.n_states
        signature = [0] * n
        det = [q for q in range(n) if self.is_det[q]]
        others = [q for q in range(n) if not self.is_det[q]]
        for bit, (word, start) in enumerate(random_words(len(table.guards))[: 10 + 2 * n]):
            length = len(word)
            by_position: list[set[int]] = [set()] * length
            by_position[start] = self._accepted_from(word, start, det)
            for i in range(length - 1, -1, -1):
                if i != start:
                    following = by_position[i + 1 if i + 1 < length else start]
                    by_position[i] = {q for q in det if table.target[q][word[i]] in following}
            for q in by_position[0]:
                signature[q] |= 1 << bit
            for q in others:
                if self._accepts_by_jump(q, word, start, by_position):
                    signature[q] |= 1 << bit
        return signature

    def _accepted_from(self, word: tuple[int, ...], start: int, states: list[int]) -> set[int]:
        """Return the deterministic states that accept the cycle word[start:] for ever."""
        target, accepting = self.table.target, self.table.accepting
        lap: dict[int, tuple[int, bool]] = {-1: (-1, False)}
        for q in states:
            p, seen = q, False
            for c in word[start:]:
                seen |= accepting[p][c]
                p = target[p][c]
                if p < 0:
                    break
            lap[q] = (p, seen)
        verdict: dict[int, bool] = {-1: False}
        for q in states:
            path: list[int] = []
            on_path: dict[int, int] = {}
            p = q
            while p not in verdict and p not in on_path:
                on_path[p] = len(path)
                path.append(p)
                p = lap[p][0]
            result = verdict[p] if p in verdict else any(lap[r][1] for r in path[on_path[p] :])
            for r in path:
                verdict[r] = result
        return {q for q in states if verdict[q]}

    def _accepts_by_jump(self, q: int, word: tuple[int, ...], start: int, by_position: list[set[int]]) -> bool:
        table = self.table
        i, seen = 0, set()
        while (q, i) not in seen:
            seen.add((q, i))
            if self.is_det[q]:
                return q in by_position[i]
            if not table.epsilon[q].isdisjoint(by_position[i]):
                return True
            q = table.target[q][word[i]]
            if q < 0:
                return False
            i = i + 1 if i + 1 < len(word) else start
        return False

    def included(self, p: int, q: int) -> bool:
        """Say whether the language of ``p`` is proved to be part of that of ``q``."""
        if p == q or p < 0:
            return True
        if q < 0 or self.signature[p] & ~self.signature[q]:
            return False
        if (p, q) in self._yes:
            return True
        if (p, q) in self._no:
            return False
        self.tick()
        if self.is_det[p]:
            result = self._deterministic(p, q) if self.is_det[q] else self._jumps_cover(p, q)
        else:
            result = self._follow(p, q)
        (self._yes if result else self._no).add((p, q))
        return result

    def equal(self, p: int, q: int) -> bool:
        return self.signature[p] == self.signature[q] and self.included(p, q) and self.included(q, p)

    def _deterministic(self, p: int, q: int) -> bool:
        # A counter-example is a cycle of pairs that is accepting for p and never for q.
        target, accepting = self.table.target, self.table.accepting

        def moves(a: int, b: int) -> list[_Move] | None:
            found: list[_Move] = []
            for a2, b2, acc_a, acc_b in set(zip(target[a], target[b], accepting[a], accepting[b], strict=True)):
                if a2 < 0 or a2 == b2 or (a2, b2) in self._yes:
                    continue
                if b2 < 0 or (a2, b2) in self._no or self.signature[a2] & ~self.signature[b2]:
                    return None
                found.append(((a2, b2), None if acc_b else acc_a))
            return found

        return self._prove(p, q, moves)

    def _jumps_cover(self, p: int, q: int) -> bool:
        """Prove that the deterministic state ``p`` is part of the initial-part state ``q``."""
        table = self.table

        def moves(a: int, b: int) -> list[_Move] | None:
            found: list[_Move] = []
            if any(self.included(a, d) for d in table.epsilon[b]):
                return found
            for a2, b2, acc in set(zip(table.target[a], table.target[b], table.accepting[a], strict=True)):
                if a2 < 0:
                    continue
                if b2 < 0:
                    return None
                if self.is_det[b2]:
                    if not self.included(a2, b2):
                        return None
                elif (a2, b2) not in self._yes:
                    found.append(((a2, b2), acc))
            return found

        return self._prove(p, q, moves)

    def _prove(self, p: int, q: int, moves: Callable[[int, int], list[_Move] | None]) -> bool:
        """Prove inclusion by the graph of pairs: ``moves`` finds no counter-example, and no cycle has a mark.

        ``moves`` gives the pairs that a pair leads to, with a mark (see ``_Move``), and None where the proof fails.
        """
        index, todo = {(p, q): 0}, [(p, q)]
        graph: list[list[int]] = []
        marked: list[list[bool]] = []
        for a, b in todo:
            found = moves(a, b)
            if found is None:
                return False
            row, marks = [], []
            for pair, mark in found:
                number = index.get(pair)
                if number is None:
                    number = index[pair] = len(todo)
                    todo.append(pair)
                    if number > _MAX_PAIRS:
                        return False
                if mark is not None:
                    row.append(number)
                    marks.append(mark)
            graph.append(row)
            marked.append(marks)
        if _has_marked_cycle(graph, marked):
            return False
        self._yes.update(index)
        return True

    def _follow(self, p: int, q: int) -> bool:
        """Prove inclusion of an initial-part state: every jump along the way is part of the state reached by ``q``."""
        table = self.table
        seen = {(p, q)}
        todo = [(p, q)]
        for a, b in todo:
            if any(not self.included(d, b) for d in table.epsilon[a]):
                return False
            for a2, b2 in set(zip(table.target[a], table.target[b], strict=True)):
                if a2 < 0 or (a2, b2) in seen or a2 == b2 or (a2, b2) in self._yes:
                    continue
                if b2 < 0 or (a2, b2) in self._no or self.signature[a2] & ~self.signature[b2]:
                    return False
                if self.is_det[a2]:
                    if not self.included(a2, b2):
                        return False
                    continue
                seen.add((a2, b2))
                todo.append((a2, b2))
                if len(todo) > _MAX_PAIRS:
                    return False
        self._yes |= seen
        return True


def _has_marked_cycle(graph: list[list[int]], marked: list[list[bool]]) -> bool:
    if not any(any(marks) for marks in marked):
        return False
    component = components(graph)
    return any(
        mark and component[v] == component[w]
        for v, row in enumerate(graph)
        for w, mark in zip(row, marked[v], strict=True)
    )
