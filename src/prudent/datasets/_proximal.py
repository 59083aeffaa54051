"""Designs with two proxies of a hidden confounder, each with its true dose-response curve.

The demand design is that of Xu, Kanagawa and Gretton (2021): D ~ U(0,10) is hidden, psi as in the demand design with an
instrument,

    V_1 = 2 sin(2 pi D / 10) + noise, V_2 = 2 cos(2 pi D / 10) + noise      treatment proxies (fuel costs)
    A   = 35 + (V_1 + 3) psi(D) + V_2 + N(0,1)                              treatment (ticket price)
    W   = 7 psi(D) + 45 + noise                                             outcome proxy (page views)
    Y   = A min(exp((W - A) / 10), 5) - 5 psi(D) + N(0,1)                   outcome (sales)

Since E[W | D] = 7 psi(D) + 45, a bridge is h(a, w) = a min(exp((w - a) / 10), 5) - 5 (w - 45) / 7.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr

from prudent.datasets._demand import psi
from prudent.datasets._design import as_rows, generator

if TYPE_CHECKING:
    import pandas as pd

CAP = 5.0
GRID_LOW, GRID_HIGH, GRID_POINTS = 10.0, 30.0, 10
# Mid-points over the hidden D: the average over it is exact to five digits.
HIDDEN_POINTS = 20_000


@dataclasses.dataclass(frozen=True)
class ProximalDesign:
    """Arrays with their roles, the true dose-response curve and, where it is known, a bridge function.

    Attributes
    ----------
    outcome, treatment, outcome_proxy, treatment_proxy, context : (n, columns) arrays
    names : dict
        Column names per role.
    function : callable
        ``function(treatment) -> (n,)``, the true E[Y | do(treatment)].
    bridge : callable, optional
        ``bridge(treatment, outcome_proxy) -> (n,)`` with E[Y - bridge(A, W) | A, V] = 0.
    """

    outcome: np.ndarray
    treatment: np.ndarray
    outcome_proxy: np.ndarray
    treatment_proxy: np.ndarray
    names: dict[str, list[str]]
    function: Callable[[np.ndarray], np.ndarray]
    bridge: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    context: np.ndarray | None = None

    def roles(self) -> dict[str, Any]:
        """Keyword arguments for ``ProximalRegression.fit``."""
        roles = {
            "outcome": self.outcome,
            "treatment": self.treatment,
            "outcome_proxy": self.outcome_proxy,
            "treatment_proxy": self.treatment_proxy,
        }
        return roles if self.context is None else {**roles, "context": self.context}

    def truth(self, treatment: Any) -> np.ndarray:
        """True mean outcome under treatments that are set, without noise, shape (n,)."""
        return self.function(as_rows("treatment", treatment, self.treatment.shape[1]))

    def frame(self) -> "pd.DataFrame":
        """All columns as one pandas frame."""
        import pandas as pd

        columns: dict[str, np.ndarray] = {}
        for role, names in self.names.items():
            values = getattr(self, role)
            if values is not None:
                columns |= {name: values[:, j] for j, name in enumerate(names)}
        return pd.DataFrame(columns)


def make_demand_proximal(
    n: int, *, seed: int = 0, treatment_proxy_noise: float = 1.0, outcome_proxy_noise: float = 1.0
) -> ProximalDesign:
    """Draw ``n`` rows of the demand design with proxies; see the module's text.

    Parameters
    ----------
    treatment_proxy_noise, outcome_proxy_noise : float, default=1
        Standard deviations of the noise in V and in W: the noise sweeps of Kompa et al. (2022).
    """
    for name, value in (
        ("treatment_proxy_noise", treatment_proxy_noise),
        ("outcome_proxy_noise", outcome_proxy_noise),
    ):
        if not value >= 0:
            raise ValueError(f"{name} must be a standard deviation of at least 0, got {value!r}.")
    rng = generator(seed, n=n)
    hidden = rng.uniform(0, 10, n)
    angle = 2 * np.pi * hidden / 10
    v = 2 * np.column_stack([np.sin(angle), np.cos(angle)]) + treatment_proxy_noise * rng.standard_normal((n, 2))
    a = 35 + (v[:, 0] + 3) * psi(hidden) + v[:, 1] + rng.standard_normal(n)
    w = 7 * psi(hidden) + 45 + outcome_proxy_noise * rng.standard_normal(n)
    y = _sales(a, w) - 5 * psi(hidden) + rng.standard_normal(n)
    return ProximalDesign(
        outcome=y[:, None],
        treatment=a[:, None],
        outcome_proxy=w[:, None],
        treatment_proxy=v,
        names={
            "outcome": ["sales"],
            "treatment": ["price"],
            "outcome_proxy": ["views"],
            "treatment_proxy": ["fuel_1", "fuel_2"],
        },
        function=lambda treatment: _mean_sales(treatment[:, 0], outcome_proxy_noise),
        bridge=lambda treatment, proxy: _sales(treatment[:, 0], proxy[:, 0]) - 5 * (proxy[:, 0] - 45) / 7,
    )


def demand_proximal_grid(outcome_proxy_noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The test grid: (price, true mean sales) at 10 prices from 10 to 30."""
    price = np.linspace(GRID_LOW, GRID_HIGH, GRID_POINTS)
    return price[:, None], _mean_sales(price, outcome_proxy_noise)


def demand_proximal_error(model: Any, *, outcome_proxy_noise: float = 1.0) -> float:
    """Mean squared error of ``model.effect`` on the 10-point grid, in raw units."""
    price, truth = demand_proximal_grid(outcome_proxy_noise)
    return float(np.mean((_effect(model, price) - truth) ** 2))


def make_kpv(n: int, *, seed: int = 0) -> ProximalDesign:
    """The simulation of Mastouri et al. (2021): two hidden variables, two proxies on each side.

    U_2 ~ U(-1,2), U_1 ~ U(0,1) - 1[0 < U_2 < 1]; W = (U_1 + U(-1,1), U_2 + N(0,3)), V = (U_1 + N(0,3), U_2 + U(-1,1));
    A = U_2 + N(0, 0.05); Y = U_2 cos(2 (A + 0.3 U_1 + 0.2)). N(m, s) has standard deviation s.
    """
    rng = generator(seed, n=n)
    u2 = rng.uniform(-1, 2, n)
    u1 = rng.uniform(0, 1, n) - ((u2 > 0) & (u2 < 1))
    w = np.column_stack([u1 + rng.uniform(-1, 1, n), u2 + 3 * rng.standard_normal(n)])
    v = np.column_stack([u1 + 3 * rng.standard_normal(n), u2 + rng.uniform(-1, 1, n)])
    a = u2 + 0.05 * rng.standard_normal(n)
    y = u2 * np.cos(2 * (a + 0.3 * u1 + 0.2))
    return ProximalDesign(
        outcome=y[:, None],
        treatment=a[:, None],
        outcome_proxy=w,
        treatment_proxy=v,
        names={"outcome": ["y"], "treatment": ["a"], "outcome_proxy": ["w1", "w2"], "treatment_proxy": ["v1", "v2"]},
        function=lambda treatment: _kpv_curve(treatment[:, 0]),
    )


def kpv_error(model: Any) -> float:
    """Mean *absolute* error of ``model.effect`` at 20 treatments from -1 to 2."""
    grid = np.linspace(-1, 2, 20)
    return float(np.mean(np.abs(_effect(model, grid[:, None]) - _kpv_curve(grid))))


def _effect(model: Any, treatment: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        # The papers' grids are what they are: a small sample need not reach their ends.
        warnings.filterwarnings("ignore", message=".*outside the observed range")
        return np.asarray(model.effect(treatment)).reshape(-1)


def make_linear_proximal(
    n: int, *, seed: int = 0, effect: float = 2.0, confounding: float = 1.5, direct: float = 0.5
) -> ProximalDesign:
    """A linear-Gaussian design in which everything has a closed form.

    U ~ N(0,1) is hidden; V = U + N(0, 0.5); A = 0.5 U + 0.3 V + N(0,1); W = 1 + U + N(0, 0.7);
    Y = effect A + direct W + confounding U + N(0,1). N(m, s) has standard deviation s.

    The bridge is h(a, w) = effect a + direct w + confounding (w - 1), the curve E[Y | do(a)] = effect a + direct. A
    regression of Y on A alone, or on A and W, is biased; two-stage least squares is consistent.
    """
    rng = generator(seed, n=n)
    u, noise = rng.standard_normal(n), rng.standard_normal((4, n))
    v = u + 0.5 * noise[0]
    a = 0.5 * u + 0.3 * v + noise[1]
    w = 1 + u + 0.7 * noise[2]
    y = effect * a + direct * w + confounding * u + noise[3]
    return ProximalDesign(
        outcome=y[:, None],
        treatment=a[:, None],
        outcome_proxy=w[:, None],
        treatment_proxy=v[:, None],
        names={"outcome": ["y"], "treatment": ["a"], "outcome_proxy": ["w"], "treatment_proxy": ["v"]},
        function=lambda treatment: effect * treatment[:, 0] + direct,
        bridge=lambda t, proxy: effect * t[:, 0] + direct * proxy[:, 0] + confounding * (proxy[:, 0] - 1),
    )


def _sales(a: np.ndarray, w: np.ndarray) -> np.ndarray:
    return a * np.minimum(np.exp((w - a) / 10), CAP)


def _mean_sales(price: np.ndarray, proxy_noise: float) -> np.ndarray:
    """E[Y | do(price)]: over the noise of W in closed form (a capped log-normal), over D by mid-points."""
    hidden = psi((np.arange(HIDDEN_POINTS) + 0.5) * 10 / HIDDEN_POINTS)
    spread = max(proxy_noise / 10, 1e-9)
    result = np.empty(len(price))
    for k, a in enumerate(price):
        mean = (7 * hidden + 45 - a) / 10
        below = (np.log(CAP) - mean) / spread
        capped = np.exp(np.minimum(mean + spread**2 / 2, 50)) * ndtr(below - spread) + CAP * ndtr(-below)
        result[k] = np.mean(a * capped - 5 * hidden)
    return result


def _kpv_curve(a: np.ndarray) -> np.ndarray:
    """E[U_2 cos(2 (a + 0.3 U_1 + 0.2))]: in each third of U_2's range, U_1 is uniform and independent of it."""

    def mean_cosine(low: float) -> np.ndarray:
        start = 2 * a + 0.4 + 0.6 * low
        return (np.sin(start + 0.6) - np.sin(start)) / 0.6

    # Means of U_2 on the thirds: -1/2 and 3/2 with U_1 on (0, 1), 1/2 with U_1 on (-1, 0).
    return (mean_cosine(0.0) + 0.5 * mean_cosine(-1.0)) / 3
