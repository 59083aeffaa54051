"""The product of model and automaton, and the changes made to automata before learning."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prudent import envs, ltl
from prudent.ltl._product import build_product, degeneralise, is_empty, thin_acceptance

LETTERS = [frozenset(), frozenset("a"), frozenset("b"), frozenset("ab")]
words = st.lists(st.sampled_from(LETTERS), max_size=4)
cycles = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=4)


def line(labels):
    """A chain s0 -> s1 -> ... whose last state loops."""
    n = len(labels)
    table = np.zeros((n, 1, n))
    for s in range(n):
        table[s, 0, min(s + 1, n - 1)] = 1
    return ltl.LabelledMDP.from_arrays(table, labels, propositions=["a", "b"])


def edges(*rows):
    return [[ltl.Edge(ltl.parse(g), t, frozenset(s)) for g, t, s in row] for row in rows]


def test_the_automaton_reads_the_label_of_the_state_that_is_left():
    automaton = ltl.Automaton(("a",), 0, edges([("a", 1, []), ("!a", 0, [])], [("true", 1, [0])]), [(), ()])
    product = build_product(line([{"a"}, set()]), automaton)
    assert product.next_q.tolist() == [[1, 1], [0, 1]]
    assert product.accepting.tolist() == [[0, 1], [0, 1]]


def test_letters_may_hold_several_propositions():
    automaton = ltl.translate(ltl.parse("F (a & b)"))
    assert ltl.optimum(line([set(), {"a", "b"}]), automaton) == 1
    assert ltl.optimum(line([{"a"}, {"b"}]), automaton) == 0


def test_running_sums_end_with_one():
    product = build_product(envs.frozen_lake(), ltl.translate(ltl.parse("F a")))
    assert np.all(product.cumulative[product.row_start[1:] - 1] == 1.0)
    assert np.all((product.cumulative > 0) & (product.cumulative <= 1))


def test_an_unknown_proposition_is_refused():
    with pytest.raises(ValueError, match=r"the goal uses 'goal', but the model's propositions are 'a', 'c'"):
        ltl.optimum(envs.probabilistic_gate(), "F goal")


def test_a_proposition_that_never_holds_is_warned_about():
    with pytest.warns(UserWarning, match="'b' holds in no reachable state"):
        assert ltl.optimum(line([{"a"}]), "F b") == 0


@pytest.mark.parametrize("goal", ["false", "(F a) & (G !a)", "a & !a"])
def test_an_unsatisfiable_goal_has_probability_zero_and_says_so(goal):
    with pytest.warns(UserWarning, match="unsatisfiable"):
        assert ltl.optimum(line([{"a"}]), goal) == 0


def test_emptiness_needs_every_set_on_one_cycle():
    apart = edges([("a", 1, []), ("!a", 0, [0])], [("true", 1, [1])])
    assert is_empty(ltl.Automaton(("a",), 0, apart, [(), ()], n_sets=2))
    together = edges([("a", 1, []), ("!a", 0, [0])], [("true", 0, [1])])
    assert not is_empty(ltl.Automaton(("a",), 0, together, [(), ()], n_sets=2))


GENERALISED = ltl.Automaton(
    ("a", "b"),
    0,
    edges([("a & b", 0, [0, 1]), ("a & !b", 0, [0]), ("!a & b", 0, [1]), ("!a & !b", 0, [])]),
    [()],
    n_sets=2,
)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(words, cycles)
def test_degeneralisation_keeps_the_language(prefix, cycle):
    assert degeneralise(GENERALISED).accepts(prefix, cycle) == GENERALISED.accepts(prefix, cycle)


def test_degeneralisation_counts_sets_in_order():
    single = degeneralise(GENERALISED)
    assert (single.n_sets, single.n_states) == (1, 2)
    assert single.step(0, {"b"}) == (0, frozenset())
    assert single.step(0, {"a", "b"}) == (0, frozenset([0]))


def test_thinning_leaves_one_mark_for_each_round():
    patrol = edges(
        [("a", 1, [0]), ("!a", 0, [])],
        [("b", 0, [0]), ("!b", 1, [])],
    )
    thin = thin_acceptance(ltl.Automaton(("a", "b"), 0, patrol, [(), ()]))
    assert sum(bool(e.sets) for q in range(2) for e in thin.edges(q)) == 1


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.sampled_from(["G F a & G F b", "F G a | G F b", "G (a -> X F b)", "F (a & X G F b)", "G a", "F b"]),
    words,
    cycles,
)
def test_thinning_keeps_the_language(text, prefix, cycle):
    automaton = ltl.translate(ltl.parse(text))
    assert thin_acceptance(automaton).accepts(prefix, cycle) == automaton.accepts(prefix, cycle)


@st.composite
def marked_automata(draw):
    """Deterministic automata over one proposition with random marks."""
    n = draw(st.integers(1, 4))
    rows = []
    for _ in range(n):
        rows.append(
            [(g, draw(st.integers(0, n - 1)), [0] if draw(st.booleans()) else []) for g in ("a", "!a")],
        )
    return ltl.Automaton(("a",), 0, edges(*rows), [()] * n)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(marked_automata(), words, cycles)
def test_thinning_keeps_the_language_of_random_automata(automaton, prefix, cycle):
    assert thin_acceptance(automaton).accepts(prefix, cycle) == automaton.accepts(prefix, cycle)
