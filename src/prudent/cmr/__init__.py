"""Moment problems E[Y - f(X) | C] = 0 and their estimators."""

from typing import Any

import numpy as np

from prudent.cmr._base import MomentError, MomentEstimator
from prudent.cmr._dfpv import DFPV
from prudent.cmr._dmlcmr import DMLCMR, Defaults, FitReport, Strength
from prudent.cmr._kpv import KPV
from prudent.cmr._nmmr import NMMR
from prudent.cmr._pmmr import PMMR

__all__ = [
    "DFPV",
    "DMLCMR",
    "KPV",
    "NMMR",
    "PMMR",
    "Defaults",
    "FitReport",
    "MomentError",
    "MomentEstimator",
    "Strength",
    "estimator_from_state",
]

_SAVED = {
    "DMLCMR": DMLCMR,
    "DFPV": DFPV,
    "KPV": KPV,
    "NMMR": NMMR,
    "PMMR": PMMR,
}


def estimator_from_state(record: dict[str, Any], arrays: dict[str, np.ndarray]) -> MomentEstimator:
    """Rebuild a fitted estimator from what its ``to_state`` gave."""
    return _SAVED[record["kind"]].from_state(record, arrays)
