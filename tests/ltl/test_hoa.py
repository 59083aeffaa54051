"""HOA text: what is written, what is read, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from prudent import ltl
from prudent.ltl import Automaton, HOAError

from .strategies import formulas, words

RABINIZER_STYLE = """HOA: v1
tool: "owl" "dev"
States: 2
Start: 0
acc-name: Buchi
Acceptance: 1 Inf(0)
AP: 1 "a"
properties: trans-acc
--BODY--
State: 0 "F G a"
[t] 0
1
State: 1
[0] 1 {0}
--END--
"""

STATE_BASED = """HOA: v1
States: 2
Start: 0
AP: 2 "a" "b b"
Alias: @x 0 & !1
Acceptance: 2 Inf(0) & Inf(1)
--BODY--
State: 0 {0}
[@x] 1
[!@x] 0
State: [t] 1 {1}
0
--END--
"""


def test_an_epsilon_move_is_an_edge_labelled_with_the_alias():
    text = ltl.translate("F G a").to_hoa()
    assert 'AP: 2 "a" "epsilon"' in text
    assert "Alias: @epsilon 1" in text
    assert "[@epsilon] 1" in text
    assert Automaton.from_hoa(text) == ltl.translate("F G a")


def test_the_extra_proposition_gets_a_name_of_its_own():
    automaton = ltl.translate('F G "epsilon"')
    assert 'AP: 2 "epsilon" "epsilon_"' in automaton.to_hoa()
    assert Automaton.from_hoa(automaton.to_hoa()) == automaton


def test_unlabelled_edges_beside_labelled_ones_are_epsilon_moves():
    automaton = Automaton.from_hoa(RABINIZER_STYLE)
    assert automaton.epsilon(0) == (1,)
    assert automaton.names[0] == "F G a"
    assert automaton.has_trap  # state 1 had no edge for !a
    assert automaton.is_limit_deterministic()
    assert automaton.accepts([set()], [{"a"}])
    assert not automaton.accepts([], [{"a"}, set()])


def test_state_based_acceptance_moves_to_the_outgoing_edges():
    automaton = Automaton.from_hoa(STATE_BASED)
    assert automaton.n_sets == 2
    assert automaton.propositions == ("a", "b b")
    assert automaton.step(0, {"a"}) == (1, frozenset([0]))
    assert automaton.step(1, set()) == (0, frozenset([1]))


def test_implicit_labels_count_letters_from_the_first_proposition():
    text = (
        'HOA: v1 States: 2 Start: 0 AP: 2 "a" "b" Acceptance: 1 Inf(0) properties: implicit-labels --BODY--\n'
        "State: 0 0 1 0 0\nState: 1 1 1 1 1 --END--"
    )
    automaton = Automaton.from_hoa(text)
    assert automaton.step(0, {"a"})[0] == 1
    assert automaton.step(0, {"b"})[0] == 0


def test_acceptance_t_accepts_every_run_and_f_none():
    text = 'HOA: v1 States: 1 Start: 0 AP: 1 "a" Acceptance: 0 {} --BODY-- State: 0 [0] 0 --END--'
    safety = Automaton.from_hoa(text.format("t"))
    assert safety.accepts([], [{"a"}])
    assert not safety.accepts([{"a"}], [set()])
    assert not Automaton.from_hoa(text.format("f")).accepts([], [{"a"}])


def test_several_start_states_are_a_choice():
    text = (
        'HOA: v1 States: 2 Start: 0 Start: 1 AP: 1 "a" Acceptance: 1 Inf(0) --BODY--\n'
        "State: 0 [0] 0 {0} State: 1 [!0] 1 {0} --END--"
    )
    automaton = Automaton.from_hoa(text)
    assert automaton.accepts([], [{"a"}])
    assert automaton.accepts([], [set()])
    assert not automaton.accepts([], [{"a"}, set()])


@pytest.mark.parametrize(
    ("old", "new", "line", "words_in_message"),
    [
        ("HOA: v1", "never { }", 1, "starts with"),
        ("HOA: v1", "HOA: v2", 1, "version v1"),
        ("Acceptance: 2 Inf(0) & Inf(1)", "", 7, "Acceptance line"),
        ("Inf(0) & Inf(1)", "Fin(0) & Inf(1)", 6, "Buechi"),
        ('AP: 2 "a" "b b"', 'AP: 3 "a" "b b"', 4, "announces 3"),
        ("Alias:", "Unknown:", 5, "must be understood"),
        ("[@x] 1", "[@y] 1", 9, "alias is defined"),
        ("[@x] 1", "[7] 1", 9, "numbered 0 to 1"),
        ("[@x] 1", "[0 & ] 1", 9, "label has"),
        ("[@x] 1", "[0 1", 9, "']' is needed"),
        ("[@x] 1", "[@x] 9", 9, "numbered 0 to 1"),
        ("[@x] 1", "[@x] 0 & 1", 9, "alternating"),
        ("[@x] 1", "[@x] 1 {5}", 9, "sets are numbered"),
        ("[@x] 1", "[@x] ?", 9, "no such character"),
        ("State: [t] 1", "State: [t] 0", 11, "described once"),
        ("--END--", "", 14, "complete"),
        ("Start: 0", "Start: 8", 3, "start state 8"),
    ],
)
def test_broken_text_gives_the_line(old, new, line, words_in_message):
    assert old in STATE_BASED
    with pytest.raises(HOAError, match=words_in_message) as caught:
        Automaton.from_hoa(STATE_BASED.replace(old, new, 1))
    assert str(caught.value).startswith(f"line {line}:")


def test_missing_implicit_edges_are_counted():
    text = 'HOA: v1 States: 1 Start: 0 AP: 2 "a" "b" Acceptance: 1 Inf(0) --BODY-- State: 0 0 0 --END--'
    with pytest.raises(HOAError, match="each of the 4 letters, got 2"):
        Automaton.from_hoa(text)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(formulas(), words())
def test_round_trip(f, word):
    automaton = ltl.translate(f)
    assert Automaton.from_hoa(automaton.to_hoa()) == automaton
    plain = automaton.remove_epsilon()
    assert Automaton.from_hoa(plain.to_hoa()).accepts(*word) is f.holds(*word)


def test_spot_reads_what_is_written_and_is_read_back():
    spot = pytest.importorskip("spot")
    for text in ["F G a", "(a U b) | G F c", "G(a -> F b) & F G !c", '"x y" & F "q\\"r"', "false", "true"]:
        f = ltl.parse(text)
        plain = ltl.translate(f).remove_epsilon()
        theirs = spot.automaton(plain.to_hoa())
        assert spot.are_equivalent(theirs, spot.formula(f.to_infix(parenthesised=True))), text
        for style in ("t", "i", "k", "l"):
            back = Automaton.from_hoa(theirs.to_str("hoa", style))
            assert spot.are_equivalent(spot.automaton(back.remove_epsilon().to_hoa()), theirs), (text, style)


def test_automata_of_spot_become_usable_in_products():
    spot = pytest.importorskip("spot")
    theirs = spot.translate("F G a | G F b", "Buchi", "SBAcc")
    automaton = Automaton.from_hoa(theirs.to_str("hoa")).choices_to_epsilon()
    automaton.tabulate([frozenset(), frozenset("a"), frozenset("b")])
    assert automaton.accepts([], [{"b"}, set()])
    assert automaton.accepts([set()], [{"a"}])
    assert not automaton.accepts([{"b"}], [set()])
