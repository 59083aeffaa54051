"""LTL goals: formulae, automata, products with environments, learning and exact checking."""

from prudent.ltl._automaton import Automaton, Edge
from prudent.ltl._check import Checker, check, optimum
from prudent.ltl._errors import CheckError
from prudent.ltl._formula import Formula
from prudent.ltl._learn import learn
from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._parse import FormulaError, parse
from prudent.ltl._policy import Policy, PolicyFileError
from prudent.ltl._rewards import needed_gamma, reward_optimal_policy, reward_optimum
from prudent.ltl._run import Curve, LearningRun, LearningRuns, Settings
from prudent.ltl._task import Task

__all__ = [
    "Automaton",
    "CheckError",
    "Checker",
    "Curve",
    "Edge",
    "Formula",
    "FormulaError",
    "LabelledMDP",
    "LearningRun",
    "LearningRuns",
    "Policy",
    "PolicyFileError",
    "Settings",
    "Task",
    "check",
    "learn",
    "needed_gamma",
    "optimum",
    "parse",
    "reward_optimal_policy",
    "reward_optimum",
]
