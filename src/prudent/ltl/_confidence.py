"""What visits to an unknown row of a transition table allow to claim, at every time at once.

Support. Every successor of a row has probability ``p_min`` or more, so that a row has at most 1 / p_min of them. A row
that has shown j successors is believed complete at its visit number m_j. It can only be believed wrongly *at* a visit
m_j: a row with j successors seen after that visit either has its claim already or found its last successor since. If
the row has K > j successors, exactly j were seen with probability at most the sum of mass(J)^m_j over sets J of j
successors. That sum is convex in the probabilities, hence largest where K - 1 of them are p_min. The m_j are the
smallest that keep the sum over j below the row's share, whatever K.

Probability. A successor's indicator is a coin with unknown bias p. The likelihood ratio between a mixture of biases
and p is a martingale with mean 1, so that it ever exceeds 1/alpha with probability alpha at most (Ville, 1939), and
the p for which it has not form the interval. The mixture is half Beta(1/2, 1/2) (good at every sample size) and half
Beta(p v, (1 - p) v) (narrow near the sample size at which ``epsilon`` is reached). Both log ratios are convex in p,
so that the set is an interval around the frequency.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from scipy.special import gammaln

# Part of the error probability that support may use. A smaller part costs visits only logarithmically, while the
# width of an interval grows with its logarithm at every sample size.
SUPPORT_SHARE = 0.2
# Rows share the rest in the order in which they show a second successor: row i gets c / ((i + c - 1)(i + c)), which
# sums to 1. Rows that turn out deterministic need no interval and take nothing.
_ROW_SCALE = 10.0


def most_successors(p_min: float, n_states: int) -> int:
    """Largest number of successors that a row can have."""
    return max(1, min(n_states, math.floor(1.0 / p_min + 1e-9)))


def support_visits(p_min: float, most: int, share: float) -> np.ndarray:
    """``m[j]``: visits after which j successors seen are all there are, for j = 0..most (m[0] is never reached).

    Examples
    --------
    >>> support_visits(0.5, 2, 0.01)[1:]
    array([8, 1])
    """
    visits = np.full(most + 1, np.iinfo(np.int64).max)
    visits[most] = 1
    for j in range(1, most):
        k = np.arange(j + 1, most + 1)
        # Of the share, 0.9 goes to j = K - 1, a tenth of that to j = K - 2, and so on: these terms vanish fast.
        log_share = math.log(0.9 * share) - (k - 1 - j) * math.log(10.0)
        low, high = 0, 1
        while not _is_unlikely(p_min, j, k, high, log_share):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if _is_unlikely(p_min, j, k, middle, log_share):
                high = middle
            else:
                low = middle
        visits[j] = high
    # More successors seen can only mean a longer wait, which the argument above uses.
    visits[1:most] = np.maximum.accumulate(visits[1:most])
    return visits


def _is_unlikely(p_min: float, j: int, k: np.ndarray, m: int, log_share: np.ndarray) -> bool:
    with np.errstate(divide="ignore"):
        with_large = _log_binomial(k - 1, j - 1) + m * np.log(np.maximum(1.0 - (k - j) * p_min, 0.0))
        without = _log_binomial(k - 1, j) + m * math.log(min(1.0, j * p_min))
    return bool(np.all(np.logaddexp(with_large, without) <= log_share))


def _log_binomial(n: np.ndarray, k: int) -> np.ndarray:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


def concentration(epsilon: float) -> float:
    """v of the second half of the mixture.

    Where one side of an interval has to come within ``epsilon``, this is near the best for it; where both sides have
    to share ``epsilon`` (four times the visits), it is no worse than any other.
    """
    # The gamma functions of larger numbers lose the digits that decide.
    return min(0.4 / epsilon**2, 1e8)


@njit(cache=True)
def slot_level(total, rank, place, most):
    """Error probability of one interval: of the successor found ``place``-th in the ``rank``-th stochastic row.

    The intervals of two complementary successors fail together, so that a row with room for two needs no split.
    """
    share = total * _ROW_SCALE / ((rank + _ROW_SCALE - 1.0) * (rank + _ROW_SCALE))
    if most <= 2:
        return share
    if place <= 2:
        return 0.3 * share
    if place == 3:
        return 0.2 * share
    return 0.2 * share / ((place - 3.0) * (place - 2.0))


@njit(cache=True)
def _log_beta(a, b):
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


@njit(cache=True)
def log_ratio(p, k, n, v):
    """Logarithm of the mixture's likelihood ratio against bias p after k successes in n draws."""
    likelihood = 0.0
    if k > 0:
        likelihood += k * math.log(p)
    if n > k:
        likelihood += (n - k) * math.log1p(-p)
    wide = _log_beta(k + 0.5, n - k + 0.5) - math.log(math.pi) - likelihood
    a, b = p * v, (1.0 - p) * v
    narrow = _log_beta(k + a, n - k + b) - _log_beta(a, b) - likelihood
    top = max(wide, narrow)
    return top + math.log(0.5 * math.exp(wide - top) + 0.5 * math.exp(narrow - top))


@njit(cache=True)
def bernoulli_interval(k, n, level, v):
    """Biases that k successes in n draws have not refuted."""
    if n == 0:
        return 0.0, 1.0
    bar = -math.log(level)
    frequency = k / n
    low, high = 0.0, 1.0
    if k > 0:
        inside, outside = frequency, 0.0
        for _ in range(45):
            middle = 0.5 * (inside + outside)
            if middle < 1.0 and log_ratio(middle, k, n, v) >= bar:
                outside = middle
            else:
                inside = middle
        low = outside
    if k < n:
        inside, outside = frequency, 1.0
        for _ in range(45):
            middle = 0.5 * (inside + outside)
            if middle > 0.0 and log_ratio(middle, k, n, v) >= bar:
                outside = middle
            else:
                inside = middle
        high = outside
    return low, high
