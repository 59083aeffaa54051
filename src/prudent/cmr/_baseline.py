"""A plain regression of Y on X, cross-fitted, to start from.

For any fixed g, f solves E[Y - f(X) | C] = 0 if and only if f - g solves E[(Y - g(X)) - (f - g)(X) | C] = 0. With g a
regression of Y on X, what is left of Y has much less noise given C, wherever X says more about Y than C does, and the
correction f - g is what confounding does: small and smooth.
"""

import dataclasses

import numpy as np

from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler
from prudent.cmr._outcome import squared_loss
from prudent.cmr._second_stage import SecondStage
from prudent.nn import FoldPlan, NetworkSpec, TrainConfig, apply_in_blocks, fit_folds
from prudent.nn._train import GROUP

# Networks in all, at least. All are evaluated at every prediction, so there are fewer than for the nuisances.
MIN_NETWORKS = GROUP
# Small: strong decay keeps tanh units in their linear part, and they no longer level off where there are no data. Early
# stopping on held-out rows does the rest.
WEIGHT_DECAY = 0.1


def fit_baseline(
    y: Matrix,
    x: Matrix,
    plan: FoldPlan,
    *,
    network: NetworkSpec,
    config: TrainConfig,
    seed: int,
    progress: Progress | None,
) -> tuple[SecondStage, Matrix]:
    """The regression (its networks of all folds averaged), and its prediction of every row out of fold."""
    kept = min(plan.n_repeats, -(-MIN_NETWORKS // len(plan.folds)))
    splits = [plan.member_splits[k] for fold in range(len(plan.folds)) for k in plan.members(fold)[:kept]]
    plan = dataclasses.replace(plan, n_repeats=kept, member_splits=splits)
    x_scaler, y_scaler = Scaler.of(x), Scaler.of(y)
    x_standard = x_scaler.forward(x)
    networks, _, _ = fit_folds(
        lambda key: network(x.shape[1], y.shape[1], key=key),
        squared_loss,
        {"c": x_standard, "y": y_scaler.forward(y)},
        plan,
        dataclasses.replace(config, weight_decay=WEIGHT_DECAY),
        # A network that started at the ridge regression would carry its trend on beyond the data.
        target=None if getattr(network, "widths", ()) else "y",
        decay_guess=None,
        seed=seed,
        progress=progress,
        label="plain regression",
    )
    own = plan.all_parts[0].average(np.asarray(apply_in_blocks(networks, x_standard)))
    return SecondStage(networks, x_scaler, y_scaler), y_scaler.back(own)
