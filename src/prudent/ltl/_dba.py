"""Deterministic Buechi automata for recurrence formulae (no G, R, W under F, U, M), by breakpoints.

A state tracks the conjuncts ``fs`` of the formula with the after-function, and one pending obligation at a time: the
F, U, M part of a conjunct (its G, R, W parts taken as met), which must come true in finite time. Conjuncts take turns;
an edge is accepting when the turn passes the last one. A conjunct ``G F psi`` need not be tracked: ``F psi`` is its
obligation.

Why it is right: if the word satisfies the formula, every obligation comes true. If not, a G, R or W that fails does so
either at once, which makes ``fs`` false, or through an F, U, M that is pending for ever, so the turn stays.
"""

from __future__ import annotations

from prudent.ltl._after import MU, NU, AfterSpace, has_operator
from prudent.ltl._formula import Formula, temporal
from prudent.ltl._sketch import Edges, Sketch

_FRESH = -1  # no obligation taken up yet in this turn


class RecurrenceBuilder:
    """Adds deterministic automata for conjunctions to a sketch."""

    def __init__(self, space: AfterSpace, sketch: Sketch, take_turns: bool = True) -> None:
        self.space = space
        self.sketch = sketch
        self.take_turns = take_turns
        self._without_nu: dict[int, int] = {}
        self._entered: dict[tuple[int, tuple[Formula, ...]], int] = {}

    def enter(self, f: int, goals: tuple[Formula, ...] = ()) -> int:
        """Return the state that accepts ``f`` and infinitely often each formula of ``goals``; -1 if ``f`` is false."""
        if f == 0:
            return -1
        key = (f, goals)
        if key not in self._entered:
            self._entered[key] = self._enter(f, goals)
        return self._entered[key]

    def _enter(self, f: int, goals: tuple[Formula, ...]) -> int:
        parts, found = self._conjuncts(f)
        goals = tuple(dict.fromkeys(goals + found))
        live = [part for part in parts if any(has_operator(psi, MU) for psi in self.space.support(part))]
        safe = self.space.conj_all(part for part in parts if part not in live)
        if not self.take_turns and len(live) > 1:
            live = [self.space.conj_all(live)]
        fs = (*live, safe) if safe != 1 or not live else tuple(live)
        return self._state(fs, len(live), goals, 0, _FRESH)

    def _conjuncts(self, f: int) -> tuple[list[int], tuple[Formula, ...]]:
        """Split off variables that ``f`` implies; those of the form G F psi become goals."""
        bdd = self.space.bdd
        parts: list[int] = []
        goals: list[Formula] = []
        for psi in self.space.support(f):
            variable = self.space.encode(psi)
            if psi.op in NU and bdd.conj(f, bdd.negate(variable)) == 0:
                f = self._assume(f, self.space.level(psi))
                if psi.op == "G" and psi.args[0].op == "F" and not has_operator(psi.args[0], NU):
                    goals.append(psi.args[0].args[0])
                else:
                    parts.append(variable)
        if f != 1:
            parts.append(f)
        return parts, tuple(goals)

    def _assume(self, f: int, level: int) -> int:
        bdd = self.space.bdd
        return bdd.compose(f, lambda other: 1 if other == level else bdd.variable(other), {})

    def _state(self, fs: tuple[int, ...], n_live: int, goals: tuple[Formula, ...], turn: int, pending: int) -> int:
        key = ("det", fs, n_live, goals, turn, pending)
        return self.sketch.state(key, lambda: self._expand(fs, n_live, goals, turn, pending))

    def _expand(self, fs: tuple[int, ...], n_live: int, goals: tuple[Formula, ...], turn: int, pending: int) -> Edges:
        space, bdd = self.space, self.space.bdd
        regions: list[tuple[tuple[int, ...], int, int]] = [((), 1, 1)]
        for f in fs:
            refined = []
            for done, together, guard in regions:
                for g, condition in space.after(f):
                    both = bdd.conj(guard, condition)
                    if both:
                        joint = bdd.conj(together, g)
                        if joint:
                            refined.append(((*done, g), joint, both))
            regions = refined
        edges: dict[tuple[int, bool], int] = {}
        n_turns = n_live + len(goals)
        for following, _, guard in regions:
            if n_turns == 0:
                moves = [(guard, 0, _FRESH, True)]
            else:
                moves = self._advance(guard, following, n_live, goals, turn, pending, 0, False)
            for condition, new_turn, new_pending, accepting in moves:
                key = (self._state(following, n_live, goals, new_turn, new_pending), accepting)
                edges[key] = bdd.disj(edges.get(key, 0), condition)
        return [(guard, target, accepting) for (target, accepting), guard in edges.items()]

    def _advance(
        self,
        guard: int,
        following: tuple[int, ...],
        n_live: int,
        goals: tuple[Formula, ...],
        turn: int,
        pending: int,
        n_passed: int,
        accepting: bool,
    ) -> list[tuple[int, int, int, bool]]:
        """Let the turn pass as far as one letter allows. Returns (guard, turn, pending, accepting)."""
        space, bdd = self.space, self.space.bdd
        n_turns = n_live + len(goals)
        start = _FRESH if turn < n_live else space.encode(temporal("F", goals[turn - n_live]))
        if pending != _FRESH:
            options = space.after(pending)
        elif turn < n_live:
            options = ((space.without_nu(following[turn], self._without_nu), 1),)
        else:
            options = space.after(start)
        result = []
        for obligation, condition in options:
            both = bdd.conj(guard, condition)
            if not both:
                continue
            if obligation != 1:
                if n_passed or obligation == start:
                    obligation = _FRESH
                result.append((both, turn, obligation, accepting))
                continue
            is_last = turn + 1 == n_turns
            if n_passed + 1 == n_turns:
                result.append((both, 0, _FRESH, True))
            else:
                next_turn = 0 if is_last else turn + 1
                result += self._advance(
                    both, following, n_live, goals, next_turn, _FRESH, n_passed + 1, accepting or is_last
                )
        return result
