"""The outcome nuisance s(c) = E[Y | C = c], cross-fitted: networks, or any scikit-learn regressor."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler
from prudent.nn import FitTask, FoldPlan, NetworkSpec, TrainConfig, apply_in_blocks, fit_folds


@dataclasses.dataclass(frozen=True)
class OutcomeFit:
    """Prediction of every row's outcome from models that have not seen the row (one fold: from all rows).

    ``audit`` has, for each audited fold, the predictions of that fold's models for all other rows; ``unseen`` those for
    the rows ``plan.unseen``, from models that were not trained on them.
    """

    prediction: Matrix
    audit: tuple[Matrix, ...]
    unseen: Matrix
    decays: tuple[float, ...]

    def less(self, known: Matrix, plan: FoldPlan) -> "OutcomeFit":
        """The fit of the outcome less a part of it (n, outcomes) that is known given c."""
        audit = (a - known[part.rows] for a, part in zip(self.audit, plan.all_parts[1:], strict=True))
        return OutcomeFit(self.prediction - known, tuple(audit), self.unseen - known[plan.unseen.rows], self.decays)


def squared_loss(network, batch, key):
    """Squared error, summed over outcomes."""
    return jnp.sum((network(batch["c"], key=key) - batch["y"]) ** 2, axis=-1)


def outcome_task(y: np.ndarray, c: np.ndarray, network: NetworkSpec) -> FitTask:
    """Learn s(c), all in standard units."""
    return FitTask(
        label="outcome",
        build=lambda key: network(c.shape[1], y.shape[1], key=key),
        loss=squared_loss,
        data={"c": c, "y": y},
        target="y",
    )


def fit_outcome(
    y: Matrix,
    c: Matrix,
    c_standard: np.ndarray,
    plan: FoldPlan,
    *,
    network: NetworkSpec,
    config: TrainConfig,
    decay_guess: float | None,
    outcome_model: Any,
    seed: int,
    progress: Progress | None,
) -> OutcomeFit:
    """Cross-fit s. A scikit-learn ``outcome_model`` sees the raw columns of ``c``, networks the standardised ones."""
    if outcome_model is not None:
        return _fit_sklearn(y, c, plan, outcome_model, seed, progress)
    scaler = Scaler.of(y)
    task = outcome_task(scaler.forward(y), c_standard, network)
    networks, _, decay = fit_folds(
        task.build,
        task.loss,
        task.data,
        plan,
        config,
        target=task.target,
        decay_guess=decay_guess,
        seed=seed,
        progress=progress,
        label=task.label,
    )
    outputs = apply_in_blocks(networks, c_standard)
    parts = [scaler.back(part.average(outputs)) for part in plan.all_parts]
    return OutcomeFit(parts[0], tuple(parts[1:]), scaler.back(plan.unseen.average(outputs)), (decay,))


def observed_outcome(y: Matrix, c: Matrix, c_standard: np.ndarray, plan: FoldPlan, **_: Any) -> OutcomeFit:
    """The outcome itself in place of a fit of its mean."""
    return OutcomeFit(y, tuple(y[part.rows] for part in plan.all_parts[1:]), y[plan.unseen.rows], ())


def _fit_sklearn(y, c, plan, outcome_model, seed, progress) -> OutcomeFit:
    from sklearn.base import clone
    from sklearn.multioutput import MultiOutputRegressor

    def fitted(train: np.ndarray) -> Any:
        model: Any = clone(outcome_model)
        # A forest that draws from a global generator would break "one seed decides everything".
        unset = {k: seed for k, v in model.get_params().items() if k.split("__")[-1] == "random_state" and v is None}
        model.set_params(**unset)
        if y.shape[1] > 1:
            model = MultiOutputRegressor(model)
        return model.fit(c[train], y[train] if y.shape[1] > 1 else y[train, 0])

    def predicted(model: Any, rows: np.ndarray) -> Matrix:
        return np.asarray(model.predict(c[rows])).reshape(len(rows), -1)

    prediction, audit = np.empty_like(y), []
    task = None if progress is None else progress.start("outcome", len(plan.folds))
    for fold, rows in enumerate(plan.folds):
        train = plan.training_rows(fold)
        model = fitted(train)
        prediction[rows] = predicted(model, rows)
        if fold < plan.n_audit:
            audit.append(predicted(model, train))
        if task is not None:
            task.advance()
    unseen = plan.unseen.rows
    if len(plan.folds) == 1:
        # The one model has seen all rows; its fit is judged by models that have not seen the rows of each piece.
        everything = np.arange(plan.n_rows)
        parts = [(np.setdiff1d(everything, rows), rows) for _, rows, _ in plan.unseen.pieces]
        return OutcomeFit(prediction, (), np.concatenate([predicted(fitted(a), b) for a, b in parts]), ())
    return OutcomeFit(prediction, tuple(audit), prediction[unseen], ())
