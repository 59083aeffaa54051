"""Standard errors for averages of a bridge function, from the debiased (orthogonal) score.

theta(a) = E[h(a, W)] is linear in h. With a function q of C = (A, V, context) such that E[q(C) g(X)] = E[g(a, W)] for
every g that matters (q represents the functional), the score

    h(a, W) + q(C) (Y - h(X))

has mean theta(a), and its mean moves only to second order with errors of h and of q. Its sample variance over n is the
squared standard error: the first term brings the spread of W, the second the noise of the estimated h.

q = E[xi(X) | C], where xi minimises E[(E[xi(X)|C])^2] / 2 - E[xi(a, W)] + penalty |xi|^2 (Bennett et al., 2022). Here
xi is linear in a few fixed features, whose conditional means come out of fold, so that the minimiser is a ridge
solution; the penalty is chosen for every a by the same criterion on held-out folds. The features are the directions in
which h may be wrong: constant and columns if the fitted h is linear (the score is then that of two-stage least
squares), else also squares, products and h itself.

What it assumes: rows (or groups) are independent; the bridge is identified (see the proxies' strength in
``diagnose``); h, which is fitted on the same rows, is smooth enough for its residuals there to speak for new rows (the
conditional means are cross-fitted, h is not); errors of h outside the span of the features are small beside the
standard error. The last is a real assumption: with a continuous treatment E[h(a, W)] at a point has no root-n estimator
without one, and far from the observed treatments neither the effect nor its standard error is worth much.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import ndtri

from prudent.cmr._arrays import Matrix, Scaler, shared_columns
from prudent.cmr._base import regress_out_of_fold
from prudent.cmr._folds import cross_fit_folds

# Wider inputs get no squares and products.
MAX_CURVED = 6
# Wider inputs are projected on this many principal components.
MAX_INPUTS = 20
N_FOLDS = 5
PENALTIES = np.logspace(-6, 0, 13)
PARTS = ("values", "conditional", "residual", "fold", "unit")


@dataclasses.dataclass(frozen=True)
class Interval:
    """Debiased mean outcome under treatments that are set, with standard errors and a confidence interval.

    ``plug_in`` is what ``effect`` gives; the difference to ``value`` is the estimated bias of h.
    """

    value: np.ndarray
    standard_error: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    plug_in: np.ndarray
    level: float

    @classmethod
    def of(cls, value: np.ndarray, error: np.ndarray, plug_in: np.ndarray, level: float) -> "Interval":
        """Normal interval."""
        reach = float(ndtri(0.5 + level / 2)) * error
        return cls(value, error, value - reach, value + reach, plug_in, level)

    def __str__(self) -> str:
        lines = [f"{'value':>12} {'std. error':>12} {'lower':>12} {'upper':>12}   ({self.level:.0%} interval)"]
        for row in zip(*(np.ravel(v) for v in (self.value, self.standard_error, self.lower, self.upper)), strict=True):
            lines.append(" ".join(f"{v:12.5g}" for v in row))
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Features:
    """Functions of x, of which xi is a linear combination; see the module's text.

    ``columns`` is the projection to standard units (or principal components), ``h_scale`` and ``h_mean`` standardise
    the bridge, one number per outcome; both are empty for a linear bridge.
    """

    mean: np.ndarray
    columns: np.ndarray
    h_mean: np.ndarray
    h_scale: np.ndarray

    @classmethod
    def of(cls, x: Matrix, h: Matrix) -> "Features":
        """Scales from the rows of ``x`` and the bridge there."""
        scaler, bridge = Scaler.of(x), Scaler.of(h)
        if x.shape[1] <= MAX_INPUTS:
            columns = np.diag(1 / scaler.scale)
        else:
            _, spread, directions = np.linalg.svd((x - scaler.mean) / scaler.scale, full_matrices=False)
            spread = np.maximum(spread[:MAX_INPUTS] / np.sqrt(len(x)), 1e-12)
            columns = (directions[:MAX_INPUTS] / spread[:, None] / scaler.scale).T
        if _is_linear(x, h):
            return cls(scaler.mean, columns, np.empty(0), np.empty(0))
        return cls(scaler.mean, columns, bridge.mean, bridge.scale)

    def __call__(self, x: Matrix, h: Matrix) -> np.ndarray:
        """Constant, columns, h, products z_i z_j for i <= j."""
        z = (x - self.mean) @ self.columns
        parts = [np.ones((len(z), 1)), z]
        if len(self.h_mean):
            parts.append((h - self.h_mean) / self.h_scale)
        parts += [(z[:, i] * z[:, j])[:, None] for i, j in self.products]
        return np.hstack(parts)

    @property
    def products(self) -> list[tuple[int, int]]:
        """Pairs of columns whose product is a feature."""
        width = self.columns.shape[1]
        if not len(self.h_mean) or width > MAX_CURVED:
            return []
        return [(i, j) for i in range(width) for j in range(i, width)]

    def conditional(self, x: Matrix, h: Matrix, regress: Callable[[np.ndarray], np.ndarray], c: Matrix) -> np.ndarray:
        """E[features | C], by ``regress`` where a feature is not known given C.

        What stands in C is known exactly, and goes out of the expectation of a product.
        """
        values = self(x, h)
        result = np.ones_like(values)
        result[:, 1:] = regress(values[:, 1:])
        if x.shape[1] > MAX_INPUTS:
            return result
        known = set(shared_columns(x, c))
        columns = slice(1, 1 + x.shape[1])
        for i in known:
            result[:, 1 + i] = values[:, 1 + i]
        z, mean = values[:, columns], result[:, columns]
        first = values.shape[1] - len(self.products)
        for number, (i, j) in enumerate(self.products):
            if i in known or j in known:
                result[:, first + number] = z[:, i] * mean[:, j] if i in known else mean[:, i] * z[:, j]
        return result


def _is_linear(x: Matrix, h: Matrix) -> bool:
    if x.shape[1] + 1 >= len(x):
        return False  # Anything is linear in as many columns as rows.
    design = np.hstack([np.ones((len(x), 1)), x])
    left = h - design @ np.linalg.lstsq(design, h, rcond=None)[0]
    # Networks compute in single precision.
    return bool(np.all(left.std(axis=0) <= 1e-4 * np.maximum(h.std(axis=0), 1e-300)))


@dataclasses.dataclass(frozen=True)
class Correction:
    """Everything that the score needs beside h: features, their conditional means out of fold, residuals of h."""

    features: Features
    values: np.ndarray
    conditional: np.ndarray
    residual: np.ndarray
    fold: np.ndarray
    unit: np.ndarray

    @classmethod
    def of(cls, y: Matrix, x: Matrix, c: Matrix, h: Matrix, *, seed: int, groups: Any = None) -> "Correction":
        """From the training rows and the bridge ``h`` at their x."""
        rng = np.random.default_rng(seed)
        features = Features.of(x, h)
        groups = None if groups is None else np.asarray(groups).reshape(-1)
        regress = functools.partial(regress_out_of_fold, c=c, seed=seed, n_folds=N_FOLDS, groups=groups)
        conditional = features.conditional(x, h, regress, c)
        unit = np.arange(len(x)) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
        n_folds = min(N_FOLDS, len(np.unique(unit)) // 2)
        fold = np.zeros(len(x), dtype=int)
        for number, rows in enumerate(cross_fit_folds(len(x), n_folds, rng, groups)):
            fold[rows] = number
        return cls(features, features(x, h), conditional, y - h, fold, unit)

    def score(self, at_treatment: Matrix, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(debiased mean, standard error) per outcome, for one treatment.

        ``at_treatment`` has the rows (a, W_i, context_i), ``h`` the bridge there, (n, outcomes).
        """
        weight = self.conditional @ self._representer(self.features(at_treatment, h))
        score = h + weight[:, None] * self.residual
        value = score.mean(axis=0)
        deviation = np.zeros((self.unit.max() + 1, score.shape[1]))
        np.add.at(deviation, self.unit, score - value)
        n_units = len(deviation)
        error = np.sqrt(n_units / max(n_units - 1, 1) * np.sum(deviation**2, axis=0)) / len(score)
        return value, error

    def _representer(self, at_treatment: np.ndarray) -> np.ndarray:
        """Coefficients of xi: ridge on the criterion of the module's text, the penalty by held-out folds."""
        rows = [self.fold == k for k in range(int(self.fold.max()) + 1)]
        # E[features E[features | C]'] from the features themselves on the left: a first stage that shrinks, as ridge
        # does, then changes the scale of the instruments and not the solution.
        grams = np.stack([self.values[r].T @ self.conditional[r] for r in rows])
        # The criterion needs a square, which the product above, not being symmetric, is not: it could fall for ever.
        squares = [self.conditional[r].T @ self.conditional[r] for r in rows]
        means = np.stack([at_treatment[r].sum(axis=0) for r in rows])
        gram, mean, n = grams.sum(axis=0), means.sum(axis=0), len(self.fold)
        loss = np.zeros(len(PENALTIES))
        for r, held_gram, square, held_mean in zip(rows, grams, squares, means, strict=True):
            rest = n - r.sum()
            paths = _ridge_path((gram - held_gram) / rest, (mean - held_mean) / rest)
            loss += [b @ square @ b / 2 - held_mean @ b for b in paths]
        return _ridge_path(gram / n, mean / n)[int(np.argmin(loss))]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for a saved model."""
        parts = {f"features.{f.name}": getattr(self.features, f.name) for f in dataclasses.fields(Features)}
        own = {name: getattr(self, name) for name in PARTS}
        return {f"correction.{name}": np.asarray(array) for name, array in (parts | own).items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "Correction":
        """Inverse of :meth:`to_arrays`."""
        features = Features(*(arrays[f"correction.features.{f.name}"] for f in dataclasses.fields(Features)))
        return cls(features, *(arrays[f"correction.{name}"] for name in PARTS))


def _ridge_path(gram: np.ndarray, target: np.ndarray) -> list[np.ndarray]:
    """Solutions for all penalties; the constant is not penalised."""
    paths = []
    for penalty in PENALTIES:
        ridge = penalty * np.eye(len(gram))
        ridge[0, 0] = 0.0
        paths.append(np.linalg.solve(gram + ridge, target))
    return paths
