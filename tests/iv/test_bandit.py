"""Policies judged by the truth, and bandits, which know no instruments."""

import numpy as np
import pytest

from prudent import IVRegression, datasets, iv
from prudent.cmr import TwoStageLeastSquares
from prudent.errors import DataError, NotFittedError
from prudent.iv import KernLCB, LinLCB, NeuraLCB, NeuralLinGreedy, NeuralLinLCB, suboptimality

BANDITS = [LinLCB, KernLCB, NeuraLCB, NeuralLinLCB, NeuralLinGreedy]


# Suboptimality


def test_suboptimality_is_the_mean_loss_against_the_best_action():
    data = datasets.make_pricing(50, seed=0)
    contexts = data.contexts(200, seed=1)
    best = datasets.best_price(contexts)
    judged = suboptimality(lambda c: datasets.best_price(c) + 0.5, data, contexts, actions=(-3.0, 3.0))
    assert judged.value == pytest.approx(0.25, abs=1e-5)
    assert judged.optimum == pytest.approx(data.truth(best, contexts).mean(), abs=1e-5)
    assert judged.reward == pytest.approx(judged.optimum - 0.25, abs=1e-5)
    assert judged.n_contexts == 200
    assert "standard error" in str(judged)
    levels = suboptimality(lambda c: np.ones(len(c)), data.truth, contexts, actions=[-1.0, 1.0])
    by_hand = np.maximum(data.truth(-1.0, contexts), data.truth(1.0, contexts)) - data.truth(1.0, contexts)
    assert levels.value == pytest.approx(by_hand.mean())


def test_optimum_over_a_range_finds_narrow_peaks_and_several_columns_work():
    def bumpy(action, context):
        return np.sin(9 * action[:, 0]) + action[:, 0] - context[:, 0]

    fine = np.linspace(-1, 2, 300_001)
    judged = suboptimality(lambda c: np.zeros(len(c)), bumpy, np.zeros((3, 1)), actions=(-1.0, 2.0))
    assert judged.optimum == pytest.approx((np.sin(9 * fine) + fine).max(), abs=1e-5)
    pairs = [[0.0, 1.0], [0.0, 0.0], [2.0, -1.0]]
    judged = suboptimality(lambda c: np.zeros((len(c), 2)), lambda a, c: a.sum(axis=1), np.zeros((3, 1)), actions=pairs)
    assert judged.value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("context", "actions", "message"),
    [
        (np.zeros(3), (0.0, 1.0), r"context must be \(n, columns\)"),
        (np.zeros((3, 1)), (1.0, 0.0), "low < high"),
        (np.zeros((3, 1)), [], "actions must have at least one row"),
        (np.zeros((2, 1)), (0.0, 1.0), r"one action per context \(2\), got 3"),
        (np.full((3, 1), np.nan), (0.0, 1.0), "context must be finite"),
        (np.zeros((3, 1)), (1.0, 2.0), r"The policy chose \[0.0\], outside \[1, 2\]"),
        (np.zeros((3, 1)), [1.0, 2.0], r"The policy chose \[0.0\], not among the 2 actions"),
        (np.zeros((3, 1)), ["a", "b"], "actions must be numeric, got 'a'"),
        (np.zeros((3, 1)), None, r"actions must be a range \(low, high\) or a list of candidates, got None"),
    ],
)
def test_bad_judgements(context, actions, message):
    with pytest.raises(DataError, match=message):
        suboptimality(lambda c: np.zeros(3), lambda a, c: a[:, 0], context, actions=actions)


def test_truths_and_choices_must_be_finite_numbers():
    context = np.zeros((3, 1))
    with pytest.raises(DataError, match="truth must give finite numbers for every action and context"):
        suboptimality(lambda c: np.zeros(3), lambda a, c: a[:, 0] * np.nan, context, actions=[0.0, 1.0])
    with pytest.raises(DataError, match=r"What the policy chooses must be finite.*Mend the policy"):
        suboptimality(lambda c: np.full(3, np.nan), lambda a, c: a[:, 0], context, actions=[0.0, 1.0])
    with pytest.raises(DataError, match="What the policy chooses must be numeric, got 'a'"):
        suboptimality(lambda c: ["a", "b", "a"], lambda a, c: a[:, 0], context, actions=[0.0, 1.0])


def test_a_policy_without_context_takes_its_one_action_everywhere():
    data = datasets.make_curve(200, curve="linear", seed=0)
    policy = IVRegression(TwoStageLeastSquares()).fit(**data.roles()).policy((-1.0, 1.0))
    for context in (np.zeros((3, 0)), np.zeros((3, 2))):
        judged = suboptimality(policy, data, context, actions=(-1.0, 1.0))
        assert judged.value == pytest.approx(0.0)
        assert judged.n_contexts == 3
    pair = suboptimality(
        lambda c: [[0.0, 1.0]], lambda a, c: a[:, 0], np.zeros((3, 1)), actions=[[0.0, 1.0], [2.0, 1.0]]
    )
    assert pair.value == pytest.approx(2.0)


# Bandits


def _log(n, seed, confounding=0.0):
    """Two contexts, three actions; the best action is 0, 1 or 2 by the context's first column."""
    rng = np.random.default_rng(seed)
    x, hidden = rng.uniform(-1, 1, (n, 2)), rng.standard_normal(n)
    action = np.clip(np.rint(1 + rng.standard_normal(n) + 0.8 * confounding * hidden), 0, 2)
    outcome = _value(action, x) + confounding * hidden + 0.1 * rng.standard_normal(n)
    return {"outcome": outcome, "action": action, "context": x}


def _value(action, x):
    action = np.asarray(action).reshape(-1)
    return 1.5 * x[:, 0] * (action - 1) + 0.3 * x[:, 1]


@pytest.mark.parametrize("kind", BANDITS)
def test_bandits_work_without_confounding(kind):
    brief = {"n_steps": 500} if issubclass(kind, NeuraLCB) else {}
    bandit = kind(**brief).fit(**_log(800, seed=0), actions=[0, 1, 2])
    x = np.random.default_rng(1).uniform(-1, 1, (400, 2))
    judged = suboptimality(bandit, _value, x, actions=[0, 1, 2])
    chance = suboptimality(lambda c: np.ones(len(c)), _value, x, actions=[0, 1, 2])
    assert judged.value < 0.1 * chance.value
    again = kind(**brief).fit(**_log(800, seed=0), actions=[0, 1, 2])
    assert np.array_equal(again.act(x), bandit.act(x))


def test_linear_bound_is_the_formula():
    log = _log(60, seed=2)
    bandit = LinLCB(beta=0.7, ridge=0.3).fit(**log, actions=[0, 1, 2])
    x = np.column_stack([np.ones(60), (log["context"] - log["context"].mean(0)) / log["context"].std(0)])
    y = (log["outcome"] - log["outcome"].mean()) / log["outcome"].std()
    own = log["action"] == 2
    sigma = 0.3 * np.eye(3) + x[own].T @ x[own]
    theta = np.linalg.solve(sigma, x[own].T @ y[own])
    bound = x @ theta - 0.7 * np.sqrt(np.sum(x * np.linalg.solve(sigma, x.T).T, axis=1))
    scores = bandit.scores(log["context"])[:, 2]
    np.testing.assert_allclose(scores, bound * log["outcome"].std() + log["outcome"].mean(), rtol=1e-4, atol=1e-5)


def test_kernel_bound_agrees_with_scikit_learn():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    log = _log(80, seed=3)
    bandit = KernLCB(beta=0.5, length_scale=1.5, noise=0.2).fit(**log, actions=[0, 1, 2])
    x = np.column_stack([np.ones(80), (log["context"] - log["context"].mean(0)) / log["context"].std(0)])
    y = (log["outcome"] - log["outcome"].mean()) / log["outcome"].std()

    def lifted(rows, arm):
        return np.einsum("ni,nk->nki", rows, np.eye(3)[arm]).reshape(len(rows), -1)

    process = GaussianProcessRegressor(RBF(1.5), alpha=0.2, optimizer=None).fit(lifted(x, log["action"].astype(int)), y)
    mean, sd = process.predict(lifted(x, np.full(80, 1)), return_std=True)
    expected = (mean - 0.5 * sd) * log["outcome"].std() + log["outcome"].mean()
    np.testing.assert_allclose(bandit.scores(log["context"])[:, 1], expected, rtol=1e-3, atol=1e-3)


def test_network_gradients_agree_with_finite_differences():
    import equinox as eqx
    import jax

    from prudent.iv._lcb_network import GradientNetwork

    bandit = NeuraLCB(n_steps=50, widths=(6, 5)).fit(**_log(100, seed=4), actions=[0, 1, 2])
    x = np.array([[1.0, 0.3, -0.8]])
    gradient = bandit.network_.gradients(x, np.array([2]))[0] * 6**0.5
    leaves, tree = jax.tree.flatten(eqx.filter(bandit.network_.network, eqx.is_array))
    flat = np.concatenate([np.asarray(leaf, dtype=float).ravel() for leaf in leaves])
    assert len(gradient) == len(flat)

    def value(weights):
        parts = np.split(weights, np.cumsum([leaf.size for leaf in leaves])[:-1])
        shaped = [jax.numpy.asarray(p.reshape(leaf.shape), "float32") for p, leaf in zip(parts, leaves, strict=True)]
        return GradientNetwork(jax.tree.unflatten(tree, shaped), 6).values(x, np.array([2]))[0]

    for j in np.argsort(-np.abs(gradient))[:5]:
        step = np.zeros_like(flat)
        step[j] = 1e-2
        assert (value(flat + step) - value(flat - step)) / 2e-2 == pytest.approx(gradient[j], rel=0.1, abs=2e-2)
    # Weights of other arms do not matter for this one.
    first = gradient[: 3 * 3 * 6].reshape(3, -1)
    assert np.all(first[:2] == 0)


def test_linear_on_gradients_is_a_ridge_regression():
    log = _log(40, seed=5)
    bandit = NeuralLinLCB(n_steps=50, widths=(6,), ridge=0.4).fit(**log, actions=[0, 1, 2])
    x = bandit._standard(log["context"])
    g = bandit.network_.gradients(x, log["action"].astype(int))
    y = (log["outcome"] - log["outcome"].mean()) / log["outcome"].std()
    expected = np.linalg.solve(g.T @ g + 0.4 * np.eye(g.shape[1]), g.T @ y)
    np.testing.assert_allclose(bandit.theta_, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [LinLCB, KernLCB])
def test_bandits_fail_on_demand(kind):
    """With price and sales confounded, the bound points at high prices, where the lowest is best: worse than chance."""
    data = datasets.make_demand(2000, seed=1000)
    contexts = data.contexts(300, seed=1)
    rng = np.random.default_rng(0)
    bandit = kind(**({"max_rows": 400} if kind is KernLCB else {})).fit(**data.roles(), actions=data.action_range)
    judged = suboptimality(
        lambda c: bandit.act(c, rng.standard_normal((len(c), 1))), data, contexts, actions=(-3.0, 3.0)
    )
    chance = suboptimality(lambda c: rng.uniform(-3, 3, len(c)), data, contexts, actions=(-3.0, 3.0))
    assert judged.value > chance.value


@pytest.mark.parametrize(
    ("settings", "change", "error", "message"),
    [
        ({}, {"outcome": np.zeros(50)}, DataError, "The outcome is constant"),
        ({}, {"context": np.full((50, 2), np.nan)}, DataError, "must be finite"),
        ({}, {"action": np.zeros(49)}, DataError, "must have 50 rows"),
        ({}, {"actions": (1.0, 1.0)}, DataError, "low < high"),
        ({}, {"actions": (0, np.inf)}, DataError, "low < high"),
        (
            {},
            {"actions": ("a", "b")},
            DataError,
            r"An action range must be two numbers \(low, high\), got \('a', 'b'\)",
        ),
        ({}, {"actions": [1.0]}, DataError, r"at least two levels, got \[1.0\]"),
        ({}, {"actions": []}, DataError, "actions must have at least one row"),
        ({}, {"actions": [0.0, np.nan]}, DataError, "actions must be finite"),
        ({}, {"actions": 3.0}, DataError, r"actions must be a range \(low, high\) or a list of candidates, got 3.0"),
        ({}, {"outcome": np.eye(50, 2)}, DataError, "outcome must be one column for LinLCB, got 2"),
        ({}, {"action": np.eye(50, 2)}, DataError, "action must be one column for LinLCB, got 2"),
        ({}, {"context": None}, DataError, "LinLCB chooses by the context, got none"),
        ({}, {"images": (8, 8)}, DataError, r"LinLCB sees no images, got images=\(8, 8\)"),
        ({"n_actions": 1}, {}, ValueError, "n_actions must be a whole number of at least 2, got 1"),
        ({"n_actions": 2.5}, {}, ValueError, "n_actions must be a whole number of at least 2, got 2.5"),
        ({"beta": -1}, {}, ValueError, "beta must be a number of at least 0, got -1"),
        ({"beta": "a"}, {}, ValueError, "beta must be a number of at least 0, got 'a'"),
        ({"ridge": 0}, {}, ValueError, "ridge must be a number above 0, got 0"),
    ],
)
def test_bad_logs(settings, change, error, message):
    with pytest.raises(error, match=message):
        LinLCB(**settings).fit(**{**_log(50, seed=0), **change})


def test_bad_length_scale():
    with pytest.raises(ValueError, match="length_scale must be a number above 0, got 0"):
        KernLCB(length_scale=0).fit(**_log(50, seed=0))


def test_bad_contexts():
    log = _log(50, seed=0)
    with pytest.raises(NotFittedError, match="This LinLCB is not fitted"):
        LinLCB().act(log["context"])
    bandit = LinLCB().fit(**log)
    with pytest.raises(DataError, match="context must have 2 columns as in fit, got 3"):
        bandit.act(np.zeros((4, 3)))
    with pytest.raises(DataError, match="if and only if"):
        bandit.act(log["context"], np.zeros(50))
    assert len(bandit.actions_) == 20
    assert issubclass(iv.NeuralLinGreedy, iv.OfflineBandit)
