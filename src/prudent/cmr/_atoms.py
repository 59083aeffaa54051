"""The law of X given C without networks: levels with probabilities, and a mean plus scaled residuals.

Discrete columns have a probability for each of their joint levels. Continuous columns are mean(c, level) + scale(c)
times a residual; the residuals are those of the data, jointly over columns, so no shape is assumed. Means,
probabilities and scales are predicted for every row by models that have not seen it.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from prudent.cmr._arrays import Matrix
from prudent.cmr._base import regress_out_of_fold
from prudent.cmr._folds import unseen_folds
from prudent.cmr._report import N_PERMUTATIONS, in_two_halves, permuted_instruments
from prudent.errors import DataError

# Residuals that stand for their law: quantiles of one column, draws of several.
N_QUANTILES, N_DRAWS = 16, 48
MAX_LEVELS = 50

Regress = Callable[[Matrix, Matrix, list[np.ndarray], np.ndarray | None], Callable[[Matrix], Matrix]]
"""regress(inputs, target, folds, groups) -> predict(inputs): row i is predicted without the fold that holds it."""


@dataclasses.dataclass(frozen=True)
class Atoms:
    """E[f(X) | c_i] = sum_q weight[i, q] f(value[i, q]).

    ``expected`` is the mean of every row by models that have not seen it, with one fold as well; ``without``
    (2, n, d) twice the same when the instruments say no more than the context, with independent errors, and
    ``shuffled`` when they say nothing at all.
    """

    value: np.ndarray
    weight: np.ndarray
    expected: Matrix
    without: np.ndarray
    shuffled: np.ndarray

    def mean(self) -> Matrix:
        """Conditional mean of every column."""
        return np.einsum("nq,nqd->nd", self.weight, self.value)

    def variance(self) -> Matrix:
        """Conditional variance of every column."""
        return np.einsum("nq,nqd->nd", self.weight, (self.value - self.mean()[:, None]) ** 2)


def fit_atoms(
    x: Matrix,
    c: Matrix,
    folds: list[np.ndarray],
    regress: Regress,
    *,
    discrete: list[int],
    instruments: list[int],
    groups: np.ndarray | None,
    rng: np.random.Generator,
) -> Atoms:
    """The law of the modelled columns ``x`` given ``c``.

    Parameters
    ----------
    regress : callable
        ``regress(inputs, target, folds, groups)`` gives a function that predicts row i of its argument without having
        seen the fold of row i. It is called for means and probabilities.
    discrete, instruments : list of int
        Discrete columns of ``x``; columns of ``c`` that are not in the function's arguments.
    """
    n = len(x)
    if x.shape[1] == 0:
        nothing = np.zeros((2, n, 0))
        return Atoms(np.zeros((n, 1, 0)), np.ones((n, 1)), np.zeros((n, 0)), nothing, nothing)
    continuous = [j for j in range(x.shape[1]) if j not in discrete]
    permuted, blind = permuted_instruments(c, instruments, N_PERMUTATIONS, rng, groups)
    # With one fold the models have seen all rows: residuals would be too small, and strength too large.
    apart = folds if len(folds) > 1 else unseen_folds(n, rng, groups)
    expected = np.zeros(x.shape)
    without, shuffled = np.zeros((2, *x.shape)), np.zeros((2, *x.shape))
    levels, level, probability = np.zeros((1, 0)), np.zeros(n, dtype=int), np.ones((n, 1))
    chances = probability
    if discrete:
        levels, level = np.unique(x[:, discrete], axis=0, return_inverse=True)
        level = level.reshape(-1)
        if len(levels) > MAX_LEVELS:
            raise DataError(
                f"The discrete columns of x have {len(levels)} joint levels, more than {MAX_LEVELS}. Merge rare "
                "levels, or name fewer columns in discrete."
            )
        indicators = np.eye(len(levels))[level]
        predict = regress(c, indicators, folds, groups)
        predict_apart = predict if apart is folds else regress(c, indicators, apart, groups)
        probability = _simplex(predict(c))
        chances = _simplex(predict_apart(c))
        expected[:, discrete] = chances @ levels

        def level_means(copies: list[Matrix]) -> np.ndarray:
            return in_two_halves([_simplex(predict_apart(other)) @ levels for other in copies])

        without[:, :, discrete] = level_means(permuted)
        shuffled[:, :, discrete] = without[:, :, discrete] if blind is permuted else level_means(blind)
    if not continuous:
        value = np.broadcast_to(levels[None], (n, *levels.shape))
        return Atoms(value, probability, expected, without, shuffled)

    indicator = np.eye(len(levels)) if discrete else np.zeros((1, 0))
    given = np.hstack([c, indicator[level]])
    target = x[:, continuous]
    predict_apart = regress(given, target, apart, groups)
    residual = target - predict_apart(given)
    predict = predict_apart if apart is folds else regress(given, target, folds, groups)
    scale = _scales(residual, given, groups, rng)
    ratio = residual / scale
    if len(continuous) == 1:
        nodes = np.quantile(ratio, (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES, axis=0)
        # Mid-point quantiles cut the tails: give back the variance that E[f(X)|c] depends on.
        nodes = ratio.mean() + (nodes - nodes.mean()) * ratio.std() / max(nodes.std(), 1e-300)
    else:
        nodes = _with_moments_of(ratio, ratio[rng.choice(n, N_DRAWS, replace=n < N_DRAWS)])
    values = []
    for number in range(len(levels)):
        at_level = np.hstack([c, np.broadcast_to(indicator[number], (n, indicator.shape[1]))])
        value = np.empty((n, len(nodes), x.shape[1]))
        value[:, :, discrete] = levels[number]
        mean = predict(at_level)
        value[:, :, continuous] = mean[:, None] + scale[:, None] * nodes
        values.append(value)
        mean = mean if apart is folds else predict_apart(at_level)
        expected[:, continuous] += chances[:, number, None] * (mean + scale * nodes.mean(axis=0))

    def means(copies: list[Matrix]) -> np.ndarray:
        return in_two_halves([predict_apart(np.hstack([other, indicator[level]])) for other in copies])

    without[:, :, continuous] = means(permuted)
    shuffled[:, :, continuous] = without[:, :, continuous] if blind is permuted else means(blind)
    weight = np.repeat(probability / len(nodes), len(nodes), axis=1)
    return Atoms(np.concatenate(values, axis=1), weight, expected, without, shuffled)


def _with_moments_of(sample: Matrix, nodes: Matrix) -> Matrix:
    """``nodes`` moved and stretched to the mean and covariance of ``sample``: a few draws have others by chance."""
    centred = nodes - nodes.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(nodes))
    # Directions in which the draws do not vary stay as they are: nothing can be stretched there.
    is_there = values > 1e-10 * values.max()
    inward = (vectors[:, is_there] / np.sqrt(values[is_there])) @ vectors[:, is_there].T
    values, vectors = np.linalg.eigh(np.cov(sample.T, ddof=0))
    outward = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return sample.mean(axis=0) + centred @ inward @ outward


def _scales(residual: Matrix, given: Matrix, groups: np.ndarray | None, rng: np.random.Generator) -> Matrix:
    """Scale of the residuals of every row: one number, or a regression of their size if that fits unseen rows better.

    Scales are judged by the likelihood of the residuals under normal laws, out of fold.
    """
    size = np.abs(residual)
    constant = np.broadcast_to(size.mean(axis=0), size.shape)
    fitted = regress_out_of_fold(size, given, seed=int(rng.integers(2**31)), groups=groups)
    varying = np.clip(fitted, 0.2 * constant, 5 * constant)

    def misfit(scale: Matrix) -> np.ndarray:
        # For a normal law E|r| = sd sqrt(2 / pi).
        variance = scale**2 * np.pi / 2
        return np.sum(residual**2 / variance + np.log(variance), axis=1)

    gain = misfit(constant) - misfit(varying)
    return varying if gain.mean() > 2 * gain.std() / np.sqrt(len(gain)) else np.array(constant)


def _simplex(probability: Matrix) -> Matrix:
    probability = np.clip(probability, 1e-6, None)
    return probability / probability.sum(axis=1, keepdims=True)
