"""Moment problems E[Y - f(X) | C] = 0 and their estimators."""

from typing import Any

import numpy as np

from prudent.cmr._base import MomentError, MomentEstimator
from prudent.cmr._deepgmm import DeepGMM
from prudent.cmr._deepiv import DeepIV
from prudent.cmr._dfiv import DFIV
from prudent.cmr._dmlcmr import DMLCMR, Defaults, FitReport, Strength
from prudent.cmr._tune import Trial, Tuning, tune

__all__ = [
    "DFIV",
    "DMLCMR",
    "DeepGMM",
    "DeepIV",
    "Defaults",
    "FitReport",
    "MomentError",
    "MomentEstimator",
    "Strength",
    "Trial",
    "Tuning",
    "estimator_from_state",
    "tune",
]

_SAVED = {
    "DFIV": DFIV,
    "DMLCMR": DMLCMR,
    "DeepGMM": DeepGMM,
    "DeepIV": DeepIV,
}


def estimator_from_state(record: dict[str, Any], arrays: dict[str, np.ndarray]) -> MomentEstimator:
    """Rebuild a fitted estimator from what its ``to_state`` gave."""
    return _SAVED[record["kind"]].from_state(record, arrays)
