"""Networks and the one training loop. Importing this package loads JAX."""

from prudent.nn._cache import enable_compilation_cache
from prudent.nn._crossfit import FoldPlan, Part, apply_in_blocks, fit_folds
from prudent.nn._networks import (
    MLP,
    Categorical,
    FeatureProduct,
    ImageNetwork,
    Mixture,
    MixtureDensity,
    Network,
    Tabular,
    feature_product,
    joined_features,
)
from prudent.nn._specs import ImageSpec, MLPSpec, NetworkSpec, ProductSpec, TabularSpec, spec_from_json, spec_to_json
from prudent.nn._train import TrainConfig, TrainLog, fit_stack, join_members, stack_networks, take_members

__all__ = [
    "MLP",
    "Categorical",
    "FeatureProduct",
    "FoldPlan",
    "ImageNetwork",
    "ImageSpec",
    "MLPSpec",
    "Mixture",
    "MixtureDensity",
    "Network",
    "NetworkSpec",
    "Part",
    "ProductSpec",
    "Tabular",
    "TabularSpec",
    "TrainConfig",
    "TrainLog",
    "apply_in_blocks",
    "enable_compilation_cache",
    "feature_product",
    "fit_folds",
    "fit_stack",
    "join_members",
    "joined_features",
    "spec_from_json",
    "spec_to_json",
    "stack_networks",
    "take_members",
]
