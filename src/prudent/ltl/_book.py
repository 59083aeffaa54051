"""The book of samples: counts for each row of an unknown transition table, and what they prove so far.

Row ``s * n_actions + a`` is action a in state s; the last row is the reset. Successors that were seen are *slots* in a
pool, linked from their row, so that memory follows what was seen and not what might be.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from prudent.ltl._confidence import bernoulli_interval, slot_level

# Places in ``tally``.
N_SLOTS, N_RANKED, N_SEEN_STATES, N_STEPS, N_RESETS, CONFLICT_ROW, CONFLICT_KIND, N_OPEN = range(8)
# Kinds of conflict between data and assumption.
NO_CONFLICT, LATE, TOO_RARE, EMPTY = range(4)

RECORDED, NEW_SUCCESSOR = 0, 1


class Book(NamedTuple):
    """Arrays of the book. ``R`` rows, ``S`` states, a pool of slots."""

    visits: np.ndarray
    head: np.ndarray
    """First slot of each row, -1 for none."""
    n_seen: np.ndarray
    certified: np.ndarray
    rank: np.ndarray
    """Order in which rows showed a second successor, from 1; 0 before that."""
    needed: np.ndarray
    """Visits that complete the support, by number of successors seen."""
    is_seen: np.ndarray
    """Whether a state was seen (S)."""
    order: np.ndarray
    """Seen states in the order of their discovery (S)."""
    tally: np.ndarray
    slot_row: np.ndarray
    slot_state: np.ndarray
    slot_next: np.ndarray
    slot_place: np.ndarray
    slot_count: np.ndarray
    slot_from_visits: np.ndarray
    """Visits of the row when this slot's interval began, -1 before; only later visits count for it."""
    slot_from_count: np.ndarray
    slot_low: np.ndarray
    slot_high: np.ndarray


_POOL = tuple(name for name in Book._fields if name.startswith("slot_"))


def new_book(n_states: int, n_rows: int, needed: np.ndarray) -> Book:
    """An empty book."""
    pool = 256
    tally = np.zeros(8, np.int64)
    tally[CONFLICT_ROW] = -1
    return Book(
        visits=np.zeros(n_rows, np.int64),
        head=np.full(n_rows, -1, np.int32),
        n_seen=np.zeros(n_rows, np.int32),
        certified=np.zeros(n_rows, np.bool_),
        rank=np.zeros(n_rows, np.int64),
        needed=needed,
        is_seen=np.zeros(n_states, np.bool_),
        order=np.zeros(n_states, np.int32),
        tally=tally,
        slot_row=np.zeros(pool, np.int32),
        slot_state=np.zeros(pool, np.int32),
        slot_next=np.full(pool, -1, np.int32),
        slot_place=np.zeros(pool, np.int32),
        slot_count=np.zeros(pool, np.int64),
        slot_from_visits=np.full(pool, -1, np.int64),
        slot_from_count=np.zeros(pool, np.int64),
        slot_low=np.zeros(pool),
        slot_high=np.ones(pool),
    )


def grow(book: Book) -> Book:
    """A book with twice the pool."""
    fresh = {}
    for name in _POOL:
        old = getattr(book, name)
        fill = {"slot_next": -1, "slot_from_visits": -1, "slot_high": 1}.get(name, 0)
        fresh[name] = np.concatenate([old, np.full(len(old), fill, old.dtype)])
    return book._replace(**fresh)


@njit(cache=True)
def see(book, state):
    """Note a state; whether it is new."""
    if book.is_seen[state]:
        return False
    book.is_seen[state] = True
    book.order[book.tally[N_SEEN_STATES]] = state
    book.tally[N_SEEN_STATES] += 1
    return True


@njit(cache=True)
def record(book, row, state):
    """Enter one draw. The pool must have a free slot."""
    see(book, state)
    book.visits[row] += 1
    slot = book.head[row]
    while slot >= 0 and book.slot_state[slot] != state:
        slot = book.slot_next[slot]
    outcome = RECORDED
    if slot >= 0:
        book.slot_count[slot] += 1
    else:
        outcome = NEW_SUCCESSOR
        _add_slot(book, row, state)
    if not book.certified[row] and book.visits[row] >= book.needed[book.n_seen[row]]:
        book.certified[row] = True
    return outcome


@njit(cache=True)
def _add_slot(book, row, state):
    slot = book.tally[N_SLOTS]
    book.tally[N_SLOTS] += 1
    book.slot_row[slot] = row
    book.slot_state[slot] = state
    book.slot_count[slot] = 1
    book.slot_next[slot] = book.head[row]
    book.head[row] = slot
    if book.certified[row] and book.tally[CONFLICT_KIND] == NO_CONFLICT:
        book.tally[CONFLICT_ROW], book.tally[CONFLICT_KIND] = row, LATE
    if book.n_seen[row] + 1 == len(book.needed):
        # A row with 1 / p_min successors was complete, so that this is a conflict already.
        return
    book.n_seen[row] += 1
    book.slot_place[slot] = book.n_seen[row]
    if book.n_seen[row] == 2:
        # The share of this row is fixed now, so only what comes after may be judged by it.
        book.tally[N_RANKED] += 1
        book.rank[row] = book.tally[N_RANKED]
        first = book.slot_next[slot]
        book.slot_from_visits[first] = book.visits[row]
        book.slot_from_count[first] = book.slot_count[first]
    if book.n_seen[row] >= 2:
        book.slot_from_visits[slot] = book.visits[row]
        book.slot_from_count[slot] = 1


@njit(cache=True)
def _slot_interval(book, slot, p_min, total, concentration, times):
    """Interval of one slot, within the one it has, if its visits were ``times`` as many with the same frequency."""
    row = book.slot_row[slot]
    n = times * (book.visits[row] - book.slot_from_visits[slot])
    k = times * (book.slot_count[slot] - book.slot_from_count[slot])
    level = slot_level(total, book.rank[row], book.slot_place[slot], len(book.needed) - 1)
    low, high = bernoulli_interval(k, n, level, concentration)
    return max(book.slot_low[slot], low, p_min), min(book.slot_high[slot], high)


@njit(cache=True)
def foresee(book, is_asked, p_min, total, concentration, times):
    """Interval ends of the slots as they would be if rows in ``is_asked`` had ``times`` their visits."""
    low, high = book.slot_low.copy(), book.slot_high.copy()
    for slot in range(book.tally[N_SLOTS]):
        row = book.slot_row[slot]
        if is_asked[row] and book.n_seen[row] > 1:
            low[slot], high[slot] = _slot_interval(book, slot, p_min, total, concentration, times)
    return low, high


@njit(cache=True)
def update_intervals(book, p_min, total, concentration, done_visits):
    """Intersect every interval with what the visits since ``done_visits`` (by row) allow."""
    for slot in range(book.tally[N_SLOTS]):
        row = book.slot_row[slot]
        if done_visits[row] == book.visits[row]:
            continue
        if book.n_seen[row] == 1:
            book.slot_low[slot] = 1.0 if book.certified[row] else max(book.slot_low[slot], p_min)
            continue
        low, high = _slot_interval(book, slot, p_min, total, concentration, 1)
        # The tolerance is for a p_min written in decimals: 0.1 may be the float above the smallest probability.
        if high < p_min * (1.0 - 1e-9) and book.tally[CONFLICT_KIND] == NO_CONFLICT:
            book.tally[CONFLICT_ROW], book.tally[CONFLICT_KIND] = row, TOO_RARE
        book.slot_low[slot] = low
        book.slot_high[slot] = max(min(high, 1.0 - (book.n_seen[row] - 1) * p_min), p_min)
    for row in range(len(book.visits)):
        if done_visits[row] != book.visits[row] and book.certified[row]:
            low, high = 0.0, 0.0
            slot = book.head[row]
            while slot >= 0:
                low += book.slot_low[slot]
                high += book.slot_high[slot]
                slot = book.slot_next[slot]
            is_empty = low > 1.0 + 1e-9 or high < 1.0 - 1e-9
            if is_empty and book.tally[CONFLICT_KIND] == NO_CONFLICT:
                book.tally[CONFLICT_ROW], book.tally[CONFLICT_KIND] = row, EMPTY
    done_visits[:] = book.visits
