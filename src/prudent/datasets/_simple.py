"""Small designs with simple answers: a linear-Gaussian one, and curves of a scalar action."""

import numpy as np

from prudent.datasets._design import Design, generator

CURVES = {
    "linear": lambda a: a,
    "sin": np.sin,
    "abs": np.abs,
    "step": lambda a: (a >= 0).astype(float),
}


def make_linear_gaussian(
    n: int, *, seed: int = 0, effect: float = 2.0, confounding: float = 1.0, discrete: bool = False
) -> Design:
    """A well-posed linear design: two-stage least squares is efficient here and has a closed form.

    X ~ N(0,1), Z ~ N(0, I_2), U ~ N(0,1); A = Z_1 + Z_2 / 2 + X / 2 + U + N(0,1); Y = effect A - X + confounding U +
    N(0,1). With ``discrete`` the action is 1 where A > 0 and 0 elsewhere.
    """
    rng = generator(seed, n=n)
    x, z, u = rng.standard_normal((n, 1)), rng.standard_normal((n, 2)), rng.standard_normal((n, 1))
    a = z @ np.array([[1.0], [0.5]]) + 0.5 * x + u + rng.standard_normal((n, 1))
    if discrete:
        a = (a > 0).astype(float)
    y = effect * a - x + confounding * u + rng.standard_normal((n, 1))

    def function(action: np.ndarray, context: np.ndarray | None) -> np.ndarray:
        assert context is not None
        return effect * action[:, 0] - context[:, 0]

    return Design(
        outcome=y,
        action=a,
        instruments=z,
        context=x,
        names={"outcome": ["y"], "action": ["a"], "instruments": ["z1", "z2"], "context": ["x"]},
        function=function,
    )


def make_curve(n: int, *, curve: str = "sin", seed: int = 0) -> Design:
    """A curve of a scalar action without context (Bennett, Kallus and Schnabel, 2019).

    Z ~ U(-3,3)^2, e ~ N(0,1); A = Z_1 + e + N(0, 0.1); Y = g(A) + e + N(0, 0.1), g one of "linear", "sin", "abs",
    "step".
    """
    if curve not in CURVES:
        raise ValueError(f"curve must be one of {sorted(CURVES)}, got {curve!r}.")
    rng = generator(seed, n=n)
    z, e = rng.uniform(-3, 3, (n, 2)), rng.standard_normal(n)
    a = z[:, 0] + e + 0.1 * rng.standard_normal(n)
    y = CURVES[curve](a) + e + 0.1 * rng.standard_normal(n)
    return Design(
        outcome=y[:, None],
        action=a[:, None],
        instruments=z,
        context=None,
        names={"outcome": ["y"], "action": ["a"], "instruments": ["z1", "z2"]},
        function=lambda action, _: CURVES[curve](action[:, 0]),
    )
