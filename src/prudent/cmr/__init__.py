"""Moment problems E[Y - f(X) | C] = 0 and their estimators."""

from typing import Any

import numpy as np

from prudent.cmr._base import MomentError, MomentEstimator
from prudent.cmr._dmlcmr import DMLCMR, Defaults, FitReport, Strength
from prudent.cmr._images import ImageFeatures

__all__ = [
    "DMLCMR",
    "Defaults",
    "FitReport",
    "ImageFeatures",
    "MomentError",
    "MomentEstimator",
    "Strength",
    "estimator_from_state",
]

_SAVED = {"DMLCMR": DMLCMR}


def estimator_from_state(record: dict[str, Any], arrays: dict[str, np.ndarray]) -> MomentEstimator:
    """Rebuild a fitted estimator from what its ``to_state`` gave."""
    return _SAVED[record["kind"]].from_state(record, arrays)
