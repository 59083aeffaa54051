"""Optimal policies from a known model reach the optimum, exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prudent import envs, ltl

FORMULAS = (
    "F a",
    "G a",
    "a U b",
    "G F a",
    "F G a",
    "X X a",
    "(G F a) & (G F b)",
    "(F G a) & (G F b)",
    "(G F a) | (F G b)",
    "G (a -> X (F b))",
    "F (a & X (G F b))",
    "(F G a) & (G !c)",
    "(F a) & (F b) & (F c)",
)


@pytest.mark.parametrize("make", [envs.probabilistic_gate, envs.frozen_lake, envs.office_world])
def test_tasks_are_solved(make):
    mdp = make()
    policy = ltl.optimal_policy(mdp, mdp.goal)
    assert ltl.check(mdp, policy, mdp.goal) == pytest.approx(ltl.optimum(mdp, mdp.goal), abs=1e-12)


@settings(derandomize=True, deadline=None, max_examples=120)
@given(st.sampled_from(FORMULAS), st.integers(0, 10**6))
@pytest.mark.filterwarnings("ignore:.*no reachable state")
def test_random_models_are_solved(text, seed):
    mdp = envs.random_mdp(8, 3, ["a", "b", "c"], seed, absorbing=0.25)
    policy = ltl.optimal_policy(mdp, text)
    assert ltl.check(mdp, policy, text) == pytest.approx(ltl.optimum(mdp, text), abs=1e-12)


def test_an_end_component_is_left_through_its_best_exit():
    """Two states to walk between for ever; only the second one has the exit to the goal."""
    table = np.zeros((3, 2, 3))
    table[0, 0, 1] = table[0, 1, 0] = 1
    table[1, 0, 0] = table[1, 1, 2] = 1
    table[2, 0, 2] = 1
    mdp = ltl.LabelledMDP.from_arrays(table, {"goal": [2]})
    policy = ltl.optimal_policy(mdp, "F goal")
    assert ltl.check(mdp, policy, "F goal") == 1


def test_several_sets_are_patrolled_with_memory():
    edges = [("a & b", [0, 1]), ("a & !b", [0]), ("!a & b", [1]), ("!a & !b", [])]
    both = ltl.Automaton(("a", "b"), 0, [[ltl.Edge(ltl.parse(g), 0, frozenset(s)) for g, s in edges]], [()], n_sets=2)
    mdp = envs.grid("...", {"a": [(0, 0)], "b": [(0, 2)]}, start=(0, 1))
    assert ltl.check(mdp, ltl.optimal_policy(mdp, both), both) == 1
