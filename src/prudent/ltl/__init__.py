"""LTL goals: formulae, automata, products with environments, learning and exact checking."""

from prudent.ltl._automaton import Automaton, Edge
from prudent.ltl._formula import Formula
from prudent.ltl._parse import FormulaError, parse

__all__ = [
    "Automaton",
    "Edge",
    "Formula",
    "FormulaError",
    "parse",
]
