"""DeepIV, DeepGMM and DFIV against closed forms, and what they share: saving, determinism, refusals."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linearmodels.iv import IV2SLS
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

import prudent
from prudent import IVRegression, datasets, nn
from prudent.cmr import DFIV, DeepGMM, DeepIV
from prudent.cmr._deep_features import training_ridge
from prudent.cmr._games import Game, choose_by_moments, moment_game, solve_stack, two_regressions
from prudent.errors import DataError, NotFittedError
from prudent.nn import MLPSpec, TrainConfig

LINEAR = MLPSpec(widths=())
LAW = TrainConfig(weight_decay=0.0, batch_size=64, max_steps=200, evaluate_every=100)
SECOND = TrainConfig(learning_rate=1e-2, weight_decay=0.0, batch_size=128, max_steps=600, evaluate_every=100)


def problem(design: datasets.Design):
    return design.outcome, np.hstack([design.action, design.context]), np.hstack([design.instruments, design.context])


# Linear networks throughout: the estimates then have 2SLS as their closed form, up to fold splits, early stops and (in
# DFIV) an interaction of action and context.
def deep_iv(**settings) -> DeepIV:
    defaults = {"network": LINEAR, "nuisance_network": LINEAR, "n_components": 1, "n_repeats": 1, "n_functions": 3}
    return DeepIV(**{**defaults, "train": LAW, "function_train": SECOND, **settings})


def deep_gmm(**settings) -> DeepGMM:
    game = TrainConfig(weight_decay=0.0, batch_size=512, max_steps=600, evaluate_every=60, critic_rate=1.0)
    defaults = {"network": LINEAR, "critic_network": LINEAR, "learning_rates": (5e-3, 1e-2), "n_functions": 2}
    return DeepGMM(**{**defaults, "train": game, **settings})


def dfiv(**settings) -> DFIV:
    features = TrainConfig(weight_decay=0.0, batch_size=256, max_steps=40, evaluate_every=20)
    defaults = {"network": LINEAR, "context_network": LINEAR, "instrument_network": LINEAR, "n_functions": 2}
    return DFIV(**{**defaults, "ridge": (1e-4, 1e-4), "train": features, **settings})


MAKERS = {"DeepIV": deep_iv, "DeepGMM": deep_gmm, "DFIV": dfiv}


@pytest.fixture(scope="module")
def design() -> datasets.Design:
    return datasets.make_linear_gaussian(2000, seed=0)


@pytest.fixture(scope="module")
def fitted(design) -> dict:
    return {name: make().fit(*problem(design), seed=0) for name, make in MAKERS.items()}


def slope(model) -> np.ndarray:
    values = model.predict([[-0.5, 0.0], [0.5, 0.0]])
    return values[1] - values[0]


def two_stage(design: datasets.Design):
    exogenous = np.hstack([np.ones_like(design.outcome), design.context])
    result = IV2SLS(design.outcome, exogenous, design.action, design.instruments).fit()
    return result.params.iloc[-1], result.std_errors.iloc[-1]


@pytest.mark.parametrize("name", MAKERS)
def test_agrees_with_two_stage_least_squares(name, design, fitted):
    estimate, error = two_stage(design)
    assert abs(slope(fitted[name])[0] - estimate) < 2 * error
    biased = LinearRegression().fit(np.hstack([design.action, design.context]), design.outcome).coef_[0, 0]
    assert biased - estimate > 10 * error


@pytest.mark.parametrize("name", MAKERS)
def test_same_seed_same_numbers(name, design, fitted):
    x = problem(design)[1][:50]
    assert np.array_equal(fitted[name].predict(x), MAKERS[name]().fit(*problem(design), seed=0).predict(x))


@pytest.mark.parametrize("name", MAKERS)
def test_several_outcomes_and_units(name, design):
    y, x, c = problem(design)
    both = np.hstack([y, -3 * y + 100])
    effect = slope(MAKERS[name]().fit(both, x, c, seed=0, groups=np.repeat(np.arange(500), 4)))
    assert effect[0] == pytest.approx(2.0, abs=0.25)
    assert effect[1] == pytest.approx(-3 * effect[0], rel=0.1)


@pytest.mark.parametrize("name", MAKERS)
def test_discrete_action(name):
    design = datasets.make_linear_gaussian(2000, seed=1, discrete=True)
    estimate, error = two_stage(design)
    settings = {"nuisance_network": MLPSpec((16,))} if name == "DeepIV" else {}
    model = MAKERS[name](**settings).fit(*problem(design), seed=0)
    values = model.predict([[0.0, 0.0], [1.0, 0.0]])
    assert abs(values[1, 0] - values[0, 0] - estimate) < 3 * error


@pytest.mark.parametrize("name", MAKERS)
def test_saved_and_loaded_inside_a_model(name, tmp_path):
    design = datasets.make_linear_gaussian(200, seed=0)
    brief = TrainConfig(batch_size=32, max_steps=20, evaluate_every=10)
    settings = {"train": brief, "function_train": brief} if name == "DeepIV" else {"train": brief}
    model = IVRegression(MAKERS[name](**settings, network=MLPSpec((3,))), seed=0).fit(**design.roles())
    model.save(tmp_path / "model")
    again = prudent.load(tmp_path / "model")
    assert type(again.estimator_).__name__ == name
    action, context = design.action[:20], design.context[:20]
    np.testing.assert_allclose(again.effect(action, context), model.effect(action, context), rtol=1e-6)
    # Everything that JSON can hold comes back as it was, tuples too; networks and training are in the function.
    kept, original = again.estimator_.get_params(), model.estimator_.get_params()
    plain = {k: v for k, v in original.items() if isinstance(v, bool | int | float | str | tuple | None)}
    assert {k: kept[k] for k in plain} == plain
    assert any(isinstance(v, tuple) for v in plain.values())


@pytest.mark.parametrize("name", ["DeepGMM", "DFIV"])
def test_one_group_is_refused(name):
    design = datasets.make_linear_gaussian(60, seed=0)
    with pytest.raises(DataError, match=r"at least 2 groups, got 1.*leave groups out"):
        MAKERS[name]().fit(*problem(design), seed=0, groups=np.zeros(60))


def test_chosen_iterates_are_named_by_their_step_and_come_from_the_second_half(fitted):
    for _, step, _ in fitted["DeepGMM"].chosen_:
        assert step % 60 == 0
        assert 300 < step <= 600


def test_one_draw_shrinks_by_the_known_factor_and_two_do_not():
    # A = Z + V, Y = 2 A + noise that is correlated with V. One draw A' of the law inside the square minimises
    # E[(Y - b A')^2], whose solution is b = 2 Var(Z) / (Var(Z) + Var(V)) = 1; two draws give b = 2.
    rng = np.random.default_rng(0)
    n = 4000
    z, v = rng.normal(size=(n, 1)), rng.normal(size=(n, 1))
    a = z + v
    y = 2 * a + v + 0.3 * rng.normal(size=(n, 1))
    effects = [
        float(np.diff(deep_iv(draws=draws).fit(y, a, z, seed=0).predict([[0.0], [1.0]])[:, 0])[0]) for draws in (1, 2)
    ]
    standard_error = np.sqrt(np.var(3 * v + 0.3) / n)
    assert effects[0] == pytest.approx(2 * np.var(z) / (np.var(z) + np.var(v)), abs=3 * standard_error)
    assert effects[1] == pytest.approx(2.0, abs=3 * standard_error)


def test_ridge_is_the_closed_form():
    rng = np.random.default_rng(0)
    features, target = rng.normal(size=(60, 4)).astype(np.float32), rng.normal(size=(60, 2)).astype(np.float32)
    expected = np.linalg.solve(features.T @ features / 60 + 0.3 * np.eye(4), features.T @ target / 60)
    np.testing.assert_allclose(training_ridge(jnp.asarray(features), jnp.asarray(target), 0.3), expected, rtol=1e-3)


def feature_game(penalty=(0.1, 0.2)) -> tuple[Game, dict]:
    rng = np.random.default_rng(1)
    spec = nn.ProductSpec(MLPSpec((3,)), MLPSpec((2,)), columns=(0,))
    keys = jax.random.split(jax.random.key(0))
    game = Game(spec(2, 1, key=keys[0]), MLPSpec((4,))(3, 1, key=keys[1]), jnp.asarray(penalty))
    data = {
        name: jnp.asarray(rng.normal(size=(80, k)).astype(np.float32)) for name, k in (("y", 1), ("x", 2), ("c", 3))
    }
    return game, data


def numpy_features(game: Game, data: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(features of c, of the action, of the context), written out from the networks' weights."""

    def features(network, columns):
        layer = network.layers[0]
        pre = columns @ np.asarray(layer.weight) + np.asarray(layer.bias)
        return np.hstack([columns, pre / (1 + np.exp(-pre))])

    x, c = np.asarray(data["x"], dtype=float), np.asarray(data["c"], dtype=float)
    given = features(game.critic, c)
    return (
        np.hstack([np.ones((len(c), 1)), given]),
        features(game.function.first, x[:, :1]),
        features(game.function.second, x[:, 1:]),
    )


def numpy_ridge(features, target, penalty):
    gram = features.T @ features / len(features) + penalty * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ target / len(features))


def numpy_product(a, b):
    """Products with the learnt features of the context, and its one raw column by itself."""
    one = np.ones((len(a), 1))
    products = np.einsum("ni,nj->nij", np.hstack([one, a]), np.hstack([one, b[:, 1:]])).reshape(len(a), -1)
    return np.hstack([products, b[:, :1]])


def test_dfiv_solution_and_loss_against_numpy():
    game, data = feature_game()
    given, action, context = numpy_features(game, data)
    y = np.asarray(data["y"], dtype=float)
    design = numpy_product(given @ numpy_ridge(given, action, 0.1), context)
    expected = numpy_ridge(design, y, 0.2)
    stack = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, game)
    arrays = {name: np.asarray(part) for name, part in data.items()}
    outer, error = solve_stack(stack, arrays, [np.arange(80)], [np.arange(60, 80)], np.array([0.2]))
    np.testing.assert_allclose(outer[0, 0], expected, rtol=1e-4, atol=1e-5)
    assert error[0, 0] == pytest.approx(np.mean((y - design @ expected)[60:] ** 2), rel=1e-4)

    weight = numpy_ridge(given[:40], action[:40], 0.1)
    first = np.sum((action[:40] - given[:40] @ weight) ** 2, axis=1) + 0.1 * np.sum(weight**2)
    design = numpy_product(given[40:] @ weight, context[40:])
    outer = numpy_ridge(design, y[40:], 0.2)
    second = ((y[40:] - design @ outer) ** 2)[:, 0] + 0.2 * np.sum(outer**2)
    np.testing.assert_allclose(
        eqx.filter_jit(two_regressions)(game, data, None), np.concatenate([first, second]), rtol=2e-3, atol=1e-3
    )


def test_gradients_of_dfiv_reach_features_through_the_first_regression():
    game, data = feature_game()
    gradient = eqx.filter_jit(jax.grad(lambda g: jnp.mean(two_regressions(g, data, None))))(game)
    # A finite difference of the second loss alone in a weight of the action's features, the features of c held fixed.
    given, _, context = numpy_features(game, data)
    y = np.asarray(data["y"], dtype=float)

    def second(step: float) -> float:
        moved = np.asarray(game.function.first.layers[0].weight, dtype=float).copy()
        moved[0, 1] += step
        x = np.asarray(data["x"], dtype=float)[:, :1]
        pre = x @ moved + np.asarray(game.function.first.layers[0].bias)
        action = np.hstack([x, pre / (1 + np.exp(-pre))])
        design = numpy_product(given[40:] @ numpy_ridge(given[:40], action[:40], 0.1), context[40:])
        outer = numpy_ridge(design, y[40:], 0.2)
        return float(np.sum((y[40:] - design @ outer) ** 2) + 40 * 0.2 * np.sum(outer**2)) / 80

    numeric = (second(1e-4) - second(-1e-4)) / 2e-4
    assert float(gradient.function.first.layers[0].weight[0, 1]) == pytest.approx(numeric, rel=0.02, abs=1e-6)
    assert np.all(np.asarray(gradient.penalty) == 0)


def test_the_game_gives_each_player_its_own_gradient():
    rng = np.random.default_rng(0)
    data = {name: jnp.asarray(rng.normal(size=(50, 1)).astype(np.float32)) for name in ("y", "x", "c")}
    keys = jax.random.split(jax.random.key(0))
    game = Game(LINEAR(1, 1, key=keys[0]), LINEAR(1, 1, key=keys[1]), jnp.zeros(2))
    game = jax.tree.map(lambda leaf: leaf + 0.5, game)
    gradient = eqx.filter_jit(jax.grad(lambda g: jnp.mean(moment_game(g, data, None))))(game)
    y, x, c = (np.asarray(data[name])[:, 0] for name in ("y", "x", "c"))
    e, g = y - 0.5 * x - 0.5, 0.5 * c + 0.5
    # d/df of E[g e], and minus d/dg of E[g e] - E[g^2 e^2] / 4, along the slopes.
    assert float(gradient.function.free_skip[0, 0]) == pytest.approx(np.mean(-g * x), rel=1e-3)
    assert float(gradient.critic.free_skip[0, 0]) == pytest.approx(-np.mean(c * e - g * e**2 * c / 2), rel=1e-3)


def test_model_selection_prefers_residuals_that_no_critic_predicts():
    rng = np.random.default_rng(0)
    c, noise = rng.normal(size=(500, 1)), rng.normal(size=(500, 1))
    residual = np.stack([noise + 0.5 * c, noise, noise - c])
    violation = choose_by_moments(residual, np.stack([c, -c, 0.1 * c, c**2 - 1]), noise)
    assert np.argmin(violation) == 1


@pytest.mark.parametrize("name", MAKERS)
def test_bad_input(name):
    make = MAKERS[name]
    y, x, c = problem(datasets.make_linear_gaussian(100, seed=0))
    with pytest.raises(DataError, match="x must be finite"):
        make().fit(y, np.where(np.arange(100)[:, None] == 3, np.nan, x), c, seed=0)
    with pytest.raises(DataError, match="y must have 100 rows"):
        make().fit(y[:-1], x, c, seed=0)
    with pytest.raises(DataError, match="Column 0 of x is constant"):
        make().fit(y, np.hstack([np.ones_like(y), x[:, 1:]]), c, seed=0)
    with pytest.raises(DataError, match=f"{name} needs at least 20 rows, got 10"):
        make().fit(y[:10], x[:10], c[:10], seed=0)
    with pytest.raises(DataError, match="groups must name one unit per row"):
        make().fit(y, x, c, seed=0, groups=np.zeros(3))
    with pytest.raises(ValueError, match="n_functions must be a whole number of at least 1, got 0"):
        make(n_functions=0).fit(y, x, c, seed=0)
    with pytest.raises(ValueError, match="seed must be a whole number"):
        make().fit(y, x, c, seed=-1)
    with pytest.raises(NotFittedError, match=f"This {name} is not fitted"):
        make().predict(x)
    assert clone(make()).get_params() == make().get_params()


# Numbers that overflow on their way are what this is about.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("make", "settings", "lower"),
    [
        (deep_gmm, {"learning_rates": (1e30,), "critic_network": MLPSpec((4,))}, "learning_rates"),
        (
            dfiv,
            {"context_network": MLPSpec((4,)), "instrument_network": MLPSpec((4,))},
            "the learning rate in train",
        ),
    ],
)
def test_divergence_names_the_parameter_that_is_to_be_lowered(make, settings, lower):
    arrays = problem(datasets.make_linear_gaussian(100, seed=0))
    train = TrainConfig(1e30, weight_decay=0.0, batch_size=64, max_steps=20, evaluate_every=10)
    with pytest.raises(FloatingPointError, match=f"Training of f diverged.*Lower {lower}, or look for extreme values"):
        make(network=MLPSpec((4,)), train=train, **settings).fit(*arrays, seed=0)


def test_bad_settings():
    arrays = problem(datasets.make_linear_gaussian(100, seed=0))
    with pytest.raises(ValueError, match="draws must be 1 or 2, got 3"):
        DeepIV(draws=3).fit(*arrays, seed=0)
    for rates in ((0.0,), (np.inf,), (), "fast", None):
        with pytest.raises(ValueError, match="learning_rates must be one or more finite numbers above 0, got"):
            DeepGMM(learning_rates=rates).fit(*arrays, seed=0)
    for ridge in ((1.0, 0.0), (1.0, np.inf), (1.0,), "ab", None):
        with pytest.raises(ValueError, match="ridge must be 2 finite numbers above 0, got"):
            DFIV(ridge=ridge).fit(*arrays, seed=0)
    with pytest.raises(TypeError, match=r"train must be a prudent.nn.TrainConfig\(...\), got {'max_steps': 3}"):
        DeepIV(train={"max_steps": 3}).fit(*arrays, seed=0)
    with pytest.raises(TypeError, match=r"critic_network must be a network such as prudent.nn.MLPSpec\(...\), got 5"):
        DeepGMM(critic_network=5).fit(*arrays, seed=0)
    y, x, _ = arrays
    with pytest.raises(DataError, match="DFIV needs a column of x that is not in c"):
        DFIV().fit(y, x, x, seed=0)
