"""Kernel instrumental-variable regression (Singh, Sahani and Gretton, 2019), exact or with random features.

Half of the rows learn the conditional mean embedding of the modelled columns given C by ridge regression; the other
half learn f by ridge regression of Y on the embedded kernel. Each penalty is chosen on the half that its stage did not
use. Then the halves change places, and f is the mean of both. With a product kernel the columns of X that stand in C
keep their own kernel and need no embedding.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from scipy.linalg import block_diag, cho_factor, cho_solve, eigh
from threadpoolctl import threadpool_limits

from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler, as_matrix
from prudent.cmr._base import MomentEstimator
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._gp import Layout, column_scaler, distances, standard
from prudent.cmr._pairs import beside, pair_products
from prudent.cmr._problem import Problem, check_choice, check_count, check_positive, simple_params

FEATURES = ("auto", "exact", "random")
BANDWIDTHS = ("median", "tuned")
# Exact solutions cost the cube of the rows.
MAX_EXACT = 2000
PENALTIES = 10.0 ** np.arange(-7.0, 0.6, 0.5)
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


@dataclasses.dataclass(frozen=True)
class _Halves:
    """Both halves in standard units: actions, known columns, C and outcome."""

    action: tuple[Matrix, Matrix]
    known: tuple[Matrix, Matrix]
    c: tuple[Matrix, Matrix]
    y: tuple[Matrix, Matrix]


@dataclasses.dataclass(frozen=True)
class _Solution:
    """Arrays for prediction, the penalties, and the losses of both stages in the rows that their stage did not use."""

    arrays: dict[str, np.ndarray]
    penalties: tuple[float, float]
    losses: tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Draws:
    """Random frequencies and phases, and the part of the rows and outputs on which the first penalty is judged."""

    action: np.ndarray
    known: np.ndarray
    phase: np.ndarray
    c: np.ndarray
    c_phase: np.ndarray
    columns: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, data: _Halves, n_features: int, seed: int) -> "_Draws":
        rng = np.random.default_rng(seed)
        n_action, n_known, n_c = (part[0].shape[1] for part in (data.action, data.known, data.c))
        return cls(
            action=rng.standard_normal((n_action, n_features)),
            known=rng.standard_normal((n_known, n_features)),
            phase=rng.uniform(0, 2 * np.pi, n_features),
            c=rng.standard_normal((n_c, n_features)),
            c_phase=rng.uniform(0, 2 * np.pi, n_features),
            # All of them would cost more than the fit.
            columns=rng.permutation(2 * n_features)[:200],
            rows=rng.permutation(len(data.y[1]))[:1000],
        )


@dataclasses.dataclass(frozen=True)
class _FirstStage:
    """Regression of cos(w.a) and sin(w.a) on features of c, of both halves; penalty, and losses in the second half.

    Without coefficients the features are cos and sin themselves.
    """

    coefficients: np.ndarray | None
    features: tuple[Matrix, Matrix]
    penalty: float
    losses: np.ndarray

    @functools.cached_property
    def means(self) -> list[Matrix]:
        """What is expected of cos(w.a) and sin(w.a) in both halves."""
        return [part if self.coefficients is None else part @ self.coefficients for part in self.features]


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
        self.modelled_, self.known_ = list(problem.modelled), list(problem.known)
        self.y_scaler_ = Scaler.of(problem.y)
        x_scaler, c_scaler = column_scaler(problem.x), column_scaler(problem.c)
        u, v = standard(x_scaler, problem.x), standard(c_scaler, problem.c)
        x_groups, c_groups = _groups(problem.x), _groups(problem.c)
        x_scale, c_scale = _medians(u, x_groups, rng), _medians(v, c_groups, rng)
        target = standard(self.y_scaler_, problem.y)

        def cut(rows: list[np.ndarray], x_scale: np.ndarray, c_scale: np.ndarray) -> _Halves:
            w, z = u / x_scale, v / c_scale
            return _Halves(
                action=(w[rows[0]][:, problem.modelled], w[rows[1]][:, problem.modelled]),
                known=(w[rows[0]][:, problem.known], w[rows[1]][:, problem.known]),
                c=(z[rows[0]], z[rows[1]]),
                y=(target[rows[0]], target[rows[1]]),
            )

        # One thread: the matrices are small, and results must not depend on how many cores there are.
        with Progress(self.show_progress) as progress, threadpool_limits(1):
            if self.bandwidth == "tuned":
                pilot = [rng.permutation(rows)[: PILOT_ROWS // 2] for rows in halves]
                x_scale, c_scale = self._tune(cut, pilot, (x_scale, x_groups), (c_scale, c_groups), seed, progress)
            kind = self.features
            if kind == "auto":
                kind = "exact" if len(u) <= MAX_EXACT else "random"
            solve = self._exact if kind == "exact" else self._random
            # Each half learns each stage once; the mean of the two functions has less noise.
            solutions = [solve(cut(order, x_scale, c_scale), seed) for order in (halves, halves[::-1])]
        self.kind_ = kind
        self.arrays_ = (_join_exact if kind == "exact" else _join_random)([each.arrays for each in solutions])
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
        self._check_fitted("arrays_")
        u = standard(self.x_scaler_, as_matrix("x", x, n_columns=len(self.x_scaler_.mean)))
        parts = np.array_split(u, -(-len(u) // PREDICT_BLOCK))
        return self.y_scaler_.back(np.vstack([self._values(part) for part in parts]))

    def _pairs(self, first: Matrix, others: Matrix) -> np.ndarray:
        """As in the base class; fast where ``first`` is what is modelled and ``others`` what is known: in policies."""
        self._check_fitted("arrays_")
        arrays, width = self.arrays_, first.shape[1]
        if self.modelled_ != list(range(width)):
            return super()._pairs(first, others)
        left, right = (standard(self.x_scaler_, r) for r in (beside(first, others[:1]), beside(first[:1], others)))
        action, known = left[:, self.modelled_], right[:, self.known_]
        if self.kind_ == "random":
            p, q = action @ arrays["action_frequency"], known @ arrays["known_frequency"] + arrays["phase"]
            turned = [f(p) for f in (np.cos, np.sin)], [f(q) for f in (np.cos, np.sin)]
            # cos(p + q) = cos p cos q - sin p sin q
            cosine, sine = (pair_products(*part, arrays["weights"]) for part in zip(*turned, strict=True))
            return self.y_scaler_.back(cosine - sine)
        embedded = _gaussian(action, arrays["action"]) @ arrays["embedding"]
        return self.y_scaler_.back(pair_products(embedded, _gaussian(known, arrays["known"]), arrays["weights"]))

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds the fitted function."""
        self._check_fitted("arrays_")
        record = {
            "kind": type(self).__name__,
            "params": simple_params(self.get_params()),
            "features": self.kind_,
            "modelled": self.modelled_,
            "known": self.known_,
        }
        arrays = {f"function.{name}": array for name, array in self.arrays_.items()}
        for name, scaler in (("x", self.x_scaler_), ("y", self.y_scaler_)):
            arrays |= {f"{name}.mean": scaler.mean, f"{name}.scale": scaler.scale}
        return record, arrays

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "KernelIV":
        """Rebuild a fitted estimator; it predicts, but its report is not kept."""
        model = cls(**record["params"])
        model.kind_, model.modelled_, model.known_ = record["features"], record["modelled"], record["known"]
        model.arrays_ = {name[9:]: array for name, array in arrays.items() if name.startswith("function.")}
        model.x_scaler_, model.y_scaler_ = (Scaler(arrays[f"{name}.mean"], arrays[f"{name}.scale"]) for name in "xy")
        return model

    def _values(self, u: Matrix) -> np.ndarray:
        arrays = self.arrays_
        action, known = u[:, self.modelled_], u[:, self.known_]
        if self.kind_ == "random":
            phase = action @ arrays["action_frequency"] + known @ arrays["known_frequency"] + arrays["phase"]
            return np.cos(phase) @ arrays["weights"]
        # f(a, k) = sum_j beta_j embedding_j(a) kernel(k, k_j)
        embedded = _gaussian(action, arrays["action"]) @ arrays["embedding"] if self.modelled_ else 1.0
        return (embedded * _gaussian(known, arrays["known"])) @ arrays["weights"]

    def _tune(self, cut, rows, x_start, c_start, seed, progress) -> tuple[np.ndarray, np.ndarray]:
        """Coordinate search over factors of the bandwidths: of C by the first stage's loss, of X by the second's.

        A search over context and action at once credits the action with what the context does where one follows from
        the other: the context is tuned as if there were no action. Where the action is strong, its noise then decides:
        if tuning the context beside the widest kernel of the action is clearly better, that is taken.
        """
        (x_scale, x_groups), (c_scale, c_groups) = x_start, c_start
        x_scale, c_scale = x_scale.copy(), c_scale.copy()
        actions = [group for group in x_groups if any(j in self.modelled_ for j in group)]
        known = [group for group in x_groups if group not in actions]
        n_trials = len(FACTORS) * (len(c_groups) + 2 * len(known)) + 2 * len(ACTION_FACTORS) * len(actions)
        task = progress.start("bandwidths", n_trials)
        # Both halves judge: one of them alone would leave much to chance.
        orders = [
            (order, _Draws.of(cut(order, x_scale, c_scale), PILOT_FEATURES, seed)) for order in (rows, rows[::-1])
        ]

        def first_stages(scale: np.ndarray) -> list[_FirstStage]:
            return [self._first_stage(cut(order, scale, c_scale), draws) for order, draws in orders]

        def function_losses(scale: np.ndarray, firsts: list[_FirstStage]) -> np.ndarray:
            solutions = (
                self._second_stage(cut(order, scale, c_scale), draws, first)
                for (order, draws), first in zip(orders, firsts, strict=True)
            )
            return np.concatenate([solution.losses[1] for solution in solutions])

        def search(
            scale: np.ndarray,
            groups: list[tuple[int, ...]],
            factors: tuple[float, ...],
            losses: Callable[[], np.ndarray],
            errors: float,
        ) -> None:
            starts = [scale[list(group)].copy() for group in groups]
            for group, start in zip(groups, starts, strict=True):
                scale[list(group)] = factors[0] * start
            for group, start in zip(groups, starts, strict=True):
                best, chosen = None, factors[0]
                for factor in factors:
                    scale[list(group)] = factor * start
                    loss = losses()
                    task.advance()
                    if best is None or _is_better(loss, best, errors):
                        best, chosen = loss, factor
                scale[list(group)] = chosen * start

        search(
            c_scale,
            c_groups,
            FACTORS,
            lambda: np.concatenate([first.losses for first in first_stages(x_scale)]),
            0.0,
        )

        def function_scales(width: float) -> tuple[np.ndarray, np.ndarray]:
            """Scales of X, tuned for the context while actions are ``width`` times as wide, and their losses by row."""
            scale = x_scale.copy()
            scale[self.modelled_] *= width
            firsts = first_stages(scale)
            search(scale, known, FACTORS, lambda: function_losses(scale, firsts), 0.0)
            scale[self.modelled_] /= width

            def losses() -> np.ndarray:
                return function_losses(scale, first_stages(scale))

            search(scale, actions, ACTION_FACTORS, losses, MIN_ERRORS)
            return scale, losses()

        found, loss = function_scales(BLIND)
        if actions:
            other, other_loss = function_scales(ACTION_FACTORS[0])
            is_clear = _is_better(other_loss, loss, 1.0) and other_loss.mean() < (1 - MIN_GAIN) * loss.mean()
            found = other if is_clear else found
        task.finish()
        return found, c_scale

    def _exact(self, data: _Halves, seed: int) -> _Solution:
        """The closed form of the paper, with the kernel of the known columns outside the embedding."""
        n_first, n_second = len(data.y[0]), len(data.y[1])
        c_first, c_second = _gaussian(data.c[0], data.c[0]), _gaussian(data.c[1], data.c[0])
        action = _gaussian(data.action[0], data.action[0])
        across = _gaussian(data.action[1], data.action[0])
        values, vectors = eigh(c_first)
        values = np.maximum(values, 0.0)
        rotated, rotated_action = c_second @ vectors, vectors.T @ action @ vectors
        rotated_across = across @ vectors

        def first_loss(penalty: float) -> np.ndarray:
            # |k(a_j, .) - sum_i gamma_ij k(a_i, .)|^2 for the rows of the other half.
            gamma = rotated / (values + n_first * penalty)
            return 1 - 2 * np.sum(gamma * rotated_across, axis=1) + np.sum((gamma @ rotated_action) * gamma, axis=1)

        first, loss_1 = _smallest(first_loss, self.first_penalty)
        inverse = (vectors / (values + n_first * first)) @ vectors.T
        embedding = inverse @ c_second.T  # (first, second)
        embedding_first = inverse @ c_first
        smooth = action @ embedding
        kernel = _gaussian(data.known[1], data.known[1])
        cross = _gaussian(data.known[0], data.known[1])
        if self.modelled_:
            kernel = kernel * (embedding.T @ smooth)
            cross = cross * (embedding_first.T @ smooth)

        def solve(penalty: float) -> np.ndarray:
            ridge = kernel + n_second * penalty * np.eye(n_second)
            return cho_solve(cho_factor(ridge, lower=True), data.y[1])

        second, loss_2 = _smallest(lambda p: _squares(data.y[0] - cross @ solve(p)), self.second_penalty)
        arrays = {"action": data.action[0], "known": data.known[1], "embedding": embedding, "weights": solve(second)}
        return _Solution(arrays, (first, second), (loss_1, loss_2))

    def _random(self, data: _Halves, seed: int) -> _Solution:
        """Random Fourier features: the mean of cos(w.a + v.k + b) given c is that of cos(w.a), sin(w.a), turned."""
        draws = _Draws.of(data, self.n_features, seed)
        return self._second_stage(data, draws, self._first_stage(data, draws))

    def _first_stage(self, data: _Halves, draws: _Draws) -> _FirstStage:
        root = np.sqrt(2 / len(draws.phase))
        c_first, c_second = (
            np.hstack([root * np.cos(c @ draws.c + draws.c_phase), np.ones((len(c), 1))]) for c in data.c
        )
        targets = [_turned(action @ draws.action) for action in (data.action[0], data.action[1][draws.rows])]
        if not self.modelled_:
            # With nothing to model, cos(0) and sin(0) are known.
            features = (targets[0], _turned(data.action[1] @ draws.action))
            return _FirstStage(None, features, float(self.first_penalty or PENALTIES[0]), np.zeros(1))
        n_first = len(c_first)
        values, vectors = eigh(c_first.T @ c_first)
        values = np.maximum(values, 0.0)
        moment = vectors.T @ (c_first.T @ targets[0])
        rotated, judged = c_second[draws.rows] @ vectors, moment[:, draws.columns]
        goal = targets[1][:, draws.columns]
        # |goal - rotated diag(d) judged|^2 = |goal|^2 - 2 cross.d + d.square.d; a guess for every penalty costs more.
        total, cross = np.sum(goal**2), np.sum((rotated.T @ goal) * judged, axis=1)
        square = (rotated.T @ rotated) * (judged @ judged.T)

        def loss(penalty: float) -> float:
            d = 1 / (values + n_first * penalty)
            return float(total - 2 * cross @ d + d @ square @ d)

        penalty = _least(loss, self.first_penalty)
        shrunk = 1 / (values + n_first * penalty)[:, None]
        return _FirstStage(
            vectors @ (shrunk * moment), (c_first, c_second), penalty, _squares(goal - rotated @ (shrunk * judged))
        )

    def _second_stage(self, data: _Halves, draws: _Draws, first: _FirstStage) -> _Solution:
        n_features, n_second = len(draws.phase), len(data.y[1])
        designs = []
        for mean, known in zip(first.means, data.known, strict=True):
            turn = known @ draws.known + draws.phase
            designs.append(np.cos(turn) * mean[:, :n_features] - np.sin(turn) * mean[:, n_features:])
        gram_values, gram_vectors = eigh(designs[1].T @ designs[1])
        gram_values = np.maximum(gram_values, 0.0)
        second_moment = gram_vectors.T @ (designs[1].T @ data.y[1])
        check = designs[0] @ gram_vectors

        def second_loss(penalty: float) -> np.ndarray:
            # Features are of size 1, not root: the penalty is that of the kernel, which is their mean product.
            weights = second_moment / (gram_values + n_second * penalty * n_features / 2)[:, None]
            return _squares(data.y[0] - check @ weights)

        second, loss = _smallest(second_loss, self.second_penalty)
        weights = gram_vectors @ (second_moment / (gram_values + n_second * second * n_features / 2)[:, None])
        arrays = {
            "action_frequency": draws.action,
            "known_frequency": draws.known,
            "phase": draws.phase,
            "weights": weights,
        }
        return _Solution(arrays, (first.penalty, second), (first.losses, loss))


def _join_exact(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The mean of functions, each a sum over rows of its own."""
    return {
        "action": np.vstack([part["action"] for part in parts]),
        "known": np.vstack([part["known"] for part in parts]),
        "embedding": np.asarray(block_diag(*(part["embedding"] for part in parts))),
        "weights": np.vstack([part["weights"] for part in parts]) / len(parts),
    }


def _join_random(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The mean of functions of the same random features."""
    return parts[0] | {"weights": np.mean([part["weights"] for part in parts], axis=0)}


def _least(loss: Callable[[float], float], given: float | None) -> float:
    """The penalty of least loss, or the given one."""
    return float(min(PENALTIES, key=lambda penalty: loss(float(penalty)))) if given is None else float(given)


def _smallest(losses: Callable[[float], np.ndarray], given: float | None) -> tuple[float, np.ndarray]:
    """The penalty of least mean loss, or the given one, with its losses by row."""
    penalty = _least(lambda trial: float(np.mean(losses(trial))), given)
    return penalty, losses(penalty)


def _turned(angle: Matrix) -> Matrix:
    return np.hstack([np.cos(angle), np.sin(angle)])


def _squares(residual: Matrix) -> np.ndarray:
    return np.mean(residual**2, axis=1)


def _is_better(loss: np.ndarray, best: np.ndarray, errors: float) -> bool:
    """Whether losses by row are smaller in the mean, by that many standard errors."""
    gain = best - loss
    return float(gain.mean()) > errors * float(gain.std()) / np.sqrt(len(gain))


def _gaussian(left: Matrix, right: Matrix) -> np.ndarray:
    """exp(-|u - w|^2 / 2); one where there are no columns."""
    return np.exp(-0.5 * distances(left, right))


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
