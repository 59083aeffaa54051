"""Policies on learnt products: choices that keep a value, and among them the ones that arrive soonest.

Keeping the value is not enough: a policy that waits for ever inside an end component keeps it and never arrives. So
each node takes, among its allowed choices, the one with the least expected cost until acceptance (or until nothing
can be gained any more), and a final pass over the graph mends nodes whose iteration had not converged.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from prudent.ltl._evaluate import resolve_memory
from prudent.ltl._interval import Arena, Automata, Table
from prudent.ltl._maximise import UNKNOWN, maximal_values
from prudent.ltl._unfold import Unfolded, choices_into, owners

# A choice keeps a value if it misses it by rounding only.
KEEP_TOLERANCE = 1e-9
EPSILON_COST = 1e-3


def guess_strategy(arena: Arena, cost: np.ndarray) -> tuple[float, np.ndarray]:
    """Best value and strategy (a choice for each node) if the frequencies were the probabilities.

    ``cost`` is the cost of each choice of the model.
    """
    model, quotient = arena.model, arena.quotient
    values, _ = maximal_values(quotient)
    node_value = values[quotient.group]
    owner = owners(model.choice_start)
    expected = _expectations(model.row_start, model.successor, model.probability, node_value)
    is_accepting = quotient.is_accepting[quotient.group[owner]]
    allowed = np.where(is_accepting, quotient.inside, expected >= node_value[owner] - KEEP_TOLERANCE)
    return float(expected[start_choice(model)]), _soonest(model, owner, allowed, is_accepting, node_value > 0.0, cost)


def robust_strategy(arena: Arena, values: np.ndarray, choice: np.ndarray) -> np.ndarray:
    """Strategy that reaches the lower values whatever the probabilities in the intervals are."""
    model, quotient = arena.model, arena.quotient
    owner = owners(model.choice_start)
    group = quotient.group[owner]
    node_value = values[quotient.group]
    is_accepting = quotient.is_accepting[group]
    # Value 1 is a fact of the graph: any choice that stays among such nodes keeps it.
    is_sure = (quotient.value == 1.0)[quotient.group]
    stays = _all_successors(model.row_start, model.successor, is_sure)
    allowed = np.where(is_accepting | ~is_sure[owner], quotient.inside, stays)
    leaving = choice[(quotient.value == UNKNOWN) & (choice >= 0)]
    exits = quotient.original[leaving]
    # The owner of the exit takes it at once.
    is_exit_owner = np.zeros(len(model.state), np.bool_)
    is_exit_owner[owner[exits]] = True
    allowed &= ~is_exit_owner[owner]
    allowed[exits] = True
    return _soonest(model, owner, allowed, is_accepting, node_value > 0.0, np.ones(len(owner)))


def start_choice(model: Unfolded) -> int:
    """The reset: first choice of the first node."""
    return int(model.choice_start[0])


def strategy_table(strategy: np.ndarray, model: Unfolded, default: np.ndarray, n_q: int) -> np.ndarray:
    """Choices of a policy, shape (n_states, n_q); ``default`` where the strategy says nothing."""
    table = np.repeat(default[:, None], n_q, axis=1).astype(np.int32)
    is_real = (strategy >= 0) & (model.state < len(default))
    table[model.state[is_real], model.memory[is_real]] = model.action[strategy[is_real]]
    return table


def _soonest(
    model: Unfolded,
    owner: np.ndarray,
    allowed: np.ndarray,
    is_accepting: np.ndarray,
    matters: np.ndarray,
    cost: np.ndarray,
) -> np.ndarray:
    is_epsilon = np.diff(model.row_start) == 1
    is_epsilon &= model.entry[model.row_start[:-1]] < 0
    cost = np.where(is_epsilon, EPSILON_COST, cost)
    arrives = allowed & is_accepting & (model.mask != 0)
    distance = np.zeros(len(model.state))
    max_sweeps = int(np.clip(2e8 / max(1, len(model.successor)), 50, 5_000))
    arrays = (model.choice_start, model.row_start, model.successor, model.probability)
    strategy = _shortest(*arrays, allowed, arrives, matters, cost, distance, max_sweeps)
    into_start, into = choices_into(len(model.state), model.row_start, model.successor)
    _mend(strategy, model.row_start, model.successor, allowed, arrives, matters, owner, into_start, into)
    return strategy


@njit(cache=True)
def _expectations(row_start, successor, probability, value):
    out = np.zeros(len(row_start) - 1)
    for c in range(len(out)):
        for e in range(row_start[c], row_start[c + 1]):
            out[c] += probability[e] * value[successor[e]]
    return out


@njit(cache=True)
def _all_successors(row_start, successor, holds):
    out = np.ones(len(row_start) - 1, np.bool_)
    for c in range(len(out)):
        for e in range(row_start[c], row_start[c + 1]):
            out[c] &= holds[successor[e]]
    return out


@njit(cache=True)
def _shortest(choice_start, row_start, successor, probability, allowed, arrives, matters, cost, distance, max_sweeps):
    """Expected cost to arrive, from below; the strategy of the last sweep."""
    n = len(distance)
    strategy = np.full(n, -1, np.int64)
    for sweep in range(max_sweeps):
        change = 0.0
        for k in range(n):
            i = k if sweep % 2 else n - 1 - k
            if not matters[i]:
                continue
            best = np.inf
            for c in range(choice_start[i], choice_start[i + 1]):
                if not allowed[c]:
                    continue
                total = cost[c]
                if not arrives[c]:
                    for e in range(row_start[c], row_start[c + 1]):
                        total += probability[e] * distance[successor[e]]
                if total < best:
                    best = total
                    strategy[i] = c
            if best < np.inf:
                change = max(change, (best - distance[i]) / best)
                distance[i] = best
        if change < 1e-4:
            break
    return strategy


@njit(cache=True)
def _mend(strategy, row_start, successor, allowed, arrives, matters, owner, into_start, into):
    """Redirect nodes whose choice never leads to arrival, along the shortest chain of allowed choices."""
    n = len(strategy)
    is_fine = np.zeros(n, np.bool_)
    queue = np.empty(n, np.int64)
    n_queue, at = 0, 0
    for i in range(n):
        if not matters[i] or (strategy[i] >= 0 and arrives[strategy[i]]):
            is_fine[i] = True
            queue[n_queue] = i
            n_queue += 1
    for round in range(2):
        at = 0
        while at < n_queue:
            node = queue[at]
            at += 1
            for k in range(into_start[node], into_start[node + 1]):
                c = into[k]
                i = owner[c]
                if is_fine[i] or (strategy[i] != c if round == 0 else not allowed[c]):
                    continue
                strategy[i] = c
                is_fine[i] = True
                queue[n_queue] = i
                n_queue += 1


@njit(cache=True)
def rows_used(model_choice_start, row_start, successor, base, strategy):
    """Book rows that the strategy may take from the first node on, in the order of their discovery."""
    n = len(model_choice_start) - 1
    seen = np.zeros(n, np.bool_)
    queue = np.empty(n, np.int64)
    rows = np.empty(n, np.int64)
    queue[0], n_queue, at, n_rows = 0, 1, 0, 0
    seen[0] = True
    while at < n_queue:
        c = strategy[queue[at]]
        at += 1
        if c < 0:
            continue
        if base[c] >= 0:
            rows[n_rows] = base[c]
            n_rows += 1
        for e in range(row_start[c], row_start[c + 1]):
            if not seen[successor[e]]:
                seen[successor[e]] = True
                queue[n_queue] = successor[e]
                n_queue += 1
    return rows[:n_rows]


def model_rows(arena: Arena, table: Table) -> np.ndarray:
    """Book row of each choice of the model, -1 for epsilon moves."""
    row_of_entry = np.repeat(table.base, np.diff(table.row_start))
    entry = arena.model.entry[arena.model.row_start[:-1]]
    return np.where(entry < 0, -1, row_of_entry[entry])


def induced(table: Table, automata: Automata, policy: np.ndarray) -> tuple[Table, Automata]:
    """The table under a policy (choices by state and memory): a chain over pairs of state and memory.

    The automaton that judges keeps its own state and its own epsilon moves, so that a policy whose memory commits
    itself badly is not valued below its true probability.
    """
    chain, states = _induce(
        table.row_of,
        table.row_start,
        table.successor,
        table.probability,
        table.low,
        table.high,
        table.base,
        automata.next_q,
        automata.initial,
        policy,
    )
    n_states = len(table.row_of) - 2
    origin = np.concatenate([states, [n_states, n_states + 1]])
    judge = Automata(
        next_q=automata.next_q[origin],
        accepting=automata.accepting[origin],
        epsilon=automata.epsilon,
        initial=automata.initial,
        all_sets=automata.all_sets,
        is_trap=automata.is_trap,
    )
    return Table(*chain), judge


@njit(cache=True)
def _induce(row_of, row_start, successor, probability, low, high, base, next_q, first_q, policy):
    n_states, n_q = policy.shape
    n_actions = row_of.shape[1]
    index = np.full(n_states * n_q, -1, np.int64)
    codes = np.empty(n_states * n_q, np.int64)
    n = 0
    start_row = row_of[n_states + 1, 0]
    n_edges = row_start[start_row + 1] - row_start[start_row]
    for e in range(row_start[start_row], row_start[start_row + 1]):
        if successor[e] < n_states:
            code = successor[e] * n_q + first_q
            if index[code] < 0:
                index[code] = n
                codes[n] = code
                n += 1
    at = 0
    while at < n:
        s, m = codes[at] // n_q, codes[at] % n_q
        at += 1
        acting = resolve_memory(policy, n_actions, s, m)
        row = row_of[s, policy[s, acting]]
        n_edges += row_start[row + 1] - row_start[row]
        for e in range(row_start[row], row_start[row + 1]):
            if successor[e] < n_states:
                code = successor[e] * n_q + next_q[s, acting]
                if index[code] < 0:
                    index[code] = n
                    codes[n] = code
                    n += 1
    chain_row_of = np.full((n + 2, 1), -1, np.int32)
    chain_start = np.empty(n + 2, np.int64)
    target = np.empty(n_edges, np.int32)
    p = np.empty(n_edges)
    lo = np.empty(n_edges)
    hi = np.empty(n_edges)
    rows = np.empty(n + 1, np.int64)
    out = 0
    for i in range(n + 1):
        s, acting = n_states + 1, first_q
        row = start_row
        if i < n:
            s = codes[i] // n_q
            acting = resolve_memory(policy, n_actions, s, codes[i] % n_q)
            row = row_of[s, policy[s, acting]]
        chain_row_of[i if i < n else n + 1, 0] = i
        chain_start[i] = out
        rows[i] = base[row]
        for e in range(row_start[row], row_start[row + 1]):
            target[out] = n if successor[e] == n_states else index[successor[e] * n_q + next_q[s, acting]]
            p[out], lo[out], hi[out] = probability[e], low[e], high[e]
            out += 1
    chain_start[n + 1] = out
    return (chain_row_of, chain_start, target, p, lo, hi, rows), codes[:n] // n_q
