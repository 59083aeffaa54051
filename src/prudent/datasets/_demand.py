"""The ticket demand design of Hartford et al. (2017), in the two conventions found in the literature.

T ~ U(0,10), S ~ Unif{1..7}, Z and v ~ N(0,1), psi(t) = 2 [(t-5)^4/600 + exp(-4 (t-5)^2) + t/10 - 2]
price P = 25 + (iv_strength Z + 3) psi(T) + v
sales g = (10 + P) S psi(T) - 2 P, noise e = rho v + sqrt(1 - rho^2) N(0,1)

``normalised`` (Hartford; DML-IV; DML-CMR): P and g are scaled, the noise has standard deviation 1 *on the scaled*
outcome, S is one-hot. ``dfiv`` (Xu et al., 2021): raw units, g + 100, noise of standard deviation 1 on the raw
outcome, S ordinal. Errors under the two are not convertible into each other.
"""

from typing import Any

import numpy as np

from prudent.datasets._design import Design

PRICE_MEAN, PRICE_SCALE = 17.779, 3.7
SALES_MEAN, SALES_SCALE = -292.1, 158.0
CONVENTIONS = ("normalised", "dfiv")


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
        Factor on the instrument (fuel price); 1 in the original design.
    convention : {"normalised", "dfiv"}
        See the module's text.
    """
    _check_convention(convention)
    rng = np.random.default_rng(seed)
    t, s = rng.uniform(0, 10, n), rng.integers(1, 8, n)
    z, v = rng.standard_normal(n), rng.standard_normal(n)
    noise = rho * v + np.sqrt(1 - rho**2) * rng.standard_normal(n)
    price = 25 + (iv_strength * z + 3) * psi(t) + v
    if convention == "normalised":
        price = (price - PRICE_MEAN) / PRICE_SCALE
        context, names = np.column_stack([t, np.eye(7)[s - 1]]), ["time", *(f"customer_{k}" for k in range(1, 8))]
        function = _normalised_sales
    else:
        context, names = np.column_stack([t, s.astype(float)]), ["time", "customer"]
        function = _raw_sales
    return Design(
        outcome=(function(price[:, None], context) + noise)[:, None],
        action=price[:, None],
        instruments=z[:, None],
        context=context,
        names={"outcome": ["sales"], "action": ["price"], "instruments": ["fuel"], "context": names},
        function=function,
    )


def demand_grid(convention: str = "normalised") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The test grid: (price, context, true sales) on 20 prices in [10, 25] x 20 times x 7 customers, 2800 points."""
    _check_convention(convention)
    mesh = np.meshgrid(np.linspace(10, 25, 20), np.linspace(0, 10, 20), np.arange(1.0, 8.0), indexing="ij")
    price, t, s = (axis.ravel() for axis in mesh)
    if convention == "normalised":
        action, context = (
            (price[:, None] - PRICE_MEAN) / PRICE_SCALE,
            np.column_stack([t, np.eye(7)[s.astype(int) - 1]]),
        )
        return action, context, _normalised_sales(action, context)
    action, context = price[:, None], np.column_stack([t, s])
    return action, context, _raw_sales(action, context)


def demand_error(model: Any, *, convention: str = "normalised") -> float:
    """Mean squared error of ``model.effect`` on the test grid, against the noise-free truth."""
    action, context, truth = demand_grid(convention)
    return float(np.mean((np.asarray(model.effect(action, context)).reshape(-1) - truth) ** 2))


def _sales(price: np.ndarray, t: np.ndarray, s: np.ndarray) -> np.ndarray:
    return (10 + price) * s * psi(t) - 2 * price


def _normalised_sales(action: np.ndarray, context: np.ndarray | None) -> np.ndarray:
    assert context is not None
    customer = context[:, 1:] @ np.arange(1, 8)
    return (_sales(action[:, 0] * PRICE_SCALE + PRICE_MEAN, context[:, 0], customer) - SALES_MEAN) / SALES_SCALE


def _raw_sales(action: np.ndarray, context: np.ndarray | None) -> np.ndarray:
    assert context is not None
    return 100 + _sales(action[:, 0], context[:, 0], context[:, 1])


def _check_convention(convention: str) -> None:
    if convention not in CONVENTIONS:
        raise ValueError(f"convention must be one of {CONVENTIONS}, got {convention!r}.")
