"""LTL goals: formulae, automata, products with environments, learning and exact checking."""

from prudent.ltl._automaton import Automaton, Edge
from prudent.ltl._certificate import Bounds, Certificate, CertifiedRun, CertifiedRuns, CertifiedSettings
from prudent.ltl._check import Checker, check, optimum
from prudent.ltl._errors import CheckError
from prudent.ltl._formula import Formula
from prudent.ltl._hoa_reader import HOAError
from prudent.ltl._learn import learn, q_learn
from prudent.ltl._learn_certified import learn_certified
from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._parse import FormulaError, parse
from prudent.ltl._policy import Policy, PolicyFileError
from prudent.ltl._product_env import ProductEnv
from prudent.ltl._rewards import needed_gamma, reward_optimal_policy, reward_optimum
from prudent.ltl._run import Curve, LearningRun, LearningRuns, Settings
from prudent.ltl._sketch import TranslationLimitError
from prudent.ltl._synthesis import optimal_policy
from prudent.ltl._task import Task
from prudent.ltl._translate import translate

__all__ = [
    "Automaton",
    "Bounds",
    "Certificate",
    "CertifiedRun",
    "CertifiedRuns",
    "CertifiedSettings",
    "CheckError",
    "Checker",
    "Curve",
    "Edge",
    "Formula",
    "FormulaError",
    "HOAError",
    "LabelledMDP",
    "LearningRun",
    "LearningRuns",
    "Policy",
    "PolicyFileError",
    "ProductEnv",
    "Settings",
    "Task",
    "TranslationLimitError",
    "check",
    "learn",
    "learn_certified",
    "needed_gamma",
    "optimal_policy",
    "optimum",
    "parse",
    "q_learn",
    "reward_optimal_policy",
    "reward_optimum",
    "translate",
]
