"""Random formulae and words for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from prudent.ltl._formula import FALSE, TRUE, conjunction, disjunction, equivalence, proposition, temporal

NAMES = ("a", "b", "c")


def formulas(max_leaves: int = 8) -> st.SearchStrategy:
    leaves = st.sampled_from([TRUE, FALSE, *(proposition(n) for n in NAMES), *(proposition(n).negate() for n in NAMES)])
    return st.recursive(leaves, _extend, max_leaves=max_leaves)


def _extend(inner: st.SearchStrategy) -> st.SearchStrategy:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(conjunction),
        pairs.map(disjunction),
        pairs.map(lambda p: equivalence(*p)),
        st.builds(lambda op, f: temporal(op, f), st.sampled_from("XFG"), inner),
        st.builds(lambda op, p: temporal(op, *p), st.sampled_from("URWM"), pairs),
    )


def words() -> st.SearchStrategy:
    letters = st.frozensets(st.sampled_from(NAMES))
    return st.tuples(st.lists(letters, max_size=3), st.lists(letters, min_size=1, max_size=4))
