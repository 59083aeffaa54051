"""Products of an automaton with a transition table of which only intervals are known: robust and optimistic values.

Two states are added to the table. From ``n_states + 1``, the start, the reset leads to the first states. To
``n_states``, the sink, goes the probability that a row may still hide: successors not seen yet. The sink is worth 0
for the lower values and 1 for the upper ones, which covers whatever is there. (It is worth 0 for both where the
automaton is trapped already.)

End components consist of rows with proven support only, so they are those of the true model (without the parts that
nobody has seen). They are collapsed; then every policy, whatever the probabilities, ends in the target, in value 0 or
in the sink, and so the equations have one solution. Iteration from below stays below it and iteration from above stays
above it: it may be stopped at any sweep, and it may start from the bounds of an earlier, less informed model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from prudent.ltl._book import N_SEEN_STATES, Book
from prudent.ltl._maximise import UNKNOWN, Quotient, certain_values, collapse
from prudent.ltl._unfold import Unfolded, unfold_tables

# A sweep that changes no value by more than this is the last.
TOLERANCE = 1e-8


@dataclass(frozen=True, eq=False)
class Table:
    """A transition table with intervals, in compressed rows; ``base`` is the row of the book, -1 for known moves."""

    row_of: np.ndarray
    row_start: np.ndarray
    successor: np.ndarray
    probability: np.ndarray
    low: np.ndarray
    high: np.ndarray
    base: np.ndarray


@dataclass(frozen=True, eq=False)
class Automata:
    """The automaton's tables over the states of a :class:`Table` (the sink and the start do not move it)."""

    next_q: np.ndarray
    accepting: np.ndarray
    epsilon: np.ndarray
    initial: int
    all_sets: np.uint64
    is_trap: np.ndarray
    """Whether nothing is accepted from a state of the automaton on."""


def tabulate(book: Book, actions: np.ndarray, with_unknown: bool) -> Table:
    """The book as a table.

    ``actions`` (S, A) says which actions exist. Without ``with_unknown`` the table is the guess that what was seen is
    all there is: no sink, no untried rows.
    """
    return Table(*_tabulate(book, actions, with_unknown))


@njit(cache=True)
def _tabulate(book, actions, with_sink):
    n_states, n_actions = actions.shape
    n_rows, n_edges = 1, 1
    reset = n_states * n_actions
    slot = book.head[reset]
    while slot >= 0:
        n_edges += 1
        slot = book.slot_next[slot]
    for i in range(book.tally[N_SEEN_STATES]):
        s = book.order[i]
        for a in range(n_actions):
            row = s * n_actions + a
            if actions[s, a] and (with_sink or book.visits[row] > 0):
                n_rows += 1
                n_edges += book.n_seen[row] + 1
    row_of = np.full((n_states + 2, n_actions), -1, np.int32)
    row_start = np.empty(n_rows + 1, np.int64)
    successor = np.empty(n_edges, np.int32)
    probability = np.empty(n_edges)
    low = np.empty(n_edges)
    high = np.empty(n_edges)
    base = np.empty(n_rows, np.int64)
    out, e = 0, 0
    for i in range(-1, book.tally[N_SEEN_STATES]):
        s = n_states + 1 if i < 0 else book.order[i]
        for a in range(1 if i < 0 else n_actions):
            row = reset if i < 0 else s * n_actions + a
            if i >= 0 and not (actions[s, a] and (with_sink or book.visits[row] > 0)):
                continue
            row_of[s, a] = out
            row_start[out] = e
            base[out] = row
            out += 1
            slot = book.head[row]
            while slot >= 0:
                successor[e] = book.slot_state[slot]
                probability[e] = book.slot_count[slot] / book.visits[row]
                low[e], high[e] = book.slot_low[slot], book.slot_high[slot]
                e += 1
                slot = book.slot_next[slot]
            if with_sink and not book.certified[row]:
                successor[e] = n_states
                probability[e] = 0.0
                low[e], high[e] = 0.0, 1.0
                e += 1
    row_start[out] = e
    return row_of, row_start, successor[:e], probability[:e], low[:e], high[:e], base


@dataclass(frozen=True, eq=False)
class Arena:
    """A product with intervals, its end components collapsed."""

    model: Unfolded
    quotient: Quotient
    low: np.ndarray
    """Interval ends of the quotient's edges."""
    high: np.ndarray
    estimate: np.ndarray
    base: np.ndarray
    """Book row of each choice of the quotient, -1 for epsilon moves."""
    upper_fixed: np.ndarray
    """Like ``quotient.value``, for the upper values."""


def build_arena(table: Table, automata: Automata) -> Arena:
    """Unfold and collapse."""
    n_states = len(table.row_of) - 2
    model = unfold_tables(
        table.row_of,
        table.row_start,
        table.successor,
        table.probability,
        automata.next_q,
        automata.accepting,
        automata.epsilon,
        np.array([n_states + 1], np.int32),
        automata.initial,
    )
    quotient = collapse(model, automata.all_sets)
    is_sink = np.zeros(len(quotient.value), np.bool_)
    is_sink[quotient.group[(model.state == n_states) & ~automata.is_trap[model.memory]]] = True
    upper_fixed = certain_values(
        quotient.choice_start, quotient.row_start, quotient.successor, quotient.is_accepting | is_sink
    )
    known = quotient.entry < 0
    row_of_entry = np.repeat(table.base, np.diff(table.row_start))
    first_entry = quotient.entry[quotient.row_start[:-1]]
    return Arena(
        model=model,
        quotient=quotient,
        low=np.where(known, 1.0, table.low[quotient.entry]),
        high=np.where(known, 1.0, table.high[quotient.entry]),
        estimate=np.where(known, 1.0, table.probability[quotient.entry]),
        base=np.where(first_entry < 0, -1, row_of_entry[first_entry]),
        upper_fixed=upper_fixed,
    )


@njit(cache=True)
def extreme(c, row_start, successor, low, high, value, sign, order):
    """Expectation of ``value`` after choice c under the best (sign 1) or worst (sign -1) probabilities allowed."""
    start, stop = row_start[c], row_start[c + 1]
    if stop - start == 1:
        return value[successor[start]]
    free, total = 1.0, 0.0
    n = 0
    for e in range(start, stop):
        free -= low[e]
        total += low[e] * value[successor[e]]
        at = n
        while at > 0 and sign * value[successor[order[at - 1]]] < sign * value[successor[e]]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = e
        n += 1
    for i in range(n):
        if free <= 0.0:
            break
        e = order[i]
        mass = min(free, high[e] - low[e])
        total += mass * value[successor[e]]
        free -= mass
    return total


@njit(cache=True)
def _iterate(choice_start, row_start, successor, low, high, unknown, value, choice, sign, tolerance, max_sweeps):
    """Gauss-Seidel sweeps in both directions: values only rise with sign -1, only fall with sign 1."""
    longest = 0
    for c in range(len(row_start) - 1):
        longest = max(longest, row_start[c + 1] - row_start[c])
    order = np.empty(longest, np.int64)
    for sweep in range(max_sweeps):
        change = 0.0
        for k in range(len(unknown)):
            i = unknown[k] if sweep % 2 else unknown[len(unknown) - 1 - k]
            top, best = -1.0, -1
            for c in range(choice_start[i], choice_start[i + 1]):
                found = extreme(c, row_start, successor, low, high, value, sign, order)
                if found > top:
                    top, best = found, c
            if sign > 0.0:
                choice[i] = best
                if top < value[i]:
                    change = max(change, value[i] - top)
                    value[i] = top
            elif top > value[i] or choice[i] < 0:
                change = max(change, top - value[i])
                value[i] = max(value[i], top)
                choice[i] = best
        if change < tolerance:
            return sweep + 1
    return max_sweeps


def robust_values(arena: Arena, start: np.ndarray, sign: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Values of the quotient's nodes against (sign -1) or with (sign 1) the intervals; choices; number of sweeps.

    ``start`` holds earlier bounds of the quotient's nodes: valid ones, below (sign -1) or above (sign 1).
    """
    quotient = arena.quotient
    fixed = quotient.value if sign < 0 else arena.upper_fixed
    value = np.where(fixed == UNKNOWN, start, fixed)
    choice = np.full(len(value), -1, np.int64)
    unknown = np.flatnonzero(fixed == UNKNOWN)
    if len(unknown) == 0:
        return value, choice, 0
    # Bounded work; what is left undone the next call continues.
    max_sweeps = int(np.clip(2e8 / len(quotient.successor), 50, 20_000))
    arrays = (quotient.choice_start, quotient.row_start, quotient.successor, arena.low, arena.high)
    sweeps = _iterate(*arrays, unknown, value, choice, float(sign), TOLERANCE, max_sweeps)
    return value, choice, sweeps


@njit(cache=True)
def choice_values(choice_start, row_start, successor, low, high, value, sign):
    """:func:`extreme` of every choice."""
    longest = 0
    for c in range(len(row_start) - 1):
        longest = max(longest, row_start[c + 1] - row_start[c])
    order = np.empty(longest, np.int64)
    out = np.empty(len(row_start) - 1)
    for c in range(len(out)):
        out[c] = extreme(c, row_start, successor, low, high, value, sign, order)
    return out


@njit(cache=True)
def group_maximum(group, n_groups, node_value):
    """Largest value among the nodes of each group."""
    out = np.full(n_groups, -np.inf)
    for i in range(len(group)):
        out[group[i]] = max(out[group[i]], node_value[i])
    return out
