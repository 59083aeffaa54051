"""Maximal probability of reaching accepting end components, by graph analysis and policy iteration.

End components are collapsed first: in the quotient every policy reaches the target or a state of value zero with
probability one, so that policy iteration converges to the one fixed point. States of value 0 and 1 are found on the
graph alone. What remains is solved with value iteration for a first policy and exact policy evaluation after it.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from numba import njit

from prudent.ltl._unfold import Unfolded, choices_into, end_components, owners

# An improvement below this is rounding noise of the linear solver.
SWITCH_TOLERANCE = 1e-13
MAX_IMPROVEMENTS = 1000
UNKNOWN = -1.0


class Quotient(NamedTuple):
    """A product whose end components are single nodes; ``value`` is 0, 1 or UNKNOWN by the graph alone."""

    group: np.ndarray
    choice_start: np.ndarray
    row_start: np.ndarray
    successor: np.ndarray
    probability: np.ndarray
    entry: np.ndarray
    value: np.ndarray
    original: np.ndarray
    """Choice of the unfolded product behind each choice."""
    component: np.ndarray
    """Maximal end component of each node of the unfolded product, -1 for none."""
    inside: np.ndarray
    """Whether a choice of the unfolded product stays in its end component."""
    is_accepting: np.ndarray
    """Whether each node of the quotient is an accepting end component."""


def collapse(model: Unfolded, all_sets: np.uint64) -> Quotient:
    """Merge end components, and decide which values are 0 and 1."""
    component, inside = end_components(model.choice_start, model.row_start, model.successor)
    group, n_groups, is_accepting = _group(model.choice_start, component, inside, model.mask, all_sets)
    owner = owners(model.choice_start)
    # Accepting components are targets and need no choice; choices inside a component lead nowhere in the quotient.
    kept = np.flatnonzero(~inside & ~is_accepting[group[owner]])
    kept = kept[np.argsort(group[owner[kept]], kind="stable")]
    lengths = np.diff(model.row_start)[kept]
    row_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    edges = np.repeat(model.row_start[kept] - row_start[:-1], lengths) + np.arange(row_start[-1])
    counts = np.bincount(group[owner[kept]], minlength=n_groups)
    choice_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    successor = group[model.successor[edges]]
    value = certain_values(choice_start, row_start, successor, is_accepting)
    return Quotient(
        group=group,
        choice_start=choice_start,
        row_start=row_start,
        successor=successor,
        probability=model.probability[edges],
        entry=model.entry[edges],
        value=value,
        original=kept,
        component=component,
        inside=inside,
        is_accepting=is_accepting,
    )


@njit(cache=True)
def _group(choice_start, component, inside, mask, all_sets):
    """Node of the quotient for each state, and whether it is an accepting end component."""
    n = len(choice_start) - 1
    n_components = 0
    for i in range(n):
        n_components = max(n_components, component[i] + 1)
    union = np.zeros(n_components, np.uint64)
    has_choice = np.zeros(n_components, np.bool_)
    group_of = np.full(n_components, -1, np.int64)
    group = np.empty(n, np.int64)
    n_groups = 0
    for i in range(n):
        for c in range(choice_start[i], choice_start[i + 1]):
            if inside[c]:
                union[component[i]] |= mask[c]
                has_choice[component[i]] = True
        if component[i] < 0:
            group[i] = n_groups
            n_groups += 1
        else:
            if group_of[component[i]] < 0:
                group_of[component[i]] = n_groups
                n_groups += 1
            group[i] = group_of[component[i]]
    is_accepting = np.zeros(n_groups, np.bool_)
    for k in range(n_components):
        if group_of[k] >= 0:
            is_accepting[group_of[k]] = has_choice[k] and union[k] == all_sets
    return group, n_groups, is_accepting


@njit(cache=True)
def certain_values(choice_start, row_start, successor, is_target):
    """0 where the target cannot be reached, 1 where value 0 can be avoided (without end components that is enough)."""
    n = len(choice_start) - 1
    owner = owners(choice_start)
    into_start, into = choices_into(n, row_start, successor)
    value = np.zeros(n)
    queue = np.empty(n, np.int64)
    n_queue, at = 0, 0
    for i in range(n):
        if is_target[i]:
            value[i] = UNKNOWN
            queue[n_queue] = i
            n_queue += 1
    while at < n_queue:
        node = queue[at]
        at += 1
        for k in range(into_start[node], into_start[node + 1]):
            source = owner[into[k]]
            if value[source] == 0.0:
                value[source] = UNKNOWN
                queue[n_queue] = source
                n_queue += 1
    # Remove what may be forced into value 0; the rest has value 1.
    safe_choice = np.ones(len(row_start) - 1, np.bool_)
    left = np.diff(choice_start)
    is_sure = value == UNKNOWN
    n_queue, at = 0, 0
    for i in range(n):
        if value[i] == 0.0:
            queue[n_queue] = i
            n_queue += 1
    while at < n_queue:
        node = queue[at]
        at += 1
        for k in range(into_start[node], into_start[node + 1]):
            c = into[k]
            if safe_choice[c]:
                safe_choice[c] = False
                source = owner[c]
                left[source] -= 1
                if left[source] == 0 and is_sure[source]:
                    is_sure[source] = False
                    queue[n_queue] = source
                    n_queue += 1
    for i in range(n):
        if is_sure[i]:
            value[i] = 1.0
    return value


@njit(cache=True)
def _choice_value(c, row_start, successor, probability, value):
    total = 0.0
    for e in range(row_start[c], row_start[c + 1]):
        total += probability[e] * value[successor[e]]
    return total


@njit(cache=True)
def _iterate_values(choice_start, row_start, successor, probability, unknown, value, tolerance, max_sweeps):
    """Gauss-Seidel value iteration from below, sweeping both ways; good enough to choose a first policy."""
    for sweep in range(max_sweeps):
        change = 0.0
        for k in range(len(unknown)):
            i = unknown[k] if sweep % 2 else unknown[len(unknown) - 1 - k]
            top = 0.0
            for c in range(choice_start[i], choice_start[i + 1]):
                top = max(top, _choice_value(c, row_start, successor, probability, value))
            change = max(change, top - value[i])
            value[i] = top
        if change < tolerance:
            break


@njit(cache=True)
def _improve(choice_start, row_start, successor, probability, unknown, value, policy, tolerance):
    """Switch to better choices; the number of switches. A policy of -1 takes the best choice whatever its gain."""
    n_switched = 0
    for i in unknown:
        top = value[i] + tolerance if policy[i] >= 0 else -1.0
        for c in range(choice_start[i], choice_start[i + 1]):
            found = _choice_value(c, row_start, successor, probability, value)
            if found > top:
                top = found
                policy[i] = c
                n_switched += 1
    return n_switched


def maximal_values(quotient: Quotient) -> tuple[np.ndarray, np.ndarray]:
    """Value of every node of the quotient, and an optimal choice for the nodes that the graph left unknown."""
    arrays = (quotient.choice_start, quotient.row_start, quotient.successor, quotient.probability)
    unknown = np.flatnonzero(quotient.value == UNKNOWN)
    value = np.where(quotient.value == UNKNOWN, 0.0, quotient.value)
    policy = np.full(len(value), -1, np.int64)
    if len(unknown) == 0:
        return value, policy
    # Bounded work: policy iteration repairs a poor start, value iteration alone may take for ever.
    max_sweeps = int(np.clip(3e8 / len(quotient.successor), 100, 20_000))
    _iterate_values(*arrays, unknown, value, 1e-8, max_sweeps)
    _improve(*arrays, unknown, value, policy, 0.0)
    for _ in range(MAX_IMPROVEMENTS):
        value = _policy_values(quotient, unknown, policy)
        if _improve(*arrays, unknown, value, policy, SWITCH_TOLERANCE) == 0:
            break
    return value, policy


def _policy_values(quotient: Quotient, unknown: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """Values under one choice a node: a sparse linear system over the unknown nodes."""
    value = np.where(quotient.value == UNKNOWN, 0.0, quotient.value)
    place = np.full(len(value), -1, np.int64)
    place[unknown] = np.arange(len(unknown))
    chosen = policy[unknown]
    lengths = np.diff(quotient.row_start)[chosen]
    rows = np.repeat(np.arange(len(unknown)), lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    edges = np.repeat(quotient.row_start[chosen] - offsets[:-1], lengths) + np.arange(offsets[-1])
    targets, weights = quotient.successor[edges], quotient.probability[edges]
    is_inner = place[targets] >= 0
    known = np.bincount(rows[~is_inner], weights[~is_inner] * value[targets[~is_inner]], minlength=len(unknown))
    inner = sp.csc_array(
        (weights[is_inner], (rows[is_inner], place[targets[is_inner]])), shape=(len(unknown), len(unknown))
    )
    solution = spla.spsolve(sp.eye_array(len(unknown), format="csc") - inner, known)
    value[unknown] = np.clip(np.asarray(solution), 0.0, 1.0)
    return value


def exact_values(quotient: Quotient, fractions: list[Fraction]) -> list[Fraction]:
    """Values in exact arithmetic; ``fractions`` are the entries of the MDP's transition table."""
    _, policy = maximal_values(quotient)
    unknown = [int(i) for i in np.flatnonzero(quotient.value == UNKNOWN)]
    value = [Fraction(int(v)) if v != UNKNOWN else Fraction(0) for v in quotient.value]

    def edges(c: int):
        for e in range(quotient.row_start[c], quotient.row_start[c + 1]):
            entry = quotient.entry[e]
            yield int(quotient.successor[e]), fractions[entry] if entry >= 0 else Fraction(1)

    while unknown:
        rows = {i: list(edges(int(policy[i]))) for i in unknown}
        for i, solved in _solve_exactly(rows, value).items():
            value[i] = solved
        changed = False
        for i in unknown:
            for c in range(quotient.choice_start[i], quotient.choice_start[i + 1]):
                found = sum((p * value[j] for j, p in edges(c)), Fraction(0))
                if found > value[i] and c != policy[i]:
                    policy[i] = c
                    changed = True
                    break
        if not changed:
            break
    return value


def _solve_exactly(rows: dict[int, list[tuple[int, Fraction]]], value: list[Fraction]) -> dict[int, Fraction]:
    """Solve x_i = sum p x_j over ``rows`` by elimination; nodes outside ``rows`` have known values."""
    inner: dict[int, dict[int, Fraction]] = {}
    gain: dict[int, Fraction] = {}
    users: dict[int, set[int]] = {i: set() for i in rows}
    for i, outcomes in rows.items():
        inner[i], gain[i] = {}, Fraction(0)
        for j, p in outcomes:
            if j in rows:
                inner[i][j] = inner[i].get(j, Fraction(0)) + p
                users[j].add(i)
            else:
                gain[i] += p * value[j]
    order = list(rows)
    done: set[int] = set()
    for k in order:
        stay = inner[k].pop(k, Fraction(0))
        scale = 1 / (1 - stay)
        inner[k] = {j: p * scale for j, p in inner[k].items()}
        gain[k] *= scale
        done.add(k)
        for i in users[k] - done:
            factor = inner[i].pop(k, Fraction(0))
            if factor:
                gain[i] += factor * gain[k]
                for j, p in inner[k].items():
                    inner[i][j] = inner[i].get(j, Fraction(0)) + factor * p
                    users[j].add(i)
    solution: dict[int, Fraction] = {}
    for k in reversed(order):
        solution[k] = gain[k] + sum((p * solution[j] for j, p in inner[k].items()), Fraction(0))
    return solution


def rational_entries(data: np.ndarray, indptr: np.ndarray) -> list[Fraction]:
    """Transition probabilities as fractions whose rows sum to exactly one.

    Each float becomes the simplest nearby fraction (1/3 for 0.3333333333333333) where that makes the row sum to one;
    otherwise its binary value, divided by the row's sum.
    """
    result: list[Fraction] = []
    for start, stop in pairwise(indptr):
        values = [float(x) for x in data[start:stop]]
        simple = [Fraction(x).limit_denominator(1_000_000) for x in values]
        if sum(simple) != 1 or any(abs(float(f) - x) > 1e-14 for f, x in zip(simple, values, strict=False)):
            binary = [Fraction(x) for x in values]
            simple = [x / sum(binary) for x in binary]
        result += simple
    return result
