"""A plain regression of Y on X, or on the part of X that is known given C, cross-fitted, to start from.

For any fixed g, f solves E[Y - f(X) | C] = 0 if and only if f - g solves E[(Y - g(X)) - (f - g)(X) | C] = 0. With g a
regression of Y on X, what is left of Y has much less noise given C, wherever X says more about Y than C does, and the
correction f - g is what confounding does: small and smooth.

With weak instruments the moment does not tell the effect of the action from that of the context, which moves the
action, too: both explain the outcome, and a network takes what is simpler to say. There g is a regression on the
context, so that what the context can explain is not credited to the action.
"""

import dataclasses
from typing import Any

import numpy as np

from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler, numeric_columns
from prudent.cmr._neural import Problem, choose_network
from prudent.cmr._outcome import squared_loss
from prudent.cmr._second_stage import SecondStage
from prudent.nn import FoldPlan, NetworkSpec, TrainConfig, apply_in_blocks, fit_folds
from prudent.nn._crossfit import linear_predictions
from prudent.nn._train import GROUP

# Networks in all, at least. All are evaluated at every prediction, so there are fewer than for the nuisances.
MIN_NETWORKS = GROUP
# Small: strong decay keeps tanh units in their linear part, and they no longer level off where there are no data. Early
# stopping on held-out rows does the rest.
WEIGHT_DECAY = 0.1
# A linear regression does as well if its error out of fold is at most so many times that of networks, which are stopped
# on the rows that measure it and look a little better than they are.
LINEAR_MARGIN = 1.05


def fit_baseline(
    y: Matrix,
    x: Matrix,
    plan: FoldPlan,
    *,
    network: NetworkSpec,
    config: TrainConfig,
    seed: int,
    progress: Progress | None,
    bounds: np.ndarray | None = None,
) -> tuple[SecondStage, Matrix, bool]:
    """The regression (its networks of all folds averaged), its prediction of every row out of fold, and whether a
    linear regression would do as well. Predictions are held between ``bounds`` (2, outcomes), if there are any.

    Then its networks start there, and otherwise at nothing: a network that started at the linear regression would carry
    its trend on beyond the data, and one that did not would bend the ends of a straight line.
    """
    kept = min(plan.n_repeats, -(-MIN_NETWORKS // len(plan.folds)))
    splits = [plan.member_splits[k] for fold in range(len(plan.folds)) for k in plan.members(fold)[:kept]]
    plan = dataclasses.replace(plan, n_repeats=kept, member_splits=splits)
    x_scaler, y_scaler = Scaler.of(x), Scaler.of(y)
    data = {"c": x_scaler.forward(x), "y": y_scaler.forward(y)}

    def fit(target: str | None) -> Any:
        return fit_folds(
            lambda key: network(x.shape[1], y.shape[1], key=key),
            squared_loss,
            data,
            plan,
            dataclasses.replace(config, weight_decay=WEIGHT_DECAY),
            target=target,
            decay_guess=None,
            seed=seed,
            progress=progress,
            label="plain regression",
        )[0]

    is_linear = not getattr(network, "widths", ())
    networks = fit("y" if is_linear else None)
    predicted = np.asarray(apply_in_blocks(networks, data["c"]))
    straight = linear_predictions(data, "y", splits)
    if not is_linear and _error(straight, data["y"], plan) <= LINEAR_MARGIN * _error(predicted, data["y"], plan):
        is_linear, networks = True, fit("y")
        predicted = np.asarray(apply_in_blocks(networks, data["c"]))
    fitted = y_scaler.back(plan.all_parts[0].average(predicted))
    fitted = fitted if bounds is None else np.clip(fitted, *bounds)
    return SecondStage(networks, x_scaler, y_scaler, bounds=bounds), fitted, is_linear


def widened_range(y: Matrix) -> np.ndarray:
    """Twice the range of every outcome, (2, outcomes): farther out a prediction is nonsense.

    To a group of rows unlike all others a regression extrapolates, out of fold, and what it leaves of their outcomes
    would be all that the correction learns from.
    """
    low, high = y.min(axis=0), y.max(axis=0)
    return np.stack([low - (high - low) / 2, high + (high - low) / 2])


def fit_context(
    y: Matrix,
    problem: Problem,
    plan: FoldPlan,
    *,
    network: NetworkSpec | None,
    config: TrainConfig,
    seed: int,
    progress: Progress | None,
) -> tuple[SecondStage, NetworkSpec, Matrix]:
    """The regression on the known columns of x, its network, and its prediction of every row out of fold."""
    context = problem.x[:, problem.known]
    chosen: NetworkSpec = choose_network(network, numeric_columns(context), problem.n_rows)
    found, fitted, _ = fit_baseline(y, context, plan, network=chosen, config=config, seed=seed, progress=progress)
    return dataclasses.replace(found, columns=tuple(problem.known)), chosen, fitted


def _error(predicted: np.ndarray, y: Matrix, plan: FoldPlan) -> float:
    """Mean squared error of the predictions (members, rows, outcomes) on rows that the members have not seen."""
    return float(np.mean((plan.unseen.average(predicted) - y[plan.unseen.rows]) ** 2))
