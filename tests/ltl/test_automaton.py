"""The automaton type: tables, runs, structure, drawings."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

from prudent import ltl
from prudent.ltl import Automaton, Edge

matplotlib.use("Agg")

A, B = ltl.parse("a"), ltl.parse("b")
NOT_A, NOT_B = A.negate(), B.negate()
TRUE = ltl.parse("true")
NONE, ZERO, ONE = frozenset(), frozenset([0]), frozenset([1])


def eventually_always_a() -> Automaton:
    """F G a: wait in 0, jump to 1, trap 2."""
    edges = [
        [Edge(TRUE, 0, NONE)],
        [Edge(A, 1, ZERO), Edge(NOT_A, 2, NONE)],
        [Edge(TRUE, 2, NONE)],
    ]
    return Automaton(["a"], 0, edges, [[1], [], []])


def both_infinitely_often() -> Automaton:
    """G F a & G F b with two acceptance sets."""
    marked = [(A & B, frozenset([0, 1])), (A & NOT_B, ZERO), (NOT_A & B, ONE), (NOT_A & NOT_B, NONE)]
    edges = [[Edge(guard, 0, sets) for guard, sets in marked]]
    return Automaton(["a", "b"], 0, edges, [[]], n_sets=2)


def test_counts_and_traps():
    automaton = eventually_always_a()
    assert (automaton.n_states, automaton.n_epsilon, automaton.n_sets, automaton.initial) == (3, 1, 1, 0)
    assert automaton.has_trap
    assert [automaton.is_trap(q) for q in range(3)] == [False, False, True]
    assert not both_infinitely_often().has_trap
    assert repr(automaton) == "<Automaton: 3 states with trap, 1 epsilon moves, Buechi, propositions a>"


def test_step_ignores_propositions_the_automaton_does_not_know():
    automaton = eventually_always_a()
    assert automaton.step(1, {"a", "unknown"}) == (1, ZERO)
    assert automaton.step(1, set()) == (2, NONE)
    with pytest.raises(TypeError, match="set of propositions"):
        automaton.step(1, "a")


def test_table_has_one_bit_for_each_acceptance_set():
    letters = [frozenset(), frozenset({"a"}), frozenset({"a", "b"})]
    following, accepting = both_infinitely_often().tabulate(letters)
    assert following.dtype == np.int32
    assert accepting.dtype == np.uint64
    assert following.tolist() == [[0, 0, 0]]
    assert accepting.tolist() == [[0, 1, 3]]


def test_table_agrees_with_step():
    automaton = ltl.translate("(a U b) & (G F a | F G b)")
    letters = [frozenset(), frozenset("a"), frozenset("b"), frozenset("ab")]
    following, accepting = automaton.tabulate(letters)
    for q in range(automaton.n_states):
        for i, letter in enumerate(letters):
            assert (following[q, i], int(accepting[q, i])) == (
                automaton.step(q, letter)[0],
                sum(1 << s for s in automaton.step(q, letter)[1]),
            )


def test_accepts_needs_every_set_infinitely_often():
    automaton = both_infinitely_often()
    assert automaton.accepts([], [{"a"}, {"b"}])
    assert not automaton.accepts([{"b"}, {"b"}], [{"a"}])
    with pytest.raises(ValueError, match="at least one letter"):
        automaton.accepts([{"a"}], [])


def test_epsilon_moves_take_no_time():
    automaton = ltl.Automaton(
        ["a"],
        0,
        [[Edge(TRUE, 2, NONE)], [Edge(A, 1, ZERO), Edge(NOT_A, 2, NONE)], [Edge(TRUE, 2, NONE)]],
        [[1], [], []],
    )
    assert automaton.accepts([], [{"a"}])
    assert not automaton.accepts([set()], [{"a"}])


def test_removing_epsilon_keeps_the_language_and_nothing_else():
    automaton = eventually_always_a()
    plain = automaton.remove_epsilon()
    assert plain.n_epsilon == 0
    assert not plain.is_deterministic()
    for prefix, cycle in [([], [{"a"}]), ([set()], [{"a"}]), ([], [{"a"}, set()]), ([{"a"}], [set()])]:
        assert plain.accepts(prefix, cycle) is automaton.accepts(prefix, cycle)
    with pytest.raises(ValueError, match="choices_to_epsilon"):
        plain.step(0, {"a"})
    with pytest.raises(ValueError, match="choices_to_epsilon"):
        plain.tabulate([frozenset("a")])


def test_choices_between_edges_become_epsilon_moves():
    plain = eventually_always_a().remove_epsilon()
    automaton = plain.choices_to_epsilon()
    automaton.tabulate([frozenset(), frozenset("a")])
    assert automaton.is_limit_deterministic()
    for prefix, cycle in [([], [{"a"}]), ([set()], [{"a"}]), ([], [{"a"}, set()]), ([{"a"}], [set()])]:
        assert automaton.accepts(prefix, cycle) is plain.accepts(prefix, cycle)


def test_choices_with_different_marks_are_refused():
    edges = [[Edge(A, 0, ZERO), Edge(A, 0, NONE), Edge(NOT_A, 0, NONE)]]
    with pytest.raises(ValueError, match="same acceptance sets"):
        Automaton(["a"], 0, edges, [[]]).choices_to_epsilon()


def test_limit_determinism():
    assert eventually_always_a().is_limit_deterministic()
    assert both_infinitely_often().is_deterministic()
    # An accepting loop beside an epsilon move: a choice for ever.
    loop = Automaton(["a"], 0, [[Edge(TRUE, 0, ZERO)], [Edge(TRUE, 1, ZERO)]], [[1], []])
    assert not loop.is_limit_deterministic()
    # Deterministic edges, but the accepting state can still reach a choice.
    later = Automaton(["a"], 0, [[Edge(A, 0, ZERO), Edge(NOT_A, 1, NONE)], [Edge(TRUE, 1, NONE)]], [[], [0]])
    assert not later.is_limit_deterministic()


@pytest.mark.parametrize(
    ("change", "words_in_message"),
    [
        ({"propositions": ["a", "a"]}, "must differ"),
        ({"initial": 3}, "numbered 0 to 0"),
        ({"edges": [[Edge(TRUE, 1, NONE)]]}, "numbered 0 to 0"),
        ({"edges": [[Edge(B, 0, NONE)]]}, "propositions only"),
        ({"edges": [[Edge(A, 0, ONE)]]}, "acceptance sets are numbered"),
        ({"epsilon": [[], []]}, "one entry a state"),
        ({"n_sets": 65}, "between 1 and 64"),
        ({"n_sets": 0}, "between 1 and 64"),
    ],
)
def test_bad_automata_are_refused(change, words_in_message):
    good = {"propositions": ["a"], "initial": 0, "edges": [[Edge(TRUE, 0, ZERO)]], "epsilon": [[]], "n_sets": 1}
    Automaton(**good)
    with pytest.raises(ValueError, match=words_in_message):
        Automaton(**(good | change))


def test_equality_is_structural():
    assert eventually_always_a() == eventually_always_a()
    assert hash(eventually_always_a()) == hash(eventually_always_a())
    assert eventually_always_a() != both_infinitely_often()


def test_dot_shows_acceptance_and_epsilon_and_hides_the_trap():
    text = eventually_always_a().to_dot()
    assert text.startswith("digraph")
    assert text.rstrip().endswith("}")
    assert "style=dashed" in text
    assert "style=bold" in text
    assert "-> 2" not in text


def test_plot_draws_every_state_but_the_trap():
    import matplotlib.pyplot as plt

    automaton = ltl.translate("((G F a) | (G F b)) & (G !h) | F G c")
    ax = automaton.plot()
    shown = {text.get_text() for text in ax.texts}
    assert {str(q) for q in range(automaton.n_states) if not automaton.is_trap(q)} <= shown
    assert "ε" in shown
    plt.close("all")
    _, axes = plt.subplots()
    assert eventually_always_a().plot(axes, show_trap=True) is axes
    assert ltl.translate("false").plot(axes) is axes
    plt.close("all")
