"""Instrumental variables: effect, policy and diagnostics from a table with roles."""

from prudent.iv._diagnosis import Diagnosis
from prudent.iv._policy import Policy, PolicyValue
from prudent.iv._regression import WEAK_F, IVRegression

__all__ = ["WEAK_F", "Diagnosis", "IVRegression", "Policy", "PolicyValue"]
