"""Exact checking: fractions by hand, the pitfalls of published checkers, and agreement between methods and tools."""

import stat
import sys
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from prudent import envs, ltl
from prudent.ltl._check import _chain_value
from prudent.ltl._maximise import rational_entries

FORMULAS = (
    "F a",
    "G a",
    "a U b",
    "G F a",
    "F G a",
    "X X a",
    "(F G a) & (G F b)",
    "(G F a) | (F G b)",
    "G (a -> X (F b))",
    "F (a & X (G F b))",
    "(F G a) & (G !c)",
    "((F (a & (X (G F b)))) | (F G c))",
)


def edges(*rows):
    return [[ltl.Edge(ltl.parse(g), t, frozenset(s)) for g, t, s in row] for row in rows]


def random_policy(mdp, automaton, seed):
    rng = np.random.default_rng(seed)
    choices = np.zeros((mdp.n_states, automaton.n_states), np.int32)
    for s in range(mdp.n_states):
        for q in range(automaton.n_states):
            choices[s, q] = rng.choice([*mdp.available(s), *(mdp.n_actions + p for p in automaton.epsilon(q))])
    return ltl.Policy(automaton, mdp.actions, choices)


def gambler(p, goal=4):
    """Fortune 0..goal, win one with probability p; both ends absorb."""
    table = np.zeros((goal + 1, 1, goal + 1))
    table[0, 0, 0] = table[goal, 0, goal] = 1
    for s in range(1, goal):
        table[s, 0, s + 1], table[s, 0, s - 1] = p, 1 - p
    return ltl.LabelledMDP.from_arrays(table, {"rich": [goal], "ruined": [0]}, initial=1)


def memoryless(mdp):
    return ltl.Policy.memoryless(mdp, [mdp.available(s)[0] for s in range(mdp.n_states)])


# ---- values by hand
# ----------------------------------------------------------------------------------------------------


def test_gamblers_ruin():
    fair = gambler(0.5)
    assert ltl.check(fair, memoryless(fair), "F rich", exact=True) == Fraction(1, 4)
    biased = gambler(1 / 3)
    expected = (2 - 1) / (2**4 - 1)  # (r^i - 1) / (r^n - 1) with r = (1 - p) / p = 2
    assert ltl.check(biased, memoryless(biased), "F rich", exact=True) == Fraction(1, 15)
    assert ltl.check(biased, memoryless(biased), "F rich") == pytest.approx(expected, rel=1e-14)
    assert ltl.check(biased, memoryless(biased), "G !ruined") == pytest.approx(expected, rel=1e-14)
    assert ltl.optimum(biased, "F G rich", exact=True) == Fraction(1, 15)


def test_a_long_gamble_keeps_relative_accuracy():
    mdp = gambler(0.25, goal=40)
    value = ltl.check(mdp, memoryless(mdp), "F rich")
    assert value == pytest.approx(2 / (3.0**40 - 1), rel=1e-12)


def test_the_best_action_depends_on_the_goal():
    # From 0: "risky" reaches a with 3/4 and c otherwise; "safe" stays in 0, which has b.
    table = np.zeros((3, 2, 3))
    table[0, 0] = [0, 0.75, 0.25]
    table[0, 1, 0] = 1
    table[1, 0, 1] = table[2, 0, 2] = 1
    mdp = ltl.LabelledMDP.from_arrays(table, {"a": [1], "b": [0], "c": [2]}, actions=["risky", "safe"])
    assert ltl.optimum(mdp, "F a", exact=True) == Fraction(3, 4)
    assert ltl.optimum(mdp, "G !c", exact=True) == 1
    assert ltl.optimum(mdp, "(F a) & (X b)", exact=True) == Fraction(3, 4)
    assert ltl.optimum(mdp, "(F a) | (G b)", exact=True) == 1
    assert ltl.optimum(mdp, "(F c) & b", exact=True) == Fraction(1, 4)


def test_an_initial_distribution_is_averaged():
    table = np.eye(2)[:, None, :]
    mdp = ltl.LabelledMDP.from_arrays(table, {"a": [0]}, initial=[0.25, 0.75])
    assert ltl.optimum(mdp, "G a", exact=True) == Fraction(1, 4)
    assert ltl.check(mdp, memoryless(mdp), "G a") == 0.25


def test_probabilities_zero_and_one_are_exact_floats():
    lake = envs.frozen_lake()
    assert ltl.optimum(lake, lake.goal) == 1.0
    assert ltl.check(lake, memoryless(lake), lake.goal) == 0.0


def test_policies_with_memory_beat_those_without():
    mdp = envs.grid("...", {"a": [(0, 0)], "b": [(0, 2)]}, start=(0, 1))
    assert ltl.optimum(mdp, "(G F a) & (G F b)") == 1
    for action in (2, 3):
        assert ltl.check(mdp, ltl.Policy.memoryless(mdp, [action] * 3), "(G F a) & (G F b)") == 0


# ---- pitfalls seen in published code
# -----------------------------------------------------------------------------------


def test_epsilon_moves_are_not_time_for_next():
    """a holds one step after the start; a policy that spends an epsilon move first must not shift that."""
    table = np.zeros((3, 1, 3))
    table[0, 0, 1] = table[1, 0, 2] = table[2, 0, 2] = 1
    mdp = ltl.LabelledMDP.from_arrays(table, {"a": [1]})
    wait = ltl.Automaton(("a",), 0, edges([("true", 0, [])], [("true", 1, [0])]), [(1,), ()])
    policy = ltl.Policy(wait, mdp.actions, np.array([[1 + 1, 0]] * 3))
    assert ltl.check(mdp, policy, "X a") == 1
    assert ltl.check(mdp, policy, "X X a") == 0
    assert policy.to_prism(mdp).count("->") == policy.induced_chain(mdp).n_states == 3


def test_the_automaton_starts_in_its_initial_state():
    mdp = ltl.LabelledMDP.from_arrays([[[1.0]]], [{"a"}])
    backwards = ltl.Automaton(("a",), 1, edges([("true", 0, [])], [("a", 1, [0]), ("!a", 0, [])]), [(), ()])
    assert ltl.optimum(mdp, backwards) == 1
    assert ltl.check(mdp, ltl.Policy(backwards, mdp.actions, np.zeros((1, 2), int)), "G a") == 1


def test_a_jump_at_the_wrong_time_does_not_lower_the_probability():
    """The path satisfies F G a whatever the policy's own automaton run does: the formula decides, not the memory."""
    table = np.zeros((2, 1, 2))
    table[0, 0, 1] = table[1, 0, 1] = 1
    mdp = ltl.LabelledMDP.from_arrays(table, {"a": [1]})
    automaton = ltl.translate(ltl.parse("F G a"))
    jumping = [q for q in range(automaton.n_states) if automaton.epsilon(q)]
    choices = np.zeros((2, automaton.n_states), int)
    for q in jumping:
        choices[:, q] = 1 + automaton.epsilon(q)[0]
    assert ltl.check(mdp, ltl.Policy(automaton, mdp.actions, choices), "F G a") == 1


def fake_prism(folder, monkeypatch, script):
    program = folder / "prism"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'Error: out of memory'; exit 1", "gave no result"),
        ("echo 'Result: 0.5'; exit 3", "exit code 3"),
        ("echo 'nothing'", "gave no result"),
        ("echo 'Result: true'", "not a number"),
        ("echo 'Result: NaN'", "not a number"),
        ("echo 'Result: 1.7'", "not a probability"),
        ("echo 'Result: 0.5'; echo 'Result: 0.6'", "gave no result"),
    ],
)
def test_a_failed_check_is_an_error_and_never_a_number(tmp_path, monkeypatch, script, message):
    fake_prism(tmp_path, monkeypatch, script)
    mdp = gambler(0.5)
    with pytest.raises(ltl.CheckError, match=message):
        ltl.check(mdp, memoryless(mdp), "F rich", backend="prism")


def test_prism_answers_are_read(tmp_path, monkeypatch):
    fake_prism(tmp_path, monkeypatch, "echo \"$@\" > $(dirname $0)/seen; echo 'Result: 1/4 (exact rational)'")
    mdp = gambler(0.5)
    assert ltl.check(mdp, memoryless(mdp), "F rich", backend="prism", exact=True) == Fraction(1, 4)
    assert ltl.optimum(mdp, "F rich", backend="prism") == 0.25
    assert 'P=? [ (F "rich") ]' in (tmp_path / "seen").read_text()


def test_without_prism_the_cure_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    mdp = gambler(0.5)
    with pytest.raises(ltl.CheckError, match=r"needs the program 'prism' on the PATH.*backend='native'"):
        ltl.check(mdp, memoryless(mdp), "F rich", backend="prism")


def test_without_stormpy_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "stormpy", None)
    mdp = gambler(0.5)
    with pytest.raises(ltl.CheckError, match=r"pip install \"prudent\[storm\]\""):
        ltl.optimum(mdp, "F rich", backend="storm")


def test_a_formula_that_storm_cannot_check_raises():
    pytest.importorskip("stormpy")
    mdp = ltl.LabelledMDP.from_arrays([[[1.0]]], [{"a", "b", "c"}])
    with pytest.raises(ltl.CheckError, match="Storm failed"):
        ltl.optimum(mdp, "(F G a) & (G F b) & (G F c)", backend="storm")
    assert ltl.optimum(mdp, "(F G a) & (G F b) & (G F c)") == 1


# ---- bad input
# ---------------------------------------------------------------------------------------------------------


def test_bad_requests_are_refused():
    mdp = gambler(0.5)
    with pytest.raises(ValueError, match="backend must be one of native, storm, prism"):
        ltl.optimum(mdp, "F rich", backend="spin")
    with pytest.raises(TypeError, match="needs a formula, not an automaton"):
        ltl.optimum(mdp, ltl.translate(ltl.parse("F rich")), backend="storm")
    with pytest.raises(ValueError, match="the goal uses 'wealthy'"):
        ltl.check(mdp, memoryless(mdp), "F wealthy", backend="prism")


def test_exact_arithmetic_refuses_large_models():
    size = 3100
    rows = np.arange(1, size - 1)
    entries = np.concatenate([np.full(size - 2, 0.5), np.full(size - 2, 0.5), [1.0, 1.0]])
    where = (np.concatenate([rows, rows, [0, size - 1]]), np.concatenate([rows - 1, rows + 1, [0, size - 1]]))
    table = [sp.csr_array((entries, where), shape=(size, size))]
    mdp = ltl.LabelledMDP.from_arrays(table, {"rich": [size - 1]}, initial=1)
    with pytest.raises(ltl.CheckError, match="exact arithmetic is for at most"):
        ltl.optimum(mdp, "F rich", exact=True)
    # The same chain has one component of 3,098 states, which is left to the sparse solver.
    assert ltl.check(mdp, memoryless(mdp), "F rich") == pytest.approx(1 / (size - 1), rel=1e-9)


def test_floats_are_read_as_simple_fractions():
    data = np.array([1 / 3, 1 / 3, 1 / 3, 0.1, 0.9, 0.123456789012345, 1 - 0.123456789012345])
    entries = rational_entries(data, np.array([0, 3, 5, 7]))
    assert entries[:5] == [Fraction(1, 3)] * 3 + [Fraction(1, 10), Fraction(9, 10)]
    assert sum(entries[5:]) == 1


# ---- agreement
# ---------------------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.sampled_from(FORMULAS), st.integers(0, 10**6))
@pytest.mark.filterwarnings("ignore:.*no reachable state")
def test_fast_check_general_check_and_fractions_agree(text, seed):
    mdp = envs.random_mdp(7, 2, ["a", "b", "c"], seed)
    automaton = ltl.translate(ltl.parse(text))
    policy = random_policy(mdp, automaton, seed)
    fast = ltl.check(mdp, policy, automaton)
    assert fast == pytest.approx(_chain_value(mdp, policy, automaton, exact=False), abs=1e-12)
    assert fast == pytest.approx(float(ltl.check(mdp, policy, automaton, exact=True)), abs=1e-12)
    assert fast <= ltl.optimum(mdp, automaton) + 1e-12


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.sampled_from(FORMULAS), st.integers(0, 10**6))
@pytest.mark.filterwarnings("ignore:.*no reachable state")
def test_a_formula_and_its_negation_share_the_probability_of_a_policy(text, seed):
    mdp = envs.random_mdp(6, 2, ["a", "b", "c"], seed)
    policy = memoryless(mdp)
    formula = ltl.parse(text)
    assert ltl.check(mdp, policy, formula, exact=True) + ltl.check(mdp, policy, ~formula, exact=True) == 1


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.sampled_from(FORMULAS), st.integers(0, 10**6))
@pytest.mark.filterwarnings("ignore:.*no reachable state")
def test_storm_agrees(text, seed):
    pytest.importorskip("stormpy")
    mdp = envs.random_mdp(8, 2, ["a", "b", "c"], seed, absorbing=0.3)
    policy = random_policy(mdp, ltl.translate(ltl.parse("F (a & X G F b)")), seed)
    assert ltl.optimum(mdp, text) == pytest.approx(ltl.optimum(mdp, text, backend="storm"), abs=1e-9)
    assert ltl.optimum(mdp, text, exact=True) == ltl.optimum(mdp, text, backend="storm", exact=True)
    assert ltl.check(mdp, policy, text) == pytest.approx(ltl.check(mdp, policy, text, backend="storm"), abs=1e-9)
    assert ltl.check(mdp, policy, text, exact=True) == ltl.check(mdp, policy, text, backend="storm", exact=True)


@settings(derandomize=True, deadline=None, max_examples=15)
@given(st.sampled_from(FORMULAS), st.integers(0, 10**6))
@pytest.mark.filterwarnings("ignore:.*no reachable state")
def test_prism_files_mean_the_same_model(text, seed):
    pytest.importorskip("stormpy")
    mdp = envs.random_mdp(6, 2, ["a", "b", "c"], seed, absorbing=0.3)
    policy = random_policy(mdp, ltl.translate(ltl.parse("F (a & X G F b)")), seed)
    assert ltl.optimum(ltl.LabelledMDP.from_prism(mdp.to_prism()), text, exact=True) == ltl.optimum(
        mdp, text, exact=True
    )
    chain = ltl.LabelledMDP.from_prism(policy.to_prism(mdp))
    assert ltl.optimum(chain, text, exact=True) == ltl.check(mdp, policy, text, exact=True)


def test_an_automaton_with_epsilon_cycles_is_checked_by_the_general_method():
    cyclic = ltl.Automaton(("a",), 0, edges([("a", 0, [0]), ("!a", 0, [])], [("true", 1, [])]), [(1,), (0,)])
    mdp = gambler(0.5)
    relabelled = ltl.LabelledMDP.from_arrays(mdp.transitions.toarray()[:, None, :], {"a": [4]}, initial=1)
    assert ltl.check(relabelled, memoryless(relabelled), cyclic) == pytest.approx(0.25)


def test_several_acceptance_sets_must_all_be_visited():
    both = ltl.Automaton(
        ("a", "b"),
        0,
        edges([("a & b", 0, [0, 1]), ("a & !b", 0, [0]), ("!a & b", 0, [1]), ("!a & !b", 0, [])]),
        [()],
        n_sets=2,
    )
    mdp = envs.grid("...", {"a": [(0, 0)], "b": [(0, 2)]}, start=(0, 1))
    assert ltl.optimum(mdp, both) == 1
    assert ltl.check(mdp, ltl.Policy.memoryless(mdp, [2] * 3), both) == 0


def test_one_checker_serves_many_policies():
    mdp = envs.random_mdp(8, 3, ["a", "b"], seed=4)
    automaton = ltl.translate(ltl.parse("F (a & X G F b)"))
    checker = ltl.Checker(mdp, automaton)
    for seed in range(10):
        policy = random_policy(mdp, automaton, seed)
        assert checker(policy) == ltl.check(mdp, policy, automaton)
