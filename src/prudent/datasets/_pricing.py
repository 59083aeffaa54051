"""A pricing design in which the best action depends on the context (ours).

On the demand design, on IHDP and on PM-CMR one constant action is best for everybody, so that a policy can be right
without knowing its context. Here it cannot.

season t ~ U(0,1), wealth w ~ U(-1,1), member m ~ Bernoulli(1/2); cost Z, hidden demand U and e ~ N(0,1)
best price  p*(x) = sin(2 pi t) + 0.6 w + 0.5 (2 m - 1)
set price   P = h(x) + Z + U + 0.3 e,   habit h(x) = -0.5 sin(2 pi t) + 0.5 w
profit      Y = 2 + w - (P - p*(x))^2 + kappa U + 0.5 N(0,1),   kappa = 4

What is known exactly: the optimal policy is p*, with value 2 (prices in [-3, 3] do not bind). A regression that
ignores Z converges to f plus kappa E[U | P, x] = kappa (P - h(x)) / 2.09, whose maximum lies kappa / 4.18 = 0.957 above
p*: its policy loses 0.916. A regression on Z as well converges to f plus kappa (P - h(x) - Z) / 1.09, whose maximum
lies 1.835 above p*: kept in [-3, 3], its policy loses 3.229. The best constant price, 0, loses E[p*^2] = 0.87: ignoring
the instrument is worse than ignoring the context. A random price in [-3, 3] loses 3.87.
"""

from typing import Any

import numpy as np

from prudent.datasets._design import Design, generator

ACTION_RANGE = (-3.0, 3.0)
CONFOUNDING = 4.0
NOISE = 0.3
OPTIMAL_VALUE = 2.0


def best_price(context: np.ndarray) -> np.ndarray:
    """The optimal action p*(x) for contexts (season, wealth, member)."""
    season, wealth, member = np.asarray(context, dtype=float).T
    return np.sin(2 * np.pi * season) + 0.6 * wealth + 0.5 * (2 * member - 1)


def make_pricing(n: int, *, seed: int = 0, confounding: float = CONFOUNDING) -> Design:
    """Draw ``n`` rows of the pricing design.

    Parameters
    ----------
    confounding : float
        Effect kappa of the hidden demand on profit; 0 gives data in which a plain regression is right.
    """
    if not np.isfinite(confounding):
        raise ValueError(f"confounding must be finite, got {confounding!r}.")
    rng = generator(seed, n=n)
    context = _draw_contexts(n, rng, False)
    cost, hidden = rng.standard_normal(n), rng.standard_normal(n)
    habit = -0.5 * np.sin(2 * np.pi * context[:, 0]) + 0.5 * context[:, 1]
    price = habit + cost + hidden + NOISE * rng.standard_normal(n)
    profit = _profit(price[:, None], context) + confounding * hidden + 0.5 * rng.standard_normal(n)
    return Design(
        outcome=profit[:, None],
        action=price[:, None],
        instruments=cost[:, None],
        context=context,
        names={
            "outcome": ["profit"],
            "action": ["price"],
            "instruments": ["cost"],
            "context": ["season", "wealth", "member"],
        },
        function=_profit,
        action_range=ACTION_RANGE,
        draw_contexts=_draw_contexts,
    )


def pricing_grid() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The test grid: (price, context, true profit) at 20 prices x 20 seasons x 7 wealths x members or not."""
    axes = (np.linspace(*ACTION_RANGE, 20), np.linspace(0, 1, 20), np.linspace(-1, 1, 7), np.array([0.0, 1.0]))
    price, *context = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    contexts = np.column_stack(context)
    return price[:, None], contexts, _profit(price[:, None], contexts)


def pricing_error(model: Any) -> float:
    """Mean squared error of ``model.effect`` on the test grid, against the noise-free truth."""
    action, context, truth = pricing_grid()
    return float(np.mean((np.asarray(model.effect(action, context)).reshape(-1) - truth) ** 2))


def _profit(action: np.ndarray, context: np.ndarray | None) -> np.ndarray:
    assert context is not None
    return OPTIMAL_VALUE + context[:, 1] - (action[:, 0] - best_price(context)) ** 2


def _draw_contexts(n: int, rng: np.random.Generator, shifted: bool) -> np.ndarray:
    # Shifted contexts are wealthier than any in the data; their best price still lies inside the range.
    wealth = rng.uniform(0, 2, n) if shifted else rng.uniform(-1, 1, n)
    return np.column_stack([rng.uniform(0, 1, n), wealth, rng.integers(2, size=n)])
