"""An optimal policy from a known model: the answer of ``optimum`` as something that can be run.

In the quotient (end components collapsed) an optimal node either takes its best choice or, where its value is 1, any
choice that keeps the value 1. Back in the product, an end component is left by walking to the state that owns the
chosen exit, and in an accepting one the policy walks to an accepting transition again and again.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from prudent.ltl._maximise import collapse, maximal_values
from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._policy import Policy
from prudent.ltl._product import Goal, as_automaton, build_product, degeneralise, goal_text
from prudent.ltl._unfold import choices_into, owners, unfold


def optimal_policy(mdp: LabelledMDP, goal: Goal) -> Policy:
    """A policy with finite memory that reaches ``ltl.optimum(mdp, goal)``.

    Examples
    --------
    >>> from prudent import envs, ltl
    >>> gate = envs.probabilistic_gate()
    >>> ltl.check(gate, ltl.optimal_policy(gate, gate.goal), gate.goal)
    0.8
    """
    product = build_product(mdp, degeneralise(as_automaton(goal)))
    model = unfold(product)
    quotient = collapse(model, product.all_sets)
    values, best = maximal_values(quotient)
    exits = _best_exits(quotient.choice_start, quotient.row_start, quotient.successor, values, best)
    chosen = np.where(exits >= 0, quotient.original[exits], -1) if len(quotient.original) else exits
    n = len(model.state)
    owner = owners(model.choice_start)
    # Where to walk inside end components: to the owner of the exit, or to accepting transitions.
    choice = np.full(n, -1, np.int64)
    leaving = chosen[chosen >= 0]
    choice[owner[leaving]] = leaving
    is_inner = quotient.inside & quotient.is_accepting[quotient.group[owner]] & (model.mask != 0)
    accepting = np.flatnonzero(is_inner)
    choice[owner[accepting]] = accepting
    into_start, into = choices_into(n, model.row_start, model.successor)
    _walk(choice, quotient.inside, owner, into_start, into)
    choice = np.where(choice < 0, model.choice_start[:-1], choice)
    table = np.repeat(product.row_of.argmax(axis=1)[:, None], product.next_q.shape[1], axis=1)
    table[model.state, model.memory] = model.action[choice]
    return Policy(product.automaton, mdp.actions, table, formula=goal_text(goal))


@njit(cache=True)
def _best_exits(choice_start, row_start, successor, values, best):
    """A choice that keeps each positive value: the solved one, or one whose successors all have value 1."""
    exits = np.full(len(values), -1, np.int64)
    for i in range(len(values)):
        if best[i] >= 0:
            exits[i] = best[i]
        elif values[i] == 1.0:
            for c in range(choice_start[i], choice_start[i + 1]):
                is_sure = True
                for e in range(row_start[c], row_start[c + 1]):
                    is_sure &= values[successor[e]] == 1.0
                if is_sure:
                    exits[i] = c
                    break
    return exits


@njit(cache=True)
def _walk(choice, inside, owner, into_start, into):
    """Give the other states of end components a choice inside that leads towards states that have one already."""
    n = len(choice)
    queue = np.empty(n, np.int64)
    n_queue, at = 0, 0
    for i in range(n):
        if choice[i] >= 0:
            queue[n_queue] = i
            n_queue += 1
    while at < n_queue:
        node = queue[at]
        at += 1
        for k in range(into_start[node], into_start[node + 1]):
            c = into[k]
            if inside[c] and choice[owner[c]] < 0:
                choice[owner[c]] = c
                queue[n_queue] = owner[c]
                n_queue += 1
