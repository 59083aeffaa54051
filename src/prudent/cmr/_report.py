"""Facts about a fit that every estimator with a law of X given C can give."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent.cmr._arrays import Matrix
from prudent.cmr._base import MIN_UNITS, MomentError, regress_out_of_fold, residual_moment

if TYPE_CHECKING:
    from prudent.cmr._atoms import Atoms
    from prudent.cmr._problem import Problem

# Stock and Yogo's rule of thumb: instruments with a smaller effective F are weak.
WEAK_F = 10.0
# f is of the order of the outcome's mean, and a correction of that of the residuals; with weak instruments it may vary
# more, but beyond so many times as much it has run off.
MAX_SPREAD = 5.0
# Permutations of the instruments that measure their strength, in two halves.
N_PERMUTATIONS = 5
# An instrument of which the context predicts more than this share, out of fold, is permuted given the context.
PREDICTED_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Strength:
    """How strongly the part of C that is not in X moves a modelled column, given the part that is."""

    effective_f: float
    partial_r2: float


@dataclasses.dataclass(frozen=True)
class FitReport:
    """Facts about a fit, all out of fold: nuisance quality, strength of C for the modelled columns, the moment."""

    n_rows: int
    n_folds: int
    outcome_r2: tuple[float, ...]
    modelled_r2: tuple[float, ...]
    modelled: tuple[int, ...]
    strength: tuple[Strength, ...]
    moment: MomentError | None
    moment_of_mean: MomentError | None
    discrete: tuple[int, ...]


def table_text(rows: list[tuple[str, str, str]]) -> str:
    """Rows (what, value, how to read it) of a diagnosis as aligned lines."""
    left, middle = (max(len(row[i]) for row in rows) for i in (0, 1))
    return "\n".join(f"{a:<{left}}  {b:>{middle}}  {c}".rstrip() for a, b, c in rows)


def facts_of_atoms(
    problem: "Problem", s: Matrix, atoms: "Atoms", *, n_folds: int, discrete: Any, seed: int
) -> dict[str, Any]:
    """The fields of a :class:`FitReport` for a fit whose law of X is made of atoms; no fold is audited.

    ``s`` are predictions of the outcome by models that have not seen the row.
    """
    modelled = problem.x[:, problem.modelled]
    return {
        "n_rows": len(problem.x),
        "n_folds": n_folds,
        "outcome_r2": r_squared(problem.y, s),
        "modelled_r2": r_squared(modelled, atoms.expected),
        "modelled": tuple(problem.modelled),
        "strength": strengths(modelled, atoms.expected, atoms.without, problem.groups),
        "moment": None,
        "moment_of_mean": moment_of_mean(problem.y, problem.c, problem.groups, seed),
        "discrete": tuple(problem.modelled[p] for p in discrete),
    }


def moment_of_mean(y: Matrix, c: Matrix, groups: np.ndarray | None, seed: int) -> MomentError | None:
    """Moment error of a constant: what there is to explain. None where there are too few units to measure it."""
    return measure_moment(y - y.mean(axis=0), c, groups, seed)


def measure_moment(residual: Matrix, c: Matrix, groups: np.ndarray | None, seed: int) -> MomentError | None:
    """Moment error of residuals; None where there are too few units to measure it."""
    if groups is not None and len(np.unique(groups)) < MIN_UNITS:
        return None
    return residual_moment(residual, c, seed=seed, groups=groups)


def permuted_instruments(
    c: Matrix, instruments: list[int], count: int, rng: np.random.Generator, groups: np.ndarray | None
) -> tuple[list[Matrix], list[Matrix]]:
    """Copies of ``c`` whose instruments say no more than the context does; the same whose instruments say nothing.

    Instruments are permuted among rows, jointly. In the first copies, what the context predicts of an instrument stays
    in place: otherwise a model that leaves to such an instrument what the context explains would make it look strong.
    Both are the same list where the context predicts nothing.
    """
    z = c[:, instruments]
    orders = [rng.permutation(len(c)) for _ in range(count)]
    nothing = [_with_columns(c, instruments, z[order]) for order in orders]
    context = np.delete(c, instruments, axis=1)
    n_units = len(c) if groups is None else len(np.unique(groups))
    if context.shape[1] == 0 or n_units < MIN_UNITS:
        return nothing, nothing
    guess = regress_out_of_fold(z.astype(float), context, seed=0, n_folds=2, groups=groups)
    is_predicted = np.mean((z - guess) ** 2, axis=0) < (1 - PREDICTED_SHARE) * z.var(axis=0)
    if not is_predicted.any():
        return nothing, nothing
    expected = np.where(is_predicted, guess, 0.0)
    return [_with_columns(c, instruments, expected + (z - expected)[order]) for order in orders], nothing


def _with_columns(c: Matrix, columns: list[int], values: Matrix) -> Matrix:
    copy = c.copy()
    copy[:, columns] = values
    return copy


def strengths(
    actual: Matrix, predicted: Matrix, without: np.ndarray, groups: np.ndarray | None
) -> tuple[Strength, ...]:
    """Strength of the instruments for every action, given the context; unknown (NaN) with too few ``groups``.

    ``predicted`` is the out-of-fold mean of the actions, ``without`` (2, n, d) twice the same with the instruments
    permuted (:func:`permuted_instruments`), by independent permutations. Subtracting it on both sides removes what the
    context explains, which would otherwise count as strength; a single one would count its own noise as strength.
    """
    columns = zip(actual.T, predicted.T, without[0].T, without[1].T, strict=True)
    if groups is not None and len(np.unique(groups)) < MIN_UNITS:
        return (Strength(float("nan"), float("nan")),) * actual.shape[1]
    return tuple(partial_strength(*parts, groups=groups) for parts in columns)


def strengths_by_regression(
    actual: Matrix, c: Matrix, instruments: list[int], groups: np.ndarray | None, seed: int
) -> tuple[tuple[float, ...], tuple[Strength, ...]]:
    """(R2 out of fold, strengths) of the actions by kernel regressions, for estimators without a law of theirs."""
    if groups is not None and len(np.unique(groups)) < MIN_UNITS:
        return (), strengths(actual, actual, np.zeros((2, *actual.shape)), groups)
    permuted, _ = permuted_instruments(c, instruments, N_PERMUTATIONS, np.random.default_rng([seed, 1]), groups)
    expected, *without = (regress_out_of_fold(actual, at, seed=seed, groups=groups) for at in (c, *permuted))
    return r_squared(actual, expected), strengths(actual, expected, in_two_halves(without), groups)


def in_two_halves(means: list[Matrix]) -> np.ndarray:
    """(2, n, d): the average of every other of ``means``, and that of the rest."""
    return np.stack([np.mean(means[half::2], axis=0) for half in range(2)])


def is_weak(strength: Sequence[Strength]) -> bool:
    """Whether the instruments hardly move any of the modelled columns."""
    return bool(strength) and all(part.effective_f < WEAK_F for part in strength)


def partial_strength(
    actual: np.ndarray,
    predicted: np.ndarray,
    without: np.ndarray,
    without_again: np.ndarray | None = None,
    *,
    groups: np.ndarray | None = None,
) -> Strength:
    """Strength of the instruments for one action, given the context; see :func:`strengths`.

    Products take one of the two ``without`` on each side, so that their noise has mean zero (without a second one they
    take the same). With one constructed instrument the effective F of Montiel Olea and Pflueger is the
    heteroskedasticity-robust F, of ``groups`` of dependent rows the cluster-robust one. A negative slope, which noise
    produces out of fold, is no strength.
    """
    both = (without, without if without_again is None else without_again)
    a, z = ([centred(part - w) for w in both] for part in (actual, predicted))
    zz, aa, za = z[0] @ z[1], a[0] @ a[1], (z[0] @ a[1] + z[1] @ a[0]) / 2
    if zz <= 1e-12 * aa or za <= 0:
        return Strength(0.0, 0.0)
    slope = za / zz
    mean_a, mean_z = (a[0] + a[1]) / 2, (z[0] + z[1]) / 2
    score = mean_z * (mean_a - slope * mean_z)
    few = 1.0
    if groups is not None:
        score = np.bincount(np.unique(groups, return_inverse=True)[1].reshape(-1), weights=score)
        few = len(score) / max(len(score) - 1, 1)
    variance = few * np.sum(score**2) / zz**2
    return Strength(float(slope**2 / variance) if variance > 0 else float("inf"), float(min(za**2 / (zz * aa), 1.0)))


def centred(column: np.ndarray) -> np.ndarray:
    """The column less its mean."""
    return column - column.mean()


def r_squared(actual: Matrix, predicted: Matrix) -> tuple[float, ...]:
    """Share of the variance of each column that a prediction explains."""
    spread = np.maximum(actual.var(axis=0), 1e-300)
    return tuple(float(v) for v in 1 - np.mean((actual - predicted) ** 2, axis=0) / spread)
