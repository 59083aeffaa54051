"""Moment problems E[Y - f(X) | C] = 0 and their estimators."""

from typing import Any

import numpy as np

from prudent.cmr._base import MomentError, MomentEstimator
from prudent.cmr._controlfunction import ControlFunction
from prudent.cmr._deepgmm import DeepGMM
from prudent.cmr._deepiv import DeepIV
from prudent.cmr._dfiv import DFIV
from prudent.cmr._dfpv import DFPV
from prudent.cmr._dmlcmr import DMLCMR, Defaults
from prudent.cmr._images import ImageFeatures
from prudent.cmr._kernelcmr import KernelCMR
from prudent.cmr._kerneliv import KernelIV
from prudent.cmr._kpv import KPV
from prudent.cmr._nmmr import NMMR
from prudent.cmr._pmmr import PMMR
from prudent.cmr._report import FitReport, Strength
from prudent.cmr._treecmr import TreeCMR
from prudent.cmr._tune import Trial, Tuning, tune
from prudent.cmr._twostage import TwoStageLeastSquares
from prudent.errors import ModelFileError

__all__ = [
    "DFIV",
    "DFPV",
    "DMLCMR",
    "KPV",
    "NMMR",
    "PMMR",
    "ControlFunction",
    "DeepGMM",
    "DeepIV",
    "Defaults",
    "FitReport",
    "ImageFeatures",
    "KernelCMR",
    "KernelIV",
    "MomentError",
    "MomentEstimator",
    "Strength",
    "TreeCMR",
    "Trial",
    "Tuning",
    "TwoStageLeastSquares",
    "estimator_from_state",
    "tune",
]

_SAVED = {
    "ControlFunction": ControlFunction,
    "DFIV": DFIV,
    "DFPV": DFPV,
    "DMLCMR": DMLCMR,
    "DeepGMM": DeepGMM,
    "DeepIV": DeepIV,
    "KernelCMR": KernelCMR,
    "KernelIV": KernelIV,
    "TreeCMR": TreeCMR,
    "TwoStageLeastSquares": TwoStageLeastSquares,
    "KPV": KPV,
    "NMMR": NMMR,
    "PMMR": PMMR,
}


def estimator_from_state(record: dict[str, Any], arrays: dict[str, np.ndarray]) -> MomentEstimator:
    """Rebuild a fitted estimator from what its ``to_state`` gave."""
    kind = record["kind"]
    if kind not in _SAVED:
        raise ModelFileError(
            f"The saved model names an estimator {kind!r} that this version does not know; it knows "
            f"{', '.join(sorted(_SAVED))}. Upgrade prudent, or save the model again."
        )
    estimator: Any = _SAVED[kind].from_state(record, arrays)
    # Networks and training are not saved, and what was left to the data is: a fit of a copy would be another one.
    estimator.is_loaded_ = True
    return estimator
