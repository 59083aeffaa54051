"""Proximal causal learning: effects from two proxies of a hidden confounder."""

from prudent.proximal._cevae import CEVAE
from prudent.proximal._diagnosis import WEAK_F, ProximalDiagnosis
from prudent.proximal._doubly_robust import PKDR
from prudent.proximal._interval import Interval
from prudent.proximal._plain import PlainRegression
from prudent.proximal._regression import ProximalRegression

__all__ = ["CEVAE", "PKDR", "WEAK_F", "Interval", "PlainRegression", "ProximalDiagnosis", "ProximalRegression"]
