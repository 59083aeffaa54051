"""Graph algorithms on explicit MDPs in compressed rows: components, maximal end components, the unfolded product.

An explicit MDP is (choice_start, row_start, successor): state i owns choices choice_start[i]..choice_start[i+1],
choice c has successors successor[row_start[c]..row_start[c+1]].
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from prudent.ltl._product import Product


class Unfolded(NamedTuple):
    """The reachable product as an explicit MDP.

    ``state[i]`` and ``memory[i]`` name node i; ``mask[c]`` holds the acceptance sets of choice c; ``action[c]`` is an
    environment action, or ``n_actions + target`` for an epsilon move; ``entry[e]`` is the entry of the MDP's transition
    table behind edge e, -1 for an epsilon move. The first nodes are the initial ones, in the order of the product.
    """

    choice_start: np.ndarray
    row_start: np.ndarray
    successor: np.ndarray
    probability: np.ndarray
    mask: np.ndarray
    action: np.ndarray
    entry: np.ndarray
    state: np.ndarray
    memory: np.ndarray


def unfold(product: Product) -> Unfolded:
    """Reachable part of a product."""
    return unfold_tables(
        product.row_of,
        product.row_start,
        product.successor,
        product.probability,
        product.next_q,
        product.accepting,
        product.epsilon,
        product.first,
        product.automaton.initial,
    )


def unfold_tables(
    row_of: np.ndarray,
    row_start: np.ndarray,
    successor: np.ndarray,
    probability: np.ndarray,
    next_q: np.ndarray,
    accepting: np.ndarray,
    epsilon: np.ndarray,
    first: np.ndarray,
    first_q: int,
) -> Unfolded:
    """Reachable part of a product given as tables (see :class:`prudent.ltl._product.Product`)."""
    nodes, index = _reach(row_of, row_start, successor, next_q, epsilon, first, first_q)
    arrays = _fill(nodes, index, row_of, row_start, successor, probability, next_q, accepting, epsilon)
    n_q = next_q.shape[1]
    return Unfolded(*arrays, state=nodes // n_q, memory=nodes % n_q)


@njit(cache=True)
def _reach(row_of, row_start, successor, next_q, epsilon, first, first_q):
    n_q = next_q.shape[1]
    index = np.full(next_q.shape[0] * n_q, -1, np.int64)
    nodes = np.empty(next_q.shape[0] * n_q, np.int64)
    n_nodes = 0
    for s in first:
        index[s * n_q + first_q] = n_nodes
        nodes[n_nodes] = s * n_q + first_q
        n_nodes += 1
    at = 0
    while at < n_nodes:
        s, q = nodes[at] // n_q, nodes[at] % n_q
        at += 1
        for a in range(row_of.shape[1]):
            if row_of[s, a] >= 0:
                for e in range(row_start[row_of[s, a]], row_start[row_of[s, a] + 1]):
                    code = successor[e] * n_q + next_q[s, q]
                    if index[code] < 0:
                        index[code] = n_nodes
                        nodes[n_nodes] = code
                        n_nodes += 1
        for j in range(epsilon.shape[1]):
            if epsilon[q, j] >= 0:
                code = s * n_q + epsilon[q, j]
                if index[code] < 0:
                    index[code] = n_nodes
                    nodes[n_nodes] = code
                    n_nodes += 1
    return nodes[:n_nodes].copy(), index


@njit(cache=True)
def _fill(nodes, index, row_of, row_start, successor, probability, next_q, accepting, epsilon):
    n_q = next_q.shape[1]
    n_choices, n_edges = 0, 0
    for code in nodes:
        s, q = code // n_q, code % n_q
        for a in range(row_of.shape[1]):
            if row_of[s, a] >= 0:
                n_choices += 1
                n_edges += row_start[row_of[s, a] + 1] - row_start[row_of[s, a]]
        for j in range(epsilon.shape[1]):
            if epsilon[q, j] >= 0:
                n_choices += 1
                n_edges += 1
    choice_start = np.empty(len(nodes) + 1, np.int64)
    starts = np.empty(n_choices + 1, np.int64)
    mask = np.zeros(n_choices, np.uint64)
    action = np.empty(n_choices, np.int64)
    target = np.empty(n_edges, np.int64)
    weight = np.empty(n_edges, np.float64)
    entry = np.empty(n_edges, np.int64)
    c, out = 0, 0
    for i in range(len(nodes)):
        s, q = nodes[i] // n_q, nodes[i] % n_q
        choice_start[i] = c
        for a in range(row_of.shape[1]):
            if row_of[s, a] >= 0:
                starts[c] = out
                mask[c] = accepting[s, q]
                action[c] = a
                c += 1
                for e in range(row_start[row_of[s, a]], row_start[row_of[s, a] + 1]):
                    target[out] = index[successor[e] * n_q + next_q[s, q]]
                    weight[out] = probability[e]
                    entry[out] = e
                    out += 1
        for j in range(epsilon.shape[1]):
            if epsilon[q, j] >= 0:
                starts[c] = out
                action[c] = row_of.shape[1] + epsilon[q, j]
                c += 1
                target[out] = index[s * n_q + epsilon[q, j]]
                weight[out] = 1.0
                entry[out] = -1
                out += 1
    choice_start[len(nodes)] = c
    starts[c] = out
    return choice_start, starts, target, weight, mask, action, entry


@njit(cache=True)
def _components(choice_start, row_start, successor, alive_choice, alive_state):
    """Strongly connected components of what is alive; -1 for dead states."""
    n = len(choice_start) - 1
    component = np.full(n, -1, np.int64)
    order = np.full(n, -1, np.int64)
    low = np.zeros(n, np.int64)
    stack = np.empty(n, np.int64)
    call = np.empty(n, np.int64)
    choice = choice_start[:-1].copy()
    edge = np.empty(n, np.int64)
    n_stack, count, n_components = 0, 0, 0
    for root in range(n):
        if not alive_state[root] or order[root] >= 0:
            continue
        depth = 0
        call[0] = root
        while depth >= 0:
            node = call[depth]
            if order[node] < 0:
                order[node] = low[node] = count
                count += 1
                stack[n_stack] = node
                n_stack += 1
                edge[node] = row_start[choice[node]]
            descended = False
            while choice[node] < choice_start[node + 1]:
                c = choice[node]
                if alive_choice[c] and edge[node] < row_start[c + 1]:
                    reached = successor[edge[node]]
                    edge[node] += 1
                    if order[reached] < 0:
                        depth += 1
                        call[depth] = reached
                        descended = True
                        break
                    if component[reached] < 0:
                        low[node] = min(low[node], order[reached])
                else:
                    choice[node] += 1
                    if choice[node] < choice_start[node + 1]:
                        edge[node] = row_start[choice[node]]
            if descended:
                continue
            depth -= 1
            if depth >= 0:
                low[call[depth]] = min(low[call[depth]], low[node])
            if low[node] == order[node]:
                while True:
                    n_stack -= 1
                    component[stack[n_stack]] = n_components
                    if stack[n_stack] == node:
                        break
                n_components += 1
    return component


@njit(cache=True)
def choices_into(n_states, row_start, successor):
    """For each state, the choices that may lead to it (with repetition), in compressed rows."""
    start = np.zeros(n_states + 1, np.int64)
    for target in successor:
        start[target + 1] += 1
    for i in range(n_states):
        start[i + 1] += start[i]
    fill = start[:-1].copy()
    choices = np.empty(len(successor), np.int64)
    for c in range(len(row_start) - 1):
        for e in range(row_start[c], row_start[c + 1]):
            choices[fill[successor[e]]] = c
            fill[successor[e]] += 1
    return start, choices


@njit(cache=True)
def owners(choice_start):
    """The state of each choice."""
    owner = np.empty(choice_start[-1], np.int64)
    for i in range(len(choice_start) - 1):
        owner[choice_start[i] : choice_start[i + 1]] = i
    return owner


@njit(cache=True)
def end_components(choice_start, row_start, successor):
    """Maximal end components: component of each state (-1 for none), and which choices stay inside.

    Choices that leave their strongly connected component are removed, with the states that lose all choices, until
    nothing changes.
    """
    n, n_choices = len(choice_start) - 1, len(row_start) - 1
    owner = owners(choice_start)
    into_start, into = choices_into(n, row_start, successor)
    alive_choice = np.ones(n_choices, np.bool_)
    alive_state = np.ones(n, np.bool_)
    left = np.diff(choice_start)
    queue = np.empty(n, np.int64)
    while True:
        component = _components(choice_start, row_start, successor, alive_choice, alive_state)
        n_queue = 0
        changed = False
        for c in range(n_choices):
            if alive_choice[c]:
                for e in range(row_start[c], row_start[c + 1]):
                    if component[successor[e]] != component[owner[c]]:
                        alive_choice[c] = False
                        changed = True
                        left[owner[c]] -= 1
                        if left[owner[c]] == 0:
                            alive_state[owner[c]] = False
                            queue[n_queue] = owner[c]
                            n_queue += 1
                        break
        at = 0
        while at < n_queue:
            dead = queue[at]
            at += 1
            for k in range(into_start[dead], into_start[dead + 1]):
                c = into[k]
                if alive_choice[c]:
                    alive_choice[c] = False
                    left[owner[c]] -= 1
                    if left[owner[c]] == 0:
                        alive_state[owner[c]] = False
                        queue[n_queue] = owner[c]
                        n_queue += 1
        if not changed:
            return component, alive_choice
