"""Limit-deterministic Buechi automata for all of LTL, good for Markov decision processes.

The initial part follows the formula with the after-function and never accepts. From each of its states epsilon moves
jump to deterministic automata for a strengthened formula, in which

- F, U, M that are not part of a G, R, W are false: what had to happen once has happened before the jump;
- ``F G psi`` is ``G psi``: the jump comes when psi has become permanent;
- a G, R, W inside an F, U, M inside a G, R, W either is assumed to hold always (set Y, and checked), or never for ever
  (it becomes false, M, U).

The strengthened formula has a deterministic automaton (:mod:`prudent.ltl._dba`). Once a word satisfies the formula,
some set Y makes every late jump succeed; in a recurrent part of a Markov chain the right jump succeeds with
probability one, at once, whatever state of the initial part it starts from. Hence the automaton is good for MDPs, and
that survives merging initial states of equal language. The ideas are those of Sickert et al. (CAV 2016) and Esparza et
al. (JACM 2020).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from prudent.ltl._after import MU, NU, AfterSpace, has_operator, is_recurrence, is_suspendable
from prudent.ltl._dba import RecurrenceBuilder
from prudent.ltl._formula import FALSE, TRUE, Formula, conjunction, rebuild, temporal
from prudent.ltl._sketch import Edges, Sketch, TranslationLimitError

_MAX_GUESSES = 12


class Variant(NamedTuple):
    """A way to build the automaton.

    Attributes
    ----------
    jump : {"whole", "cubes", "guess"}
        How a jump treats a strengthened formula: one automaton for all of it; one for each disjunct, where that is
        good for MDPs; or one for each set of F, U, M that are assumed to happen infinitely often.
    direct : bool
        Whether states whose formula has a deterministic automaton go there without a jump.
    take_turns : bool
        Whether conjuncts take turns in deterministic automata, or are waited for together.
    """

    jump: str
    direct: bool
    take_turns: bool


class LimitDeterministicBuilder:
    """Builds one automaton in a sketch; ``initial`` is its first state, -1 for the empty language."""

    def __init__(self, formula: Formula, space: AfterSpace, sketch: Sketch, variant: Variant) -> None:
        self.space = space
        self.sketch = sketch
        self.jump = variant.jump
        self.direct = variant.direct
        self.deterministic = RecurrenceBuilder(space, sketch, variant.take_turns)
        self.guesses, self._spawned = _inside_nu(formula)
        if len(self.guesses) > _MAX_GUESSES:
            raise TranslationLimitError(
                f"a formula may have {_MAX_GUESSES} nested G, R, W to guess, this one has {len(self.guesses)}. "
                "Split the formula."
            )
        self._late: dict[tuple[Formula, ...], dict[int, int]] = {}
        self.initial = self.enter(space.encode(formula))
        sketch.complete()

    def enter(self, f: int) -> int:
        if f == 0:
            return -1
        support = self.space.support(f)
        if self.direct and all(is_recurrence(psi) for psi in support):
            return self.deterministic.enter(f)
        if not any(has_operator(psi, MU) for psi in support):
            return self.deterministic.enter(f)
        return self.sketch.state(("initial", f), lambda: self._expand(f))

    def _expand(self, f: int) -> Edges:
        q = self.sketch.number[("initial", f)]
        self.sketch.epsilon[q] = [target for target in dict.fromkeys(self._jumps(f)) if target >= 0]
        edges: Edges = []
        for g, guard in self.space.after(f, frozen=True):
            target = self.enter(g)
            if target >= 0:
                edges.append((guard, target, False))
        return edges

    def _jumps(self, f: int) -> Iterator[int]:
        bdd = self.space.bdd
        options: list[int] = []
        for always in _subsets(self.guesses):
            memo = self._late.setdefault(always, {})
            strengthened = self.space.substitute(f, lambda psi, y=frozenset(always): self._late_form(psi, y), memo)
            if strengthened and always:
                checked = conjunction(_kept_up(psi, frozenset(always)) for psi in always)
                strengthened = bdd.conj(strengthened, self.space.encode(temporal("G", checked)))
            # A stronger option than one already there wins nothing.
            if any(bdd.conj(strengthened, bdd.negate(other)) == 0 for other in options):
                continue
            options = [other for other in options if bdd.conj(other, bdd.negate(strengthened))] + [strengthened]
        for option in options:
            yield from self._pieces(option)

    def _late_form(self, formula: Formula, always: frozenset[Formula]) -> Formula:
        """Strengthen a formula for a jump under the assumption that ``always`` hold for ever."""
        if formula.op in ("and", "or", "X"):
            return rebuild(formula, [self._late_form(arg, always) for arg in formula.args])
        if formula.op in ("F", "G") and is_suspendable(formula.args[0]):
            return self._late_form(formula.args[0], always)  # the operator changes nothing
        if formula.op not in MU:
            return _assume(formula, always, False)
        if is_suspendable(formula):
            return _assume(formula.args[0], always, False)
        return _assume(formula, always, True) if formula in self._spawned else FALSE

    def _pieces(self, g: int) -> Iterator[int]:
        if self.jump == "guess":
            yield from self._guess_infinite(g)
            return
        if self.jump == "cubes":
            for part in self._disjuncts(g):
                yield self.deterministic.enter(part)
            return
        yield self.deterministic.enter(g)

    def _disjuncts(self, g: int) -> list[int]:
        # A conjunction of F- and G-formulae holds with probability 0 or 1 from a recurrent state, so it may be split
        # off; all other disjuncts must stay together, because none of them alone may be certain.
        bdd = self.space.bdd
        separate: list[int] = []
        rest = 0
        for cube in bdd.cubes(g):
            part = self.space.conj_all(
                bdd.variable(level) if value else bdd.negate(bdd.variable(level)) for level, value in cube.items()
            )
            if all(self.space.formula_at(level).op in ("F", "G") for level in cube):
                separate.append(part)
            else:
                rest = bdd.disj(rest, part)
        return [*separate, rest] if rest else separate

    def _guess_infinite(self, g: int) -> Iterator[int]:
        bdd = self.space.bdd
        candidates = tuple(
            dict.fromkeys(sub for psi in self.space.support(g) for sub in psi.subformulas() if sub.op in MU)
        )
        if len(candidates) > _MAX_GUESSES:
            raise TranslationLimitError(
                f"a formula may have {_MAX_GUESSES} F, U, M to guess inside G, R, W, this one has {len(candidates)}. "
                "Split the formula."
            )
        options: list[tuple[int, frozenset[Formula]]] = []
        for often in _subsets(candidates):
            chosen = frozenset(often)
            safe = self.space.substitute(g, lambda psi, x=chosen: _safe(psi, x), {})
            if not safe:
                continue
            goals = frozenset(_recurring_part(psi) for psi in often) - {TRUE}
            if any(other <= goals and bdd.conj(safe, bdd.negate(h)) == 0 for h, other in options):
                continue
            options = [(h, o) for h, o in options if not (goals <= o and bdd.conj(h, bdd.negate(safe)) == 0)]
            options.append((safe, goals))
        for safe, goals in options:
            yield self.deterministic.enter(safe, tuple(sorted(goals, key=str)))


def _subsets(items: tuple[Formula, ...]) -> Iterator[tuple[Formula, ...]]:
    for size in range(len(items) + 1):
        yield from combinations(items, size)


def _inside_nu(formula: Formula) -> tuple[tuple[Formula, ...], frozenset[Formula]]:
    """Return the G, R, W under an F, U, M under a G, R, W, and the F, U, M under a G, R, W."""
    guesses: dict[Formula, None] = {}
    spawned: set[Formula] = set()
    seen: set[tuple[Formula, int]] = set()
    stack = [(formula, 0)]  # 0: may come to the top, 1: under G R W, 2: under F U M under G R W
    while stack:
        node, depth = stack.pop()
        if (node, depth) in seen:
            continue
        seen.add((node, depth))
        if node.op in NU:
            if depth == 2:
                guesses[node] = None
            depth = max(depth, 1)
        elif node.op in MU and depth:
            spawned.add(node)
            depth = 2
        stack += [(arg, depth) for arg in node.args]
    return tuple(guesses), frozenset(spawned)


def _assume(formula: Formula, always: frozenset[Formula], is_finite: bool) -> Formula:
    """Apply the assumption: G, R, W in ``always`` are true, others under F, U, M (``is_finite``) must end."""
    if formula.op in NU:
        if formula in always:
            return TRUE
        args = [_assume(arg, always, is_finite) for arg in formula.args]
        if not is_finite:
            return temporal(formula.op, *args)
        return FALSE if formula.op == "G" else temporal("U" if formula.op == "W" else "M", *args)
    if formula.args:
        return rebuild(formula, [_assume(arg, always, is_finite or formula.op in MU) for arg in formula.args])
    return formula


def _kept_up(formula: Formula, always: frozenset[Formula]) -> Formula:
    """Return psi' such that ``G formula`` is ``G psi'``, with the assumption applied inside."""
    args = [_assume(arg, always, False) for arg in formula.args]
    return args[0] | args[1] if formula.op == "W" else args[-1]


def _safe(formula: Formula, often: frozenset[Formula]) -> Formula:
    """Replace F, U, M: those that happen infinitely often become weak, the others false."""
    if formula.op in MU:
        if formula not in often:
            return FALSE
        args = [_safe(arg, often) for arg in formula.args]
        return TRUE if formula.op == "F" else temporal("W" if formula.op == "U" else "R", *args)
    return rebuild(formula, [_safe(arg, often) for arg in formula.args]) if formula.args else formula


def _recurring_part(formula: Formula) -> Formula:
    """Return psi' without the operator, such that ``G F formula`` is ``G F psi'``."""
    return formula.args[0] & formula.args[1] if formula.op == "M" else formula.args[-1]
