"""IVRegression: roles, effects, policies, diagnostics and saved models."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib.axes import Axes

import prudent
from prudent import IVRegression, datasets
from prudent.cmr import ControlFunction, KernelCMR, KernelIV, TwoStageLeastSquares
from prudent.cmr._report import strengths, strengths_by_regression
from prudent.errors import DataError, ModelFileError, NotFittedError, RoleError

ROLES = {"outcome": "y", "action": "a", "instruments": ["z1", "z2"], "context": ["x"]}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return datasets.make_linear_gaussian(400, seed=0).frame()


@pytest.fixture(scope="module")
def model(frame, quick_estimator) -> IVRegression:
    return IVRegression(quick_estimator(), seed=0).fit(frame, **ROLES)


def test_frames_and_arrays_give_the_same_model(frame, model, quick_estimator):
    polars = IVRegression(quick_estimator(), seed=0).fit(pl.from_pandas(frame), **ROLES)
    design = datasets.make_linear_gaussian(400, seed=0)
    arrays = IVRegression(quick_estimator(), seed=0).fit(**design.roles())
    expected = model.effect([0.0, 1.0], {"x": 0.5})
    assert np.array_equal(polars.effect([0.0, 1.0], {"x": 0.5}), expected)
    assert np.array_equal(arrays.effect([0.0, 1.0], 0.5), expected)


def test_effect_broadcasts_actions_and_contexts(model):
    many = model.effect(1.0, pd.DataFrame({"x": [0.0, 1.0, 2.0]}))
    assert many.shape == (3,)
    np.testing.assert_allclose(many[1], model.effect(1.0, {"x": 1.0})[0], rtol=1e-5)
    assert model.effect([0.0, 1.0, 2.0, 3.0], {"x": 0.0}).shape == (4,)
    difference = model.effect(2.0, {"x": 0.0}) - model.effect(1.0, {"x": 0.0})
    np.testing.assert_allclose(model.contrast(2.0, 1.0, {"x": 0.0}), difference)


def test_policy_over_a_range_finds_the_best_action(model):
    policy = model.policy((-1.0, 1.0))
    chosen = policy.act({"x": [0.0, 1.0]})
    grid = np.linspace(-1, 1, 2001)
    for x, action in zip((0.0, 1.0), chosen, strict=True):
        assert model.effect(action, {"x": x})[0] >= model.effect(grid, {"x": x}).max() - 1e-4
    assert model.policy((-1.0, 1.0), minimise=True).act({"x": 0.0})[0] < chosen[0]


@pytest.mark.parametrize("is_categorical", [False, True])
@pytest.mark.parametrize("estimator", [KernelCMR(n_folds=2, n_landmarks=60), KernelIV(features="random")], ids=str)
def test_policy_compares_all_candidates_as_it_scores_them_one_by_one(estimator, is_categorical):
    rng = np.random.default_rng(0)
    z, u, x = rng.normal(size=(3, 150))
    shop = rng.choice(["a", "b", "c"], 150)
    level = np.digitize(2 * z + u, [-0.7, 0.7])
    action = np.array(["low", "mid", "high"])[level] if is_categorical else 2 * z + u
    y = level * x + (shop == "b") * level + u
    data = pd.DataFrame({"y": y, "other": 2 * x - y, "a": action, "z": z, "x": x, "shop": shop})
    model = IVRegression(estimator).fit(
        data, outcome=["y", "other"], action="a", instruments="z", context=["x", "shop"]
    )
    policy = model.policy(None if is_categorical else [-1.0, 0.0, 2.0], outcome=1, minimise=True)
    contexts = model._contexts(data[["x", "shop"]])
    everywhere = np.broadcast_to(policy.candidates, (len(contexts), *policy.candidates.shape))
    np.testing.assert_allclose(policy._compare(contexts), policy._scores(everywhere, contexts), atol=1e-9)


def test_policy_over_candidates_and_its_value(model, frame):
    policy = model.policy([-1.0, 0.5, 1.0])
    assert set(policy.act(frame)) <= {-1.0, 0.5, 1.0}
    best = model.policy_value(policy)
    worst = model.policy_value(model.policy([-1.0, 0.5, 1.0], minimise=True))
    constant = model.policy_value(lambda context: np.full(len(context), 0.5))
    assert best.value >= constant.value >= worst.value
    assert best.n_contexts == 400


def test_categorical_context_and_action(quick_estimator):
    rng = np.random.default_rng(0)
    n = 400
    region, z, u = rng.choice(["north", "south"], n), rng.choice(["p", "q", "r"], n), rng.normal(size=n)
    score = (z == "q") * 1.5 - (z == "r") + u + 0.3 * rng.normal(size=n)
    offer = np.where(score > 0.7, "gold", np.where(score > -0.7, "plain", "none"))
    y = (offer == "gold") * 2.0 + (region == "north") + u + 0.1 * rng.normal(size=n)
    frame = pd.DataFrame({"y": y, "offer": offer, "z": z, "region": region})
    model = IVRegression(quick_estimator(), seed=0).fit(
        frame, outcome="y", action="offer", instruments="z", context="region"
    )
    assert model.estimator_.report_.discrete == (0, 1, 2)
    assert model.effect(["gold", "none"], {"region": "north"}).shape == (2,)
    assert set(model.policy().act(frame)) <= {"gold", "plain", "none"}
    with pytest.raises(DataError, match=r"levels \['gold', 'none', 'plain'\], got 'silver'"):
        model.effect("silver", {"region": "north"})
    assert isinstance(model.plot_effect(), Axes)


def test_numeric_categories_booleans_and_two_categorical_actions(quick_estimator):
    rng = np.random.default_rng(0)
    n = 400
    z, u = rng.normal(size=n), rng.normal(size=n)
    colour, size = np.where(z + u > 0, "red", "blue"), np.where(z - u > 0, "big", "small")
    frame = pd.DataFrame({"y": u + (colour == "red"), "y2": u - (colour == "red"), "colour": colour, "size": size})
    frame["z"], frame["vip"] = z, rng.random(n) > 0.5
    frame["store"] = pd.Categorical(rng.integers(1, 4, n))
    model = IVRegression(quick_estimator(), seed=0).fit(
        frame, outcome=["y", "y2"], action=["colour", "size"], instruments="z", context=["store", "vip"]
    )
    assert model.roles_["context"].columns[0].levels == (1, 2, 3)
    assert model.effect([["red", "big"]], {"store": 2, "vip": "True"}).shape == (1, 2)
    first, second = (model.policy(outcome=k) for k in (0, 1))
    assert {tuple(a) for a in first.act(frame)} <= {(c, s) for c in ("red", "blue") for s in ("big", "small")}
    assert model.policy_value(second).value != model.policy_value(first).value
    assert model.policy_value(second).value == model.policy_value(second, outcome=1).value


def test_user_estimator_is_left_alone(frame, quick_estimator):
    estimator = quick_estimator()
    before = estimator.get_params()
    IVRegression(estimator, seed=0).fit(frame.assign(a=np.where(frame["a"] > 0, "yes", "no")), **ROLES)
    assert estimator.get_params() == before
    assert not hasattr(estimator, "function_")


def test_diagnosis_and_summary_read_well(model):
    diagnosis = model.diagnose()
    assert diagnosis.weakest_f is not None
    assert diagnosis.weakest_f > 23.1
    text = str(diagnosis)
    assert "effective F" in text
    assert "strong" in text
    assert "moment error, audited folds" in text
    assert "average effect over the observed contexts" in model.summary()
    assert isinstance(model.plot_effect(truth=lambda a: 2 * a), Axes)


def test_weak_instrument_warns(frame, quick_estimator):
    noise = np.random.default_rng(5).normal(size=len(frame))
    with pytest.warns(UserWarning, match="weak instrument: effective F"):
        IVRegression(quick_estimator(), seed=0).fit(frame.assign(n=noise), **{**ROLES, "instruments": "n"})


def test_saved_model_gives_the_same_numbers(model, frame, tmp_path):
    folder = model.save(tmp_path / "model")
    assert sorted(p.name for p in folder.iterdir()) == ["model.json", "weights.safetensors"]
    again = prudent.load(folder)
    assert np.array_equal(again.effect([0.0, 1.0], {"x": 0.5}), model.effect([0.0, 1.0], {"x": 0.5}))
    assert str(again.diagnose()) == str(model.diagnose())
    assert again.policy((-1.0, 1.0)).act({"x": 0.0}) == model.policy((-1.0, 1.0)).act({"x": 0.0})
    with pytest.raises(RoleError, match="does not carry the training contexts"):
        again.policy_value(again.policy())
    with pytest.raises(DataError, match=r"a loaded model cannot be fitted again.*Make a new model with DMLCMR\("):
        again.fit(frame, **ROLES)
    model.save(folder)  # replaces an earlier model


def _edit(folder, **changes):
    record = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**record, **changes}))


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: _truncate(f / "weights.safetensors"), "damaged or truncated"),
        (lambda f: _truncate(f / "model.json"), "damaged or truncated"),
        (lambda f: (f / "model.json").write_bytes(b"\xff\xfe"), "damaged or truncated"),
        (lambda f: (f / "weights.safetensors").unlink(), "has no readable weights.safetensors"),
        (lambda f: (f / "model.json").unlink(), "has no model.json"),
        (lambda f: _edit(f, format_version=99), "written by a newer Prudent"),
        (lambda f: _edit(f, format="other"), "not a Prudent model"),
        (lambda f: _edit(f, kind="os.system"), "unknown kind"),
        (lambda f: _edit(f, model={}), "does not hold a complete model"),
    ],
)
def test_damaged_folders_are_refused(model, tmp_path, damage, message):
    folder = model.save(tmp_path / "model")
    damage(folder)
    with pytest.raises(ModelFileError, match=message):
        prudent.load(folder)


def test_save_does_not_overwrite_other_things(model, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ModelFileError, match="exists and is not a saved model"):
        model.save(tmp_path)
    (tmp_path / "model.json").write_text("{}")  # somebody else's
    with pytest.raises(ModelFileError, match="exists and is not a saved model"):
        model.save(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
    folder = model.save(tmp_path / "model")
    (folder / "notes.txt").write_text("mine")
    model.save(folder)
    assert (folder / "notes.txt").exists()
    with pytest.raises(ModelFileError, match="is not a folder"):
        prudent.load(tmp_path / "absent")


@pytest.mark.parametrize(
    ("change", "roles", "error", "message"),
    [
        (lambda f: f, {"outcome": "sales"}, RoleError, "Outcome column 'sales' is not in the data"),
        (lambda f: f, {"context": ["a"]}, RoleError, "Column 'a' has two roles, action and context"),
        (lambda f: f, {"instruments": []}, RoleError, "instruments is missing"),
        (lambda f: f, {"instruments": ["z1", "z1"]}, RoleError, "names a column twice"),
        (lambda f: f.assign(z1=1.0), {"instruments": "z1"}, DataError, "Instruments column 'z1' is constant"),
        (lambda f: f.assign(a=1.0), {}, DataError, "Action column 'a' is constant"),
        (lambda f: f.assign(a="yes"), {}, DataError, "Action column 'a' is constant"),
        (lambda f: f.assign(x=f["x"].where(f["x"] > 0)), {}, DataError, "Context column 'x'.*NaN or infinity"),
        (lambda f: f.assign(y=np.inf), {}, DataError, "must be finite"),
        (lambda f: f.assign(x=[f"row {k}" for k in range(len(f))]), {}, DataError, "400 different values in 400 rows"),
        (lambda f: f.assign(y="high"), {}, DataError, "Outcome must be numeric"),
        (lambda f: f.head(3), {}, DataError, "at least 20 rows, got 3"),
        (lambda f: f.head(0), {}, DataError, "at least one row"),
    ],
)
def test_bad_tables(frame, change, roles, error, message):
    with pytest.raises(error, match=message):
        IVRegression().fit(change(frame), **{**ROLES, **roles})


def test_bad_calls(frame, model):
    with pytest.raises(NotFittedError, match="not fitted"):
        IVRegression().effect(1.0)
    with pytest.raises(DataError, match="Context must have 1 columns as in fit, got 2"):
        model.effect(1.0, np.zeros((4, 2)))
    with pytest.raises(RoleError, match=r"needs a context with columns \['x'\]"):
        model.effect(1.0)
    with pytest.raises(DataError, match="equally many rows"):
        model.effect([1.0, 2.0], {"x": [0.0, 1.0, 2.0]})
    with pytest.raises(DataError, match="low < high"):
        model.policy((2.0, 1.0))
    with pytest.raises(DataError, match="at least one candidate"):
        model.policy([])
    with pytest.raises(RoleError, match="is a column name, but no data frame was given"):
        IVRegression().fit(outcome="y", action="a", instruments="z1")
    with pytest.raises(TypeError, match="data must be a pandas or polars frame, got str"):
        IVRegression().fit("data.csv", **ROLES)
    with pytest.raises(TypeError, match="estimator must be a moment estimator"):
        IVRegression(object()).fit(frame, **ROLES)
    with pytest.raises(ValueError, match="seed must be a whole number"):
        IVRegression(seed="one").fit(frame, **ROLES)
    with pytest.raises(DataError, match="must have 400 rows like the outcome, got 399"):
        IVRegression().fit(outcome=frame[["y"]], action=frame[["a"]], instruments=frame[["z1"]].head(399))


@pytest.mark.parametrize("estimator", [KernelIV(), TwoStageLeastSquares()])
def test_levels_of_a_discrete_action_are_found_whatever_the_estimator(estimator, tmp_path):
    design = datasets.make_linear_gaussian(200, seed=0, discrete=True)
    model = IVRegression(estimator).fit(**design.roles())
    policy = model.policy()
    assert not policy.is_interval
    np.testing.assert_array_equal(policy.candidates[:, 0], np.unique(design.action))
    loaded = prudent.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.policy().candidates, policy.candidates)
    # What the fit made of these data (levels, for one) would be taken for the user's wish with other data.
    with pytest.raises(DataError, match="a loaded model cannot be fitted again"):
        loaded.fit(**design.roles())


def test_diagnosis_says_what_an_estimator_knows_of_strength():
    roles = datasets.make_linear_gaussian(300, seed=0).roles()
    linear = IVRegression(TwoStageLeastSquares()).fit(**roles)
    assert "first-stage F" in str(linear.diagnose())
    assert linear.diagnose().weakest_f == linear.estimator_.report_.first_stage_f[0]
    control = IVRegression(ControlFunction(n_landmarks=100)).fit(**roles).diagnose()
    assert control.weakest_f > 23.1
    # Every instrument counts here, and the first stage is linear: both measures are about the same.
    assert control.partial_r2[0] == pytest.approx(linear.diagnose().partial_r2[0], abs=0.1)
    for estimator in (KernelIV(), TwoStageLeastSquares("polynomial")):
        # These have no law of the action: a regression beside the fit measures it.
        aside = IVRegression(estimator).fit(**roles).diagnose()
        assert aside.strength_measure == "effective F"
        assert aside.partial_r2[0] == pytest.approx(linear.diagnose().partial_r2[0], abs=0.05)
        assert aside.action_r2[0] == pytest.approx(control.action_r2[0], abs=0.05)


WITHOUT_LAW = [KernelIV(n_features=50), TwoStageLeastSquares("polynomial", degree=2)]


@pytest.mark.parametrize("estimator", WITHOUT_LAW, ids=str)
def test_estimators_without_a_law_warn_of_weak_instruments(estimator, frame):
    noise = np.random.default_rng(5).normal(size=len(frame))
    with pytest.warns(UserWarning, match="weak instrument: effective F"):
        IVRegression(estimator, seed=0).fit(frame.assign(n=noise), **{**ROLES, "instruments": "n"})


def test_of_too_few_groups_no_strength_is_known(frame):
    few = np.arange(len(frame)) % 3
    unknown = IVRegression(WITHOUT_LAW[1], seed=0).fit(frame, **ROLES, groups=few).diagnose()
    assert np.isnan(unknown.effective_f).all()
    (line,) = (line for line in str(unknown).splitlines() if "strength" in line)
    assert line.split("  ")[-1].strip() == "too few groups"


@pytest.mark.parametrize(
    "estimator", [*WITHOUT_LAW, TwoStageLeastSquares(), ControlFunction(n_landmarks=60)], ids=lambda e: str(e)[:30]
)
@pytest.mark.parametrize("names", [["a", "b"], ["b", "a"]])
def test_an_action_that_instruments_itself_makes_no_other_one_strong(estimator, names):
    rng = np.random.default_rng(0)
    b, u, z, noise = rng.normal(size=(4, 400))
    a = 2 * b + u + noise
    frame = pd.DataFrame({"y": a + b + 2 * u, "a": a, "b": b, "z": z, "b_copy": b})
    with pytest.warns(UserWarning, match="weak instrument"):
        found = IVRegression(estimator, seed=0).fit(frame, outcome="y", action=names, instruments=["z", "b_copy"])
    assert found.diagnose().action_names == ("a",)


def test_useless_instruments_are_weak_however_many():
    largest = 0.0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        c, a = rng.normal(size=(300, 13)), rng.normal(size=(300, 1))
        a += c[:, 10:].sum(axis=1, keepdims=True)
        (found,) = strengths_by_regression(a, c, list(range(10)), None, seed)[1]
        largest = max(largest, found.effective_f)
    assert largest < 10


def test_equal_functions_have_equal_moment_errors(frame):
    first, second = (IVRegression(TwoStageLeastSquares(), seed=seed).fit(frame[:300], **ROLES) for seed in (0, 1))
    assert first.moment_error(frame[300:]) == second.moment_error(frame[300:])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.arange(250), r"groups must name one unit per row \(400\), got 250"),
        ("person", "groups='person' is a column name, but no data frame was given"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups, message, frame):
    model = IVRegression(TwoStageLeastSquares(), seed=0).fit(frame, **ROLES)
    arrays = {role: frame[names].to_numpy() for role, names in ROLES.items()}
    with pytest.raises(DataError if "must" in message else RoleError, match=message):
        model.moment_error(**arrays, groups=groups)
    named = model.moment_error(frame.assign(unit=np.arange(400) // 2), groups=["unit"])
    assert named == model.moment_error(frame, groups=np.arange(400) // 2)
    with pytest.raises(RoleError, match="outcome='y' is a column name, but no data frame"):
        model.moment_error(**(arrays | {"outcome": "y"}))


def test_a_refit_that_fails_leaves_the_earlier_fit(frame):
    x, z = frame[["a"]].to_numpy(), frame[["z1"]].to_numpy()
    y = frame[["y"]].to_numpy()
    model = TwoStageLeastSquares("polynomial", degree=2).fit(y, x, z)
    before = model.predict(x)
    with pytest.raises(DataError, match="instrument"):
        model.fit(y, np.hstack([x**3, np.sin(x)]), np.sign(z))
    np.testing.assert_array_equal(model.predict(x), before)


def test_a_range_is_no_candidate_of_several_actions(frame):
    model = IVRegression(TwoStageLeastSquares(), seed=0).fit(
        frame.assign(a2=frame["a"] ** 2, z3=frame["z1"] ** 2),
        **(ROLES | {"action": ["a", "a2"], "instruments": ["z1", "z3"]}),
    )
    with pytest.raises(DataError, match="An action has 2 columns here, got single values"):
        model.policy((-1.0, 1.0))


@pytest.mark.parametrize(
    "estimator", [KernelCMR(n_folds=2, n_landmarks=60), ControlFunction(n_folds=2, n_landmarks=60)], ids=str
)
def test_copies_of_rows_are_no_strength(estimator, frame):
    few = frame[:200]
    copies = few.loc[np.repeat(few.index, 4)].reset_index(drop=True).assign(unit=np.repeat(few.index, 4))
    alone = IVRegression(estimator, seed=0).fit(few, **ROLES).diagnose()
    together = IVRegression(estimator, seed=0).fit(copies, **ROLES, groups="unit").diagnose()
    # Folds differ; four times the rows would be four times the strength.
    assert together.weakest_f == pytest.approx(alone.weakest_f, rel=0.4)
    # A likelihood that took copies for independent rows would find no noise, and explain nothing out of fold.
    assert together.action_r2 == pytest.approx(alone.action_r2, abs=0.05)


def test_strength_counts_groups():
    rng = np.random.default_rng(0)
    predicted, noise = rng.normal(size=(2, 50, 1))
    rows, group = np.repeat(np.arange(50), 4), np.repeat(np.arange(50), 4)
    without = np.zeros((2, 50, 1))
    (alone,) = strengths(predicted + noise, predicted, without, None)
    (found,) = strengths((predicted + noise)[rows], predicted[rows], without[:, rows], group)
    assert found.effective_f * 50 / 49 == pytest.approx(alone.effective_f)
    (unknown,) = strengths(predicted + noise, predicted, without, np.arange(50) % 3)
    assert np.isnan(unknown.effective_f)
