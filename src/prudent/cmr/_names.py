"""Estimators by name: what the command calls them, and help for whoever gives such a name in Python."""

from typing import Any

from prudent.cmr._base import MomentEstimator
from prudent.errors import DataError

NAMES = {
    "dml-cmr": "DMLCMR",
    "kernel-cmr": "KernelCMR",
    "tree-cmr": "TreeCMR",
    "deepiv": "DeepIV",
    "dfiv": "DFIV",
    "deepgmm": "DeepGMM",
    "kiv": "KernelIV",
    "control": "ControlFunction",
    "nmmr": "NMMR",
    "pmmr": "PMMR",
    "kpv": "KPV",
    "dfpv": "DFPV",
    "2sls": "TwoStageLeastSquares",
}


def check_estimator(estimator: Any, advice: str) -> None:
    """Raise unless ``estimator`` is None (the default) or a moment estimator that was not loaded with a model."""
    if getattr(estimator, "is_loaded_", False):
        name = type(estimator).__name__
        raise DataError(
            f"a loaded model cannot be fitted again: of the settings of its {name}, some are not saved, and others are "
            f"what the data of its fit made of them. Make a new model with {name}(...)."
        )
    if estimator is None or isinstance(estimator, MomentEstimator):
        return
    got, name = type(estimator).__name__, None
    if isinstance(estimator, str):
        got, name = f"the text {estimator!r}", NAMES.get(estimator.lower())
    elif isinstance(estimator, type):
        got, name = f"the class {estimator.__name__}", estimator.__name__
    cure = advice if name is None else f"Give {name}(), from prudent.cmr."
    raise TypeError(f"estimator must be a moment estimator such as DMLCMR(), got {got}. {cure}")
