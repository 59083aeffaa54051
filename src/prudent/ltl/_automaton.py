"""Buechi automata with epsilon moves and guards over propositions; acceptance is on transitions.

A word is accepted by a run that takes, for every acceptance set, an edge of that set infinitely often. An epsilon move
reads no letter. Automata made by :func:`prudent.ltl.translate` are limit-deterministic: apart from the choice of an
epsilon move every state has exactly one edge for every letter, and nothing can be chosen after an epsilon move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from prudent.ltl._formula import TRUE, Formula, Word, disjunction
from prudent.ltl._graph import components

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Edge(NamedTuple):
    """One transition: taken on the letters that satisfy ``guard`` (a formula without temporal operators)."""

    guard: Formula
    target: int
    sets: frozenset[int]


class Automaton:
    """A (generalised) Buechi automaton with transition-based acceptance and epsilon moves. Immutable.

    Parameters
    ----------
    propositions : sequence of str
        All propositions a letter may contain; guards use no others.
    initial : int
        Initial state.
    edges : sequence of sequences of Edge
        ``edges[q]`` are the transitions of state ``q``.
    epsilon : sequence of sequences of int
        ``epsilon[q]`` are the targets of the epsilon moves of state ``q``.
    n_sets : int, default=1
        Number of acceptance sets, at most 64. One set is plain Buechi acceptance.
    names : sequence of str, optional
        What each state stands for; used in drawings and HOA.
    """

    def __init__(
        self,
        propositions: Sequence[str],
        initial: int,
        edges: Sequence[Sequence[Edge]],
        epsilon: Sequence[Sequence[int]],
        *,
        n_sets: int = 1,
        names: Sequence[str] | None = None,
    ) -> None:
        self._propositions = tuple(propositions)
        self._initial = initial
        self._edges = tuple(tuple(row) for row in edges)
        self._epsilon = tuple(tuple(row) for row in epsilon)
        self._n_sets = n_sets
        self._names = tuple(names) if names is not None else tuple("" for _ in self._edges)
        self._check()

    def _check(self) -> None:
        n = len(self._edges)
        if len(set(self._propositions)) != len(self._propositions):
            raise ValueError(f"propositions must differ, got {self._propositions}. Remove the repetition.")
        if len(self._epsilon) != n or len(self._names) != n:
            raise ValueError(
                f"edges, epsilon and names need one entry a state, got {n}, {len(self._epsilon)}, {len(self._names)}."
            )
        if not 1 <= self._n_sets <= 64:
            raise ValueError(f"n_sets must be between 1 and 64, got {self._n_sets}.")
        targets = [e.target for row in self._edges for e in row] + [q for row in self._epsilon for q in row]
        for q in [self._initial, *targets]:
            if not 0 <= q < n:
                raise ValueError(f"states are numbered 0 to {n - 1}, got {q}. Check initial, edges and epsilon.")
        known = set(self._propositions)
        for guard in {e.guard for row in self._edges for e in row}:
            if not known.issuperset(guard.propositions):
                extra = sorted(set(guard.propositions) - known)
                raise ValueError(f"guards may use the automaton's propositions only, got {extra}. Add them.")
        for row in self._edges:
            for e in row:
                if any(not 0 <= s < self._n_sets for s in e.sets):
                    raise ValueError(f"acceptance sets are numbered 0 to {self._n_sets - 1}, got {sorted(e.sets)}.")

    @property
    def propositions(self) -> tuple[str, ...]:
        """Propositions a letter may contain."""
        return self._propositions

    @property
    def initial(self) -> int:
        """The initial state."""
        return self._initial

    @property
    def n_states(self) -> int:
        """Number of states, the trap included."""
        return len(self._edges)

    @property
    def n_sets(self) -> int:
        """Number of acceptance sets."""
        return self._n_sets

    @property
    def n_epsilon(self) -> int:
        """Number of epsilon moves."""
        return sum(len(row) for row in self._epsilon)

    @property
    def has_trap(self) -> bool:
        """Whether some state can only loop without acceptance."""
        return any(self._traps)

    @property
    def names(self) -> tuple[str, ...]:
        """What each state stands for; empty strings where nothing is known."""
        return self._names

    @cached_property
    def _traps(self) -> tuple[bool, ...]:
        return tuple(
            not self._epsilon[q] and all(e.target == q and not e.sets for e in row) for q, row in enumerate(self._edges)
        )

    def __repr__(self) -> str:
        sets = "Buechi" if self._n_sets == 1 else f"{self._n_sets} Buechi sets"
        return (
            f"<Automaton: {self.n_states} states{' with trap' if self.has_trap else ''}, "
            f"{self.n_epsilon} epsilon moves, {sets}, propositions {', '.join(self._propositions) or 'none'}>"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Automaton) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        return self._propositions, self._initial, self._edges, self._epsilon, self._n_sets

    def edges(self, q: int) -> tuple[Edge, ...]:
        """Return the transitions of state ``q``."""
        return self._edges[q]

    def epsilon(self, q: int) -> tuple[int, ...]:
        """Return the targets of the epsilon moves of state ``q``."""
        return self._epsilon[q]

    def is_trap(self, q: int) -> bool:
        """Say whether ``q`` can only loop without acceptance."""
        return self._traps[q]

    def step(self, q: int, letter: Iterable[str]) -> tuple[int, frozenset[int]]:
        """Read one letter (the true propositions); return the next state and the acceptance sets visited."""
        letter = self._known(letter)
        taken = [e for e in self._edges[q] if satisfies(letter, e.guard)]
        if len(taken) != 1:
            raise self._not_one_edge(q, letter, len(taken))
        return taken[0].target, taken[0].sets

    def tabulate(self, letters: Sequence[Iterable[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the transition table for a list of letters.

        Parameters
        ----------
        letters : sequence of sets of str
            The letters that matter, for example the labels that occur in an environment.

        Returns
        -------
        next_state : ndarray of int32, shape (n_states, n_letters)
        accepting : ndarray of uint64, shape (n_states, n_letters)
            Bit ``i`` says that the transition is in acceptance set ``i``; 0 means that it is in none.
        """
        known = [self._known(letter) for letter in letters]
        columns = {name: np.array([name in letter for letter in known], dtype=bool) for name in self._propositions}
        next_state = np.full((self.n_states, len(known)), -1, dtype=np.int32)
        accepting = np.zeros((self.n_states, len(known)), dtype=np.uint64)
        cache: dict[Formula, np.ndarray] = {}
        for q, row in enumerate(self._edges):
            count = np.zeros(len(known), dtype=np.int64)
            for e in row:
                mask = _guard_mask(e.guard, columns, len(known), cache)
                count += mask
                next_state[q, mask] = e.target
                accepting[q, mask] = np.uint64(sum(1 << s for s in e.sets))
            wrong = np.flatnonzero(count != 1)
            if wrong.size:
                raise self._not_one_edge(q, known[wrong[0]], int(count[wrong[0]]))
        return next_state, accepting

    def _known(self, letter: Iterable[str]) -> frozenset[str]:
        if isinstance(letter, str):
            raise TypeError(f"a letter is a set of propositions, got the string {letter!r}. Write {{{letter!r}}}.")
        return frozenset(letter).intersection(self._propositions)

    def _not_one_edge(self, q: int, letter: frozenset[str], count: int) -> ValueError:
        return ValueError(
            f"a transition table needs exactly one edge for each letter, state {q} has {count} on "
            f"{{{', '.join(sorted(letter))}}}. Use Automaton.choices_to_epsilon() first."
        )

    def accepts(self, prefix: Word, cycle: Word) -> bool:
        """Say whether the word ``prefix cycle cycle cycle ...`` is accepted; letters are sets of propositions."""
        if len(cycle) == 0:
            raise ValueError("the cycle of an ultimately periodic word needs at least one letter, got none.")
        letters = [self._known(letter) for letter in [*prefix, *cycle]]
        following = [*range(1, len(letters)), len(prefix)]
        index = {(self._initial, 0): 0}
        todo = [(self._initial, 0)]
        graph: list[list[tuple[int, int]]] = []
        for q, i in todo:
            moves = [((e.target, following[i]), e.sets) for e in self._edges[q] if satisfies(letters[i], e.guard)]
            moves += [((p, i), frozenset()) for p in self._epsilon[q]]
            row = []
            for pair, sets in moves:
                if pair not in index:
                    index[pair] = len(todo)
                    todo.append(pair)
                row.append((index[pair], sum(1 << s for s in sets)))
            graph.append(row)
        component = components([[target for target, _ in row] for row in graph])
        seen: dict[int, int] = {}
        for v, row in enumerate(graph):
            for target, sets in row:
                if component[v] == component[target]:
                    seen[component[v]] = seen.get(component[v], 0) | sets
        return any(sets == (1 << self._n_sets) - 1 for sets in seen.values())

    def is_deterministic(self) -> bool:
        """Say whether there are no epsilon moves and no two edges of a state share a letter."""
        return not self.n_epsilon and all(self._choice_free)

    def is_limit_deterministic(self) -> bool:
        """Say whether choice ends: no state that lies on an accepting cycle can reach a state with a choice."""
        free = [not self._epsilon[q] and self._choice_free[q] for q in range(self.n_states)]
        graph = [[e.target for e in row] + list(self._epsilon[q]) for q, row in enumerate(self._edges)]
        component = components(graph)  # numbered so that successors have smaller or equal numbers
        ends = [True] * (max(component) + 1)
        accepting = [0] * len(ends)
        for q in sorted(range(self.n_states), key=lambda state: component[state]):
            ends[component[q]] &= free[q] and all(ends[component[p]] for p in graph[q])
        for q, row in enumerate(self._edges):
            for e in row:
                if component[e.target] == component[q]:
                    accepting[component[q]] |= sum(1 << s for s in e.sets)
        full = (1 << self._n_sets) - 1
        return all(end or sets != full for end, sets in zip(ends, accepting, strict=True))

    @cached_property
    def _choice_free(self) -> tuple[bool, ...]:
        from prudent.ltl._guard import GuardSpace

        space = GuardSpace(self._propositions)
        result = []
        for row in self._edges:
            covered, is_free = 0, True
            for e in row:
                guard = space.function(e.guard)
                is_free = is_free and not space.bdd.conj(covered, guard)
                covered = space.bdd.disj(covered, guard)
            result.append(is_free)
        return tuple(result)

    def remove_epsilon(self) -> Automaton:
        """Return a non-deterministic automaton of the same language without epsilon moves."""
        rows: list[tuple[Edge, ...]] = []
        for q in range(self.n_states):
            merged: dict[tuple[int, frozenset[int]], list[Formula]] = {}
            for p in self._closure(q):
                for e in self._edges[p]:
                    merged.setdefault((e.target, e.sets), []).append(e.guard)
            rows.append(tuple(Edge(disjunction(guards), *key) for key, guards in merged.items()))
        return Automaton(
            self._propositions, self._initial, rows, [()] * self.n_states, n_sets=self._n_sets, names=self._names
        ).drop_unreachable()

    def _closure(self, q: int) -> list[int]:
        reached = [q]
        for p in reached:
            reached += [r for r in self._epsilon[p] if r not in reached]
        return reached

    def drop_unreachable(self) -> Automaton:
        """Return the automaton restricted to the states that the initial state reaches, the initial state first."""
        order = [self._initial]
        seen = {self._initial}
        for q in order:
            for p in [e.target for e in self._edges[q]] + list(self._epsilon[q]):
                if p not in seen:
                    seen.add(p)
                    order.append(p)
        number = {q: i for i, q in enumerate(order)}
        return Automaton(
            self._propositions,
            0,
            [[e._replace(target=number[e.target]) for e in self._edges[q]] for q in order],
            [[number[p] for p in self._epsilon[q]] for q in order],
            n_sets=self._n_sets,
            names=[self._names[q] for q in order],
        )

    def choices_to_epsilon(self) -> Automaton:
        """Return an automaton of the same language whose only choices are epsilon moves, completed with a trap.

        Automata from other tools choose between edges that share a letter. Such a letter here leads to an extra state
        from which epsilon moves go to the alternatives.
        """
        from prudent.ltl._guard import choices_to_epsilon

        return choices_to_epsilon(self)

    def to_hoa(self) -> str:
        """Return the automaton in the Hanoi Omega-Automata format, version 1 (see :mod:`prudent.ltl._hoa`)."""
        from prudent.ltl._hoa import write_hoa

        return write_hoa(self)

    @classmethod
    def from_hoa(cls, text: str) -> Automaton:
        """Read an automaton in HOA format, version 1, with Buechi or generalised Buechi acceptance."""
        from prudent.ltl._hoa_reader import read_hoa

        return read_hoa(text)

    def to_dot(self) -> str:
        """Return a drawing for Graphviz; accepting edges are bold, epsilon moves dashed."""
        from prudent.ltl._draw import write_dot

        return write_dot(self)

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the automaton with Matplotlib and return the axes."""
        from prudent.ltl._draw import plot_automaton

        return plot_automaton(self, ax, **options)


def satisfies(letter: frozenset[str], guard: Formula) -> bool:
    """Evaluate a formula without temporal operators on one letter."""
    op = guard.op
    if op == "ap":
        return guard.name in letter
    if op == "not":
        return guard.name not in letter
    if op == "and":
        return all(satisfies(letter, arg) for arg in guard.args)
    if op == "or":
        return any(satisfies(letter, arg) for arg in guard.args)
    if op == "iff":
        return satisfies(letter, guard.args[0]) == satisfies(letter, guard.args[1])
    if guard.args:
        raise ValueError(f"guards have no temporal operators, got {guard}.")
    return guard is TRUE


def _guard_mask(
    guard: Formula, columns: dict[str, np.ndarray], n_letters: int, cache: dict[Formula, np.ndarray]
) -> np.ndarray:
    if guard in cache:
        return cache[guard]
    parts = [_guard_mask(arg, columns, n_letters, cache) for arg in guard.args]
    if guard.name:
        mask = columns[guard.name] if guard.op == "ap" else ~columns[guard.name]
    elif guard.op == "and":
        mask = np.logical_and.reduce(parts)
    elif guard.op == "or":
        mask = np.logical_or.reduce(parts)
    elif guard.op == "iff":
        mask = parts[0] == parts[1]
    elif parts:
        raise ValueError(f"guards have no temporal operators, got {guard}.")
    else:
        mask = np.full(n_letters, guard is TRUE)
    cache[guard] = mask
    return mask
