"""Kernel instrumental-variable regression (Singh, Sahani and Gretton, 2019), exact or with random features.

Half of the rows learn the conditional mean embedding of the modelled columns given C by ridge regression; the other
half learn f by ridge regression of Y on the embedded kernel. Each penalty is chosen on the half that its stage did not
use. Then the halves change places, and f is the mean of both. With a product kernel the columns of X that stand in C
keep their own kernel and need no embedding.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import numpy as np
from threadpoolctl import threadpool_limits

from prudent._checks import check_count
from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler, as_matrix
from prudent.cmr._base import MomentEstimator
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._gp import Layout, column_scaler, distances, standard
from prudent.cmr._kernelstages import (
    Draws,
    FirstStage,
    Halves,
    Penalties,
    Regressors,
    Solution,
    first_stage,
    gaussian,
    second_stage,
    solve_exact,
    solve_random,
)
from prudent.cmr._pairs import beside, pair_products
from prudent.cmr._problem import Problem, check_choice, check_positive, simple_params

FEATURES = ("auto", "exact", "random")
BANDWIDTHS = ("median", "tuned")
# Exact solutions cost the cube of the rows.
MAX_EXACT = 2000
# Factors on the median bandwidths, tried one group of columns after the other, the first being where the search starts.
FACTORS = (1.0, 0.25, 0.5, 2.0, 4.0)
# What varies quickly in an action leaves next to no trace in its mean given C, and held-out moments cannot tell what
# it does from what the context does where the instruments are weak: the widest kernel that does not clearly lose.
ACTION_FACTORS = (8.0, 4.0, 2.0, 1.0)
# So wide that all actions are alike.
BLIND = 1e6
# A narrower kernel of an action must gain this many standard errors on the held-out rows. Those of the context need
# no such proof: one that is too wide leaves to the action what the context does.
MIN_ERRORS = 2.0
# Share of the held-out loss that a context tuned beside the action must save: with weak instruments the action gains a
# few per cent by what the context does.
MIN_GAIN = 0.06
PILOT_ROWS, PILOT_FEATURES = 2000, 200
MEDIAN_ROWS = 500
PREDICT_BLOCK = 4000


@dataclasses.dataclass(frozen=True)
class KernelIVReport:
    """Chosen penalties (first and second stage, by the half that learns the first), bandwidths of the columns in raw
    units, and held-out losses."""

    features: str
    first_penalty: tuple[float, ...]
    second_penalty: tuple[float, ...]
    x_bandwidths: tuple[float, ...]
    c_bandwidths: tuple[float, ...]
    first_loss: float
    second_loss: float


class KernelIV(MomentEstimator):
    """Two-stage kernel ridge regression for E[Y - f(X) | C] = 0.

    Parameters
    ----------
    features : {"auto", "exact", "random"}
        Exact kernels (cost n^3), or random Fourier features (cost n). "auto": exact up to 2000 rows.
    n_features : int, default=800
        Random features of each stage.
    bandwidth : {"tuned", "median"}
        Median distance of every column (or category), or that median times a factor chosen on held-out moments.
    first_penalty, second_penalty : float, optional
        Ridge parameters per row of the two stages. By default each is chosen on the half its stage did not use.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.

    Attributes
    ----------
    report_ : KernelIVReport
        Penalties, bandwidths and held-out losses.
    """

    def __init__(
        self,
        features: str = "auto",
        *,
        n_features: int = 800,
        bandwidth: str = "tuned",
        first_penalty: float | None = None,
        second_penalty: float | None = None,
        show_progress: bool | None = None,
    ):
        self.features = features
        self.n_features = n_features
        self.bandwidth = bandwidth
        self.first_penalty = first_penalty
        self.second_penalty = second_penalty
        self.show_progress = show_progress

    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit f on arrays; columns of ``x`` that equal a column of ``c`` pass through exactly."""
        check_choice("features", self.features, FEATURES)
        check_choice("bandwidth", self.bandwidth, BANDWIDTHS)
        check_count("n_features", self.n_features, 10)
        for name in ("first_penalty", "second_penalty"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        problem = Problem.of("KernelIV", y, x, c, seed=seed, groups=groups)
        rng = np.random.default_rng(seed)
        user = "KernelIV learns its two stages on two halves of the data, for which it"
        halves = cross_fit_folds(len(problem.x), 2, rng, problem.groups, user=user)
        x_scaler, c_scaler, y_scaler = column_scaler(problem.x), column_scaler(problem.c), Scaler.of(problem.y)
        u, v = standard(x_scaler, problem.x), standard(c_scaler, problem.c)
        x_groups, c_groups = _groups(problem.x), _groups(problem.c)
        x_scale, c_scale = _medians(u, x_groups, rng), _medians(v, c_groups, rng)
        target = standard(y_scaler, problem.y)

        def cut(rows: list[np.ndarray], x_scale: np.ndarray, c_scale: np.ndarray) -> Halves:
            w, z = u / x_scale, v / c_scale
            return Halves(
                action=(w[rows[0]][:, problem.modelled], w[rows[1]][:, problem.modelled]),
                known=(w[rows[0]][:, problem.known], w[rows[1]][:, problem.known]),
                c=(z[rows[0]], z[rows[1]]),
                y=(target[rows[0]], target[rows[1]]),
            )

        kind = self.features
        if kind == "auto":
            kind = "exact" if len(u) <= MAX_EXACT else "random"
        given = Penalties(self.first_penalty, self.second_penalty)

        def solve(order: list[np.ndarray]) -> Solution:
            data = cut(order, x_scale, c_scale)
            if kind == "exact":
                return solve_exact(data, given)
            return solve_random(data, Draws.of(data, self.n_features, seed), given)

        # One thread for a product: results must not depend on how many cores there are. Two orders of the halves are
        # two pieces of work, whoever does them.
        with Progress(self.show_progress) as progress, threadpool_limits(1), ThreadPoolExecutor(2) as pool:
            if self.bandwidth == "tuned":
                pilot = [rng.permutation(rows)[: PILOT_ROWS // 2] for rows in halves]
                starts = (x_scale, x_groups), (c_scale, c_groups)
                x_scale, c_scale = self._tune(cut, problem, pilot, *starts, seed, pool, progress)
            # Each half learns each stage once; the mean of the two functions has less noise.
            solutions = list(pool.map(solve, (halves, halves[::-1])))
        # Only now: a fit that fails leaves an earlier one as it was.
        self.modelled_, self.known_, self.y_scaler_ = list(problem.modelled), list(problem.known), y_scaler
        self.kind_ = kind
        self.parts_ = [each.arrays for each in solutions]
        if kind == "random":
            # Of the same random features: one function.
            self.parts_ = [self.parts_[0] | {"weights": np.mean([part["weights"] for part in self.parts_], axis=0)}]
        self.x_scaler_ = Scaler(x_scaler.mean, x_scaler.scale * x_scale)
        self.report_ = KernelIVReport(
            features=kind,
            first_penalty=tuple(each.penalties[0] for each in solutions),
            second_penalty=tuple(each.penalties[1] for each in solutions),
            x_bandwidths=tuple(float(b) for b in self.x_scaler_.scale),
            c_bandwidths=tuple(float(b) for b in c_scaler.scale * c_scale),
            first_loss=float(np.mean([each.losses[0].mean() for each in solutions])),
            second_loss=float(np.mean([each.losses[1].mean() for each in solutions])),
        )
        return self

    def predict(self, x: Any) -> np.ndarray:
        """f(x), shape (n, outcomes), in the units of y."""
        self._check_fitted("parts_")
        u = standard(self.x_scaler_, as_matrix("x", x, n_columns=len(self.x_scaler_.mean)))
        parts = np.array_split(u, -(-len(u) // PREDICT_BLOCK))
        return self.y_scaler_.back(np.vstack([self._values(part) for part in parts]))

    def _pairs(self, first: Matrix, others: Matrix) -> np.ndarray:
        """As in the base class; fast where ``first`` is what is modelled and ``others`` what is known: in policies."""
        self._check_fitted("parts_")
        if self.modelled_ != list(range(first.shape[1])):
            return super()._pairs(first, others)
        left, right = (standard(self.x_scaler_, r) for r in (beside(first, others[:1]), beside(first[:1], others)))
        action, known = left[:, self.modelled_], right[:, self.known_]
        products = [self._products(part, action, known) for part in self.parts_]
        return self.y_scaler_.back(np.mean(products, axis=0))

    def _products(self, part: dict[str, np.ndarray], action: Matrix, known: Matrix) -> np.ndarray:
        """One part of f at every pair of actions and known columns, in standard units."""
        if self.kind_ == "random":
            p, q = action @ part["action_frequency"], known @ part["known_frequency"] + part["phase"]
            turned = [f(p) for f in (np.cos, np.sin)], [f(q) for f in (np.cos, np.sin)]
            # cos(p + q) = cos p cos q - sin p sin q
            cosine, sine = (pair_products(*each, part["weights"]) for each in zip(*turned, strict=True))
            return cosine - sine
        embedded = gaussian(action, part["action"]) @ part["embedding"]
        return pair_products(embedded, gaussian(known, part["known"]), part["weights"])

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds the fitted function."""
        self._check_fitted("parts_")
        record = {
            "kind": type(self).__name__,
            "params": simple_params(self.get_params()),
            "features": self.kind_,
            "modelled": self.modelled_,
            "known": self.known_,
            "parts": len(self.parts_),
        }
        arrays = {f"function.{i}.{name}": array for i, part in enumerate(self.parts_) for name, array in part.items()}
        for name, scaler in (("x", self.x_scaler_), ("y", self.y_scaler_)):
            arrays |= {f"{name}.mean": scaler.mean, f"{name}.scale": scaler.scale}
        return record, arrays

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "KernelIV":
        """Rebuild a fitted estimator; it predicts, but its report is not kept."""
        model = cls(**record["params"])
        model.kind_, model.modelled_, model.known_ = record["features"], record["modelled"], record["known"]
        starts = [f"function.{i}." for i in range(record["parts"])]
        model.parts_ = [{k.removeprefix(s): v for k, v in arrays.items() if k.startswith(s)} for s in starts]
        model.x_scaler_, model.y_scaler_ = (Scaler(arrays[f"{name}.mean"], arrays[f"{name}.scale"]) for name in "xy")
        return model

    def _values(self, u: Matrix) -> np.ndarray:
        action, known = u[:, self.modelled_], u[:, self.known_]
        return np.mean([self._part_values(part, action, known) for part in self.parts_], axis=0)

    def _part_values(self, part: dict[str, np.ndarray], action: Matrix, known: Matrix) -> np.ndarray:
        if self.kind_ == "random":
            phase = action @ part["action_frequency"] + known @ part["known_frequency"] + part["phase"]
            return np.cos(phase) @ part["weights"]
        # f(a, k) = sum_j beta_j embedding_j(a) kernel(k, k_j)
        embedded = gaussian(action, part["action"]) @ part["embedding"] if self.modelled_ else 1.0
        return (embedded * gaussian(known, part["known"])) @ part["weights"]

    def _tune(self, cut, problem, rows, x_start, c_start, seed, pool, progress) -> tuple[np.ndarray, np.ndarray]:
        """Coordinate search over factors of the bandwidths: of C by the first stage's loss, of X by the second's.

        A search over context and action at once credits the action with what the context does where one follows from
        the other: the context is tuned as if there were no action. Where the action is strong, its noise then decides:
        if tuning the context beside the widest kernel of the action is clearly better, that is taken.
        """
        (x_scale, x_groups), (c_scale, c_groups) = x_start, c_start
        x_scale, c_scale = x_scale.copy(), c_scale.copy()
        actions = [group for group in x_groups if any(j in problem.modelled for j in group)]
        known = [group for group in x_groups if group not in actions]
        n_trials = (len(FACTORS) - 1) * (len(c_groups) + 2 * len(known)) + 2 * (len(ACTION_FACTORS) - 1) * len(actions)
        task = progress.start("bandwidths", n_trials)
        # Both halves judge: one of them alone would leave much to chance.
        orders = (rows, rows[::-1])
        # The rows that judge f, in the order of their losses.
        judges = np.concatenate([order[0] for order in orders])
        units = None if problem.groups is None else np.unique(problem.groups[judges], return_inverse=True)[1]
        draws = [Draws.of(cut(order, x_scale, c_scale), PILOT_FEATURES, seed) for order in orders]

        def make_regressors() -> list[Regressors]:
            return list(pool.map(lambda o, d: Regressors.of(cut(o, x_scale, c_scale), d), orders, draws))

        def first_stages(scale: np.ndarray, regressors: list[Regressors]) -> list[FirstStage]:
            def stage(order, draws, regressors):
                return first_stage(cut(order, scale, c_scale), draws, regressors, self.first_penalty)

            return list(pool.map(stage, orders, draws, regressors))

        def function_losses(scale: np.ndarray, firsts: list[FirstStage]) -> np.ndarray:
            def losses(order, draws, first):
                return second_stage(cut(order, scale, c_scale), draws, first, self.second_penalty).losses[1]

            return np.concatenate(list(pool.map(losses, orders, draws, firsts)))

        def search(
            scale: np.ndarray,
            groups: list[tuple[int, ...]],
            factors: tuple[float, ...],
            losses: Callable[[], np.ndarray],
            errors: float,
        ) -> np.ndarray:
            """Set ``scale`` to what is best, and return its losses by row."""
            starts = [scale[list(group)].copy() for group in groups]
            for group, start in zip(groups, starts, strict=True):
                scale[list(group)] = factors[0] * start
            best = losses()
            for group, start in zip(groups, starts, strict=True):
                chosen = factors[0]
                for factor in factors[1:]:
                    scale[list(group)] = factor * start
                    loss = losses()
                    task.advance()
                    if _is_better(loss, best, errors, units):
                        best, chosen = loss, factor
                scale[list(group)] = chosen * start
            return best

        def law_losses() -> np.ndarray:
            return np.concatenate([first.losses for first in first_stages(x_scale, make_regressors())])

        search(c_scale, c_groups, FACTORS, law_losses, 0.0)
        regressors = make_regressors()

        def function_scales(width: float) -> tuple[np.ndarray, np.ndarray]:
            """Scales of X, tuned for the context while actions are ``width`` times as wide, and their losses by row."""
            scale = x_scale.copy()
            scale[problem.modelled] *= width
            firsts = first_stages(scale, regressors)
            search(scale, known, FACTORS, lambda: function_losses(scale, firsts), 0.0)
            scale[problem.modelled] /= width

            def losses() -> np.ndarray:
                return function_losses(scale, first_stages(scale, regressors))

            return scale, search(scale, actions, ACTION_FACTORS, losses, MIN_ERRORS)

        found, loss = function_scales(BLIND)
        if actions:
            other, other_loss = function_scales(ACTION_FACTORS[0])
            is_clear = _is_better(other_loss, loss, 1.0, units) and other_loss.mean() < (1 - MIN_GAIN) * loss.mean()
            found = other if is_clear else found
        task.finish()
        return found, c_scale


def _is_better(loss: np.ndarray, best: np.ndarray, errors: float, units: np.ndarray | None) -> bool:
    """Whether losses by row are smaller in the mean, by that many standard errors; rows of one of ``units`` are one."""
    gain = best - loss
    if errors == 0.0:
        return float(gain.mean()) > 0.0
    deviation = gain - gain.mean()
    if units is not None:
        deviation = np.bincount(units, weights=deviation)
    return float(gain.mean()) > errors * float(np.sqrt(np.sum(deviation**2))) / len(gain)


def _groups(array: Matrix) -> list[tuple[int, ...]]:
    layout = Layout.of(array, [])
    return [*layout.numeric, *layout.categories]


def _medians(array: Matrix, groups: list[tuple[int, ...]], rng: np.random.Generator) -> np.ndarray:
    """Median distance between rows in every group of columns, over pairs that differ."""
    scale = np.ones(array.shape[1])
    sample = array[rng.permutation(len(array))[:MEDIAN_ROWS]]
    for group in groups:
        block = sample[:, list(group)]
        squares = distances(block, block)
        apart = squares[squares > 1e-12]
        scale[list(group)] = np.sqrt(np.median(apart)) if len(apart) else 1.0
    return scale
