"""Facts about a fit that every estimator with a law of X given C can give."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent.cmr._arrays import Matrix
from prudent.cmr._base import MomentError, residual_moment

if TYPE_CHECKING:
    from prudent.cmr._atoms import Atoms
    from prudent.cmr._problem import Problem


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
    moment_of_mean: MomentError
    discrete: tuple[int, ...]


def facts_of_atoms(
    problem: "Problem", s: Matrix, atoms: "Atoms", *, n_folds: int, discrete: Any, seed: int
) -> dict[str, Any]:
    """The fields of a :class:`FitReport` for a fit whose law of X is made of atoms; no fold is audited."""
    modelled, mean = problem.x[:, problem.modelled], atoms.mean()
    return {
        "n_rows": len(problem.x),
        "n_folds": n_folds,
        "outcome_r2": r_squared(problem.y, s),
        "modelled_r2": r_squared(modelled, mean),
        "modelled": tuple(problem.modelled),
        "strength": tuple(partial_strength(*parts) for parts in zip(modelled.T, mean.T, atoms.without.T, strict=True)),
        "moment": None,
        "moment_of_mean": residual_moment(
            problem.y - problem.y.mean(axis=0), problem.c, seed=seed, groups=problem.groups
        ),
        "discrete": tuple(problem.modelled[p] for p in discrete),
    }


def partial_strength(actual: np.ndarray, predicted: np.ndarray, without: np.ndarray) -> Strength:
    """Strength of the instruments for an action, given the context.

    ``predicted`` is the out-of-fold mean of the action, ``without`` the same with the instruments permuted; their
    difference is the constructed instrument. Subtracting ``without`` on both sides removes what the context explains,
    which would otherwise count as strength. With one constructed instrument the effective F of Montiel Olea and
    Pflueger is the heteroskedasticity-robust F. A negative slope, which noise produces out of fold, is no strength.
    """
    a, z = actual - without, predicted - without
    a, z = a - a.mean(), z - z.mean()
    if z @ z <= 1e-12 * (a @ a):
        return Strength(0.0, 0.0)
    slope = (z @ a) / (z @ z)
    variance = np.sum((z * (a - slope * z)) ** 2) / (z @ z) ** 2
    if slope <= 0:
        return Strength(0.0, 0.0)
    return Strength(
        float(slope**2 / variance) if variance > 0 else float("inf"), float((z @ a) ** 2 / ((z @ z) * (a @ a)))
    )


def r_squared(actual: Matrix, predicted: Matrix) -> tuple[float, ...]:
    """Share of the variance of each column that a prediction explains."""
    spread = np.maximum(actual.var(axis=0), 1e-300)
    return tuple(float(v) for v in 1 - np.mean((actual - predicted) ** 2, axis=0) / spread)
