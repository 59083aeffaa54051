"""From LTL to limit-deterministic Buechi automata: simplify, build in several ways, reduce, keep the smallest."""

from __future__ import annotations

import time
from collections.abc import Callable

from prudent.ltl._after import AfterSpace
from prudent.ltl._automaton import Automaton, Edge
from prudent.ltl._formula import TRUE, Formula, expand_equivalences
from prudent.ltl._guard import GuardSpace
from prudent.ltl._ldba import LimitDeterministicBuilder, Variant
from prudent.ltl._parse import parse
from prudent.ltl._reduce import reduce_table
from prudent.ltl._simplify import simplify
from prudent.ltl._sketch import Rows, Sketch, TranslationLimitError, merge_rows, rows_of, tabulate

# The first is best nineteen times in twenty; the others are best where it is worst.
_VARIANTS = (
    Variant("cubes", direct=True, take_turns=True),
    Variant("whole", direct=True, take_turns=False),
    Variant("guess", direct=False, take_turns=True),
)
_MAX_LETTER_CLASSES = 4096
_SMALL = 2  # states: another variant cannot gain enough to be worth its time


def translate(formula: Formula | str, *, max_states: int = 10_000, budget_seconds: float = 30.0) -> Automaton:
    """Translate an LTL formula into a limit-deterministic Buechi automaton that is good for MDPs.

    The maximal probability of the formula in a Markov decision process equals the maximal probability of acceptance in
    the product with this automaton. Every state has one edge for each letter; the only choices are epsilon moves, and
    there are none after an epsilon move.

    Parameters
    ----------
    formula : Formula or str
        What to translate; text is read by :func:`parse`.
    max_states : int, default=10000
        Limit on the states built before reduction.
    budget_seconds : float, default=30
        Limit on processor time. Once half of it is used, the best automaton found so far is returned.

    Returns
    -------
    Automaton
        With one acceptance set, over exactly the propositions of the formula. A trap, where one is needed, is the last
        state.

    Raises
    ------
    FormulaError
        If the text is not a formula.
    TranslationLimitError
        If the formula needs more states or time than allowed.

    Examples
    --------
    >>> translate("F G a & G !c")
    <Automaton: 3 states with trap, 1 epsilon moves, Buechi, propositions a, c>
    """
    if isinstance(formula, str):
        formula = parse(formula)
    if not isinstance(formula, Formula):
        raise TypeError(f"translate needs a Formula or a string, got {type(formula).__name__}. Use ltl.parse.")
    # Processor time of this thread: what is found must not depend on what else the machine does.
    start = time.thread_time()

    def limit_to(share: float) -> Callable[[], None]:
        def tick() -> None:
            if time.thread_time() - start > share * budget_seconds:
                raise TranslationLimitError(
                    f"a translation may take {budget_seconds:g} s, and this formula needs more. "
                    "Raise budget_seconds, or split the formula."
                )

        return tick

    simple = simplify(expand_equivalences(formula))
    space = AfterSpace(formula.propositions, limit_to(1.0))
    best: tuple[Rows, int] | None = None
    failure: TranslationLimitError | None = None
    seen: set[object] = set()
    for variant in _VARIANTS:
        limit = max_states
        if best is not None:
            size = len(best[0].edges)
            if size <= _SMALL or time.thread_time() - start > budget_seconds / 2:
                break
            limit = min(max_states, 6 * size + 40)
        try:
            found = _build(simple, space, variant, limit, seen, limit_to)
        except TranslationLimitError as error:
            failure = failure or error
            continue
        except RecursionError:
            failure = failure or TranslationLimitError(
                "the formula has too many sub-formulae for Python's stack. Split it, or raise sys.setrecursionlimit."
            )
            continue
        if found is not None and (best is None or _cost(found[0]) < _cost(best[0])):
            best = found
    if best is None:
        raise failure or AssertionError("every variant was skipped")
    space.bdd.tick = None
    return _finish(*best, space)


def _cost(rows: Rows) -> tuple[int, int]:
    return len(rows.edges), sum(len(targets) for targets in rows.epsilon)


def _build(
    formula: Formula,
    space: AfterSpace,
    variant: Variant,
    max_states: int,
    seen: set[object],
    limit_to: Callable[[float], Callable[[], None]],
) -> tuple[Rows, int] | None:
    """Build and reduce one variant; None if an earlier one built the same automaton."""
    sketch = Sketch(max_states, limit_to(0.9))
    initial = LimitDeterministicBuilder(formula, space, sketch, variant).initial
    key = (initial, tuple(map(tuple, sketch.rows)), tuple(map(tuple, sketch.epsilon)))
    if key in seen:
        return None
    seen.add(key)
    table = tabulate(sketch, initial, space.bdd, _MAX_LETTER_CLASSES)
    if table is None:
        return merge_rows(Rows(sketch.rows, sketch.epsilon), initial, space.bdd)
    return rows_of(reduce_table(table, space.bdd, limit_to(0.95)), space.bdd)


def _finish(rows: Rows, initial: int, space: AfterSpace) -> Automaton:
    """Write guards as formulae, and add the trap."""
    guards = GuardSpace(space.propositions, space.bdd)
    trap = len(rows.edges)
    edges: list[list[Edge]] = []
    for row in rows.edges:
        missing = 1
        finished = []
        for guard, target, accepting in row:
            missing = space.bdd.conj(missing, space.bdd.negate(guard))
            finished.append(Edge(guards.formula(guard), target, frozenset([0] if accepting else [])))
        if missing:
            finished.append(Edge(guards.formula(missing), trap, frozenset()))
        edges.append(finished)
    epsilon = [sorted(targets) for targets in rows.epsilon]
    if initial < 0 or any(e.target == trap for row in edges for e in row):
        edges.append([Edge(TRUE, trap, frozenset())])
        epsilon.append([])
    return Automaton(space.propositions, initial if initial >= 0 else trap, edges, epsilon)
