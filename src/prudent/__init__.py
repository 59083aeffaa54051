"""Prudent: decision policies that come with a number you can trust.

The public names are loaded when they are first used, so that ``import prudent`` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "CausalImitation": "prudent.imitation",
    "IVRegression": "prudent.iv",
    "ProximalRegression": "prudent.proximal",
    "load": "prudent._storage",
    "tune": "prudent.cmr",
    "DataError": "prudent.errors",
    "ModelFileError": "prudent.errors",
    "NotFittedError": "prudent.errors",
    "PrudentError": "prudent.errors",
    "RoleError": "prudent.errors",
}
_PACKAGES = ("bench", "cmr", "datasets", "envs", "errors", "imitation", "iv", "ltl", "nn", "proximal")

__all__ = [
    "CausalImitation",
    "DataError",
    "IVRegression",
    "ModelFileError",
    "NotFittedError",
    "ProximalRegression",
    "PrudentError",
    "RoleError",
    "bench",
    "cmr",
    "datasets",
    "envs",
    "errors",
    "imitation",
    "iv",
    "load",
    "ltl",
    "nn",
    "proximal",
    "tune",
]

if TYPE_CHECKING:
    from prudent import bench, cmr, datasets, envs, errors, imitation, iv, ltl, nn, proximal
    from prudent._storage import load
    from prudent.cmr import tune
    from prudent.errors import DataError, ModelFileError, NotFittedError, PrudentError, RoleError
    from prudent.imitation import CausalImitation
    from prudent.iv import IVRegression
    from prudent.proximal import ProximalRegression


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _PACKAGES:
        return import_module(f"prudent.{name}")
    raise AttributeError(f"module 'prudent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
