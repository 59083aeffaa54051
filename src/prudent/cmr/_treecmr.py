"""DML-CMR, CE-DML-CMR and DeepIV with trees: nuisances and function of interest are forests or boosted trees.

Nuisances s(c) = E[Y|c] and the law of X given c are cross-fitted forests or boosted trees. f is grown by functional
gradient steps on (s(c) - E[f(X)|c])^2: the structure of a tree is fitted to the score's residual at draws of X given
c, and its leaf values then minimise the score itself, with E[.|c] over all atoms of the law.

In place of indicators, trees see every categorical variable as one column, its levels in the order of their mean
outcome: see ``prudent.cmr._codes``.
"""

import dataclasses
import itertools
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_array, issparse
from threadpoolctl import threadpool_limits

from prudent._checks import check_count
from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler, as_matrix, with_ones
from prudent.cmr._atoms import Atoms, Regress, fit_atoms
from prudent.cmr._base import MomentEstimator
from prudent.cmr._codes import Codes
from prudent.cmr._folds import cross_fit_folds, unseen_folds
from prudent.cmr._gp import column_scaler, ridge, standard
from prudent.cmr._problem import Problem, check_choice, params_from_json, simple_params
from prudent.cmr._report import FitReport, facts_of_atoms
from prudent.cmr._tree_ensemble import TreeEnsemble
from prudent.cmr._tree_regression import tree_regression

MODELS = ("boosting", "forest")
SCORES = ("orthogonal", "deepiv")
LEAVES = ("linear", "constant")
MAX_DENSE_LEAVES = 64
# Products of modelled columns and indicators that f starts from, at most.
MAX_PRODUCTS = 300
# Folds of the outcome model by which the number of steps is chosen.
MAX_TRIAL_FOLDS = 5
# Share of the gain that may be lost again by further steps.
FLAT = 0.01
# Rows per leaf of f, at least.
MIN_LEAF = 10


@dataclasses.dataclass(frozen=True)
class Growth:
    """How f grows: runs that are averaged, trees per step, share of a step that is kept, size of a tree.

    A leaf has at least ``leaf_share`` times the root of the number of rows, and at least ``MIN_LEAF``: with more rows
    leaves get smaller as a share, and less noisy.
    """

    n_runs: int
    trees_per_step: int
    rate: float
    max_depth: int | None
    leaf_share: float
    max_steps: int
    patience: int


GROWTH = {
    "boosting": Growth(3, 1, 0.12, 5, 0.1, 300, 60),
    "forest": Growth(1, 20, 0.4, None, 0.6, 20, 4),
}


@dataclasses.dataclass(frozen=True)
class TreeReport(FitReport):
    """Facts about a fit of TreeCMR, with the size of f."""

    n_steps: int
    n_trees: int


class TreeCMR(MomentEstimator):
    """Tree-based estimator of f in E[Y - f(X) | C] = 0.

    Parameters
    ----------
    model : {"boosting", "forest"}
        Trees of the nuisances and of f.
    n_folds : int, default=10
        Cross-fitting folds. 1 uses one set of nuisances for all rows (CE-DML-CMR), each row predicted by those of
        its models that have not seen it.
    score : {"orthogonal", "deepiv"}
        What E[f(X)|c] is matched with: the learnt s(c), or the outcome itself.
    leaves : {"linear", "constant"}
        Whether the leaves of f have slopes in the modelled columns: f is then piecewise linear in the action and
        extrapolates in it.
    discrete : "auto" or sequence of int
        Which columns of x are discrete. "auto": at most 10 values, each seen twice or more.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.

    Attributes
    ----------
    trees_ : TreeEnsemble
        The function, in standard units of the outcome.
    report_ : TreeReport
        Facts about the fit.
    """

    def __init__(
        self,
        model: str = "boosting",
        *,
        n_folds: int = 10,
        score: str = "orthogonal",
        leaves: str = "linear",
        discrete: Any = "auto",
        show_progress: bool | None = None,
    ):
        self.model = model
        self.n_folds = n_folds
        self.score = score
        self.leaves = leaves
        self.discrete = discrete
        self.show_progress = show_progress

    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit f on arrays; columns of ``x`` that equal a column of ``c`` pass through exactly."""
        check_choice("model", self.model, MODELS)
        check_choice("score", self.score, SCORES)
        check_choice("leaves", self.leaves, LEAVES)
        check_count("n_folds", self.n_folds)
        problem = Problem.of("TreeCMR", y, x, c, seed=seed, groups=groups)
        discrete = problem.discrete(self.discrete)
        rng = np.random.default_rng(seed)
        folds = cross_fit_folds(len(problem.x), self.n_folds, rng, problem.groups)
        modelled = problem.x[:, problem.modelled]
        with Progress(self.show_progress) as progress, threadpool_limits(1):
            regress = tree_regression(self.model, rng, progress)
            s = regress(problem.c, problem.y, folds, problem.groups)(problem.c)
            atoms = fit_atoms(
                modelled,
                problem.c,
                folds,
                regress,
                discrete=discrete,
                instruments=problem.instruments,
                groups=problem.groups,
                rng=rng,
            )
            n_steps = self._grow(problem, s, atoms, folds, regress, rng, progress)
            if len(folds) == 1:
                # What is reported speaks of rows that were not seen.
                apart = unseen_folds(problem.n_rows, rng, problem.groups)
                s = regress(problem.c, problem.y, apart, problem.groups)(problem.c)
        self.report_ = TreeReport(
            **facts_of_atoms(problem, s, atoms, n_folds=self.n_folds, discrete=discrete, seed=seed),
            n_steps=n_steps,
            n_trees=len(self.trees_.roots),
        )
        return self

    def predict(self, x: Any) -> np.ndarray:
        """f(x), shape (n, outcomes), in the units of y."""
        self._check_fitted("trees_")
        u = standard(self.x_scaler_, as_matrix("x", x, n_columns=len(self.x_scaler_.mean)))
        slopes = with_ones(u[:, self.slope_columns_])
        values = self.trees_.predict(self.codes_(u), slopes) + _start_terms(u, self.products_) @ self.linear_
        return self.y_scaler_.back(values)

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds the fitted function."""
        self._check_fitted("trees_")
        record = {
            "kind": type(self).__name__,
            "params": simple_params(self.get_params()),
            "slope_columns": list(self.slope_columns_),
            "products": [list(pair) for pair in self.products_],
        }
        arrays = {**self.trees_.to_arrays(), "linear": self.linear_}
        arrays |= self.codes_.to_arrays()
        for name, scaler in (("x", self.x_scaler_), ("y", self.y_scaler_)):
            arrays |= {f"{name}.mean": scaler.mean, f"{name}.scale": scaler.scale}
        return record, arrays

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "TreeCMR":
        """Rebuild a fitted estimator; it predicts, but its nuisances and report are not kept."""
        model = cls(**params_from_json(record["params"]))
        model.x_scaler_, model.y_scaler_ = (Scaler(arrays[f"{name}.mean"], arrays[f"{name}.scale"]) for name in "xy")
        model.slope_columns_ = record["slope_columns"]
        model.products_ = [(int(first), int(second)) for first, second in record["products"]]
        model.linear_ = arrays["linear"]
        model.codes_ = Codes.from_arrays(arrays, len(model.x_scaler_.mean))
        model.trees_ = TreeEnsemble.from_arrays(arrays)
        n_seen = len(model.codes_.others) + len(model.codes_.offset)
        if len(model.trees_.feature) and model.trees_.feature.max() >= n_seen:
            raise ValueError("a tree asks for a column that does not exist")
        return model

    def _grow(
        self,
        problem: Problem,
        s: Matrix,
        atoms: Atoms,
        folds: list[np.ndarray],
        regress: Regress,
        rng: np.random.Generator,
        progress: Progress,
    ) -> int:
        """Grow f on a part of the rows to find the number of steps, then on all rows; returns that number."""
        growth = GROWTH[self.model]
        held_out = problem.inner_folds(5, rng)[0]
        kept = np.setdiff1d(np.arange(problem.n_rows), held_out)
        target = trial_target = problem.y
        if self.score == "orthogonal":
            # The models behind s have seen the outcomes of the held-out rows: s of the kept rows would lead the trial
            # to them, and the more steps the better. The trial has an s of its own, fitted to kept rows only.
            target, trial_target = s, problem.y.copy()
            within, groups = _folds_within(kept, folds), None if problem.groups is None else problem.groups[kept]
            trial_target[kept] = regress(problem.c[kept], problem.y[kept], within, groups)(problem.c[kept])
        self.x_scaler_, self.y_scaler_ = column_scaler(problem.x), Scaler.of(problem.y)
        self.slope_columns_ = list(problem.modelled) if self.leaves == "linear" else []
        # A level of a category may have a slope of its own from the start: trees find it only slowly.
        indicators = [j for j in problem.known if np.ptp(problem.x[:, j]) and np.isin(problem.x[:, j], (0, 1)).all()]
        products = list(itertools.product(problem.modelled, indicators))
        # Of a few categories. Of hundreds, and of black and white pixels, they would be most of the work.
        self.products_ = products if len(products) <= MAX_PRODUCTS else []
        units = standard(self.x_scaler_, problem.x)  # which leaves indicators as they are
        self.codes_ = Codes.of(units, standard(self.y_scaler_, target))
        points = np.repeat(units[:, None], atoms.value.shape[1], axis=1)
        points[:, :, problem.modelled] = standard(_part(self.x_scaler_, problem.modelled), atoms.value)
        score = trial_score = _Score(points, self.codes_(points), atoms.weight, self.slope_columns_, self.products_)
        if self.score == "deepiv":
            # Ordered by the outcomes themselves, levels would tell the trial of those that it is judged by.
            codes = Codes.of(units[kept], standard(self.y_scaler_, target[kept]))
            trial_score = _Score(points, codes(points), atoms.weight, self.slope_columns_, self.products_)
        outcome = standard(self.y_scaler_, problem.y)
        task = progress.start("causal function", 2 * growth.max_steps)
        seed = int(rng.integers(2**31))
        trial = _Grower(trial_score, standard(self.y_scaler_, trial_target), kept, growth, np.random.default_rng(seed))
        losses: list[float] = []
        at_start = at_best = np.empty(0)
        n_steps = 0
        while len(losses) < growth.max_steps and len(losses) - n_steps <= growth.patience:
            # Against the outcome itself: its noise adds the same constant at every step.
            row_losses = np.mean((outcome[held_out] - trial.fitted[held_out]) ** 2, axis=1)
            losses.append(float(np.mean(row_losses)))
            at_start = row_losses if not at_start.size else at_start
            at_best = row_losses if losses[-1] == min(losses) else at_best
            n_steps = _last_good(losses)
            trial.step()
            task.advance()
        gain = at_start - at_best
        if gain.mean() < gain.std() / np.sqrt(len(gain)):
            # The best of many steps gains something on noise, too.
            n_steps = 0
        finals = [
            _Grower(
                score,
                standard(self.y_scaler_, target),
                np.arange(len(outcome)),
                growth,
                np.random.default_rng([seed, run]),
            )
            for run in range(growth.n_runs)
        ]
        for _ in range(n_steps):
            for final in finals:
                final.step()
            task.advance()
        task.finish()
        self.linear_ = finals[0].linear
        trees = [tree for final in finals for tree in final.trees]
        values = [value / growth.n_runs for final in finals for value in final.values]
        n_terms = 1 + len(self.slope_columns_)
        self.trees_ = TreeEnsemble.of(trees, values) if trees else TreeEnsemble.empty(n_terms, outcome.shape[1])
        return n_steps


class _Score:
    """Law of every row: the points at which f is looked at, in standard units and as trees see them, and weights."""

    def __init__(
        self,
        units: np.ndarray,
        seen: np.ndarray,
        weight: np.ndarray,
        slope_columns: list[int],
        products: list[tuple[int, int]],
    ):
        self.weight = weight
        self.points = seen.astype(np.float32)
        self.terms = with_ones(units[:, :, slope_columns])
        # The mean of a product with a known column is the product of the mean.
        self.means = _start_terms(np.einsum("nq,nqd->nd", weight, units), products)
        self.cumulative = np.cumsum(weight, axis=1)


class _Grower:
    """Functional gradient steps towards ``target`` on the rows ``rows``; ``fitted`` is E[f(X)|c] of every row."""

    def __init__(self, score: _Score, target: Matrix, rows: np.ndarray, growth: Growth, rng: np.random.Generator):
        self.score, self.target, self.rows, self.growth, self.rng = score, target, rows, growth, rng
        means = score.means[rows]
        # The start is linear in the action: trees are poor at trends, and cannot follow one out of the data.
        self.linear = ridge(means.T @ means, means.T @ target[rows], 1.0)
        self.fitted = score.means @ self.linear
        self.trees: list[Any] = []
        self.values: list[np.ndarray] = []

    def step(self) -> None:
        """One gradient step: a tree, or the mean of several."""
        growth = self.growth
        residual = self.target - self.fitted
        move = np.zeros_like(self.fitted)
        share = growth.rate / growth.trees_per_step
        for _ in range(growth.trees_per_step):
            tree, values, effect = self._tree(residual)
            self.trees.append(tree)
            self.values.append(share * values)
            move += share * effect
        self.fitted = self.fitted + move

    def _tree(self, residual: Matrix) -> tuple[Any, np.ndarray, Matrix]:
        from sklearn.tree import DecisionTreeRegressor

        growth, score = self.growth, self.score
        if growth.trees_per_step > 1:
            rows = self.rng.choice(self.rows, len(self.rows))
        else:
            rows = self.rng.permutation(self.rows)[: max(10, len(self.rows) // 2)]
        drawn = np.sum(self.rng.random(len(rows))[:, None] > score.cumulative[rows], axis=1)
        points = score.points[rows, np.minimum(drawn, score.weight.shape[1] - 1)]
        tree = (
            DecisionTreeRegressor(
                max_depth=growth.max_depth,
                min_samples_leaf=max(MIN_LEAF, round(growth.leaf_share * len(self.rows) ** 0.5)),
                # The best of one random place per column: trees with splits at other places average to a smoother f.
                splitter="random",
                random_state=int(self.rng.integers(2**31)),
            )
            .fit(points, residual[rows])
            .tree_
        )
        n, q, d = score.points.shape
        leaves = np.flatnonzero(tree.children_left < 0)
        number = np.zeros(tree.node_count, dtype=int)
        number[leaves] = np.arange(len(leaves))
        at = number[tree.apply(score.points.reshape(n * q, d))].reshape(n, q)
        n_terms = score.terms.shape[2]
        design = self._design(at, len(leaves))
        inside = design[rows]
        gram = inside.T @ inside
        gram = gram.toarray() if issparse(gram) else gram
        # A leaf's value at its centre is shrunk as if it had five more rows at zero, its slope as if it had twenty.
        # Were it the value at the origin, far from some leaves, a slope would be the cheaper way to lift a whole leaf,
        # and f would be carried off wherever it extrapolates.
        total = np.asarray(inside.sum(axis=0)).reshape(len(leaves), n_terms)
        centre = total / np.maximum(total[:, :1], 1e-12)
        penalty = 5.0 * centre[:, :, None] * centre[:, None, :]
        penalty[:, range(1, n_terms), range(1, n_terms)] += 20.0
        place = np.arange(len(gram)).reshape(len(leaves), n_terms)
        gram[place[:, :, None], place[:, None, :]] += penalty
        weights = np.linalg.solve(gram, inside.T @ residual[rows])
        values = np.zeros((tree.node_count, n_terms, residual.shape[1]))
        values[leaves] = weights.reshape(len(leaves), n_terms, -1)
        return tree, values, design @ weights

    def _design(self, at: np.ndarray, n_leaves: int) -> Any:
        """Mean of (leaf x terms) over the law of every row; sparse when there are many leaves."""
        n, n_terms = len(at), self.score.terms.shape[2]
        row = np.repeat(np.arange(n), at.shape[1])
        mass = self.score.weight[:, :, None] * self.score.terms
        if n_leaves > MAX_DENSE_LEAVES:
            place = at.ravel()[:, None] * n_terms + np.arange(n_terms)
            entries = (mass.ravel(), (np.repeat(row, n_terms), place.ravel()))
            return csr_array(entries, shape=(n, n_leaves * n_terms))
        cell = row * n_leaves + at.ravel()
        parts = [np.bincount(cell, mass[:, :, t].ravel(), n * n_leaves) for t in range(n_terms)]
        return np.stack(parts, axis=1).reshape(n, n_leaves * n_terms)


def _folds_within(kept: np.ndarray, folds: list[np.ndarray]) -> list[np.ndarray]:
    """The folds, at most ``MAX_TRIAL_FOLDS`` of them, as places among the rows ``kept``."""
    count = min(len(folds), MAX_TRIAL_FOLDS)
    merged = [np.concatenate(folds[first::count]) for first in range(count)]
    places = [np.flatnonzero(np.isin(kept, rows)) for rows in merged]
    return [part for part in places if len(part)]


def _last_good(losses: list[float]) -> int:
    """The last step whose held-out loss has lost no more than ``FLAT`` of what the best step has gained.

    Around the best step the loss is flat and noisy, while late steps still help where f is asked about far from most
    rows. Where hardly anything is gained, as from noise, hardly anything may be lost: it is then the best step.
    """
    best = min(losses)
    return int(np.flatnonzero(np.array(losses) <= best + FLAT * (losses[0] - best))[-1])


def _part(scaler: Scaler, columns: list[int]) -> Scaler:
    return Scaler(scaler.mean[columns], scaler.scale[columns])


def _start_terms(units: np.ndarray, products: list[tuple[int, int]]) -> np.ndarray:
    """One, every column, and products of two columns: what the start of f is linear in."""
    first, second = np.array(products, dtype=int).reshape(-1, 2).T
    return np.concatenate([with_ones(units), units[..., first] * units[..., second]], axis=-1)
