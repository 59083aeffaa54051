"""KernelCMR: DML-CMR in closed form, with Gaussian-process nuisances and a function in an RKHS.

s(c) = E[Y|c] and the law of X given c come from cross-fitted Gaussian processes; f minimises
sum_i (s(c_i) - E_i[f(X)])^2 + penalty |f|^2 over an RKHS. Kernel parameters maximise a marginal likelihood, the
penalty is chosen on held-out moments. Everything is linear algebra: no step size, no epochs.

Where an action nearly follows from the context, an effect of the action and one of the context explain the outcome
about equally well, and the likelihood takes what is simpler to say. Where it follows for the most part, effects that
are lines in the action compete with the general one on held-out moments. Where hardly anything else moves it, f starts
from a regression on the context, and the equation is solved for the correction: an action gets what the instruments
ask for.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from threadpoolctl import threadpool_limits

from prudent._checks import check_count
from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler, as_matrix
from prudent.cmr._atoms import Atoms, fit_atoms
from prudent.cmr._base import MomentEstimator
from prudent.cmr._folds import cross_fit_folds, unseen_folds
from prudent.cmr._gp import (
    CURVED,
    LINEAR,
    N_GLOBAL,
    GaussianProcess,
    Layout,
    ProductKernel,
    column_scaler,
    landmark_map,
    ridge,
    standard,
    tune_kernel,
)
from prudent.cmr._pairs import beside
from prudent.cmr._problem import MAX_OWN, Problem, check_choice, params_from_json, simple_params
from prudent.cmr._report import FitReport, facts_of_atoms, is_weak, strengths

# Smallest length-scale of an action, in standard deviations of its law given the instruments.
SHARPEST = 2.0
# Multiples of the tuned noise variance that the held-out moments choose from.
PENALTIES = 10.0 ** np.arange(-1.0, 1.1, 0.5)
# f starts from a regression on the context where instruments make a smaller share of what is expected of an action.
# With strong instruments that start costs precision: what it leaves is not simple in the action.
MIN_SHARE = 0.05
# Below this share simpler effects of the action compete, too.
ENTANGLED = 0.4
MAX_TRIALS = 10
SCORES = ("orthogonal", "outcome")
PREDICT_BLOCK = 2000
# Logarithm of an amplitude that no data can see.
ALMOST_NOTHING = -16.0

Tune = Callable[[np.random.Generator, dict[int, float]], ProductKernel]


@dataclasses.dataclass(frozen=True)
class KernelReport(FitReport):
    """Facts about a fit of KernelCMR.

    ``effect`` is that of the modelled columns (actions, or proxies): "curve", "lines by context" or "line";
    ``penalty`` the chosen multiple of the noise variance.
    """

    effect: str
    penalty: float
    starts_from_context: bool


@dataclasses.dataclass(frozen=True)
class ContextRegression:
    """E[Y | columns of x that are known given c], all in raw units."""

    kernel: ProductKernel
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, problem: Problem, n_landmarks: int, rng: np.random.Generator) -> "ContextRegression":
        """Fit it to all rows."""
        model = GaussianProcess([], n_landmarks=n_landmarks, rng=rng)
        model.prepare(problem.x[:, problem.known], problem.y, problem.groups)
        (coefficients,) = model.coefficients([np.arange(problem.n_rows)])
        arrays = {
            "columns": np.array(problem.known),
            "landmarks": model.landmarks,
            "weights": model.map @ coefficients,
            "x.mean": model.scaler.mean,
            "x.scale": model.scaler.scale,
            "y.mean": model.target_scaler.mean,
            "y.scale": model.target_scaler.scale,
        }
        return cls(model.kernel, arrays)

    def __call__(self, x: Matrix) -> np.ndarray:
        arrays = self.arrays
        u = standard(Scaler(arrays["x.mean"], arrays["x.scale"]), x[:, arrays["columns"]])
        parts = np.array_split(u, -(-len(u) // PREDICT_BLOCK))
        values = np.vstack([self.kernel.between(part, arrays["landmarks"]) @ arrays["weights"] for part in parts])
        return Scaler(arrays["y.mean"], arrays["y.scale"]).back(values)


class KernelCMR(MomentEstimator):
    """Closed-form, cross-fitted estimator of f in E[Y - f(X) | C] = 0.

    Parameters
    ----------
    n_folds : int, default=10
        Cross-fitting folds. 1 uses nuisances that have seen every row.
    score : {"orthogonal", "outcome"}
        What E[f(X)|c] is matched with: the learnt s(c), or the outcome itself.
    n_landmarks : int, default=1000
        Rows that carry the functions (Nystroem); all rows when there are fewer.
    discrete : "auto" or sequence of int
        Which columns of x are discrete. "auto": at most 10 values, each seen twice or more.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.

    Attributes
    ----------
    kernel_ : ProductKernel
        Kernel of f, in standard units.
    context_ : ContextRegression or None
        What f starts from; None where the instruments move the action enough.
    report_ : KernelReport
        Facts about the fit.
    """

    def __init__(
        self,
        n_folds: int = 10,
        *,
        score: str = "orthogonal",
        n_landmarks: int = 1000,
        discrete: Any = "auto",
        show_progress: bool | None = None,
    ):
        self.n_folds = n_folds
        self.score = score
        self.n_landmarks = n_landmarks
        self.discrete = discrete
        self.show_progress = show_progress

    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit f on arrays; columns of ``x`` that equal a column of ``c`` pass through exactly."""
        check_count("n_folds", self.n_folds)
        check_count("n_landmarks", self.n_landmarks, 10)
        check_choice("score", self.score, SCORES)
        problem = Problem.of("KernelCMR", y, x, c, seed=seed, groups=groups)
        discrete = problem.discrete(self.discrete)
        rng = np.random.default_rng(seed)
        folds = cross_fit_folds(len(problem.x), self.n_folds, rng, problem.groups)
        with Progress(self.show_progress) as progress, threadpool_limits(1):
            task = progress.start("kernel CMR", 3)
            outcome, by_fold = self._outcome(problem, folds, rng)
            task.advance("outcome")
            atoms = fit_atoms(
                problem.x[:, problem.modelled],
                problem.c,
                folds,
                self._regression(problem, rng),
                discrete=discrete,
                instruments=problem.instruments,
                groups=problem.groups,
                rng=rng,
            )
            task.advance("action")
            s = _own_rows(by_fold, folds)
            self.context_, rest, s_rest = None, problem, s
            share = _own_share(atoms, atoms.shuffled)
            strength = strengths(problem.x[:, problem.modelled], atoms.expected, atoms.without, problem.groups)
            # An instrument that the context predicts may have a share, and still say nothing of its own.
            is_idle = _own_share(atoms, atoms.without) < MIN_SHARE and is_weak(strength)
            if problem.known and (share < MIN_SHARE or is_idle):
                self.context_ = ContextRegression.of(problem, self.n_landmarks, rng)
                rest = dataclasses.replace(problem, y=problem.y - self.context_(problem.x))
                by_fold = self._outcome(rest, folds, rng)[1]
                s_rest = _own_rows(by_fold, folds)
            effect, penalty = self._fit_function(
                rest, s_rest, by_fold, atoms, folds, rng, is_entangled=MIN_SHARE <= share < ENTANGLED
            )
            task.advance("function")
            if len(folds) == 1:
                # What is reported speaks of rows that were not seen.
                apart = unseen_folds(problem.n_rows, rng, problem.groups)
                for rows, w in zip(apart, outcome.coefficients(apart), strict=True):
                    s[rows] = outcome.predict(outcome.design[rows], w)
        self.report_ = KernelReport(
            **facts_of_atoms(problem, s, atoms, n_folds=self.n_folds, discrete=discrete, seed=seed),
            effect=effect,
            penalty=penalty,
            starts_from_context=self.context_ is not None,
        )
        return self

    def predict(self, x: Any) -> np.ndarray:
        """f(x), shape (n, outcomes), in the units of y."""
        self._check_fitted("kernel_")
        x = as_matrix("x", x, n_columns=len(self.x_scaler_.mean))
        u = standard(self.x_scaler_, x)
        parts = np.array_split(u, -(-len(u) // PREDICT_BLOCK))
        values = np.vstack([self.kernel_.between(part, self.landmarks_) @ self.weights_ for part in parts])
        return self.y_scaler_.back(values) + (0.0 if self.context_ is None else self.context_(x))

    def _pairs(self, first: Matrix, others: Matrix) -> np.ndarray:
        """As in the base class; fast where no factor of the kernel has columns of both, as with action and context."""
        self._check_fitted("kernel_")
        values = self.kernel_.pairs(self.x_scaler_, first, others, self.landmarks_, self.weights_)
        if values is None:
            return super()._pairs(first, others)
        values = self.y_scaler_.back(values)
        if self.context_ is None:
            return values
        if self.context_.arrays["columns"].min() < first.shape[1]:
            return super()._pairs(first, others)
        return values + self.context_(beside(first[:1], others))

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds the fitted function."""
        self._check_fitted("kernel_")
        record = {
            "kind": type(self).__name__,
            "params": simple_params(self.get_params()),
            "layout": self.kernel_.layout.to_json(),
            "context": None if self.context_ is None else self.context_.kernel.layout.to_json(),
        }
        arrays = {"theta": self.kernel_.theta, "landmarks": self.landmarks_, "weights": self.weights_}
        for name, scaler in (("x", self.x_scaler_), ("y", self.y_scaler_)):
            arrays |= {f"{name}.mean": scaler.mean, f"{name}.scale": scaler.scale}
        if self.context_ is not None:
            context = {"theta": self.context_.kernel.theta, **self.context_.arrays}
            arrays |= {f"context.{name}": array for name, array in context.items()}
        return record, arrays

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "KernelCMR":
        """Rebuild a fitted estimator; it predicts, but its nuisances and report are not kept."""
        model = cls(**params_from_json(record["params"]))
        model.kernel_ = ProductKernel(Layout.from_json(record["layout"]), arrays["theta"])
        model.landmarks_, model.weights_ = arrays["landmarks"], arrays["weights"]
        model.x_scaler_, model.y_scaler_ = (Scaler(arrays[f"{name}.mean"], arrays[f"{name}.scale"]) for name in "xy")
        model.context_ = None
        if record.get("context") is not None:
            context = {name[8:]: array for name, array in arrays.items() if name.startswith("context.")}
            kernel = ProductKernel(Layout.from_json(record["context"]), context.pop("theta"))
            model.context_ = ContextRegression(kernel, context)
        return model

    def _outcome(
        self, problem: Problem, folds: list[np.ndarray], rng: np.random.Generator
    ) -> tuple[GaussianProcess, list[Matrix]]:
        """Regression of the outcome on c, and its predictions of all rows by the models of every fold."""
        model = GaussianProcess(problem.instruments, n_landmarks=self.n_landmarks, rng=rng)
        model.prepare(problem.c, problem.y, problem.groups)
        return model, [model.predict(model.design, w) for w in model.coefficients(folds)]

    def _regression(self, problem: Problem, rng: np.random.Generator):
        """A cross-fitted regression by Gaussian processes, as :func:`fit_atoms` wants it."""

        def regress(inputs: Matrix, target: Matrix, folds: list[np.ndarray], groups: np.ndarray | None = None):
            # The levels of a discrete action share a kernel, as do many actions; a few continuous ones have their own.
            is_shared = target.shape[1] > MAX_OWN or np.isin(target, (0.0, 1.0)).all()
            joint = target.shape[1] if is_shared else 1
            fitted = []
            for start in range(0, target.shape[1], joint):
                model = GaussianProcess(problem.instruments, n_landmarks=self.n_landmarks, rng=rng)
                model.prepare(inputs, target[:, start : start + joint], groups)
                fitted.append((model, model.coefficients(folds)))

            def predict(at: Matrix) -> Matrix:
                result = np.empty((len(at), target.shape[1]))
                for number, (model, coefficients) in enumerate(fitted):
                    features = model.design if at is inputs else model.features(at)
                    for rows, w in zip(folds, coefficients, strict=True):
                        columns = slice(number * joint, (number + 1) * joint)
                        result[rows, columns] = model.predict(features[rows], w)
                return result

            return predict

        return regress

    def _fit_function(
        self,
        problem: Problem,
        s: Matrix,
        by_fold: list[Matrix],
        atoms: Atoms,
        folds: list[np.ndarray],
        rng: np.random.Generator,
        is_entangled: bool,
    ) -> tuple[str, float]:
        """The second stage; returns the kind of effect and the penalty (a multiple of the noise variance) chosen."""
        self.x_scaler_, self.y_scaler_ = column_scaler(problem.x), Scaler.of(problem.y)
        u = standard(self.x_scaler_, problem.x)
        y = standard(self.y_scaler_, problem.y)
        front = list(problem.modelled)
        scaler = Scaler(self.x_scaler_.mean[front], self.x_scaler_.scale[front])
        law = dataclasses.replace(atoms, value=standard(scaler, atoms.value))
        layout = Layout.of(problem.x, front)
        variance = law.variance()
        # Of detail finer than what the law of a column blurs the likelihood sees only the product of its size and
        # scale; left alone it takes the finest, with an amplitude to match. Levels are not blurred into each other.
        sharpest = SHARPEST * np.sqrt(variance.mean(axis=0))
        sharpest[problem.discrete(self.discrete)] = 0.0

        def tune(rng: np.random.Generator, given: dict[int, float] | None = None) -> ProductKernel:
            return tune_kernel(
                layout,
                u,
                law.mean(),
                variance,
                y,
                rng=rng,
                groups=problem.groups,
                sharpest=sharpest,
                given=given,
            )

        kernels = {"curve": tune(rng)}
        self.landmarks_ = u[rng.permutation(len(u))[: self.n_landmarks]]
        if len(folds) > 1 and self.score == "orthogonal":
            # Rows outside a fold are matched with the s of that fold, which has not seen the outcomes held out in it;
            # their own s has, and would favour small penalties.
            trials = [(rows, standard(self.y_scaler_, guess)) for rows, guess in zip(folds, by_fold, strict=True)]
        else:
            trials = [(rows, y) for rows in problem.inner_folds(5, rng)]
        if is_entangled and (layout.numeric or layout.categories):
            kernels |= _lines(layout, u, y, problem.groups, tune, rng.spawn(1)[0])
        target = standard(self.y_scaler_, s) if self.score == "orthogonal" else y
        solutions = {
            effect: _solve(kernel, self.landmarks_, law, u, y, target, trials[:MAX_TRIALS])
            for effect, kernel in kernels.items()
        }
        effect = min(solutions, key=lambda name: solutions[name].loss)
        self.kernel_, self.weights_ = kernels[effect], solutions[effect].weights
        return effect, solutions[effect].penalty


@dataclasses.dataclass(frozen=True)
class _Solution:
    """Weights of the landmarks with the best penalty (a multiple of the noise variance), and its held-out loss."""

    weights: np.ndarray
    penalty: float
    loss: float


def _solve(
    kernel: ProductKernel,
    landmarks: Matrix,
    law: Atoms,
    u: Matrix,
    y: Matrix,
    target: Matrix,
    trials: list[tuple[np.ndarray, Matrix]],
) -> _Solution:
    """f with one kernel; ``trials`` are rows to hold out, with what all other rows are matched with meanwhile."""
    whiten = landmark_map(kernel, landmarks)
    design = kernel.mean_between(law.value, law.weight, u, landmarks) @ whiten
    gram = design.T @ design
    held_out = np.zeros(len(PENALTIES))
    for rows, guess in trials:
        inside = design[rows]
        outer_gram = gram - inside.T @ inside
        outer_moment = design.T @ guess - inside.T @ guess[rows]
        for number, factor in enumerate(PENALTIES):
            w = ridge(outer_gram, outer_moment, factor * kernel.noise)
            # The noise of the held-out outcomes adds the same constant for every penalty.
            held_out[number] += np.sum((y[rows] - inside @ w) ** 2)
    best = int(np.argmin(held_out))
    weights = whiten @ ridge(gram, design.T @ target, PENALTIES[best] * kernel.noise)
    return _Solution(weights, float(PENALTIES[best]), float(held_out[best]))


def _lines(
    layout: Layout, u: Matrix, y: Matrix, groups: np.ndarray | None, tune: Tune, rng: np.random.Generator
) -> dict[str, ProductKernel]:
    """Kernels of an effect that is a line in the modelled columns, whose slope varies with the context or does not.

    What the context does is learnt as if nothing else mattered: the likelihood of all parameters together finds a curve
    in the action simpler than one in the context where the one nearly follows from the other.
    """
    alone = dataclasses.replace(layout, front=())
    nothing = np.empty((len(u), 0))
    context = tune_kernel(alone, u, nothing, nothing, y, rng=rng, groups=groups)
    first = N_GLOBAL + 2 * len(layout.front)
    given = {first + place: value for place, value in enumerate(context.theta[N_GLOBAL:])}
    kernels = {}
    for effect, absent in (("lines by context", [CURVED]), ("line", [LINEAR, CURVED])):
        theta = tune(rng, given | dict.fromkeys(absent, ALMOST_NOTHING)).theta
        theta[absent] = -np.inf
        kernels[effect] = ProductKernel(layout, theta)
    return kernels


def _own_rows(by_fold: list[Matrix], folds: list[np.ndarray]) -> Matrix:
    """Predictions of every row by the model of the fold that holds it."""
    result = np.empty_like(by_fold[0])
    for rows, guess in zip(folds, by_fold, strict=True):
        result[rows] = guess[rows]
    return result


def _own_share(atoms: Atoms, without: np.ndarray) -> float:
    """Share of the instruments in the variance of what is expected of a modelled column; the least of all columns."""
    if atoms.expected.shape[1] == 0:
        return 1.0
    # One of the two on each side: the noise of permutations would count as the instruments' own.
    first, second = (atoms.expected - blind for blind in without)
    own = np.mean((first - first.mean(axis=0)) * (second - second.mean(axis=0)), axis=0)
    return float(np.min(own / np.maximum(atoms.expected.var(axis=0), 1e-300)))
