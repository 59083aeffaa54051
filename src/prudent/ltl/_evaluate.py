"""Exact probability that a policy's path satisfies an automaton: one pass over strongly connected components.

Nodes are triples (s, m, q): state, the policy's memory, and the automaton that judges. Only environment steps are
edges of the chain; an epsilon move of the judge is an option to jump, and the judge takes the best (for a
limit-deterministic automaton that is good for MDPs, the best run accepts with the probability of the formula).
Epsilon moves of the *policy* change its memory at once and take no time.

Tarjan's algorithm emits components in reverse topological order, so each is solved when all it leads to is known.
Bottom components have value 0 or 1 by their acceptance alone, and components whose exits agree take that value:
probabilities 0 and 1 are graph facts, free of rounding. The rest is solved by state elimination without subtractions
(Grassmann, Taksar and Heyman, 1985), which keeps full relative accuracy.
"""

import numpy as np
from numba import njit

DONE = 0
EPSILON_CYCLE = 1
COMPONENT_TOO_LARGE = 2
ACTION_MISSING = 3

# Larger components are left to a sparse solver: elimination here is cubic in the worst case.
LARGEST_COMPONENT = 800


@njit(cache=True, nogil=True)
def _grow(array):
    bigger = np.empty(2 * len(array), array.dtype)
    bigger[: len(array)] = array
    return bigger


@njit(cache=True, nogil=True)
def resolve_memory(action, n_actions, state, memory):
    """Memory after the policy's own epsilon moves, or -1 if they never end."""
    for _ in range(action.shape[1] + 1):
        chosen = action[state, memory]
        if chosen < n_actions:
            return memory
        memory = chosen - n_actions
    return -1


@njit(cache=True, nogil=True)
def expand(action, row_of, row_start, successor, probability, next_m, next_q, epsilon, first, first_m, first_q, index):
    """Reachable nodes and their edges.

    ``index`` maps a node's code to its number, -1 elsewhere; the caller resets it with the returned codes. Edges of
    node i are ``start[i]`` to ``start[i + 1]``, first the epsilon jumps (weight 0), then the environment steps.
    """
    n_actions = row_of.shape[1]
    n_m, n_q = next_m.shape[1], next_q.shape[1]
    codes = np.empty(256, np.int64)
    start = np.empty(257, np.int64)
    target = np.empty(1024, np.int64)
    weight = np.empty(1024, np.float64)
    n_nodes = 0
    for i in range(len(first)):
        code = (first[i] * n_m + first_m) * n_q + first_q
        if n_nodes == len(codes):
            codes = _grow(codes)
        codes[n_nodes] = code
        index[code] = n_nodes
        n_nodes += 1
    n_edges = 0
    node = 0
    status = DONE
    while node < n_nodes:
        if node + 1 >= len(start):
            start = _grow(start)
        start[node] = n_edges
        code = codes[node]
        q = code % n_q
        m = (code // n_q) % n_m
        s = code // (n_q * n_m)
        acting = resolve_memory(action, n_actions, s, m)
        row = -1
        n_steps = 0
        if acting >= 0:
            row = row_of[s, action[s, acting]]
            if row < 0:
                status = ACTION_MISSING
                break
            n_steps = row_start[row + 1] - row_start[row]
        while n_edges + n_steps + epsilon.shape[1] > len(target):
            target = _grow(target)
            weight = _grow(weight)
        while n_nodes + n_steps + epsilon.shape[1] > len(codes):
            codes = _grow(codes)
        if acting >= 0:
            for j in range(epsilon.shape[1]):
                if epsilon[q, j] >= 0:
                    jump = (s * n_m + m) * n_q + epsilon[q, j]
                    if index[jump] < 0:
                        index[jump] = n_nodes
                        codes[n_nodes] = jump
                        n_nodes += 1
                    target[n_edges] = index[jump]
                    weight[n_edges] = 0.0
                    n_edges += 1
            for e in range(row_start[row], row_start[row + 1]):
                step = (successor[e] * n_m + next_m[s, acting]) * n_q + next_q[s, q]
                if index[step] < 0:
                    index[step] = n_nodes
                    codes[n_nodes] = step
                    n_nodes += 1
                target[n_edges] = index[step]
                weight[n_edges] = probability[e]
                n_edges += 1
        node += 1
    if node >= len(start):
        start = _grow(start)
    start[node] = n_edges
    return status, codes[:n_nodes], start[: node + 1], target[:n_edges], weight[:n_edges]


@njit(cache=True, nogil=True)
def eliminate(inside, gain, leave, value):
    """Solve x = inside x + gain in place, where each row's ``inside`` and ``leave`` sum to one."""
    n = len(gain)
    pivot = np.empty(n)
    columns = np.empty(n, np.int64)
    for k in range(n - 1, -1, -1):
        total = leave[k]
        n_columns = 0
        for j in range(k):
            if inside[k, j] > 0.0:
                total += inside[k, j]
                columns[n_columns] = j
                n_columns += 1
        pivot[k] = total
        for i in range(k):
            if inside[i, k] > 0.0:
                factor = inside[i, k] / total
                for c in range(n_columns):
                    inside[i, columns[c]] += factor * inside[k, columns[c]]
                gain[i] += factor * gain[k]
                leave[i] += factor * leave[k]
    for k in range(n):
        total = gain[k]
        for j in range(k):
            if inside[k, j] > 0.0:
                total += inside[k, j] * value[j]
        value[k] = total / pivot[k]


@njit(cache=True, nogil=True)
def _solve_component(members, place, start, target, weight, value, jump):
    """Values of a component that can be left: optimal stopping with reward ``jump``, by policy iteration."""
    n = len(members)
    stopped = np.zeros(n, np.bool_)
    local = np.empty(n)
    # Never stopping is optimal for the automata of ltl.translate, so that the first solve is usually the last.
    for _ in range(n + 1):
        inside = np.zeros((n, n))
        gain = np.zeros(n)
        leave = np.zeros(n)
        for i in range(n):
            node = members[i]
            if stopped[i]:
                gain[i] = jump[node]
                leave[i] = 1.0
                continue
            for e in range(start[node], start[node + 1]):
                if weight[e] > 0.0:
                    j = place[target[e]]
                    if j >= 0:
                        inside[i, j] += weight[e]
                    else:
                        leave[i] += weight[e]
                        gain[i] += weight[e] * value[target[e]]
        eliminate(inside, gain, leave, local)
        changed = False
        for i in range(n):
            node = members[i]
            going_on = 0.0
            for e in range(start[node], start[node + 1]):
                if weight[e] > 0.0:
                    j = place[target[e]]
                    going_on += weight[e] * (local[j] if j >= 0 else value[target[e]])
            if not stopped[i] and jump[node] > local[i] + 1e-13:
                stopped[i] = True
                changed = True
            elif stopped[i] and going_on > local[i] + 1e-13:
                stopped[i] = False
                changed = True
        if not changed:
            break
    for i in range(n):
        value[members[i]] = local[i]


@njit(cache=True, nogil=True)
def _value_component(members, place, start, target, weight, mask, all_sets, value, jump):
    """Value of one component whose successors are known. Returns a status."""
    for i in range(len(members)):
        place[members[i]] = i
    is_bottom = True
    union = np.uint64(0)
    low, high, best_jump = 2.0, -1.0, 0.0
    has_step = False
    for node in members:
        union |= mask[node]
        jump[node] = 0.0
        for e in range(start[node], start[node + 1]):
            j = place[target[e]]
            if weight[e] == 0.0:
                if j >= 0:
                    return EPSILON_CYCLE
                jump[node] = max(jump[node], value[target[e]])
                continue
            has_step = True
            if j < 0:
                is_bottom = False
                low = min(low, value[target[e]])
                high = max(high, value[target[e]])
        best_jump = max(best_jump, jump[node])
    if is_bottom:
        settled = 1.0 if has_step and union == all_sets else best_jump
        for node in members:
            value[node] = settled
    elif low == high and best_jump <= low:
        for node in members:
            value[node] = low
    elif len(members) > LARGEST_COMPONENT:
        return COMPONENT_TOO_LARGE
    else:
        _solve_component(members, place, start, target, weight, value, jump)
    for node in members:
        place[node] = -1
    return DONE


@njit(cache=True, nogil=True)
def chain_values(start, target, weight, mask, all_sets):
    """Value of every node, with a status. ``mask`` is the acceptance of each node's environment step."""
    n = len(start) - 1
    value = np.zeros(n)
    jump = np.zeros(n)
    place = np.full(n, -1, np.int64)
    order = np.full(n, -1, np.int64)
    low = np.empty(n, np.int64)
    on_stack = np.zeros(n, np.bool_)
    stack = np.empty(n, np.int64)
    call = np.empty(n, np.int64)
    edge = start[:-1].copy()
    n_stack, count = 0, 0
    for root in range(n):
        if order[root] >= 0:
            continue
        depth = 0
        call[0] = root
        order[root] = low[root] = count
        count += 1
        stack[n_stack] = root
        n_stack += 1
        on_stack[root] = True
        while depth >= 0:
            node = call[depth]
            if edge[node] < start[node + 1]:
                reached = target[edge[node]]
                edge[node] += 1
                if order[reached] < 0:
                    order[reached] = low[reached] = count
                    count += 1
                    stack[n_stack] = reached
                    n_stack += 1
                    on_stack[reached] = True
                    depth += 1
                    call[depth] = reached
                elif on_stack[reached]:
                    low[node] = min(low[node], order[reached])
                continue
            depth -= 1
            if depth >= 0:
                low[call[depth]] = min(low[call[depth]], low[node])
            if low[node] == order[node]:
                bottom = n_stack
                while True:
                    bottom -= 1
                    on_stack[stack[bottom]] = False
                    if stack[bottom] == node:
                        break
                members = np.sort(stack[bottom:n_stack])
                n_stack = bottom
                status = _value_component(members, place, start, target, weight, mask, all_sets, value, jump)
                if status != DONE:
                    return status, value
    return DONE, value


@njit(cache=True, nogil=True)
def policy_value(
    action,
    row_of,
    row_start,
    successor,
    probability,
    next_m,
    next_q,
    accepting,
    epsilon,
    first,
    first_probability,
    first_m,
    first_q,
    all_sets,
    index,
):
    """Satisfaction probability of a policy, with a status; ``index`` is all -1 before and after."""
    status, codes, start, target, weight = expand(
        action, row_of, row_start, successor, probability, next_m, next_q, epsilon, first, first_m, first_q, index
    )
    total = 0.0
    if status == DONE:
        n_q = next_q.shape[1]
        per_state = n_q * next_m.shape[1]
        mask = np.empty(len(codes), np.uint64)
        for i in range(len(codes)):
            mask[i] = accepting[codes[i] // per_state, codes[i] % n_q]
        status, value = chain_values(start, target, weight, mask, all_sets)
        for i in range(len(first)):
            total += first_probability[i] * value[i]
    for code in codes:
        index[code] = -1
    return status, total
