"""Formulae: reading, printing, negation and meaning on ultimately periodic words."""

from __future__ import annotations

import contextlib
import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prudent import ltl
from prudent.ltl._formula import expand_equivalences, proposition, temporal
from prudent.ltl._simplify import simplify

from .strategies import formulas, words


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("a -> b -> c", "a -> (b -> c)"),
        ("a <-> b -> c", "a <-> (b -> c)"),
        ("a | b ^ c", "a | (b ^ c)"),
        ("a ^ b & c", "a ^ (b & c)"),
        ("a & b U c", "a & (b U c)"),
        ("a U b R c", "a U (b R c)"),
        ("F a & G b", "(F a) & (G b)"),
        ("!a U b", "(!a) U b"),
        ("X a U b", "(X a) U b"),
        ("GFa", "G (F a)"),
        ("[]<>a && <>[]b || c", "((G F a) & (F G b)) | c"),
        ("a xor b", "!(a <-> b)"),
        ("1 U a", "F a"),
        ("'x y' W true", "true"),
    ],
)
def test_precedence_is_that_of_spot(text, meaning):
    assert ltl.parse(text) is ltl.parse(meaning)


def test_prefix_operators_are_part_of_a_name_only_before_a_digit():
    assert ltl.parse("F1").propositions == ("F1",)
    assert ltl.parse("Goal") is ltl.parse("G oal")
    assert ltl.parse('"Goal"').propositions == ("Goal",)


@pytest.mark.parametrize(
    ("text", "position", "words_in_message"),
    [
        ("", 1, "empty"),
        ("   ", 1, "empty"),
        ("(a & b", 1, r"'\(' needs a '\)'"),
        ("a)", 2, r"extra '\)'"),
        ("a b", 3, "operator between"),
        ("a & ", 5, "needs an operand"),
        ("G", 2, "needs an operand"),
        ("a U | b", 5, "needs an operand"),
        ("a $ b", 3, r"got '\$'"),
        ("3a", 1, "starts with a letter"),
        ('"a', 1, "closing quote"),
        ('""', 1, "closing quote"),
        ("(a b)", 4, "operator or"),
        ("(" * 101 + "a" + ")" * 101, 101, "nest at most 100"),
    ],
)
def test_errors_point_at_the_character(text, position, words_in_message):
    with pytest.raises(ltl.FormulaError, match=words_in_message) as caught:
        ltl.parse(text)
    message = str(caught.value)
    assert f"at character {position}." in message
    *_, shown, caret = message.split("\n")
    assert caret.strip() == "^"
    if text.strip() and position <= len(text):
        assert shown[len(caret) - 1] == text[position - 1]


def test_errors_in_long_and_multiline_text_show_the_surroundings_only():
    with pytest.raises(ltl.FormulaError) as caught:
        ltl.parse("a & " * 100 + "$" + " & a" * 100)
    assert max(map(len, str(caught.value).split("\n"))) < 160
    with pytest.raises(ltl.FormulaError, match=r"\n  & \$\n    \^"):
        ltl.parse("a\n& $\n& b")


def test_parse_refuses_other_types():
    with pytest.raises(TypeError, match="needs a string, got int"):
        ltl.parse(3)  # type: ignore[arg-type]


def test_equal_formulas_are_one_object_even_when_copied():
    f = ltl.parse("a U (b & X !c)")
    assert f is ltl.parse("(a U (b & (X (!c))))")
    assert pickle.loads(pickle.dumps(f)) is f
    assert copy.deepcopy(f) is f
    assert {f: 1}[ltl.parse("a U (b & X !c)")] == 1


def test_formulas_are_immutable():
    with pytest.raises(AttributeError, match="immutable"):
        ltl.parse("a").name = "b"  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"ltl\.parse"):
        ltl.Formula()


def test_formulas_combine_with_python_operators():
    a, b = ltl.parse("a"), ltl.parse("F b")
    assert (a & b) is ltl.parse("a & F b")
    assert (a | ~b) is ltl.parse("a | G !b")
    with pytest.raises(TypeError):
        a & "b"


def test_constants_fold():
    for text, simple in {
        "a & !a": "false", "a | !a": "true", "F false": "false", "G true": "true", "F F a": "F a", "X true": "true",
        "a U true": "true", "a U false": "false", "false R a": "G a", "a W false": "G a", "a M true": "F a",
        "a <-> a": "true", "a <-> true": "a", "a -> false": "!a",
    }.items():  # fmt: skip
        assert ltl.parse(text) is ltl.parse(simple), text


def test_printers():
    f = ltl.parse('!(a R "b c") & (F G d | !e W f) & (g <-> h)')
    assert str(f) == '!a U !"b c" & (F G d | !e W f) & (g <-> h)'
    assert f.to_infix(parenthesised=True) == '((((!a) U (!"b c")) & ((F (G d)) | ((!e) W f))) & (g <-> h))'
    assert ltl.parse("a W b").to_prism() == '(("a" U "b") | (G "a"))'
    assert ltl.parse("a M b").to_prism() == '("b" U ("a" & "b"))'
    assert repr(ltl.parse("F a")) == "ltl.parse('F a')"


def test_propositions_are_sorted():
    assert ltl.parse("z U (b & X a) | G z").propositions == ("a", "b", "z")
    assert ltl.parse("true").propositions == ()


@pytest.mark.parametrize(
    ("text", "prefix", "cycle", "expected"),
    [
        ("a", [{"a"}], [set()], True),
        ("X a", [{"a"}], [set()], False),
        ("G F a", [], [{"a"}, set()], True),
        ("G F a", [{"a"}], [set()], False),
        ("F G a", [set(), set()], [{"a"}], True),
        ("a U b", [{"a"}, {"a"}], [{"b"}], True),
        ("a U b", [], [{"a"}], False),
        ("a W b", [], [{"a"}], True),
        ("a R b", [{"b"}, {"a", "b"}], [set()], True),
        ("a R b", [{"b"}, {"a"}], [set()], False),
        ("a M b", [], [{"b"}], False),
        ("a <-> X a", [{"a"}], [{"a"}], True),
    ],
)
def test_meaning_on_words(text, prefix, cycle, expected):
    assert ltl.parse(text).holds(prefix, cycle) is expected


def test_a_word_needs_a_cycle():
    with pytest.raises(ValueError, match="at least one letter"):
        ltl.parse("a").holds([{"a"}], [])


@settings(max_examples=200, derandomize=True, deadline=None)
@given(formulas())
def test_printers_are_read_back(f):
    assert ltl.parse(str(f)) is f
    again = ltl.parse(f.to_infix(parenthesised=True))
    assert again is f or str(again) == str(f)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(formulas(), words())
def test_negation_prism_text_and_simplification_keep_the_meaning(f, word):
    value = f.holds(*word)
    assert f.negate().holds(*word) is not value
    assert f.negate().negate() is f
    assert ltl.parse(f.to_prism()).holds(*word) is value
    assert simplify(expand_equivalences(f)).holds(*word) is value


@settings(max_examples=100, derandomize=True, deadline=None)
@given(formulas(), formulas(), words())
def test_temporal_operators_obey_their_expansion_laws(f, g, word):
    def same(one, other):
        assert one.holds(*word) is other.holds(*word)

    until = temporal("U", f, g)
    same(until, g | (f & temporal("X", until)))
    same(temporal("W", f, g), until | temporal("G", f))
    same(temporal("R", f, g), temporal("U", f.negate(), g.negate()).negate())
    same(temporal("M", f, g), temporal("R", f, g) & temporal("F", f))
    same(temporal("F", f), temporal("U", proposition("a") | proposition("a").negate(), f))


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.text(alphabet="aGFXU()!&|<->\"' 1$^", max_size=12))
def test_any_text_is_a_formula_or_a_formula_error(text):
    with contextlib.suppress(ltl.FormulaError):
        ltl.parse(text)


def test_reading_agrees_with_spot():
    spot = pytest.importorskip("spot")
    for i, f in enumerate(spot.randltl(3, 150, tree_size=12, seed=1, simplify=0)):
        text = str(f)
        mine = ltl.parse(text)
        assert spot.are_equivalent(spot.formula(mine.to_infix(parenthesised=True)), f), (i, text)
