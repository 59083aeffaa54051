"""Translation: exact small automata, agreement with the meaning of formulae and with Spot, limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from prudent import envs, ltl

from .strategies import formulas, words


def size(automaton: ltl.Automaton) -> int:
    return automaton.n_states - automaton.has_trap


@pytest.mark.parametrize(
    ("text", "n_states", "n_epsilon"),
    [
        ("true", 1, 0),
        ("false", 0, 0),
        ("a", 2, 0),
        ("X a", 3, 0),
        ("F a", 2, 0),
        ("G a", 1, 0),
        ("a U b", 2, 0),
        ("G F a", 1, 0),
        ("F G a", 2, 1),
        ("G F a | G F b | G F c", 1, 0),  # one state is enough, translators often use four
        ("G F a & G F b & G F c", 3, 0),
        ("F G a | F G b", 3, 2),
        ("F(a & G b)", 3, 1),
        ("G(a | F b)", 2, 0),
        ("F G a & G !c", 2, 1),
        ("(G F a | G F b) & G !h", 1, 0),
        ("G F (a & X F b)", 2, 0),
        ("(F G a | G F b) & (F G c | G F d)", 6, 4),
    ],
)
def test_small_automata(text, n_states, n_epsilon):
    automaton = ltl.translate(text)
    assert (size(automaton), automaton.n_epsilon) == (n_states, n_epsilon)
    assert automaton.n_sets == 1
    assert automaton.is_limit_deterministic()


@pytest.mark.parametrize(
    ("text", "owl"),
    [
        ("((F (l & (X ((G F t) & (G F w))))) | ((G F a) & (G F b))) & (G !o)", 8),
        ("F(a & Gb) | F(c & Gd) | F(e & Gf) | F(g & Gh)", 20),
        ("F G ((a U X X b) | (c U X X d))", 73),
        ("(FGa | GFb) & (FGc | GFa) & (FGd | GFc) & (FGe | GFd)", 29),
        ("(Fa | Gb) & (Fb | Gc) & (Fc | Gd) & (Fd | Ge)", 55),
    ],
)
def test_sizes_stay_below_those_of_owl(text, owl):
    assert size(ltl.translate(text)) <= owl


def test_propositions_are_those_of_the_formula():
    assert ltl.translate("a | !a & b").propositions == ("a", "b")
    assert ltl.translate("F (b | !b) & a").propositions == ("a",)


def test_unsatisfiable_formula_is_the_trap_alone():
    for text in ["false", "F a & G !a", "G F a & F G !a", "X (a & b) & X !a"]:
        automaton = ltl.translate(text)
        assert automaton.n_states == 1, text
        assert automaton.is_trap(automaton.initial), text


def test_valid_formula_is_one_accepting_state():
    for text in ["F a | G !a", "G F a | F G !a", "(a U b) -> F b"]:
        automaton = ltl.translate(text)
        assert automaton.n_states == 1, text
        assert not automaton.has_trap, text


@settings(max_examples=150, derandomize=True, deadline=None)
@given(formulas(max_leaves=9), words())
def test_automaton_accepts_exactly_the_words_that_satisfy(f, word):
    automaton = ltl.translate(f)
    assert automaton.accepts(*word) is f.holds(*word)
    assert ltl.translate(f.negate()).accepts(*word) is not f.holds(*word)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(formulas(max_leaves=10))
def test_only_epsilon_moves_are_choices_and_none_follows_another(f):
    automaton = ltl.translate(f)
    letters = [frozenset(n for i, n in enumerate(automaton.propositions) if k >> i & 1) for k in range(8)]
    automaton.tabulate(letters)  # one edge for every letter in every state
    assert automaton.is_limit_deterministic()
    for q in range(automaton.n_states):
        for p in automaton.epsilon(q):
            reached = [p]
            for r in reached:
                assert automaton.epsilon(r) == ()
                reached += [e.target for e in automaton.edges(r) if e.target not in reached]


def test_languages_agree_with_spot():
    spot = pytest.importorskip("spot")
    for f in spot.randltl(3, 120, tree_size=14, seed=5, simplify=0):
        formula = ltl.parse(f.to_str("spot", True))
        plain = spot.automaton(ltl.translate(formula).remove_epsilon().to_hoa())
        assert spot.are_equivalent(plain, f), str(f)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "text",
    [
        "F G a | G F b",
        "(F G a | G F b) & (F G b | G F c)",
        "F(a & G b) | F(c & G a)",
        "G(a | F(b & G c)) | F G a",
        "G(F a | F G b) & (b U c | F G !c)",
        "F(a & X X G(b | X c))",
        "G((a W b) | (c W a)) & F G (a | b)",  # which of two W holds is decided later: no jump may commit to one
        "F((a W b) | (c W a))",
        "(a U G b) | (b R F c)",
    ],
)
def test_automata_are_good_for_mdps(text):
    # In a Markov chain the epsilon moves are the only choices. Were they too few or too early, the best probabilities
    # of the formula and of its negation would sum to less than one.
    formula = ltl.parse(text)
    pair = ltl.translate(formula), ltl.translate(formula.negate())
    for seed in range(12):
        chain = envs.random_mdp(7, 1, ["a", "b", "c"], seed=seed, n_successors=2, absorbing=0.1, density=0.5)
        assert sum(ltl.optimum(chain, automaton) for automaton in pair) == pytest.approx(1.0, abs=1e-9)


def test_translation_is_reproducible():
    text = "F(a & G(b | F c)) | (a R X b)"
    assert ltl.translate(text).to_hoa() == ltl.translate(text).to_hoa()


def test_limits_are_errors_that_name_the_cure():
    hard = " & ".join(f"G(a{i} | X X X X b{i})" for i in range(8))
    with pytest.raises(ltl.TranslationLimitError, match="Raise max_states"):
        ltl.translate(hard, max_states=50)
    with pytest.raises(ltl.TranslationLimitError, match="Raise budget_seconds"):
        ltl.translate(hard, budget_seconds=0.05)


def test_deep_and_wide_formulas_end_in_an_automaton_or_a_clear_error():
    assert size(ltl.translate("X" * 200 + "a")) == 202
    assert size(ltl.translate(" | ".join(f"G F a{i}" for i in range(60)))) == 1
    with pytest.raises(ltl.FormulaError, match="nest at most 250 deep"):
        ltl.parse("X" * 300 + "a")
    with pytest.raises(ltl.TranslationLimitError):
        ltl.translate(" & ".join(f"F a{i}" for i in range(40)), budget_seconds=0.2)


def test_bad_arguments():
    with pytest.raises(ltl.FormulaError):
        ltl.translate("G (")
    with pytest.raises(TypeError, match="needs a Formula or a string"):
        ltl.translate(1)  # type: ignore[arg-type]
