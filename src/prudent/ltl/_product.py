"""Tables of the product of a labelled MDP and a limit-deterministic automaton.

A product state is a pair (s, q). An environment action moves s by the MDP and q by the label of the state that is
*left*; an epsilon action moves q alone and takes no time.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numba import njit

from prudent.ltl._automaton import Automaton, Edge
from prudent.ltl._formula import Formula
from prudent.ltl._graph import components
from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._parse import parse

Goal = str | Formula | Automaton


@dataclass(frozen=True, eq=False)
class Product:
    """Flat arrays for the kernels. ``S`` states, ``A`` actions, ``C`` choices, ``Q`` automaton states, ``E`` epsilon
    slots.

    Attributes
    ----------
    row_of : int32 (S, A)
        Choice of an action in a state, -1 where it does not exist.
    row_start, successor, probability, cumulative
        The transition table in compressed rows; ``cumulative`` ends each row with exactly 1.
    next_q : int32 (S, Q)
        Automaton state after leaving s in q.
    accepting : uint64 (S, Q)
        Bit i is set if that move belongs to acceptance set i.
    epsilon : int32 (Q, E)
        Targets of epsilon moves, -1 for unused slots.
    first, first_cumulative
        Possible first states and their cumulative probability.
    """

    mdp: LabelledMDP
    automaton: Automaton
    row_of: np.ndarray
    row_start: np.ndarray
    successor: np.ndarray
    probability: np.ndarray
    cumulative: np.ndarray
    next_q: np.ndarray
    accepting: np.ndarray
    epsilon: np.ndarray
    first: np.ndarray
    first_probability: np.ndarray
    first_cumulative: np.ndarray
    all_sets: np.uint64

    @property
    def n_slots(self) -> int:
        """Columns of a Q table: environment actions, then epsilon slots."""
        return self.mdp.n_actions + self.epsilon.shape[1]


def build_product(mdp: LabelledMDP, automaton: Automaton, *, strict: bool = True) -> Product:
    """Tabulate the product. ``strict`` refuses an automaton over propositions that the MDP lacks."""
    if strict:
        check_propositions(mdp, automaton.propositions)
    row_of = np.full((mdp.n_states, mdp.n_actions), -1, np.int32)
    owner = np.repeat(np.arange(mdp.n_states), np.diff(mdp.choice_start))
    row_of[owner, mdp.choice_action] = np.arange(mdp.n_choices)
    table, accepting = automaton.tabulate([letter & frozenset(automaton.propositions) for letter in mdp.letters])
    width = max((len(automaton.epsilon(q)) for q in range(automaton.n_states)), default=0)
    epsilon = np.full((automaton.n_states, width), -1, np.int32)
    for q in range(automaton.n_states):
        targets = automaton.epsilon(q)
        epsilon[q, : len(targets)] = targets
    first = np.flatnonzero(mdp.initial > 0).astype(np.int32)
    P = mdp.transitions
    return Product(
        mdp=mdp,
        automaton=automaton,
        row_of=row_of,
        row_start=P.indptr.astype(np.int32),
        successor=P.indices.astype(np.int32),
        probability=np.ascontiguousarray(P.data),
        cumulative=_cumulate(P.data, P.indptr),
        next_q=np.ascontiguousarray(np.asarray(table, np.int32)[:, mdp.letter_of].T),
        accepting=np.ascontiguousarray(np.asarray(accepting, np.uint64)[:, mdp.letter_of].T),
        epsilon=epsilon,
        first=first,
        first_probability=mdp.initial[first],
        first_cumulative=_cumulate(mdp.initial[first], np.array([0, len(first)])),
        all_sets=np.uint64((1 << automaton.n_sets) - 1),
    )


@njit(cache=True)
def _cumulate(values, start):
    """Running sums within each row; the last of a row is 1, so that a draw below 1 always finds a place."""
    sums = np.empty(len(values))
    for row in range(len(start) - 1):
        total = 0.0
        for e in range(start[row], start[row + 1]):
            total += values[e]
            sums[e] = total
        sums[start[row + 1] - 1] = 1.0
    return sums


def as_automaton(goal: Goal) -> Automaton:
    """The automaton of a goal given as text, formula or automaton."""
    from prudent.ltl._translate import translate

    automaton = goal if isinstance(goal, Automaton) else translate(as_formula(goal))
    if is_empty(automaton):
        warnings.warn(
            f"the goal {goal} is unsatisfiable: no word is accepted, so every policy has probability 0.",
            UserWarning,
            stacklevel=3,
        )
    return automaton


def goal_text(goal: Goal) -> str | None:
    """The formula of a goal as text; None for an automaton."""
    return None if isinstance(goal, Automaton) else str(goal)


def as_formula(goal: str | Formula) -> Formula:
    if isinstance(goal, str):
        return parse(goal)
    if isinstance(goal, Formula):
        return goal
    raise TypeError(f"a goal is an LTL formula (text or ltl.Formula) or an ltl.Automaton, got {type(goal).__name__}.")


def check_propositions(mdp: LabelledMDP, used) -> None:
    """Refuse propositions that the model does not know; warn about those that hold in no reachable state."""
    if not isinstance(mdp, LabelledMDP):
        raise TypeError(
            f"this needs a LabelledMDP, got {type(mdp).__name__}. LabelledMDP.from_gymnasium makes one of an "
            "environment that publishes its probabilities; learn(method='certified', label=...) needs none."
        )
    unknown = sorted(set(used) - set(mdp.propositions))
    if unknown:
        raise ValueError(
            f"the goal uses {', '.join(map(repr, unknown))}, but the model's propositions are "
            f"{', '.join(map(repr, mdp.propositions)) or 'none'}. Correct the formula, or declare the label "
            "with propositions=[...] when building the model."
        )
    reached = mdp.letter_of[mdp.reachable()]
    never = sorted(set(used).difference(*(mdp.letters[i] for i in np.unique(reached))))
    if never:
        warnings.warn(
            f"{', '.join(map(repr, never))} holds in no reachable state of the model: always false for the goal.",
            UserWarning,
            stacklevel=3,
        )


def is_empty(automaton: Automaton) -> bool:
    """Whether no reachable cycle visits every acceptance set (guards are assumed satisfiable)."""
    automaton = automaton.drop_unreachable()
    rows = [automaton.edges(q) for q in range(automaton.n_states)]
    component = components([[*(e.target for e in row), *automaton.epsilon(q)] for q, row in enumerate(rows)])
    visited: dict[int, set[int]] = {}
    for q, row in enumerate(rows):
        for edge in row:
            if component[q] == component[edge.target]:
                visited.setdefault(component[q], set()).update(edge.sets)
    return all(len(sets) < automaton.n_sets for sets in visited.values())


def degeneralise(automaton: Automaton) -> Automaton:
    """An automaton with one acceptance set: a level counts the sets visited in order, and the last one accepts.

    Learners that see one reward need this: with several sets a policy without such memory cannot alternate between
    them.
    """
    n_sets = automaton.n_sets
    if n_sets == 1:
        return automaton
    edges, epsilon, names = [], [], []
    for q in range(automaton.n_states):
        for level in range(n_sets):
            row = []
            for edge in automaton.edges(q):
                after = level
                while after < n_sets and after in edge.sets:
                    after += 1
                is_done = after == n_sets
                target = edge.target * n_sets + (0 if is_done else after)
                row.append(Edge(edge.guard, target, frozenset([0] if is_done else [])))
            edges.append(row)
            epsilon.append([p * n_sets + level for p in automaton.epsilon(q)])
            names.append(f"{automaton.names[q]} / {level}" if automaton.names[q] else "")
    start = automaton.initial * n_sets
    return Automaton(automaton.propositions, start, edges, epsilon, names=names).drop_unreachable()


def thin_acceptance(automaton: Automaton) -> Automaton:
    """Drop acceptance marks that the language does not need (for one acceptance set).

    An edge may lose its mark if it lies on no cycle free of other marked edges: who takes it for ever takes those for
    ever. Fewer marks mean fewer rewards on paths that end badly, which is what U must outweigh; with one mark for
    each round of a patrol instead of one for each stop, learning on the office world is several times faster.
    """
    if automaton.n_sets != 1:
        return automaton
    rows = [list(automaton.edges(q)) for q in range(automaton.n_states)]
    for q, row in enumerate(rows):
        for i, edge in enumerate(row):
            if edge.sets and not _returns(rows, automaton, edge.target, q, skip=edge):
                row[i] = edge._replace(sets=frozenset())
    epsilon = [automaton.epsilon(q) for q in range(automaton.n_states)]
    return Automaton(automaton.propositions, automaton.initial, rows, epsilon, names=automaton.names)


def _returns(rows: list[list[Edge]], automaton: Automaton, start: int, goal: int, skip: Edge) -> bool:
    """Whether ``goal`` can be reached from ``start`` without marked edges other than ``skip``."""
    todo, seen = [start], {start}
    while todo:
        q = todo.pop()
        if q == goal:
            return True
        free = [edge.target for edge in rows[q] if not edge.sets or edge is skip]
        for target in [*free, *automaton.epsilon(q)]:
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return False
