"""Nuisances of `TreeCMR`: cross-fitted regressions by forests or boosted trees, on top of a straight line."""

from collections.abc import Callable
from typing import Any

import numpy as np

from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler, with_ones
from prudent.cmr._codes import Codes
from prudent.cmr._gp import column_scaler, ridge, standard

# Rows per leaf of a forest to choose from.
LEAF_SIZES = (5, 10, 20, 40)
# Models of a nuisance: in every round the rows are dealt into parts, and there is a model without each of them.
N_ROUNDS, N_PARTS = 2, 3


def tree_regression(model: str, rng: np.random.Generator, progress: Progress):
    """A cross-fitted regression by trees, as :func:`fit_atoms` wants it.

    With one fold a row is predicted by those models that were learnt without it, out of bag. Trees that have seen a
    row follow its noise: the action's mean would follow the confounder, and E[f(X)|c] turn into f(x).
    """
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

    def grow(inputs: Matrix, target: Matrix, held: np.ndarray, min_leaf: int | None) -> Callable[[Matrix], Matrix]:
        """A straight line, and trees that explain what it leaves, learnt without the rows ``held``."""
        train = np.setdiff1d(np.arange(len(inputs)), held)
        scaler, centre = Scaler.of(target[train]), column_scaler(inputs[train])
        z, lines = standard(scaler, target), with_ones(standard(centre, inputs))
        line = ridge(lines[train].T @ lines[train], lines[train].T @ z[train], 1.0)
        rest = (z - lines @ line)[:, 0]
        # In the order of the target itself: what a line leaves of it is about zero at every level.
        codes = Codes.of(inputs[train], z[train])
        seen, seed = codes(inputs), int(rng.integers(2**31))
        if min_leaf is not None:
            forest = ExtraTreesRegressor(20, min_samples_leaf=min_leaf, random_state=seed)
            trees = forest.fit(seen[train], rest[train])
        else:
            # A dict, because the library's types know early_stopping as text only.
            stopping: dict[str, Any] = {"early_stopping": True, "n_iter_no_change": 10}
            boosting = HistGradientBoostingRegressor(
                learning_rate=0.1,
                max_iter=400,
                max_leaf_nodes=16,
                min_samples_leaf=15,
                l2_regularization=20.0,
                random_state=seed,
                **stopping,
            )
            # The rows held out say when to stop, and nothing else.
            trees = boosting.fit(seen[train], rest[train], X_val=seen[held], y_val=rest[held])

        def predict(at: Matrix) -> Matrix:
            return scaler.back(with_ones(standard(centre, at)) @ line + trees.predict(codes(at))[:, None])

        return predict

    def bag(inputs: Matrix, target: Matrix, groups: np.ndarray | None, min_leaf: int | None) -> "Bag":
        parts = [part for _ in range(N_ROUNDS) for part in _parts(len(inputs), groups, rng)]
        return Bag([(grow(inputs, target, held, min_leaf), held) for held in parts])

    def leaf_size(inputs: Matrix, target: Matrix, groups: np.ndarray | None) -> int:
        """Rows per leaf: few where the target has little noise, many where it has much."""
        misfit = {
            size: np.mean((target - bag(inputs, target, groups, size).out_of_bag(inputs)) ** 2) for size in LEAF_SIZES
        }
        return min(misfit, key=lambda size: misfit[size])

    def regress(inputs: Matrix, target: Matrix, folds: list[np.ndarray], groups: np.ndarray | None = None):
        fitted: list[tuple[np.ndarray, list[Bag]]] = []
        # Chosen once, on the rows of the first fold's models.
        sizes: list[int | None] = []
        task = progress.start("nuisances", len(folds))
        for rows in folds:
            train = np.setdiff1d(np.arange(len(inputs)), rows) if len(folds) > 1 else rows
            own = None if groups is None else groups[train]
            bags = []
            for number in range(target.shape[1]):
                column = target[train][:, [number]]
                if len(sizes) <= number:
                    sizes.append(leaf_size(inputs[train], column, own) if model == "forest" else None)
                bags.append(bag(inputs[train], column, own, sizes[number]))
            fitted.append((rows, bags))
            task.advance()

        def predict(at: Matrix) -> Matrix:
            result = np.empty((len(at), target.shape[1]))
            for rows, bags in fitted:
                some = [(each.predict if len(folds) > 1 else each.out_of_bag)(at[rows]) for each in bags]
                result[rows] = np.hstack(some)
            return result

        return predict

    return regress


class Bag:
    """Models of one column, each with the rows that it was learnt without."""

    def __init__(self, models: list[tuple[Callable[[Matrix], Matrix], np.ndarray]]):
        self.models = models

    def predict(self, x: Matrix) -> Matrix:
        """The mean of all models."""
        return np.mean([model(x) for model, _ in self.models], axis=0)

    def out_of_bag(self, x: Matrix) -> Matrix:
        """Row i, which belongs to row i of the training data, by the models that were learnt without that."""
        total, count = np.zeros((2, len(x), 1))
        for model, held in self.models:
            total[held] += model(x[held])
            count[held] += 1
        return total / count


def _parts(n_rows: int, groups: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows dealt into ``N_PARTS`` parts at random, groups as a whole; of a single group, row by row."""
    unit = np.arange(n_rows) if groups is None else np.unique(groups, return_inverse=True)[1]
    if unit.max() == 0:
        unit = np.arange(n_rows)
    n_units = int(unit.max()) + 1
    label = (rng.permutation(n_units) % N_PARTS)[unit]
    return [np.flatnonzero(label == part) for part in range(min(N_PARTS, n_units))]
