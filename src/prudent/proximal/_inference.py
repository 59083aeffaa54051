"""Standard errors for averages of a bridge function, from the debiased (orthogonal) score.

theta(a) = E[h(a, W)] is linear in h. With a function q of C = (A, V, context) such that E[q(C) g(X)] = E[g(a, W)] for
every g that matters (q represents the functional), the score

    h(a, W) + q(C) (Y - h(X))

has mean theta(a), and its mean moves only to second order with errors of h and of q. Its sample variance over n is the
squared standard error: the first term brings the spread of W, the second the noise of the estimated h.

q = E[xi(X) | C], where xi minimises E[(E[xi(X)|C])^2] / 2 - E[xi(a, W)] + penalty |xi|^2 (Bennett et al., 2022). Here
xi is linear in a few fixed features, so that the minimiser is a ridge solution. The features are the directions in
which h may be wrong. If the fitted h is linear they are constant and columns, with linear projections on C and no
penalty: value and standard error are then those of two-stage least squares. Otherwise they are also h itself and, of
at most six columns, squares and products, with conditional means out of fold and a penalty that falls with the root of
n: a smaller one would divide by noise where C hardly moves a feature, a chosen one would jump from treatment to
treatment. For a scalar, continuous treatment a bump around a stands in place of its square: the outcomes of those who
had about this treatment correct the bridge there, whatever its shape elsewhere.

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
from scipy.special import stdtrit

from prudent.cmr._arrays import Matrix, Scaler, shared_columns
from prudent.cmr._base import regress_out_of_fold

# Wider inputs get no squares and products.
MAX_CURVED = 6
N_FOLDS = 5
# Times 1 / sqrt(n), for features in standard units: about 0.01 at n = 1000.
PENALTY = 0.3
# Width of the bump in standard deviations of the treatment at 1000 units; it falls with the fifth root of their number.
# Narrower than is best for the error of the mean: what a fit gets wrong within the bump, which the noise of the rows
# there moves, too, has no part in the standard error.
WIDTH = 0.15
# Rows that the bump reaches at least, else it is widened: one residual says nothing of its own spread.
MIN_NEAR = 30
# A pair (a, w) is without data if it is farther from all rows than all but this share of rows is from the next one.
FAR = 0.01
MAX_PAIRS = 1000
PARTS = ("values", "conditional", "residual", "unit", "spread")


@dataclasses.dataclass(frozen=True)
class Interval:
    """Debiased mean outcome under treatments that are set, with standard errors and a confidence interval.

    ``plug_in`` is what ``effect`` gives; the difference to ``value`` is the estimated bias of h. ``without_data`` is
    the share of the proxies and contexts averaged over that no row has together with about this treatment: there h is
    an extrapolation, which no interval accounts for. ``at_stake`` says what that may do: the change of the value if h
    is wrong there by one standard deviation of the outcome, for a difference on either side. (None where there are too
    many columns to say.)
    """

    value: np.ndarray
    standard_error: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    plug_in: np.ndarray
    level: float
    without_data: np.ndarray | None
    at_stake: np.ndarray | None

    @classmethod
    def of(
        cls,
        value: np.ndarray,
        error: np.ndarray,
        plug_in: np.ndarray,
        *,
        level: float,
        n_units: int,
        without_data: np.ndarray | None,
        at_stake: np.ndarray | None,
    ) -> "Interval":
        """Interval by Student's law, which matters where there are few units (groups)."""
        reach = float(stdtrit(n_units - 1, 0.5 + level / 2)) * error
        return cls(value, error, value - reach, value + reach, plug_in, level, without_data, at_stake)

    @property
    def shares(self) -> list[str]:
        """``without_data`` as text."""
        return ["?"] * len(self.value) if self.without_data is None else [f"{v:.0%}" for v in self.without_data]

    @property
    def stakes(self) -> list[str]:
        """``at_stake`` as text, one per treatment and outcome."""
        return ["?"] * self.value.size if self.at_stake is None else [f"{v:.3g}" for v in np.ravel(self.at_stake)]

    def __str__(self) -> str:
        lines = [
            f"{'value':>12} {'std. error':>12} {'lower':>12} {'upper':>12} {'without data':>13} {'at stake':>12}"
            f"   ({self.level:.0%} interval)"
        ]
        n_outcomes = self.value.size // len(self.value)
        columns = (np.ravel(v) for v in (self.value, self.standard_error, self.lower, self.upper))
        for share, stake, *row in zip(np.repeat(self.shares, n_outcomes), self.stakes, *columns, strict=True):
            lines.append(" ".join(f"{v:12.5g}" for v in row) + f" {share:>13} {stake:>12}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Features:
    """Functions of x, of which xi is a linear combination; see the module's text.

    ``mean`` and ``scale`` bring columns to standard units, ``h_mean`` and ``h_scale`` the bridge, one number per
    outcome; ``centre`` has the means of the products. The last three are empty for a linear bridge. ``width`` is that
    of the bump around a treatment (the first column), 0 where there is none.
    """

    mean: np.ndarray
    scale: np.ndarray
    h_mean: np.ndarray
    h_scale: np.ndarray
    centre: np.ndarray
    width: float

    @classmethod
    def of(cls, x: Matrix, h: Matrix, width: float = 0.0) -> "Features":
        """Scales from the rows of ``x`` and the bridge there."""
        scaler, bridge, none = Scaler.of(x), Scaler.of(h), np.empty(0)
        if _is_linear(x, h):
            return cls(scaler.mean, scaler.scale, none, none, none, 0.0)
        raw = cls(scaler.mean, scaler.scale, bridge.mean, bridge.scale, none, width)
        # The constant is not penalised. Products that are not centred would carry a part of it, and be penalised.
        z = raw.standard(x)
        centre = np.array([np.mean(z[:, i] * z[:, j]) for i, j in raw.products])
        return dataclasses.replace(raw, centre=centre)

    def standard(self, x: Matrix) -> np.ndarray:
        """Columns in standard units."""
        return (x - self.mean) / self.scale

    def __call__(self, x: Matrix, h: Matrix) -> np.ndarray:
        """Constant, columns, h, products z_i z_j for i <= j."""
        z = self.standard(x)
        parts = [np.ones((len(z), 1)), z]
        if not self.is_linear:
            parts.append((h - self.h_mean) / self.h_scale)
        parts += [(z[:, i] * z[:, j] - mean)[:, None] for (i, j), mean in zip(self.products, self.centre, strict=True)]
        return np.hstack(parts)

    @property
    def is_linear(self) -> bool:
        """Whether the bridge is, so that its errors are."""
        return not len(self.h_mean)

    @property
    def products(self) -> list[tuple[int, int]]:
        """Pairs of columns whose product is a feature."""
        width = len(self.mean)
        if self.is_linear or width > MAX_CURVED:
            return []
        return [(i, j) for i in range(width) for j in range(i, width) if (i, j) != (0, 0) or not self.width]

    def conditional(self, x: Matrix, h: Matrix, regress: Callable[[np.ndarray], np.ndarray], c: Matrix) -> np.ndarray:
        """E[features | C], by ``regress`` where a feature is not known given C.

        What stands in C is known exactly, and goes out of the expectation of a product.
        """
        values, width = self(x, h), x.shape[1]
        known, first = set(shared_columns(x, c)), 1 + width + len(self.h_mean)
        free = [1 + i for i in range(width) if i not in known]
        free += range(1 + width, first)
        free += [first + k for k, (i, j) in enumerate(self.products) if i not in known and j not in known]
        result = values.copy()
        result[:, free] = regress(values[:, free])
        z, mean = values[:, 1 : 1 + width], result[:, 1 : 1 + width]
        for number, (i, j) in enumerate(self.products):
            if i in known or j in known:
                product = z[:, i] * mean[:, j] if i in known else mean[:, i] * z[:, j]
                result[:, first + number] = product - self.centre[number]
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
    """Everything that the score needs beside h: features, their conditional means, residuals of h, and units.

    ``spread`` has the standard deviations of the outcomes.
    """

    features: Features
    values: np.ndarray
    conditional: np.ndarray
    residual: np.ndarray
    unit: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(
        cls, y: Matrix, x: Matrix, c: Matrix, h: Matrix, *, seed: int, groups: Any = None, is_local: bool = False
    ) -> "Correction":
        """From the training rows and the bridge ``h`` at their x.

        ``is_local``: the first column of x is the only treatment, and continuous.
        """
        groups = None if groups is None else np.asarray(groups).reshape(-1)
        unit = np.arange(len(x)) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
        features = Features.of(x, h, WIDTH * (1000 / (unit.max() + 1)) ** 0.2 if is_local else 0.0)
        values = features(x, h)
        if features.is_linear:
            design = np.hstack([np.ones((len(c), 1)), Scaler.of(c).forward(c)])
            conditional = design @ np.linalg.lstsq(design, values, rcond=None)[0]
        else:
            regress = functools.partial(regress_out_of_fold, c=c, seed=seed, n_folds=N_FOLDS, groups=groups)
            conditional = features.conditional(x, h, regress, c)
        return cls(features, values, conditional, y - h, unit, y.std(axis=0))

    def scores(self, at_treatment: Matrix, h: np.ndarray) -> np.ndarray:
        """(n, outcomes), whose mean is the debiased mean outcome under one treatment.

        ``at_treatment`` has the rows (a, W_i, context_i), ``h`` the bridge there, (n, outcomes).
        """
        at = self.features(at_treatment, h)
        target, values, conditional = at.mean(axis=0), self.values, self.conditional
        if self.features.width:
            # The treatment is known given C, and so is what is near it.
            apart = np.abs(values[:, 1] - at[0, 1])
            few = min(MIN_NEAR, len(apart)) - 1
            bump = np.exp(-0.5 * (apart / max(self.features.width, float(np.partition(apart, few)[few]))) ** 2)
            scaler = Scaler.of(bump[:, None])
            near = (bump - scaler.mean) / scaler.scale
            values, conditional = (np.column_stack([part, near]) for part in (values, conditional))
            # Its mean among those near the treatment, not its value there: an error of h that is constant around the
            # treatment is then corrected by just that.
            target = np.append(target, (np.mean(bump**2) / np.mean(bump) - scaler.mean) / scaler.scale)
        return h + (conditional @ self._representer(values, conditional, target))[:, None] * self.residual

    def without_data(self, at_treatment: Matrix) -> float | None:
        """Share of the rows (a, W_i, context_i) near which there is no training row; None of more than six columns."""
        if len(self.features.mean) > MAX_CURVED:
            return None
        tree, reach = self._neighbours
        asked = at_treatment[np.linspace(0, len(at_treatment) - 1, min(len(at_treatment), MAX_PAIRS)).astype(int)]
        return float(np.mean(tree.query(self.features.standard(asked))[0] > reach))

    @functools.cached_property
    def _neighbours(self) -> tuple[Any, float]:
        """Tree of the training rows in standard units, and how far nearly all of them are from the next one."""
        from scipy.spatial import KDTree

        rows = self.values[:, 1 : 1 + len(self.features.mean)]
        tree = KDTree(rows)
        return tree, float(np.quantile(tree.query(rows, k=2)[0][:, 1], 1 - FAR))

    @property
    def n_units(self) -> int:
        """Independent units: groups, or rows."""
        return int(self.unit.max()) + 1

    def mean(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(mean, standard error) per outcome of scores, or of differences of scores."""
        value = scores.mean(axis=0)
        deviation = np.zeros((self.n_units, scores.shape[1]))
        np.add.at(deviation, self.unit, scores - value)
        error = np.sqrt(self.n_units / max(self.n_units - 1, 1) * np.sum(deviation**2, axis=0)) / len(scores)
        return value, error

    def _representer(self, values: np.ndarray, conditional: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Coefficients of xi, see the module's text; the constant is not penalised."""
        # E[features E[features | C]'] from the features themselves on the left: a first stage that shrinks, as ridge
        # does, then changes the scale of the instruments and not the solution.
        gram = values.T @ conditional / len(values)
        if self.features.is_linear:
            return np.linalg.lstsq(gram, target, rcond=None)[0]
        # Tikhonov's filter: the matrix is not symmetric, and gram + ridge could be singular.
        ridge = np.eye(len(gram)) * PENALTY**2 / self.n_units
        ridge[0, 0] = 0.0
        return np.linalg.solve(gram.T @ gram + ridge, gram.T @ target)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for a saved model."""
        parts = {f"features.{f.name}": getattr(self.features, f.name) for f in dataclasses.fields(Features)}
        own = {name: getattr(self, name) for name in PARTS}
        return {f"correction.{name}": np.asarray(array) for name, array in (parts | own).items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "Correction":
        """Inverse of :meth:`to_arrays`."""
        parts: dict[str, Any] = {f.name: arrays[f"correction.features.{f.name}"] for f in dataclasses.fields(Features)}
        parts["width"] = float(np.ravel(parts["width"])[0])
        features = Features(**parts)
        return cls(features, *(arrays[f"correction.{name}"] for name in PARTS))
