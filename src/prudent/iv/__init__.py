"""Instrumental variables: effect, policy and diagnostics from a table with roles."""

from prudent.iv._diagnosis import Diagnosis
from prudent.iv._lcb import KernLCB, LinLCB, NeuraLCB, NeuralLinGreedy, NeuralLinLCB, OfflineBandit
from prudent.iv._policy import Policy, Suboptimality, suboptimality
from prudent.iv._regression import WEAK_F, IVRegression
from prudent.iv._value import PolicyValue

__all__ = [
    "WEAK_F",
    "Diagnosis",
    "IVRegression",
    "KernLCB",
    "LinLCB",
    "NeuraLCB",
    "NeuralLinGreedy",
    "NeuralLinLCB",
    "OfflineBandit",
    "Policy",
    "PolicyValue",
    "Suboptimality",
    "suboptimality",
]
