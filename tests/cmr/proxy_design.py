"""A linear-Gaussian design with two proxies: h(a, w) = 2 a + 1.5 w solves the moment, the effect has slope 2."""

import numpy as np


def linear_proxies(n: int, seed: int, *, noise: float = 0.5):
    """(y, a, w, v), each with one column: V <- U -> W, A <- (U, V), Y <- (A, U)."""
    rng = np.random.default_rng(seed)
    u, e = rng.normal(size=(n, 1)), rng.normal(size=(n, 4))
    v = u + noise * e[:, :1]
    a = 0.5 * u + 0.5 * v + e[:, 1:2]
    w = u + noise * e[:, 2:3]
    y = 2 * a + 1.5 * u + 0.3 * e[:, 3:]
    return y, a, w, v


def linear_problem(n: int, seed: int, **settings):
    """The same as a moment problem (y, x, c)."""
    y, a, w, v = linear_proxies(n, seed, **settings)
    return y, np.hstack([a, w]), np.hstack([a, v])


def slopes(model) -> np.ndarray:
    """Changes of a fitted f(a, w) by one unit of a and of w, around zero."""
    f = model.predict([[-0.5, 0.0], [0.5, 0.0], [0.0, -0.5], [0.0, 0.5]])[:, 0]
    return np.array([f[1] - f[0], f[3] - f[2]])
