"""What remains to be satisfied after a letter: the after-function of LTL, on decision diagrams.

A *state* is a Boolean function over variables "psi holds from the next instant on", where psi is a proposition or a
temporal formula. Reading a letter unfolds each psi into its condition on the present and on the next instant
(``F a`` becomes ``a | next F a``) and fixes the propositions of the present. Propositions are the top levels, so all
successors of a state with their guards are the functions that hang below these levels in one diagram. Formulae are in
negation normal form, hence functions are monotone in temporal variables and substitutions such as "no more F, U, M" are
well defined on states (Esparza, Kretinsky and Sickert, JACM 2020, sections 3-5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from prudent.ltl._bdd import BDD
from prudent.ltl._formula import FALSE, TRUE, Formula, literal, rebuild, temporal

MU = frozenset("FUM")
NU = frozenset("GRW")


class AfterSpace:
    """States of one translation and their successors.

    Parameters
    ----------
    propositions : sequence of str
        Propositions of the formula.
    tick : callable, optional
        Called now and then; raises when a budget is used up.
    """

    def __init__(self, propositions: Sequence[str], tick: Callable[[], None] | None = None) -> None:
        self.propositions = tuple(propositions)
        self.bdd = BDD(tick)
        self.n_propositions = len(self.propositions)
        self.formulas: list[Formula] = []  # variable i has level n_propositions + i
        self._level_of: dict[Formula, int] = {}
        self._encoded: dict[Formula, int] = {TRUE: 1, FALSE: 0}
        self._image: dict[int, int] = {}
        self._composed: dict[int, int] = {}
        self._frozen_image: dict[int, int] = {}
        self._frozen_composed: dict[int, int] = {}
        self._after: dict[tuple[int, bool], tuple[tuple[int, int], ...]] = {}
        self._support: dict[int, tuple[Formula, ...]] = {}

    def formula_at(self, level: int) -> Formula:
        return self.formulas[level - self.n_propositions]

    def level(self, psi: Formula) -> int:
        found = self._level_of.get(psi)
        if found is None:
            found = self.n_propositions + len(self.formulas)
            self._level_of[psi] = found
            self.formulas.append(psi)
        return found

    def encode(self, formula: Formula) -> int:
        """Return the state "formula must hold from here on"."""
        found = self._encoded.get(formula)
        if found is not None:
            return found
        for node in formula.subformulas():
            if node in self._encoded:
                continue
            _classify(node)
            if node.op == "not":
                self._encoded[node] = self.bdd.negate(self.bdd.variable(self.level(literal(node.name, True))))
            elif node.op == "and":
                self._encoded[node] = self.conj_all(self._encoded[arg] for arg in node.args)
            elif node.op == "or":
                result = 0
                for arg in node.args:
                    result = self.bdd.disj(result, self._encoded[arg])
                self._encoded[node] = result
            else:
                self._encoded[node] = self.bdd.variable(self.level(node))
        return self._encoded[formula]

    def conj_all(self, functions: Iterable[int]) -> int:
        result = 1
        for f in functions:
            result = self.bdd.conj(result, f)
        return result

    def _unfold(self, level: int) -> int:
        found = self._image.get(level)
        if found is None:
            psi, bdd = self.formula_at(level), self.bdd
            if psi.op == "ap":
                found = bdd.variable(self.propositions.index(psi.name))
            elif psi.op == "X":
                found = self.encode(psi.args[0])
            else:
                now = [bdd.compose(self.encode(arg), self._unfold, self._composed) for arg in psi.args]
                again = bdd.variable(level)
                if psi.op == "F":
                    found = bdd.disj(now[0], again)
                elif psi.op == "G":
                    found = bdd.conj(now[0], again)
                elif psi.op in "UW":
                    found = bdd.disj(now[1], bdd.conj(now[0], again))
                else:
                    found = bdd.conj(now[1], bdd.disj(now[0], again))
            self._image[level] = found
        return found

    def _unfold_frozen(self, level: int) -> int:
        found = self._frozen_image.get(level)
        if found is None:
            psi = self.formula_at(level)
            found = self.bdd.variable(level) if is_suspendable(psi) else self._unfold(level)
            self._frozen_image[level] = found
        return found

    def after(self, f: int, frozen: bool = False) -> tuple[tuple[int, int], ...]:
        """Return the successors of ``f`` as pairs (state, guard).

        With ``frozen``, sub-formulae whose truth does not depend on finite prefixes stay as they are.
        """
        key = (f, frozen)
        found = self._after.get(key)
        if found is None:
            if frozen:
                unfolded = self.bdd.compose(f, self._unfold_frozen, self._frozen_composed)
            else:
                unfolded = self.bdd.compose(f, self._unfold, self._composed)
            found = tuple(self.bdd.leaves_above(unfolded, self.n_propositions).items())
            self._after[key] = found
        return found

    def substitute(self, f: int, image: Callable[[Formula], Formula], memo: dict[int, int]) -> int:
        """Replace every variable psi of ``f`` by the formula ``image(psi)``."""
        return self.bdd.compose(f, lambda level: self.encode(image(self.formula_at(level))), memo)

    def without_nu(self, f: int, memo: dict[int, int]) -> int:
        """Return ``f`` with every G, R, W obligation taken as met: what must happen in finite time."""
        return self.bdd.compose(f, self._nu_met, memo)

    def _nu_met(self, level: int) -> int:
        psi = self.formula_at(level)
        if psi.op in NU:
            return 1
        if psi.op == "X":
            return self.encode(temporal("X", _assume_nu(psi.args[0])))
        return self.bdd.variable(level)

    def support(self, f: int) -> tuple[Formula, ...]:
        """Return the formulae that the state depends on."""
        found = self._support.get(f)
        if found is None:
            found = self._support[f] = tuple(self.formula_at(level) for level in sorted(self.bdd.support(f)))
        return found


@lru_cache(maxsize=4096)
def _assume_nu(formula: Formula) -> Formula:
    """Replace G, R, W outside temporal operators other than X by true."""
    if formula.op in NU:
        return TRUE
    if formula.op in ("and", "or", "X"):
        return rebuild(formula, [_assume_nu(arg) for arg in formula.args])
    return formula


@lru_cache(maxsize=65536)
def has_operator(formula: Formula, ops: frozenset[str]) -> bool:
    """Say whether an operator of ``ops`` occurs in the formula."""
    return formula.op in ops or any(has_operator(arg, ops) for arg in formula.args)


@lru_cache(maxsize=65536)
def is_recurrence(formula: Formula) -> bool:
    """Say whether no G, R, W occurs under F, U, M: a deterministic Buechi automaton exists (class Pi-2)."""
    if formula.op in MU:
        return not has_operator(formula, NU)
    return all(is_recurrence(arg) for arg in formula.args)


@lru_cache(maxsize=65536)
def is_suspendable(formula: Formula) -> bool:
    """Say whether truth does not depend on any finite prefix, by form: G F, F G and combinations."""
    if formula.op in ("and", "or", "X"):
        return all(is_suspendable(arg) for arg in formula.args)
    if formula.op in ("F", "G"):
        inner = formula.args[0]
        return (inner.op in ("F", "G") and inner.op != formula.op) or is_suspendable(inner)
    return False


def _classify(formula: Formula) -> None:
    """Fill the caches above for one formula; with operands first, their recursion never runs deep."""
    has_operator(formula, MU)
    has_operator(formula, NU)
    is_recurrence(formula)
    is_suspendable(formula)
