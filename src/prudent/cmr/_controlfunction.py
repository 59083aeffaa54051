"""The control function approach for one continuous action.

The first stage regresses the action on C; its residual (or the rank of it) carries the hidden cause. The second stage
regresses Y on the action, the context and that control, and averages the control out. It needs more than the moment
restriction: the first stage's error must be independent of C.
"""

import dataclasses
from typing import Any, Self

import numpy as np
from threadpoolctl import threadpool_limits

from prudent._checks import check_count
from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler, as_matrix
from prudent.cmr._base import MomentEstimator
from prudent.cmr._features import Series
from prudent.cmr._folds import cross_fit_folds, held_out_groups
from prudent.cmr._gp import (
    GaussianProcess,
    Layout,
    ProductKernel,
    column_scaler,
    landmark_map,
    standard,
    tune_kernel,
)
from prudent.cmr._problem import Problem, check_choice, simple_params
from prudent.cmr._report import N_PERMUTATIONS, Strength, in_two_halves, permuted_instruments, r_squared, strengths
from prudent.cmr._tree_ensemble import TreeEnsemble
from prudent.errors import DataError

CONTROLS = ("residual", "rank")
SECONDS = ("gp", "spline", "boosting")
PENALTIES = 10.0 ** np.arange(-3.0, 4.1, 0.5)
# Values of the control over which a second stage that is not additive in it is averaged.
N_CONTROLS = 16
CONTROL_KNOTS = 6
PREDICT_BLOCK = 2000


@dataclasses.dataclass(frozen=True)
class ControlReport:
    """Fit of the first stage and strength of the instruments out of fold, and how much the control explains.

    ``control_share`` is the variance of the control's part of the outcome over that of the outcome; None where the
    second stage is not additive.
    """

    n_rows: int
    action_r2: float
    strength: Strength
    control_share: tuple[float, ...] | None


class ControlFunction(MomentEstimator):
    """Control function estimator of f for a scalar continuous action.

    Parameters
    ----------
    second : {"gp", "spline", "boosting"}
        Second stage: Gaussian process or splines of action and context plus a spline of the control, or boosted trees
        of all three with the control averaged out.
    control : {"residual", "rank"}
        The first stage's residual, or its rank mapped to a normal score.
    n_folds : int, default=5
        Folds of the first stage: the control of a row comes from a model that has not seen the row.
    n_landmarks : int, default=800
        Rows that carry Gaussian processes.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.

    Attributes
    ----------
    report_ : ControlReport
        Facts about the fit.
    """

    def __init__(
        self,
        second: str = "gp",
        *,
        control: str = "residual",
        n_folds: int = 5,
        n_landmarks: int = 800,
        show_progress: bool | None = None,
    ):
        self.second = second
        self.control = control
        self.n_folds = n_folds
        self.n_landmarks = n_landmarks
        self.show_progress = show_progress

    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit f on arrays; ``x`` must have exactly one column that is not in ``c``, and that one continuous."""
        check_choice("second", self.second, SECONDS)
        check_choice("control", self.control, CONTROLS)
        check_count("n_folds", self.n_folds, 2)
        check_count("n_landmarks", self.n_landmarks, 10)
        problem = Problem.of("ControlFunction", y, x, c, seed=seed, groups=groups)
        if len(problem.modelled) != 1:
            raise DataError(
                f"ControlFunction needs exactly one action, got {len(problem.modelled)} columns of x that are not in "
                "c (a categorical action has one per level). Use KernelCMR, TreeCMR or DMLCMR for several."
            )
        if problem.discrete("auto"):
            raise DataError(
                f"ControlFunction needs a continuous action, got {len(np.unique(problem.x[:, problem.modelled]))} "
                "values. Use KernelCMR, TreeCMR or DMLCMR for a discrete one."
            )
        rng = np.random.default_rng(seed)
        folds = cross_fit_folds(len(problem.x), self.n_folds, rng, problem.groups)
        with Progress(self.show_progress) as progress, threadpool_limits(1):
            task = progress.start("control function", 2)
            action = problem.x[:, problem.modelled]
            first = GaussianProcess(problem.instruments, n_landmarks=self.n_landmarks, rng=rng)
            first.prepare(problem.c, action, problem.groups)
            # A generator of its own: what is reported has no part in what is fitted.
            aside = np.random.default_rng([seed, 1])
            permuted, _ = permuted_instruments(problem.c, problem.instruments, N_PERMUTATIONS, aside, problem.groups)
            designs = [first.design, *(first.features(c) for c in permuted)]
            guesses = np.empty((len(designs), *action.shape))
            for rows, w in zip(folds, first.coefficients(folds), strict=True):
                for number, features in enumerate(designs):
                    guesses[number, rows] = first.predict(features[rows], w)
            guess, without = guesses[0], in_two_halves(list(guesses[1:]))
            task.advance("action")
            residual = action - guess
            control = residual / residual.std() if self.control == "residual" else _normal_scores(residual)
            x_scaler, y_scaler = column_scaler(problem.x), Scaler.of(problem.y)
            u, target = standard(x_scaler, problem.x), standard(y_scaler, problem.y)
            fit_second = {"gp": self._fit_gp, "spline": self._fit_spline, "boosting": self._fit_boosting}[self.second]
            function, share = fit_second(u, control, target, problem, rng)
            task.advance("outcome")
        # Only now: a fit that fails leaves an earlier one as it was.
        self.function_, self.x_scaler_, self.y_scaler_ = function, x_scaler, y_scaler
        self.report_ = ControlReport(
            n_rows=len(u),
            action_r2=r_squared(action, guess)[0],
            strength=strengths(action, guess, without, problem.groups)[0],
            control_share=share,
        )
        return self

    def predict(self, x: Any) -> np.ndarray:
        """f(x), shape (n, outcomes), in the units of y."""
        self._check_fitted("function_")
        u = standard(self.x_scaler_, as_matrix("x", x, n_columns=len(self.x_scaler_.mean)))
        parts = np.array_split(u, -(-len(u) // PREDICT_BLOCK))
        return self.y_scaler_.back(np.vstack([self.function_(part) for part in parts]))

    def _pairs(self, first: Matrix, others: Matrix) -> np.ndarray:
        """As in the base class; fast for the kernel function of an action and a context."""
        self._check_fitted("function_")
        f = self.function_
        if isinstance(f, _KernelFunction):
            values = f.kernel.pairs(self.x_scaler_, first, others, f.landmarks, f.weights)
            if values is not None:
                return self.y_scaler_.back(values)
        return super()._pairs(first, others)

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds the fitted function."""
        self._check_fitted("function_")
        function, arrays = self.function_.to_state()
        record = {"kind": type(self).__name__, "params": simple_params(self.get_params()), "function": function}
        for name, scaler in (("x", self.x_scaler_), ("y", self.y_scaler_)):
            arrays |= {f"{name}.mean": scaler.mean, f"{name}.scale": scaler.scale}
        return record, arrays

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "ControlFunction":
        """Rebuild a fitted estimator; it predicts, but its report is not kept."""
        model = cls(**record["params"])
        model.x_scaler_, model.y_scaler_ = (Scaler(arrays[f"{name}.mean"], arrays[f"{name}.scale"]) for name in "xy")
        kinds = {"gp": _KernelFunction, "spline": _SplineFunction, "boosting": _AveragedTrees}
        model.function_ = kinds[model.second].from_state(record["function"], arrays)
        return model

    def _fit_gp(self, u: Matrix, control: Matrix, y: Matrix, problem: Problem, rng: np.random.Generator) -> tuple:
        layout = Layout.of(problem.x, list(problem.modelled))
        landmarks = u[rng.permutation(len(u))[: self.n_landmarks]]
        effect = np.zeros_like(y)
        basis = _control_basis(control)
        # The kernel is tuned twice: the control's part is noise to the first round and known to the second.
        for _ in range(2):
            front = u[:, problem.modelled]
            kernel = tune_kernel(layout, u, front, np.zeros_like(front), y - effect, rng=rng, groups=problem.groups)
            whiten = landmark_map(kernel, landmarks)
            design = np.hstack([kernel.between(u, landmarks) @ whiten, basis])
            penalty = np.full(design.shape[1], kernel.noise)
            penalty[-basis.shape[1] :] = 1e-3
            solved = np.linalg.solve(design.T @ design + np.diag(penalty), design.T @ y)
            effect = basis @ solved[-basis.shape[1] :]
        return _KernelFunction(kernel, landmarks, whiten @ solved[: -basis.shape[1]]), _share(effect, y)

    def _fit_spline(self, u: Matrix, control: Matrix, y: Matrix, problem: Problem, rng: np.random.Generator) -> tuple:
        series = Series.of(u, kind="spline", degree=3, n_knots=8, interactions=True)
        basis = _control_basis(control)
        raw = series.transform(u)
        centre = raw.mean(axis=0)
        # Centred, not scaled: a product that is rarely away from zero in the data may be large elsewhere, and should
        # pay for its coefficient in full.
        design = np.hstack([np.ones((len(u), 1)), raw - centre, basis])
        folds = problem.inner_folds(5, rng)
        gram, moment = design.T @ design, design.T @ y
        losses = np.zeros(len(PENALTIES))
        is_free = np.zeros(design.shape[1], dtype=bool)
        is_free[[0, *range(design.shape[1] - basis.shape[1], design.shape[1])]] = True

        def solve(gram: np.ndarray, moment: np.ndarray, penalty: float) -> np.ndarray:
            return np.linalg.solve(gram + np.diag(np.where(is_free, 1e-3, penalty)), moment)

        for rows in folds:
            inside = design[rows]
            for number, penalty in enumerate(PENALTIES):
                w = solve(gram - inside.T @ inside, moment - inside.T @ y[rows], penalty)
                losses[number] += np.sum((y[rows] - inside @ w) ** 2)
        w = solve(gram, moment, PENALTIES[np.argmin(losses)])
        inner = w[1 : -basis.shape[1]]
        function = _SplineFunction(series, np.vstack([w[:1] - centre @ inner, inner]))
        return function, _share(basis @ w[-basis.shape[1] :], y)

    def _fit_boosting(self, u: Matrix, control: Matrix, y: Matrix, problem: Problem, rng: np.random.Generator) -> tuple:
        from sklearn.ensemble import GradientBoostingRegressor

        inputs = np.hstack([u, control])
        ensembles, starts, seed = [], [], int(rng.integers(2**31))
        split = None if problem.groups is None else held_out_groups(problem.groups, rng)
        for column in y.T:
            model = GradientBoostingRegressor(
                n_estimators=400,
                learning_rate=0.08,
                max_depth=4,
                min_samples_leaf=10,
                subsample=0.5,
                # Stops on a random tenth of the rows, which is no judge where rows of one group resemble each other.
                n_iter_no_change=20 if split is None else None,
                random_state=seed,
            )
            if split is None:
                trees = [tree.tree_ for tree in model.fit(inputs, column).estimators_[:, 0]]
            else:
                train, held = split
                stages = model.fit(inputs[train], column[train]).staged_predict(inputs[held])
                losses = [np.mean((column[held] - values) ** 2) for values in stages]
                trees = [tree.tree_ for tree in model.estimators_[: int(np.argmin(losses)) + 1, 0]]
            values = [0.08 * tree.value.reshape(-1, 1, 1) for tree in trees]
            ensembles.append(TreeEnsemble.of(trees, values))
            # Not the mean of the column: early stopping holds rows out of the fit.
            start: Any = model.init_
            starts.append(float(start.constant_[0, 0]))
        levels = np.quantile(control[:, 0], (np.arange(N_CONTROLS) + 0.5) / N_CONTROLS)
        return _AveragedTrees(ensembles, np.array(starts), levels), None


@dataclasses.dataclass(frozen=True)
class _KernelFunction:
    kernel: ProductKernel
    landmarks: Matrix
    weights: np.ndarray

    def __call__(self, u: Matrix) -> np.ndarray:
        return self.kernel.between(u, self.landmarks) @ self.weights

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays = {"theta": self.kernel.theta, "landmarks": self.landmarks, "weights": self.weights}
        return self.kernel.layout.to_json(), arrays

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "_KernelFunction":
        kernel = ProductKernel(Layout.from_json(record), arrays["theta"])
        return cls(kernel, arrays["landmarks"], arrays["weights"])


@dataclasses.dataclass(frozen=True)
class _SplineFunction:
    series: Series
    weights: np.ndarray

    def __call__(self, u: Matrix) -> np.ndarray:
        return self.weights[0] + self.series.transform(u) @ self.weights[1:]

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        record, arrays = self.series.to_state("series")
        return record, {**arrays, "weights": self.weights}

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "_SplineFunction":
        return cls(Series.from_state(record, arrays, "series"), arrays["weights"])


@dataclasses.dataclass(frozen=True)
class _AveragedTrees:
    """Boosted trees of (x, control), averaged over values of the control."""

    ensembles: list[TreeEnsemble]
    starts: np.ndarray
    levels: np.ndarray

    def __call__(self, u: Matrix) -> np.ndarray:
        points = np.hstack([np.repeat(u, len(self.levels), axis=0), np.tile(self.levels, len(u))[:, None]])
        ones = np.ones((len(points), 1))
        columns = [ensemble.predict(points, ones).reshape(len(u), -1).mean(axis=1) for ensemble in self.ensembles]
        return np.column_stack(columns) + self.starts

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays = {"starts": self.starts, "levels": self.levels}
        for number, ensemble in enumerate(self.ensembles):
            arrays |= {f"{number}.{name}": array for name, array in ensemble.to_arrays().items()}
        return {"n_outcomes": len(self.ensembles)}, arrays

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "_AveragedTrees":
        ensembles = [
            TreeEnsemble.from_arrays(
                {name[len(f"{k}.") :]: a for name, a in arrays.items() if name.startswith(f"{k}.")}
            )
            for k in range(record["n_outcomes"])
        ]
        return cls(ensembles, arrays["starts"], arrays["levels"])


def _control_basis(control: Matrix) -> np.ndarray:
    """Spline of the control, centred: its part of the outcome then has mean zero, which averages it out of f."""
    series = Series.of(control, kind="spline", degree=3, n_knots=CONTROL_KNOTS, interactions=False)
    basis = series.transform(control)
    return basis - basis.mean(axis=0)


def _normal_scores(residual: Matrix) -> Matrix:
    from scipy.stats import norm, rankdata

    return norm.ppf((rankdata(residual[:, 0]) - 0.5) / len(residual))[:, None]


def _share(effect: Matrix, y: Matrix) -> tuple[float, ...]:
    return tuple(float(v) for v in effect.var(axis=0) / np.maximum(y.var(axis=0), 1e-300))
