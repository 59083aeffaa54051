"""Proximal causal learning: effects from two proxies of a hidden confounder."""

from prudent.proximal._diagnosis import WEAK_F, ProximalDiagnosis
from prudent.proximal._inference import Interval
from prudent.proximal._regression import ProximalRegression

__all__ = ["WEAK_F", "Interval", "ProximalDiagnosis", "ProximalRegression"]
