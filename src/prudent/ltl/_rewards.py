"""Rewards of the K-counter product, and the bounds on U and gamma under which reward and satisfaction agree.

On an accepting transition with counter n the reward is R_n in (0, U] and the discount 1 - R_n; otherwise the discount
is gamma. The optimum of the reward is an optimum of the formula if U <= 1 / C_reject and gamma >= 1 - 1 / (C_reject N
+ C_accept), where C_reject bounds the expected acceptances before a rejecting component, C_accept the expected steps
before an accepting one and N the expected steps between acceptances (Shao and Kwiatkowska, 2023, Theorem 2). With |S|
states and smallest probability p, the C are at most |S| / p and N at most |S|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from prudent.ltl._check import Checker, optimum
from prudent.ltl._kernels import Tables, greedy_actions, make_q, make_tables
from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._policy import Policy
from prudent.ltl._product import Goal, as_automaton, build_product, degeneralise, goal_text, thin_acceptance

FAMILIES = ("linear", "constant", "exponential", "decreasing")


def reward_table(family: str, U: float, K: int) -> np.ndarray:
    """R_0 .. R_K of a family.

    ``linear`` is U (n + 1) / (K + 1): the thesis prints U n / K, which is zero at n = 0 although R_n must be positive.

    >>> reward_table("linear", 0.1, 4).round(3).tolist()
    [0.02, 0.04, 0.06, 0.08, 0.1]
    """
    if family not in FAMILIES:
        raise ValueError(f"reward must be one of {', '.join(FAMILIES)}, got {family!r}.")
    if not 0.0 < U <= 1.0:
        raise ValueError(f"U must be in (0, 1], got {U}.")
    if K < 0:
        raise ValueError(f"K must not be negative, got {K}.")
    n = np.arange(K + 1)
    if family == "linear":
        return U * (n + 1) / (K + 1)
    if family == "exponential":
        return U * 2.0 ** (n - K)
    if family == "decreasing":
        return U * (K + 1 - n) / (K + 1)
    return np.full(K + 1, float(U))


@dataclass(frozen=True)
class Bounds:
    """Sufficient U and gamma from what is known of a model."""

    U: float
    gamma: float
    c_reject: float
    c_accept: float
    n_between: float


def sufficient_bounds(n_states: int, p_min: float) -> Bounds:
    """U and gamma that make reward-optimal policies optimal for the formula, for any model of this size.

    >>> bounds = sufficient_bounds(64, 1 / 3)
    >>> round(bounds.U, 4), round(bounds.gamma, 5)
    (0.0052, 0.99992)
    """
    c_reject = c_accept = n_states / p_min
    n_between = float(n_states)
    return Bounds(1.0 / c_reject, 1.0 - 1.0 / (c_reject * n_between + c_accept), c_reject, c_accept, n_between)


@njit(cache=True)
def _reward_optimal_q(tables, probability, U, gamma, q_table, best, tolerance, max_sweeps):
    """Value iteration for constant reward U, in place."""
    n_actions, n_q = tables.row_of.shape[1], tables.next_q.shape[1]
    for _ in range(max_sweeps):
        change = 0.0
        for s in range(len(tables.row_of)):
            for q in range(n_q):
                q_next = tables.next_q[s, q]
                top = -np.inf
                for a in range(n_actions):
                    row = tables.row_of[s, a]
                    if row >= 0:
                        after = 0.0
                        for e in range(tables.row_start[row], tables.row_start[row + 1]):
                            after += probability[e] * best[tables.successor[e], q_next]
                        q_table[s, q, a] = U + (1.0 - U) * after if tables.accepting[s, q] else gamma * after
                        top = max(top, q_table[s, q, a])
                for j in range(tables.epsilon.shape[1]):
                    if tables.epsilon[q, j] >= 0:
                        q_table[s, q, n_actions + j] = gamma * best[s, tables.epsilon[q, j]]
                        top = max(top, q_table[s, q, n_actions + j])
                change = max(change, abs(top - best[s, q]))
                best[s, q] = top
        if change < tolerance:
            break


def reward_optimal_policy(mdp: LabelledMDP, goal: Goal, *, U: float = 0.1, gamma: float = 0.99) -> Policy:
    """The policy that a learner converges to: optimal for the discounted reward (counter at K, so that R = U)."""
    product = build_product(mdp, thin_acceptance(degeneralise(as_automaton(goal))))
    tables: Tables = make_tables(product)
    q_table, best = make_q(product, 0.0)
    _reward_optimal_q(tables, product.probability, U, gamma, q_table, best, 1e-12, 10_000_000)
    # Equal values differ by rounding; a coarser grid makes the first of equally good actions win.
    q_table = np.round(q_table, 9)
    choices = np.zeros(product.next_q.shape, np.int32)
    greedy_actions(q_table, product.epsilon, mdp.n_actions, choices)
    return Policy(product.automaton, mdp.actions, choices, formula=goal_text(goal))


def reward_optimum(mdp: LabelledMDP, goal: Goal, *, U: float = 0.1, gamma: float = 0.99) -> float:
    """Satisfaction probability of the reward-optimal policy: what remains of the optimum after discount bias."""
    return Checker(mdp, goal)(reward_optimal_policy(mdp, goal, U=U, gamma=gamma))


def needed_gamma(mdp: LabelledMDP, goal: Goal, *, U: float = 0.1, tolerance: float = 0.01) -> float | None:
    """Smallest gamma of a ladder (0.9, 0.95, 0.98, 0.99, ...) whose reward-optimal policy is within ``tolerance``.

    None where even the last step of the ladder is not enough; then U is too large as well.
    """
    best = optimum(mdp, goal)
    for exponent in range(1, 6):
        for digit in (1.0, 0.5, 0.2):
            gamma = 1.0 - digit * 10.0**-exponent
            if reward_optimum(mdp, goal, U=U, gamma=gamma) >= best - tolerance:
                return gamma
    return None
