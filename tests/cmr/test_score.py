"""The second-stage score: unbiased, orthogonal in the nuisances, exact for discrete actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from prudent.cmr._law import N_NODES, balanced_order, mixture_nodes
from prudent.cmr._second_stage import ScoreLoss


def square(x, *, key=None):
    """A function with a large conditional variance: f(x) = 2 x + x^2."""
    return 2 * x + x**2


def gaussian_nodes(rows: int) -> np.ndarray:
    quantiles = norm.ppf((np.arange(N_NODES) + 0.5) / N_NODES)
    return np.broadcast_to(balanced_order(quantiles[None]), (rows, N_NODES))[:, None, :, None].astype(np.float32)


def batch(value: np.ndarray, s: float) -> dict:
    rows = len(value)
    return {
        "s": jnp.full((rows, 1), s),
        "value": jnp.asarray(value),
        "weight": jnp.ones((rows, 1)),
        "known": jnp.zeros((rows, 0)),
    }


@pytest.mark.parametrize("paired", [True, False])
def test_product_of_two_residuals_is_unbiased_where_one_draw_is_not(paired):
    rows, s = 40_000, 3.0
    if paired:
        value = gaussian_nodes(rows)
    else:
        value = np.random.default_rng(0).normal(size=(rows, 1, N_NODES, 1)).astype(np.float32)
    loss = ScoreLoss(slots=(0,), is_exact=False, paired=paired)
    estimate = np.asarray(loss(square, batch(value, s), jax.random.key(1)))
    at_nodes = square(value[:, 0, :, 0])
    exact = float((s - at_nodes.mean(axis=1).mean()) ** 2)
    standard_error = estimate.std() / np.sqrt(rows)
    assert abs(estimate.mean() - exact) < 4 * standard_error
    one_draw = np.mean((s - at_nodes[:, 0 if not paired else slice(None)]) ** 2)
    assert one_draw - exact > 5.0  # Var(f) = 6 for a standard Gaussian


def test_one_draw_adds_the_conditional_variance():
    rows, s = 40_000, 3.0
    value = gaussian_nodes(rows)
    loss = ScoreLoss(slots=(0,), is_exact=False, paired=True, one_draw=True)
    estimate = np.asarray(loss(square, batch(value, s), jax.random.key(1)))
    expected = np.mean((s - square(value[0, 0, :, 0])) ** 2)
    assert abs(estimate.mean() - expected) < 4 * estimate.std() / np.sqrt(rows)
    exact = ScoreLoss(slots=(0,), is_exact=False, paired=True)(square, batch(value[:3], s), None)
    np.testing.assert_allclose(loss(square, batch(value[:3], s), None), exact)


def test_balanced_pairs_have_less_variance_than_free_draws():
    loss = [ScoreLoss(slots=(0,), is_exact=False, paired=p) for p in (True, False)]
    free = np.random.default_rng(0).normal(size=(4000, 1, N_NODES, 1)).astype(np.float32)
    spread = [
        np.asarray(score(lambda x, key=None: 2 * x, batch(v, 1.0), jax.random.key(0))).std()
        for score, v in zip(loss, (gaussian_nodes(4000), free), strict=True)
    ]
    assert spread[0] < 0.2 * spread[1]


def test_evaluation_uses_every_node():
    loss = ScoreLoss(slots=(0,), is_exact=False, paired=True)
    value = gaussian_nodes(3)
    expected = (3.0 - square(value[0, 0, :, 0]).mean()) ** 2
    np.testing.assert_allclose(loss(square, batch(value, 3.0), None), expected, rtol=1e-5)


def test_discrete_levels_are_summed_exactly():
    loss = ScoreLoss(slots=(0,), is_exact=True, paired=False)
    value = np.array([0.0, 1.0, 2.0], np.float32)[None, :, None, None]
    probability = jnp.array([[0.2, 0.5, 0.3]])
    score = loss(square, {**batch(value, 4.0), "weight": probability}, jax.random.key(0))
    expected = (4.0 - (0.5 * 3.0 + 0.3 * 8.0)) ** 2
    np.testing.assert_allclose(score, [expected], rtol=1e-4)


def test_nodes_of_a_mixture_are_the_means_of_equal_shares():
    weight, mean, scale = np.array([[0.25, 0.75]]), np.array([[-2.0, 1.0]]), np.array([[0.5, 1.5]])
    nodes = mixture_nodes(weight, mean, scale, 64)
    below = 0.25 * norm.cdf(nodes, -2, 0.5) + 0.75 * norm.cdf(nodes, 1, 1.5)
    np.testing.assert_allclose(below[0, 1:-1], (np.arange(1, 63) + 0.5) / 64, atol=2e-3)
    rng = np.random.default_rng(0)
    first = rng.random(10**6) < 0.25
    draws = np.sort(np.where(first, -2 + 0.5 * rng.normal(size=10**6), 1 + 1.5 * rng.normal(size=10**6)))
    np.testing.assert_allclose(nodes[0], draws.reshape(64, -1).mean(axis=1), atol=0.03)


@pytest.mark.parametrize(("weight", "mean", "scale"), [([1], [0], [1]), ([0.25, 0.75], [-2, 1], [0.5, 1.5])])
def test_nodes_keep_the_mean_and_the_variance_of_the_law(weight, mean, scale):
    # E[f(X)|c] of a curved f depends on the variance: what the nodes lose, f gets wrong.
    w, m, s = (np.array([part], dtype=float) for part in (weight, mean, scale))
    centre = np.sum(w * m)
    variance = np.sum(w * (s**2 + (m - centre) ** 2))
    nodes = mixture_nodes(w, m, s, N_NODES)
    assert nodes.mean() == pytest.approx(centre, abs=1e-3)
    assert 0.99 * variance < nodes.var() < variance


def test_score_is_second_order_in_the_nuisances_and_the_plain_one_first_order():
    """Perturb both nuisances along random directions at the true f, on one sample of 2000 rows.

    With s in the place of Y every row's residual vanishes at the truth, so the score moves by the square of the
    perturbation. With Y the residual keeps the outcome's noise, and the score of a sample moves by a term that is
    linear in the perturbation: of order 1/sqrt(n) for directions that have nothing to do with the noise, and larger
    for nuisances that were fitted to it.
    """
    rng = np.random.default_rng(0)
    n = 2000
    mean, noise = rng.normal(size=(2, n))
    loss = ScoreLoss(slots=(0,), is_exact=False, paired=True)

    def score(target: np.ndarray, shift: np.ndarray) -> np.ndarray:
        value = gaussian_nodes(n) + (mean + shift)[:, None, None, None].astype(np.float32)
        rows = {**batch(value, 0.0), "s": jnp.asarray(target[:, None], dtype=jnp.float32)}
        return np.asarray(loss(lambda x, key=None: 2 * x, rows, None), dtype=float)

    def order(change, largest: float) -> float:
        steps = largest * np.array([1.0, 0.3, 0.1])
        errors = [abs(np.mean(change(e) - change(0.0))) for e in steps]
        return np.polyfit(np.log(steps), np.log(errors), 1)[0]

    truth, outcome = 2 * mean, 2 * mean + noise
    for _ in range(5):
        ds, dg = rng.normal(size=(2, n))
        assert order(lambda e, ds=ds, dg=dg: score(truth + e * ds, e * dg), 3e-3) == pytest.approx(2.0, abs=0.1)
        # The linear term is a mean of 2000 products, so it may be small: the steps must be smaller still.
        assert order(lambda e, dg=dg: score(outcome, e * dg), 1e-4) == pytest.approx(1.0, abs=0.2)
    # A law that was fitted to the noise of these very rows, which cross-fitting rules out.
    assert order(lambda e: score(outcome, e * noise), 3e-3) == pytest.approx(1.0, abs=0.01)
    assert order(lambda e: score(truth, e * noise), 3e-3) == pytest.approx(2.0, abs=0.1)
