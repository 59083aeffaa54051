"""Networks and the one training loop. Importing this package loads JAX."""

from prudent.nn._cache import enable_compilation_cache
from prudent.nn._crossfit import FoldPlan, Part, apply_in_blocks, fit_folds
from prudent.nn._networks import MLP, Categorical, ImageNetwork, Mixture, MixtureDensity, Network, Tabular
from prudent.nn._specs import ImageSpec, MLPSpec, NetworkSpec, TabularSpec, spec_from_json, spec_to_json
from prudent.nn._train import TrainConfig, TrainLog, fit_stack, join_members, stack_networks, take_members

__all__ = [
    "MLP",
    "Categorical",
    "FoldPlan",
    "ImageNetwork",
    "ImageSpec",
    "MLPSpec",
    "Mixture",
    "MixtureDensity",
    "Network",
    "NetworkSpec",
    "Part",
    "Tabular",
    "TabularSpec",
    "TrainConfig",
    "TrainLog",
    "apply_in_blocks",
    "enable_compilation_cache",
    "fit_folds",
    "fit_stack",
    "join_members",
    "spec_from_json",
    "spec_to_json",
    "stack_networks",
    "take_members",
]
