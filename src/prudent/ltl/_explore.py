"""Going where samples are needed: the nearest wanted row, on the frequencies seen so far.

Samples belong to the environment and not to the automaton, so exploration needs no product: a *quota* says how many
more draws each row should get before the next planning. The agent goes to the nearest row that still wants some. Near
means few tries: a move counts 1 / frequency, and a reset is one more move. Whoever slips off a way searches a new one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from prudent.ltl._book import (
    CONFLICT_KIND,
    N_OPEN,
    N_RESETS,
    N_SLOTS,
    N_STEPS,
    NEW_SUCCESSOR,
    NO_CONFLICT,
    record,
    see,
)
from prudent.ltl._rng import uniform

RESET, STUCK = -1, -2
# Why exploring stopped.
BUDGET, SATISFIED, SURPRISE, LOST, POOL_FULL, CONFLICT = range(6)


class Scratch(NamedTuple):
    """Working memory of the search for a way; node ``n_states`` is the reset."""

    cost: np.ndarray
    stamp: np.ndarray
    """Number of the search that wrote ``cost``."""
    origin: np.ndarray
    """Node before, on the best way so far."""
    action: np.ndarray
    """Action there."""
    way: np.ndarray
    """Action on the way that was found last; valid where ``way_stamp`` has the number of its search."""
    way_stamp: np.ndarray
    heap: np.ndarray
    key: np.ndarray
    counter: np.ndarray
    """Number of searches, and the node that the last way leads to."""


def new_scratch(n_states: int) -> Scratch:
    return Scratch(
        cost=np.zeros(n_states + 1),
        stamp=np.zeros(n_states + 1, np.int64),
        origin=np.zeros(n_states + 1, np.int64),
        action=np.zeros(n_states + 1, np.int64),
        way=np.zeros(n_states + 1, np.int64),
        way_stamp=np.zeros(n_states + 1, np.int64),
        heap=np.zeros(4 * n_states + 64, np.int64),
        key=np.zeros(4 * n_states + 64),
        counter=np.zeros(2, np.int64),
    )


@njit(cache=True)
def _push(heap, key, size, node, cost):
    """Into a binary heap; the arrays are replaced when they are full."""
    if size == len(heap):
        heap = np.concatenate((heap, heap))
        key = np.concatenate((key, key))
    at = size
    while at > 0 and key[(at - 1) // 2] > cost:
        heap[at], key[at] = heap[(at - 1) // 2], key[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at], key[at] = node, cost
    return heap, key


@njit(cache=True)
def _pop(heap, key, size):
    """Remove the first of ``size`` entries."""
    node, cost = heap[size - 1], key[size - 1]
    size -= 1
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and key[child + 1] < key[child]:
            child += 1
        if key[child] >= cost:
            break
        heap[at], key[at] = heap[child], key[child]
        at = child
    heap[at], key[at] = node, cost


@njit(cache=True)
def wanted_action(book, actions, quota, s):
    """The least visited wanted action of a state, or -1."""
    n_actions = actions.shape[1]
    best = -1
    for a in range(n_actions):
        row = s * n_actions + a
        if actions[s, a] and quota[row] > 0 and (best < 0 or book.visits[row] < book.visits[s * n_actions + best]):
            best = a
    return best


@njit(cache=True)
def decide(book, actions, quota, may_reset, scratch, s):
    """Action in state s: a wanted one, or the first of a shortest way to one; RESET; STUCK if there is none."""
    n_states, n_actions = actions.shape
    found = wanted_action(book, actions, quota, s)
    if found >= 0:
        return found
    search = scratch.counter[0]
    if search > 0 and scratch.way_stamp[s] == search and _is_wanted(book, actions, quota, scratch.counter[1]):
        return scratch.way[s]
    search += 1
    scratch.counter[0] = search
    cost, stamp, origin, action = scratch.cost, scratch.stamp, scratch.origin, scratch.action
    heap, key = scratch.heap, scratch.key
    reset_row = n_states * n_actions
    cost[s], stamp[s] = 0.0, search
    heap[0], key[0], size = s, 0.0, 1
    while size > 0:
        node, at_cost = heap[0], key[0]
        _pop(heap, key, size)
        size -= 1
        if at_cost > cost[node]:
            continue
        if _is_wanted(book, actions, quota, node):
            scratch.counter[1] = node
            while node != s:
                node, step_action = origin[node], action[node]
                scratch.way[node], scratch.way_stamp[node] = step_action, search
            return scratch.way[s]
        for a in range(RESET, 1 if node == n_states else n_actions):
            if a == RESET:
                # From everywhere a reset is one move.
                if may_reset and node < n_states:
                    step = at_cost + 1.0
                    if stamp[n_states] != search or step < cost[n_states]:
                        cost[n_states], stamp[n_states] = step, search
                        origin[n_states], action[n_states] = node, RESET
                        heap, key = _push(heap, key, size, n_states, step)
                        size += 1
                continue
            if node < n_states and not actions[node, a]:
                continue
            row = reset_row if node == n_states else node * n_actions + a
            slot = book.head[row]
            while slot >= 0:
                reached = book.slot_state[slot]
                step = at_cost + book.visits[row] / book.slot_count[slot]
                if stamp[reached] != search or step < cost[reached]:
                    cost[reached], stamp[reached] = step, search
                    origin[reached], action[reached] = node, a
                    heap, key = _push(heap, key, size, reached, step)
                    size += 1
                slot = book.slot_next[slot]
    return STUCK


@njit(cache=True)
def depths(book, actions, start, depth):
    """Expected tries from node ``start`` to every seen state, into ``depth``; infinite where no way is known."""
    n_states, n_actions = actions.shape
    reset_row = n_states * n_actions
    depth[:] = np.inf
    depth[start] = 0.0
    heap, key = np.empty(64, np.int64), np.empty(64)
    heap[0], key[0], size = start, 0.0, 1
    while size > 0:
        node, at_cost = heap[0], key[0]
        _pop(heap, key, size)
        size -= 1
        if at_cost > depth[node]:
            continue
        for a in range(1 if node == n_states else n_actions):
            if node < n_states and not actions[node, a]:
                continue
            row = reset_row if node == n_states else node * n_actions + a
            slot = book.head[row]
            while slot >= 0:
                reached = book.slot_state[slot]
                step = at_cost + book.visits[row] / book.slot_count[slot]
                if step < depth[reached]:
                    depth[reached] = step
                    heap, key = _push(heap, key, size, reached, step)
                    size += 1
                slot = book.slot_next[slot]


@njit(cache=True)
def _is_wanted(book, actions, quota, node):
    """Whether a draw is wanted at a node; the last one is the reset."""
    if node == len(actions):
        return quota[actions.size] > 0
    return wanted_action(book, actions, quota, node) >= 0


@njit(cache=True)
def note(book, actions, quota, row, state, fresh_quota, depth, reach):
    """Enter a draw and settle its quota; a state seen for the first time gets ``fresh_quota`` for each action.

    States deeper than ``reach`` get none. Returns whether the draw showed a new successor.
    """
    n_actions = actions.shape[1]
    if not book.is_seen[state]:
        see(book, state)
        depth[state] = 1.0 + (depth[row // n_actions] if row < actions.size else 0.0)
        if fresh_quota > 0 and depth[state] <= reach:
            for a in range(n_actions):
                # What is known without draws (the end of an episode) wants none.
                if actions[state, a] and not book.certified[state * n_actions + a]:
                    quota[state * n_actions + a] = fresh_quota
                    book.tally[N_OPEN] += 1
    is_new = record(book, row, state) == NEW_SUCCESSOR
    book.tally[N_STEPS] += 1
    if quota[row] > 0:
        quota[row] -= 1
        if quota[row] > 0 and book.certified[row] and fresh_quota < 0:
            # Only the support was wanted.
            quota[row] = 0
        if quota[row] == 0:
            book.tally[N_OPEN] -= 1
    return is_new


@njit(cache=True, nogil=True)
def explore_model(
    stop_at, patience, watch, fresh_quota, depth, reach, book, actions, quota, may_reset, scratch, position, rng,
    row_of, row_start, successor, cumulative, first, first_cumulative,
):  # fmt: skip
    """Explore a model used as a simulator until step ``stop_at``, or until there is a reason to plan again.

    With ``watch`` a new successor is such a reason, ``patience`` steps after the last planning at the earliest.
    ``position[0]`` is the present state, -1 before a reset.
    """
    n_actions = actions.shape[1]
    reset_row = len(book.visits) - 1
    surprised = False
    while True:
        if book.tally[CONFLICT_KIND] != NO_CONFLICT:
            return CONFLICT
        if book.tally[N_STEPS] >= stop_at:
            return BUDGET
        if book.tally[N_OPEN] == 0:
            return SATISFIED
        if surprised and book.tally[N_STEPS] >= patience:
            return SURPRISE
        if book.tally[N_SLOTS] >= len(book.slot_row):
            return POOL_FULL
        s = position[0]
        if s < 0:
            place = 0
            draw = uniform(rng)
            while first_cumulative[place] <= draw:
                place += 1
            position[0] = first[place]
            book.tally[N_RESETS] += 1
            if may_reset or book.visits[reset_row] == 0:
                surprised |= note(book, actions, quota, reset_row, position[0], fresh_quota, depth, reach) and watch
            continue
        action = decide(book, actions, quota, may_reset, scratch, s)
        if action == STUCK:
            return LOST
        if action == RESET:
            position[0] = -1
            continue
        row = row_of[s, action]
        draw = uniform(rng)
        e = row_start[row]
        while cumulative[e] <= draw:
            e += 1
        position[0] = successor[e]
        is_new = note(book, actions, quota, s * n_actions + action, position[0], fresh_quota, depth, reach)
        surprised |= is_new and watch
