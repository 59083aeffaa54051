"""The correction of a regression that is linear in given terms of x, from the moment alone.

What a regression g of y on x leaves has the mean E[(f - g)(X)|c] given c. Where f - g is linear in some terms,
f - g = terms(x) b, that is E[left - terms(X) b | C] = 0, solved by two-stage least squares with the out-of-fold mean of
the terms given c as instruments: a few numbers in place of a function, and orthogonal to errors of that mean.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from prudent.cmr._arrays import Matrix, Scaler
from prudent.cmr._base import regress_out_of_fold

Terms = Callable[[Matrix], Matrix]
# Penalties to choose from, in units of the variance of a term: of a direction of which c explains a share R2, about
# R2 / (R2 + penalty) is kept.
PENALTIES = 10.0 ** np.arange(-3.5, -0.9, 0.25)


@dataclasses.dataclass(frozen=True)
class StraightCorrection:
    """``constant + (terms(x) - mean) weight``, with terms held in the range (2, terms) in which they were learnt.

    ``terms`` are filled in by whoever knows them where it was saved.
    """

    bounds: np.ndarray
    mean: np.ndarray
    weight: Matrix
    constant: np.ndarray
    terms: Terms | None = None

    def predict(self, x: Matrix) -> Matrix:
        """Its values at the rows of x, (n, outcomes)."""
        if self.terms is None:
            raise ValueError(
                "a correction must know its terms before it predicts, and a saved one has none. Save the imitator, "
                "or set straight_ = dataclasses.replace(straight_, terms=...) to the correction_terms of the fit."
            )
        return self.constant + (np.clip(self.terms(x), *self.bounds) - self.mean) @ self.weight

    def to_arrays(self) -> dict[str, np.ndarray]:
        """All but the terms."""
        return {f"straight.{name}": getattr(self, name) for name in ("bounds", "mean", "weight", "constant")}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "StraightCorrection":
        """What :meth:`to_arrays` wrote."""
        bounds, mean, weight, constant = (
            arrays[f"straight.{name}"] for name in ("bounds", "mean", "weight", "constant")
        )
        return cls(bounds, mean, weight, constant)


def fit_straight(
    left: Matrix,
    x: Matrix,
    c: Matrix,
    folds: list[np.ndarray],
    terms: Terms,
    rows: np.ndarray,
    *,
    groups: np.ndarray | None,
    seed: int,
) -> tuple[StraightCorrection, Matrix]:
    """The correction of a regression that leaves ``left``, and what it leaves in turn, each fold without itself.

    Both are about the rows ``rows`` (sorted) alone, and so is the second array.
    """
    values = terms(x[rows])
    scaler = Scaler.of(values)
    units, left = (values - scaler.mean) / scaler.scale, left[rows]
    own = None if groups is None else groups[rows]
    own = np.arange(len(rows)) if own is None else np.unique(own, return_inverse=True)[1]
    expected = regress_out_of_fold(units, c[rows], seed=seed, groups=None if groups is None else own)
    instruments, centred = expected - expected.mean(axis=0), left - left.mean(axis=0)
    directions = _seen_directions(units, instruments, own)
    units, instruments = units @ directions, instruments @ directions
    fold = np.zeros(len(rows), int)
    for number, part in enumerate(folds):
        fold[np.isin(rows, part)] = number

    def products(chosen: np.ndarray) -> tuple[Matrix, Matrix]:
        part = instruments[chosen].T
        gram = part @ units[chosen]
        # Of the exact mean it would be symmetric, and not indefinite.
        return (gram + gram.T) / 2, part @ centred[chosen]

    grams, moments = (np.stack(parts) for parts in zip(*(products(fold == k) for k in range(len(folds))), strict=True))

    def solve(chosen: np.ndarray, penalty: float) -> Matrix:
        """Weights from the folds ``chosen``."""
        n = np.count_nonzero(chosen[fold])
        gram, moment = grams[chosen].sum(axis=0) / n, moments[chosen].sum(axis=0) / n
        return np.linalg.solve(gram + penalty * np.eye(len(gram)), moment)

    others = ~np.eye(len(folds), dtype=bool)
    paths = [np.stack([solve(chosen, penalty) for penalty in PENALTIES]) for chosen in others]
    place = _choose(instruments, centred, fold, paths, own)
    rest = centred - _out_of_fold(units, fold, [path[place] for path in paths])
    weight = directions @ solve(np.ones(len(folds), bool), PENALTIES[place]) / scaler.scale[:, None]
    bounds = np.stack([values.min(axis=0), values.max(axis=0)])
    return StraightCorrection(bounds, scaler.mean, weight, left.mean(axis=0), terms), rest


def _seen_directions(units: Matrix, instruments: Matrix, unit: np.ndarray) -> Matrix:
    """Combinations (terms, kept) of the terms that c is seen to move, by two standard errors over ``unit``.

    In the others there is nothing to divide by, and whatever was divided would be noise.
    """
    gram = instruments.T @ units / len(units)
    share, vectors = np.linalg.eigh((gram + gram.T) / 2)
    products = (instruments @ vectors) * (units @ vectors) - share
    sums = np.stack([np.bincount(unit, weights=column) for column in products.T])
    return vectors[:, share > 2 * np.sqrt(np.sum(sums**2, axis=1)) / len(units)]


def _choose(instruments: Matrix, left: Matrix, fold: np.ndarray, paths: list[np.ndarray], unit: np.ndarray) -> int:
    """The place of the smallest penalty whose error in rows of other folds is the least one, but for a standard error.

    The least error itself is that of too much: what c hardly sees of a direction is all that its loss can tell, while
    the policy lives on the whole of it.
    """
    scale, losses = Scaler.of(left).scale, []
    for p in range(len(PENALTIES)):
        fitted = _out_of_fold(instruments, fold, [path[p] for path in paths])
        errors = np.sum(((left - fitted) / scale) ** 2, axis=1)
        losses.append(np.bincount(unit, weights=errors))
    total = np.stack(losses)
    excess = total - total[np.argmin(total.sum(axis=1))]
    error = excess.std(axis=1) * np.sqrt(excess.shape[1])
    return int(np.flatnonzero(excess.sum(axis=1) <= error)[0])


def _out_of_fold(values: Matrix, fold: np.ndarray, weights: list[Matrix]) -> Matrix:
    """Rows times the weights of their fold."""
    result = np.empty((len(values), weights[0].shape[1]))
    for number, weight in enumerate(weights):
        result[fold == number] = values[fold == number] @ weight
    return result
