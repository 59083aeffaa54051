"""The ticket demand design of Hartford et al. (2017), in the two conventions found in the literature.

T ~ U(0,10), S ~ Unif{1..7}, Z and v ~ N(0,1), psi(t) = 2 [(t-5)^4/600 + exp(-4 (t-5)^2) + t/10 - 2]
price P = 25 + (iv_strength Z + 3) psi(T) + v
sales g = (10 + P) S psi(T) - 2 P, noise e = rho v + sqrt(1 - rho^2) N(0,1)

``normalised`` (Hartford; DML-IV; DML-CMR): P and g are scaled, the noise has standard deviation 1 *on the scaled*
outcome, S is one-hot. ``dfiv`` (Xu et al., 2021): raw units, g + 100, noise of standard deviation 1 on the raw
outcome, S ordinal. Errors under the two are not convertible into each other.
"""

import functools
from typing import Any

import numpy as np

from prudent.datasets._design import Design, generator

PRICE_MEAN, PRICE_SCALE = 17.779, 3.7
SALES_MEAN, SALES_SCALE = -292.1, 158.0
CONVENTIONS = ("normalised", "dfiv")
# Prices among which a policy chooses, on the normalised scale.
ACTION_RANGE = (-3.0, 3.0)


def psi(t: np.ndarray) -> np.ndarray:
    """Seasonal demand."""
    return 2 * ((t - 5) ** 4 / 600 + np.exp(-4 * (t - 5) ** 2) + t / 10 - 2)


def make_demand(
    n: int, *, rho: float = 0.9, iv_strength: float = 1.0, seed: int = 0, convention: str = "normalised"
) -> Design:
    """Draw ``n`` rows of the demand design.

    Parameters
    ----------
    rho : float
        Correlation of the noises of price and sales: the strength of the confounding.
    iv_strength : float
        Factor on the instrument (fuel price); 1 in the original design, and 0.8, 0.6, 0.4, 0.2, 0.01 in the
        weak-instrument variants of Shao (2025).
    convention : {"normalised", "dfiv"}
        See the module's text.
    """
    _check_convention(convention)
    t, s, z, price, noise = draw_market(n, generator(seed, n=n), rho, iv_strength)
    context = _context(t, s, convention)
    if convention == "normalised":
        price, names = normalised_price(price), ["time", *(f"customer_{k}" for k in range(1, 8))]
        function, actions = _normalised_sales, ACTION_RANGE
    else:
        names, function = ["time", "customer"], _raw_sales
        actions = (PRICE_MEAN + PRICE_SCALE * ACTION_RANGE[0], PRICE_MEAN + PRICE_SCALE * ACTION_RANGE[1])
    return Design(
        outcome=(function(price[:, None], context) + noise)[:, None],
        action=price[:, None],
        instruments=z[:, None],
        context=context,
        names={"outcome": ["sales"], "action": ["price"], "instruments": ["fuel"], "context": names},
        function=function,
        action_range=actions,
        draw_contexts=functools.partial(_draw_contexts, convention=convention),
    )


def draw_market(
    n: int, rng: np.random.Generator, rho: float, iv_strength: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Time, customer type, instrument, raw price and noise of ``n`` rows."""
    if not -1 <= rho <= 1:
        raise ValueError(f"rho must be a correlation in [-1, 1], got {rho!r}.")
    if not np.isfinite(iv_strength):
        raise ValueError(f"iv_strength must be finite, got {iv_strength!r}.")
    t, s = rng.uniform(0, 10, n), rng.integers(1, 8, n)
    z, v = rng.standard_normal(n), rng.standard_normal(n)
    noise = rho * v + np.sqrt(1 - rho**2) * rng.standard_normal(n)
    return t, s, z, 25 + (iv_strength * z + 3) * psi(t) + v, noise


def draw_times(n: int, rng: np.random.Generator, shifted: bool) -> np.ndarray:
    """Times of fresh contexts: U(0, 10), or U(1, 11) out of distribution (Shao, 2025)."""
    return rng.uniform(1, 11, n) if shifted else rng.uniform(0, 10, n)


def normalised_price(price: np.ndarray) -> np.ndarray:
    """Price on the scale of the action."""
    return (price - PRICE_MEAN) / PRICE_SCALE


def normalised_sales(action: np.ndarray, t: np.ndarray, s: np.ndarray) -> np.ndarray:
    """True sales on the normalised scale, from the normalised price."""
    return (_sales(action * PRICE_SCALE + PRICE_MEAN, t, s) - SALES_MEAN) / SALES_SCALE


def _draw_contexts(n: int, rng: np.random.Generator, shifted: bool, *, convention: str) -> np.ndarray:
    return _context(draw_times(n, rng, shifted), rng.integers(1, 8, n), convention)


def _context(t: np.ndarray, s: np.ndarray, convention: str) -> np.ndarray:
    if convention == "normalised":
        return np.column_stack([t, np.eye(7)[s.astype(int) - 1]])
    return np.column_stack([t, s.astype(float)])


def market_grid() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Raw price, time and customer type on the 20 x 20 x 7 test grid."""
    mesh = np.meshgrid(np.linspace(10, 25, 20), np.linspace(0, 10, 20), np.arange(1.0, 8.0), indexing="ij")
    price, t, s = (axis.ravel() for axis in mesh)
    return price, t, s


def demand_grid(convention: str = "normalised") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The test grid: (price, context, true sales) on 20 prices in [10, 25] x 20 times x 7 customers, 2800 points."""
    _check_convention(convention)
    price, t, s = market_grid()
    context = _context(t, s, convention)
    if convention == "normalised":
        action = normalised_price(price)[:, None]
        return action, context, _normalised_sales(action, context)
    return price[:, None], context, _raw_sales(price[:, None], context)


def demand_error(model: Any, *, convention: str = "normalised") -> float:
    """Mean squared error of ``model.effect`` on the test grid, against the noise-free truth.

    ``convention`` is that of the data that the model was fitted on.
    """
    action, context, truth = demand_grid(convention)
    return float(np.mean((np.asarray(model.effect(action, context)).reshape(-1) - truth) ** 2))


def _sales(price: np.ndarray, t: np.ndarray, s: np.ndarray) -> np.ndarray:
    return (10 + price) * s * psi(t) - 2 * price


def _normalised_sales(action: np.ndarray, context: np.ndarray | None) -> np.ndarray:
    assert context is not None
    return normalised_sales(action[:, 0], context[:, 0], context[:, 1:] @ np.arange(1, 8))


def _raw_sales(action: np.ndarray, context: np.ndarray | None) -> np.ndarray:
    assert context is not None
    return 100 + _sales(action[:, 0], context[:, 0], context[:, 1])


def _check_convention(convention: str) -> None:
    if convention not in CONVENTIONS:
        raise ValueError(f"convention must be one of {CONVENTIONS}, got {convention!r}.")
