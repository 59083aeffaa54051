"""Numba loops of the Q-learners on the product of a labelled MDP and an automaton.

The Q table is indexed by (state, automaton state, slot); slots are the environment's actions, then the epsilon moves
of the automaton state. Slots that do not exist hold -inf. ``best`` caches the maximum over slots, so that a backup
reads one number. A kernel continues from ``position`` and the generator's state, so that a run can be stopped for
evaluation and go on.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from prudent.ltl._product import Product
from prudent.ltl._rng import below, next_word, uniform

# Without Numba's reference counting, which takes longer than the step itself when arrays pass to the helpers below
# (2.7 against 14 million steps a second). It is needed only by code that allocates, and these kernels do not.
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
kernel = njit(**_OPTIONS)

# State in the ``position`` array (state, automaton state, counter, age of the episode, steps since acceptance) that
# asks for a new episode.
UNSTARTED = -1


class Tables(NamedTuple):
    """The arrays of a product that the learners read."""

    row_of: np.ndarray
    row_start: np.ndarray
    successor: np.ndarray
    cumulative: np.ndarray
    next_q: np.ndarray
    accepting: np.ndarray
    epsilon: np.ndarray
    options: np.ndarray
    n_options: np.ndarray
    n_epsilon: np.ndarray
    first: np.ndarray
    first_cumulative: np.ndarray
    first_q: int
    all_sets: np.uint64


class Rates(NamedTuple):
    """The numbers that every learner shares."""

    alpha: float
    explore: float
    gamma: float
    episode_length: int
    patience: int
    """-1 for no limit."""
    gamma_rewarded: float = 1.0
    """Factor on the discount of rewarded steps: 1, or gamma."""


def make_tables(product: Product) -> Tables:
    """Collect a product's arrays; ``options[s, :n_options[s]]`` are the actions of state s."""
    exists = product.row_of >= 0
    return Tables(
        row_of=product.row_of,
        row_start=product.row_start,
        successor=product.successor,
        cumulative=product.cumulative,
        next_q=product.next_q,
        accepting=product.accepting,
        epsilon=product.epsilon,
        options=np.argsort(~exists, axis=1, kind="stable").astype(np.int32),
        n_options=exists.sum(axis=1).astype(np.int32),
        n_epsilon=(product.epsilon >= 0).sum(axis=1).astype(np.int32),
        first=product.first,
        first_cumulative=product.first_cumulative,
        first_q=product.automaton.initial,
        all_sets=product.all_sets,
    )


def make_q(product: Product, value: float) -> tuple[np.ndarray, np.ndarray]:
    """A Q table with ``value`` wherever an action exists, and its row maxima."""
    n_states, n_q = product.next_q.shape
    q = np.full((n_states, n_q, product.n_slots), -np.inf)
    n_actions = product.mdp.n_actions
    q[:, :, :n_actions][np.broadcast_to((product.row_of >= 0)[:, None, :], q[:, :, :n_actions].shape)] = value
    q[:, :, n_actions:][np.broadcast_to((product.epsilon >= 0)[None], q[:, :, n_actions:].shape)] = value
    return q, q.max(axis=2)


@kernel
def _search(cumulative, start, stop, draw):
    """First place in start..stop whose running sum exceeds the draw."""
    if stop - start > 16:
        while stop - start > 1:
            middle = (start + stop - 1) // 2
            if cumulative[middle] > draw:
                stop = middle + 1
            else:
                start = middle + 1
        return start
    while cumulative[start] <= draw:
        start += 1
    return start


@kernel
def _first_state(first, first_cumulative, rng):
    if len(first) == 1:
        return first[0]
    return first[_search(first_cumulative, 0, len(first), uniform(rng))]


@kernel
def _choose(q_table, best, s, q, options, n_options, n_epsilon, n_actions, explore, rng):
    """Epsilon-greedy slot; equally good slots are drawn with equal probability."""
    word = next_word(rng)
    if np.float64(word & np.uint64(0xFFFFFFFF)) < explore * 4294967296.0:
        n = n_options[s]
        drawn = np.int64(((word >> np.uint64(32)) * np.uint64(n + n_epsilon[q])) >> np.uint64(32))
        return np.int64(options[s, drawn]) if drawn < n else np.int64(n_actions + drawn - n)
    top = best[s, q]
    n_ties = 0
    slot = 0
    for j in range(q_table.shape[2]):
        if q_table[s, q, j] == top:
            n_ties += 1
            if n_ties == 1:
                slot = j
    if n_ties > 1:
        wanted = below(rng, n_ties)
        for j in range(slot, q_table.shape[2]):
            if q_table[s, q, j] == top:
                if wanted == 0:
                    return np.int64(j)
                wanted -= 1
    return np.int64(slot)


@kernel
def _successor(row_of, row_start, successor, cumulative, s, action, rng):
    row = row_of[s, action]
    start, stop = row_start[row], row_start[row + 1]
    if stop - start == 1:
        return np.int64(successor[start])
    return np.int64(successor[_search(cumulative, start, stop, uniform(rng))])


@kernel
def _backup(q_table, best, s, q, slot, target, alpha):
    """Move one entry towards its target and keep the cached maximum exact."""
    old = q_table[s, q, slot]
    new = old + alpha * (target - old)
    q_table[s, q, slot] = new
    top = best[s, q]
    if new >= top:
        best[s, q] = new
    elif old == top:
        top = new
        for j in range(q_table.shape[2]):
            if q_table[s, q, j] > top:
                top = q_table[s, q, j]
        best[s, q] = top


@kernel
def run_counter(n_steps, tables, rates, q_table, best, position, rng, rewards, is_counterfactual):
    """KC, CF, CF+KC and Bozkurt: reward R_n on acceptance, then discount 1 - R_n (times ``rates.gamma_rewarded``).

    With ``is_counterfactual`` a step teaches every automaton state, with the counter that the agent has.
    """
    row_of, row_start, successor, cumulative, next_q, accepting, epsilon = tables[:7]
    options, n_options, n_epsilon, first, first_cumulative, first_q, _ = tables[7:]
    alpha, explore, gamma, episode_length, patience, gamma_rewarded = rates
    n_actions, n_q, last = row_of.shape[1], next_q.shape[1], len(rewards) - 1
    s, q, n, age, idle = position[0], position[1], position[2], position[3], position[4]
    for _ in range(n_steps):
        if s == UNSTARTED:
            s, q, n, age, idle = np.int64(_first_state(first, first_cumulative, rng)), np.int64(first_q), 0, 0, 0
        slot = _choose(q_table, best, s, q, options, n_options, n_epsilon, n_actions, explore, rng)
        accepted = False
        if slot < n_actions:
            s_next = _successor(row_of, row_start, successor, cumulative, s, slot, rng)
            q_next = np.int64(next_q[s, q])
            accepted = accepting[s, q] != 0
            reward = rewards[n]
            kept = gamma_rewarded * (1.0 - reward)
            if is_counterfactual:
                for other in range(n_q):
                    after = best[s_next, next_q[s, other]]
                    target = reward + kept * after if accepting[s, other] != 0 else gamma * after
                    _backup(q_table, best, s, other, slot, target, alpha)
            else:
                after = best[s_next, q_next]
                target = reward + kept * after if accepted else gamma * after
                _backup(q_table, best, s, q, slot, target, alpha)
        else:
            s_next = s
            q_next = np.int64(epsilon[q, slot - n_actions])
            target = gamma * best[s, q_next]
            if is_counterfactual:
                for other in range(n_q):
                    for j in range(epsilon.shape[1]):
                        if epsilon[other, j] == q_next:
                            _backup(q_table, best, s, other, n_actions + j, target, alpha)
            else:
                _backup(q_table, best, s, q, slot, target, alpha)
        s, q = s_next, q_next
        age += 1
        if accepted:
            n = min(n + 1, last)
            idle = 0
        else:
            idle += 1
        if age >= episode_length or (patience >= 0 and idle > patience):
            s = np.int64(UNSTARTED)
    position[0], position[1], position[2], position[3], position[4] = s, q, n, age, idle


@kernel
def run_hahn(n_steps, tables, rates, q_table, best, position, rng, zeta):
    """Hahn et al. 2019: with probability 1 - zeta an acceptance pays 1 and ends the episode; no discount."""
    row_of, row_start, successor, cumulative, next_q, accepting, epsilon = tables[:7]
    options, n_options, n_epsilon, first, first_cumulative, first_q, _ = tables[7:]
    alpha, explore, _, episode_length, patience, _ = rates
    n_actions = row_of.shape[1]
    s, q, age, idle = position[0], position[1], position[3], position[4]
    for _ in range(n_steps):
        if s == UNSTARTED:
            s, q, age, idle = np.int64(_first_state(first, first_cumulative, rng)), np.int64(first_q), 0, 0
        slot = _choose(q_table, best, s, q, options, n_options, n_epsilon, n_actions, explore, rng)
        accepted, is_over = False, False
        if slot < n_actions:
            s_next = _successor(row_of, row_start, successor, cumulative, s, slot, rng)
            q_next = np.int64(next_q[s, q])
            accepted = accepting[s, q] != 0
            is_over = accepted and uniform(rng) >= zeta
        else:
            s_next = s
            q_next = np.int64(epsilon[q, slot - n_actions])
        _backup(q_table, best, s, q, slot, 1.0 if is_over else best[s_next, q_next], alpha)
        s, q = s_next, q_next
        age += 1
        idle = 0 if accepted else idle + 1
        if is_over or age >= episode_length or (patience >= 0 and idle > patience):
            s = np.int64(UNSTARTED)
    position[0], position[1], position[3], position[4] = s, q, age, idle


@kernel
def run_hasanbeig(n_steps, tables, rates, q_table, best, position, rng):
    """Hasanbeig et al. 2019: reward 1 for sets still in the accepting frontier, discounted on rewarded steps only.

    The frontier (a bit set, kept in the counter's place) loses a set once it is visited and is refilled when empty.
    """
    row_of, row_start, successor, cumulative, next_q, accepting, epsilon = tables[:7]
    options, n_options, n_epsilon, first, first_cumulative, first_q, all_sets = tables[7:]
    alpha, explore, gamma, episode_length, patience, _ = rates
    n_actions, full = row_of.shape[1], np.int64(all_sets)
    s, q, frontier, age, idle = position[0], position[1], position[2], position[3], position[4]
    for _ in range(n_steps):
        if s == UNSTARTED:
            s, q, age, idle = np.int64(_first_state(first, first_cumulative, rng)), np.int64(first_q), 0, 0
            frontier = full
        slot = _choose(q_table, best, s, q, options, n_options, n_epsilon, n_actions, explore, rng)
        visited = np.int64(0)
        if slot < n_actions:
            s_next = _successor(row_of, row_start, successor, cumulative, s, slot, rng)
            q_next = np.int64(next_q[s, q])
            visited = np.int64(accepting[s, q])
        else:
            s_next = s
            q_next = np.int64(epsilon[q, slot - n_actions])
        target = best[s_next, q_next]
        if visited & frontier:
            target = 1.0 + gamma * target
            frontier &= ~visited
            if frontier == 0:
                frontier = full
        _backup(q_table, best, s, q, slot, target, alpha)
        s, q = s_next, q_next
        age += 1
        idle = 0 if visited else idle + 1
        if age >= episode_length or (patience >= 0 and idle > patience):
            s = np.int64(UNSTARTED)
    position[0], position[1], position[2], position[3], position[4] = s, q, frontier, age, idle


@kernel
def greedy_actions(q_table, epsilon, n_actions, action):
    """Write the first best slot of every product state: an action, or n_actions plus the target of an epsilon move."""
    for s in range(q_table.shape[0]):
        for q in range(q_table.shape[1]):
            slot = 0
            for j in range(1, q_table.shape[2]):
                if q_table[s, q, j] > q_table[s, q, slot]:
                    slot = j
            if slot < n_actions:
                action[s, q] = slot
            else:
                action[s, q] = n_actions + epsilon[q, slot - n_actions]
