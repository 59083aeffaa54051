"""Standard errors for averages of an estimated function, from the debiased (orthogonal) score.

Where E[Y - f(X) | C] = 0, the mean outcome under a policy, theta = E[m(f)], is linear in f: with instruments m(f) =
f(policy(context), context), with two proxies f(a, W, context) for a treatment a. With a function q of C such that
E[q(C) g(X)] = E[m(g)] for every g that matters (q represents the functional), the score

    m(f) + q(C) (Y - f(X))

has mean theta, and its mean moves only to second order with errors of f and of q. Its sample variance over n is the
squared standard error: the first term brings the spread of contexts and proxies, the second the noise of the
estimated f.

q = E[xi(X) | C], where xi minimises E[(E[xi(X)|C])^2] / 2 - E[m(xi)] + penalty |xi|^2 (Bennett et al., 2022). Here xi
is linear in a few fixed features, so that the minimiser is a ridge solution. The features are the directions in which
f may be wrong. If the fitted f is linear they are constant and columns. Of two-stage least squares, and of any linear
bridge, they have linear projections on C and no penalty: value and standard error are then the textbook's. Otherwise
they are also f itself and, of at most six columns, squares and products (of more columns the products with the action,
unless these are too many, too), with conditional means out of fold and a penalty that falls with the root of n: a
smaller one would divide by noise where C hardly moves a feature, a chosen one would jump from treatment to treatment.
With proxies, where the treatment is known given C, a bump around a scalar, continuous treatment a stands in place of
its square: the outcomes of those who had about this treatment correct the bridge there, whatever its shape elsewhere.

What it assumes: rows (or groups) are independent; f is identified (see the strength of instruments or proxies in
``diagnose``); f, which is fitted on the same rows, is smooth enough for its residuals there to speak for new rows (the
conditional means are cross-fitted, f is not); errors of f outside the span of the features are small beside the
standard error. The last is a real assumption: with a continuous treatment a mean at one point of it has no root-n
estimator without one, and far from the observed treatments neither the effect nor its standard error is worth much.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import stdtrit

from prudent.cmr._arrays import Matrix, Scaler, shared_columns
from prudent.cmr._base import regress_out_of_fold
from prudent.cmr._support import Support

# Of wider inputs only products with the action are features, and none where there are more than MAX_CROSSED of them.
MAX_CURVED = 6
MAX_CROSSED = 40
N_FOLDS = 5
# Times 1 / sqrt(n), for features in standard units: about 0.01 at n = 1000.
PENALTY = 0.3
# Width of the bump in standard deviations of the treatment at 1000 units; it falls with the fifth root of their number.
# Narrower than is best for the error of the mean: what a fit gets wrong within the bump, which the noise of the rows
# there moves, too, has no part in the standard error.
WIDTH = 0.15
# Rows that the bump reaches at least, else it is widened: one residual says nothing of its own spread.
MIN_NEAR = 30


@dataclasses.dataclass(frozen=True)
class Features:
    """Functions of x, of which xi is a linear combination; see the module's text.

    ``mean`` and ``scale`` bring columns to standard units, ``h_mean`` and ``h_scale`` the function h, one number per
    outcome; ``centre`` has the means of the products. The last three are empty for a linear h. ``width`` is that of the
    bump around a treatment (the first column), 0 where there is none. Products with the first ``n_actions`` columns
    are features of wide inputs, too.
    """

    mean: np.ndarray
    scale: np.ndarray
    h_mean: np.ndarray
    h_scale: np.ndarray
    centre: np.ndarray
    width: float
    n_actions: int

    @classmethod
    def of(cls, x: Matrix, h: Matrix, width: float = 0.0, n_actions: int = 0) -> "Features":
        """Scales from the rows of ``x`` and the function there."""
        scaler, function, none = Scaler.of(x), Scaler.of(h), np.empty(0)
        if _is_linear(x, h):
            return cls(scaler.mean, scaler.scale, none, none, none, 0.0, n_actions)
        raw = cls(scaler.mean, scaler.scale, function.mean, function.scale, none, width, n_actions)
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
        """Whether the function is, so that its errors are."""
        return not len(self.h_mean)

    @property
    def products(self) -> list[tuple[int, int]]:
        """Pairs of columns whose product is a feature."""
        width = len(self.mean)
        if self.is_linear:
            return []
        if width > MAX_CURVED:
            crossed = [(i, j) for i in range(self.n_actions) for j in range(i, width)]
            return crossed if len(crossed) <= MAX_CROSSED else []
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

    ``spread`` has the standard deviations of the outcomes; ``is_projected``: conditional means are linear projections.
    """

    features: Features
    values: np.ndarray
    conditional: np.ndarray
    residual: np.ndarray
    unit: np.ndarray
    spread: np.ndarray
    is_projected: bool

    @classmethod
    def of(
        cls,
        y: Matrix,
        x: Matrix,
        c: Matrix,
        h: Matrix,
        *,
        seed: int,
        groups: Any = None,
        is_local: bool = False,
        n_actions: int = 0,
        projects: bool = True,
    ) -> "Correction":
        """From the training rows and the function ``h`` at their x.

        ``is_local``: the first column of x is the only treatment, continuous, and a column of c. ``projects``: a linear
        h has linear projections on c; where c says more about x than a line, as an estimator may have found, it should
        not.
        """
        groups = None if groups is None else np.asarray(groups).reshape(-1)
        unit = np.arange(len(x)) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
        width = WIDTH * (1000 / (unit.max() + 1)) ** 0.2 if is_local else 0.0
        features = Features.of(x, h, width, n_actions)
        values = features(x, h)
        is_projected = projects and features.is_linear
        if is_projected:
            design = np.hstack([np.ones((len(c), 1)), Scaler.of(c).forward(c)])
            conditional = design @ np.linalg.lstsq(design, values, rcond=None)[0]
        else:
            regress = functools.partial(regress_out_of_fold, c=c, seed=seed, n_folds=N_FOLDS, groups=groups)
            conditional = features.conditional(x, h, regress, c)
        return cls(features, values, conditional, y - h, unit, y.std(axis=0), is_projected)

    def scores(self, at_treatment: Matrix, h: np.ndarray) -> np.ndarray:
        """(n, outcomes), whose mean is the debiased mean outcome under one treatment, or under a policy.

        ``at_treatment`` has the rows (a, W_i, context_i), of a policy (a(context_i), context_i); ``h`` is the function
        there, (n, outcomes).
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
        xi = representer(gram_of(values, conditional), target, self.n_units, is_penalised=not self.is_projected)
        return h + (conditional @ xi)[:, None] * self.residual

    def without_data(self, at_treatment: Matrix) -> float | None:
        """Share of the rows (a, W_i, context_i) near which there is no training row; None of more than six columns."""
        if len(self.features.mean) > MAX_CURVED:
            return None
        return self._support.share_outside(self.features.standard(at_treatment))

    @functools.cached_property
    def _support(self) -> Support:
        return Support.of(self.values[:, 1 : 1 + len(self.features.mean)])

    @property
    def n_units(self) -> int:
        """Independent units: groups, or rows."""
        return int(self.unit.max()) + 1

    def mean(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(mean, standard error) per outcome of scores, or of differences of scores."""
        return scores.mean(axis=0), np.sqrt(np.diag(covariance_of_mean(scores, self.unit)))

    def in_sums(self) -> "CorrectionSums":
        """What of this is enough where the functional has no part of its own in the features (no bump)."""
        terms = [self.conditional * residual[:, None] for residual in self.residual.T]
        return CorrectionSums(
            self.features,
            gram_of(self.values, self.conditional),
            np.stack([term.mean(axis=0) for term in terms]),
            np.stack([covariance_of_mean(term, self.unit) for term in terms]),
            self.spread,
            self.n_units,
            self.is_projected,
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for a saved model."""
        return to_arrays(self, "correction")

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "Correction":
        """Inverse of :meth:`to_arrays`."""
        return cls(**from_arrays(arrays, "correction"))


@dataclasses.dataclass(frozen=True)
class CorrectionSums:
    """As a correction, in sums over the training rows: enough for functionals that all have the same features.

    A saved model has it in place of rows (though a category of one row shows in the sums). The two terms of the score
    are uncorrelated, since E[Y - f(X) | C] = 0 and the contexts are part of C, and between rows of different units, so
    that it serves for averages over contexts of another sample. ``gram`` is (k, k), ``moment`` (outcomes, k), its
    ``covariance`` (outcomes, k, k); ``spread`` has the standard deviations of the outcomes.
    """

    features: Features
    gram: np.ndarray
    moment: np.ndarray
    covariance: np.ndarray
    spread: np.ndarray
    n_units: int
    is_projected: bool

    def mean(self, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(mean, variance) per outcome of what debiasing adds to a functional with these values at the features."""
        xi = representer(self.gram, target, self.n_units, is_penalised=not self.is_projected)
        return self.moment @ xi, np.einsum("i,oij,j->o", xi, self.covariance, xi)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for a saved model."""
        return to_arrays(self, "sums")

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "CorrectionSums":
        """Inverse of :meth:`to_arrays`."""
        return cls(**from_arrays(arrays, "sums"))


def check_level(level: float) -> None:
    """Raise unless ``level`` can be that of an interval."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level!r}. Of a 95 % interval it is 0.95.")


def half_width(level: float, freedom: float) -> float:
    """Of an interval, in standard errors: by Student's law, which matters where there are few units."""
    return float(stdtrit(freedom, 0.5 + level / 2))


def covariance_of_mean(rows: Matrix, unit: np.ndarray) -> np.ndarray:
    """Covariance (columns, columns) of the mean of rows, of which those of one unit belong together."""
    n_units = int(unit.max()) + 1
    summed = np.zeros((n_units, rows.shape[1]))
    np.add.at(summed, unit, rows - rows.mean(axis=0))
    return n_units / max(n_units - 1, 1) * summed.T @ summed / len(rows) ** 2


def gram_of(values: Matrix, conditional: Matrix) -> np.ndarray:
    """E[features E[features | C]'].

    From the features themselves on the left: a first stage that shrinks, as ridge does, then changes the scale of the
    instruments and not the solution.
    """
    return values.T @ conditional / len(values)


def representer(gram: np.ndarray, target: np.ndarray, n_units: int, *, is_penalised: bool) -> np.ndarray:
    """Coefficients of xi, see the module's text; the constant is not penalised."""
    if not is_penalised:
        return np.linalg.lstsq(gram, target, rcond=None)[0]
    # Tikhonov's filter: the matrix is not symmetric, and gram + ridge could be singular.
    ridge = np.eye(len(gram)) * PENALTY**2 / n_units
    ridge[0, 0] = 0.0
    return np.linalg.solve(gram.T @ gram + ridge, gram.T @ target)


def to_arrays(part: "Correction | CorrectionSums", name: str) -> dict[str, np.ndarray]:
    """Arrays of a correction (or its sums) and of its features, under names that begin with ``name``."""
    features = {f"{name}.features.{f.name}": getattr(part.features, f.name) for f in dataclasses.fields(Features)}
    own = {f"{name}.{f.name}": getattr(part, f.name) for f in dataclasses.fields(part) if f.name != "features"}
    return {key: np.asarray(array) for key, array in (features | own).items()}


def from_arrays(arrays: dict[str, np.ndarray], name: str) -> dict[str, Any]:
    """Inverse of :func:`to_arrays`."""
    found = {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}
    parts: dict[str, Any] = {f.name: found.pop(f"features.{f.name}") for f in dataclasses.fields(Features)}
    parts |= {key: kind(np.ravel(parts[key])[0]) for key, kind in (("width", float), ("n_actions", int))}
    scalars = {
        key: kind(np.ravel(found[key])[0]) for key, kind in (("n_units", int), ("is_projected", bool)) if key in found
    }
    return {"features": Features(**parts), **found, **scalars}
