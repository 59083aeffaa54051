"""Going where samples are needed: shortest expected ways to wanted rows, on the frequencies seen so far.

Samples belong to the environment and not to the automaton, so exploration needs no product: a *quota* says how many more
draws each row should get before the next planning. The agent goes to the nearest row that still wants some; resets
are one more way to get there.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from prudent.ltl._book import (
    CONFLICT_KIND,
    N_OPEN,
    N_RESETS,
    N_SEEN_STATES,
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
# Distance from which no wanted row can be reached.
FAR = 1e6


@njit(cache=True)
def distances(book, actions, quota, may_reset, distance):
    """Update the expected number of steps to the next wanted draw, for every seen state, in place.

    Returns the distance after a reset. States that cannot get there have distance FAR.
    """
    n_states, n_actions = actions.shape
    reset_row = n_states * n_actions
    n_seen = book.tally[N_SEEN_STATES]
    after_reset = _mark_hopeless(book, actions, quota, may_reset, distance)
    if may_reset and quota[reset_row] > 0:
        after_reset = 0.0
    for sweep in range(400):
        change = 0.0
        if may_reset and quota[reset_row] == 0 and after_reset < FAR:
            after_reset = _expected(book, reset_row, distance)
        for k in range(n_seen):
            s = book.order[k] if sweep % 2 else book.order[n_seen - 1 - k]
            if distance[s] >= FAR:
                continue
            best = FAR - 1.0
            if may_reset:
                best = min(best, 1.0 + after_reset)
            for a in range(n_actions):
                row = s * n_actions + a
                if actions[s, a]:
                    if quota[row] > 0:
                        best = 1.0
                        break
                    if book.visits[row] > 0:
                        best = min(best, 1.0 + _expected(book, row, distance))
            change = max(change, abs(best - distance[s]) / best)
            distance[s] = best
        if change < 0.02:
            break
    return after_reset


@njit(cache=True)
def _expected(book, row, distance):
    total = 0.0
    slot = book.head[row]
    while slot >= 0:
        total += book.slot_count[slot] * distance[book.slot_state[slot]]
        slot = book.slot_next[slot]
    return total / book.visits[row]


@njit(cache=True)
def _mark_hopeless(book, actions, quota, may_reset, distance):
    """FAR for states without a way to a wanted row; others that were FAR start at 1. The same for the reset."""
    n_states, n_actions = actions.shape
    reset_row = n_states * n_actions
    n_seen = book.tally[N_SEEN_STATES]
    has_way = np.zeros(n_states, np.bool_)
    reset_has_way = may_reset and quota[reset_row] > 0
    changed = True
    sweep = 0
    while changed:
        changed = False
        sweep += 1
        if may_reset and not reset_has_way:
            slot = book.head[reset_row]
            while slot >= 0 and not reset_has_way:
                reset_has_way = has_way[book.slot_state[slot]]
                slot = book.slot_next[slot]
            changed |= reset_has_way
        for k in range(n_seen):
            s = book.order[k] if sweep % 2 else book.order[n_seen - 1 - k]
            if has_way[s]:
                continue
            found = may_reset and reset_has_way
            for a in range(n_actions):
                row = s * n_actions + a
                if found or not actions[s, a]:
                    continue
                found = quota[row] > 0
                slot = book.head[row]
                while slot >= 0 and not found:
                    found = has_way[book.slot_state[slot]]
                    slot = book.slot_next[slot]
            if found:
                has_way[s] = True
                changed = True
    for k in range(n_seen):
        s = book.order[k]
        if not has_way[s]:
            distance[s] = FAR
        elif distance[s] >= FAR:
            distance[s] = 1.0
    return 0.0 if reset_has_way else FAR


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
def decide(book, actions, quota, may_reset, distance, after_reset, s):
    """Action in state s: a wanted one, or the first of a shortest way; RESET; STUCK. Refreshes stale distances."""
    n_actions = actions.shape[1]
    action = wanted_action(book, actions, quota, s)
    if action >= 0:
        return action
    for attempt in range(2):
        best, action = FAR, STUCK
        if may_reset:
            best, action = 1.0 + after_reset[0], RESET
        for a in range(n_actions):
            row = s * n_actions + a
            if actions[s, a] and book.visits[row] > 0:
                found = 1.0 + _expected(book, row, distance)
                if found < best:
                    best, action = found, a
        # A state that pretends to be next to a wanted row, or is better than all its ways, is out of date.
        if attempt == 0 and (distance[s] <= 1.0 or best > distance[s] * 1.05 + 0.1):
            after_reset[0] = distances(book, actions, quota, may_reset, distance)
        else:
            break
    return action if best < FAR else STUCK


@njit(cache=True)
def note(book, actions, quota, distance, row, state, fresh_quota):
    """Enter a draw and settle its quota; a state seen for the first time gets ``fresh_quota`` for each action.

    Returns whether the draw showed a new successor.
    """
    n_actions = actions.shape[1]
    if not book.is_seen[state]:
        see(book, state)
        distance[state] = 1.0
        if fresh_quota > 0:
            for a in range(n_actions):
                if actions[state, a]:
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
    stop_at, patience, watch, fresh_quota, book, actions, quota, may_reset, distance, after_reset, position, rng,
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
                surprised |= note(book, actions, quota, distance, reset_row, position[0], fresh_quota) and watch
            continue
        action = decide(book, actions, quota, may_reset, distance, after_reset, s)
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
        is_new = note(book, actions, quota, distance, s * n_actions + action, position[0], fresh_quota)
        surprised |= is_new and watch
