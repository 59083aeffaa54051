"""Networks and the one training loop. Importing this package loads JAX."""

from prudent.nn._cache import enable_compilation_cache
from prudent.nn._crossfit import (
    Candidates,
    FitTask,
    FoldPlan,
    Part,
    StackGroup,
    apply_in_blocks,
    candidate_losses,
    fit_folds,
    stack_groups,
)
from prudent.nn._networks import (
    MLP,
    Categorical,
    FeatureProduct,
    ImageNetwork,
    Mixture,
    MixtureDensity,
    Network,
    Tabular,
    joined_features,
    with_dropout,
)
from prudent.nn._specs import ImageSpec, MLPSpec, NetworkSpec, ProductSpec, TabularSpec, spec_from_json, spec_to_json
from prudent.nn._train import TrainConfig, TrainLog, fit_stack, join_members, stack_networks, take_members

__all__ = [
    "MLP",
    "Candidates",
    "Categorical",
    "FeatureProduct",
    "FitTask",
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
    "StackGroup",
    "Tabular",
    "TabularSpec",
    "TrainConfig",
    "TrainLog",
    "apply_in_blocks",
    "candidate_losses",
    "enable_compilation_cache",
    "fit_folds",
    "fit_stack",
    "join_members",
    "joined_features",
    "spec_from_json",
    "spec_to_json",
    "stack_groups",
    "stack_networks",
    "take_members",
    "with_dropout",
]
