"""Policies with finite memory: acting, files, simulation and the induced chain."""

import json
from fractions import Fraction

import numpy as np
import pytest

from prudent import envs, ltl


@pytest.fixture(scope="module")
def gate():
    return envs.probabilistic_gate()


@pytest.fixture(scope="module")
def automaton():
    """F G a & G !c, with an epsilon move from waiting (1) to checking (0): the initial state is not number 0."""
    rows = [
        [("a & !c", 0, [0]), ("!a | c", 2, [])],
        [("!c", 1, []), ("c", 2, [])],
        [("true", 2, [])],
    ]
    edges = [[ltl.Edge(ltl.parse(g), t, frozenset(s)) for g, t, s in row] for row in rows]
    return ltl.Automaton(("a", "c"), 1, edges, [(), (0,), ()])


@pytest.fixture(scope="module")
def policy(gate, automaton):
    """Down to the gate, right along its row, and the epsilon move at the accepting end (2,9)."""
    names = list(gate.state_names)
    choices = np.full((gate.n_states, 3), 2)
    choices[names.index("(1,0)")] = 1
    choices[names.index("(2,9)"), 1] = 4 + 0
    return ltl.Policy(automaton, gate.actions, choices)


def test_memory_moves_with_the_labels_of_the_state_that_is_left(gate, policy):
    end = gate.state_names.index("(2,9)")
    policy.reset()
    assert policy.memory == 1
    assert policy.act(gate.state_names.index("(1,0)"), set()) == 1
    assert policy.memory == 1
    assert policy.act(end, {"a"}) == 2
    assert policy.memory == 0
    assert policy.act(end, {"a"}) == 2
    assert policy.memory == 0
    policy.reset()
    policy.act(0, {"c"})
    assert policy.memory == 2


def test_act_refuses_unknown_states(policy):
    with pytest.raises(ValueError, match=r"state must be in 0\.\.21, got 99"):
        policy.act(99, set())


def test_the_induced_chain_has_the_right_probability(gate, automaton, policy):
    chain = policy.induced_chain(gate)
    assert chain.is_chain
    assert chain.initial[0] == 1
    assert ltl.check(gate, policy, automaton) == pytest.approx(0.8, abs=1e-15)
    assert ltl.check(gate, policy, automaton, exact=True) == Fraction(4, 5)
    assert chain.name(0) == "(1,0)|1"


def test_simulation_follows_the_model(gate, policy):
    path = policy.simulate(gate, 30, seed=3)
    assert len(path.states) == 31
    assert len(path.actions) == 30
    assert path.memory[0] == 1
    for s, a, after in zip(path.states, path.actions, path.states[1:], strict=False):
        assert after in gate.successors(int(s), int(a))
    again = policy.simulate(gate, 30, seed=3)
    assert np.array_equal(path.states, again.states)


def test_simulated_frequency_agrees_with_the_exact_probability(gate, policy):
    end = gate.state_names.index("(2,9)")
    hits = np.mean([policy.simulate(gate, 12, seed=i).states[-1] == end for i in range(300)])
    assert abs(hits - 0.8) < 3 * np.sqrt(0.8 * 0.2 / 300)


def test_saved_policies_come_back(tmp_path, gate, policy, automaton):
    policy.save(tmp_path / "policy.json")
    back = ltl.Policy.load(tmp_path / "policy.json")
    assert np.array_equal(back.choices, policy.choices)
    assert back.actions == policy.actions
    assert ltl.check(gate, back, automaton) == ltl.check(gate, policy, automaton)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:40], "not valid JSON"),
        (lambda text: "[1, 2]", "its 'format' is not"),
        (lambda text: text.replace("prudent-ltl-policy", "something"), "its 'format' is not"),
        (lambda text: text.replace('"version": 1', '"version": 99'), "version 99, this release reads version 1"),
        (lambda text: text.replace('"choices"', '"selections"'), "corrupt policy file: 'choices'"),
        (lambda text: text.replace("HOA: v1", "HOA: no"), "corrupt policy file"),
        (lambda text: text.replace('"actions": ["up", ', '"actions": ['), "corrupt policy file"),
    ],
)
def test_broken_files_are_refused_clearly(tmp_path, policy, change, message):
    path = tmp_path / "policy.json"
    policy.save(path)
    path.write_text(change(path.read_text()))
    with pytest.raises(ltl.PolicyFileError, match=message):
        ltl.Policy.load(path)


def test_files_hold_plain_json(tmp_path, policy):
    policy.save(tmp_path / "policy.json")
    record = json.loads((tmp_path / "policy.json").read_text())
    assert record["automaton"].startswith("HOA: v1")
    assert record["version"] == 1


def test_choices_must_fit_automaton_and_model(gate, automaton, policy):
    with pytest.raises(ValueError, match="one column for each of the 3 automaton states"):
        ltl.Policy(automaton, gate.actions, np.zeros((22, 2), int))
    with pytest.raises(ValueError, match="choices must be actions"):
        ltl.Policy(automaton, gate.actions, np.full((22, 3), 9))
    with pytest.raises(ValueError, match="epsilon move from 0 to 1, which the automaton lacks"):
        ltl.Policy(automaton, gate.actions, np.full((22, 3), 5))
    with pytest.raises(ValueError, match="the policy is for 22 states"):
        ltl.check(envs.frozen_lake(), policy, "F a")


def test_an_action_that_does_not_exist_is_named(gate):
    first = gate.available(0)
    assert first == (2,)
    policy = ltl.Policy.memoryless(gate, [0] * gate.n_states)
    with pytest.raises(ValueError, match=r"takes 'up' in state \(0,0\).*only \['right'\] exist"):
        ltl.check(gate, policy, "F a")
    with pytest.raises(ValueError, match="takes 'up'"):
        policy.induced_chain(gate)


def test_prism_text_marks_epsilon_moves_and_starts_in_the_initial_state(gate, policy):
    text = policy.to_prism(gate)
    start, end = gate.state_names.index("(1,0)"), gate.state_names.index("(2,9)")
    assert f"m : [0..21] init {start};" in text
    assert "a : [0..2] init 1;" in text
    assert f"[ep] (m={end})&(a=1) -> 1 : (m'={end})&(a'=0);" in text
    assert "4/5 : " in text
    assert 'label "c" = (m=' in text


def test_epsilon_moves_that_never_end_are_refused(gate):
    """Two automaton states that jump to each other: the policy never acts, so nothing is satisfied."""
    rows = [[("true", 0, [0])], [("true", 1, [0])]]
    edges = [[ltl.Edge(ltl.parse(g), t, frozenset(s)) for g, t, s in row] for row in rows]
    circling = ltl.Automaton((), 0, edges, [(1,), (0,)])
    policy = ltl.Policy(circling, gate.actions, np.tile([5, 4], (gate.n_states, 1)))
    with pytest.raises(ValueError, match="never end; it has no action"):
        policy.act(0, set())
    with pytest.raises(ValueError, match="never end; no chain"):
        policy.induced_chain(gate)
    assert ltl.check(gate, policy, "G !c") == 0
