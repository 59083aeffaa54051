"""The tuner: better candidates win in both stages, candidates share a stack, nonsense is refused."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import prudent
from prudent import datasets
from prudent.cmr import DFIV, DMLCMR, DeepGMM, KernelCMR
from prudent.cmr._tune import _assign, _expand, _read_data, apply_settings
from prudent.errors import DataError, RoleError
from prudent.nn import MLPSpec, TabularSpec, TrainConfig, stack_groups

BRIEF = TrainConfig(weight_decay=0.01, batch_size=64, max_steps=150, evaluate_every=50)


def small(**settings) -> DMLCMR:
    defaults = {"network": MLPSpec((8,)), "nuisance_network": MLPSpec((8,)), "n_components": 1, "n_repeats": 1}
    return DMLCMR(1, n_functions=1, train=BRIEF, function_train=BRIEF, **{**defaults, **settings})


@pytest.fixture(scope="module")
def tuning():
    space = {"learning_rate": [1e-6, 5e-3], "nuisance.weight_decay": [0.01, 300.0], "dropout_rate": [0.0, 0.9]}
    return prudent.tune(small(), space, datasets.make_curve(600, curve="abs", seed=0), n_splits=2, seed=0)


def test_the_obviously_better_candidate_wins(tuning):
    # f cannot move at a rate of 1e-6; nuisances cannot bend with such a decay.
    assert tuning.best["function.learning_rate"] == 5e-3
    assert tuning.best["nuisance.weight_decay"] == 0.01
    assert tuning.best["nuisance.learning_rate"] == 5e-3
    assert tuning.best["nuisance.dropout_rate"] == 0.0


def test_every_loss_is_reported_and_printed(tuning):
    assert len(tuning.stage("nuisance")) == 8
    assert len(tuning.stage("function")) == 4
    assert set(tuning.trials[0].losses) == {"outcome", "action given instruments"}
    scores = [trial.score for trial in tuning.stage("function")]
    assert scores == sorted(scores)
    text = str(tuning)
    assert "moment error" in text
    assert len(text.splitlines()) == 1 + 2 * 3 + 12
    with pytest.raises(dataclasses.FrozenInstanceError):
        tuning.best = {}


def test_the_best_estimator_is_an_unfitted_copy(tuning):
    model = tuning.estimator
    assert not hasattr(model, "function_")
    assert model.train.weight_decay == 0.01
    assert model.function_train.learning_rate == 5e-3
    assert model.nuisance_network.dropout_rate == 0.0
    assert model.show_progress is None


def test_other_estimators_are_tuned_by_moments_alone():
    brief = TrainConfig(batch_size=128, max_steps=40, evaluate_every=20)
    estimator = DFIV(network=MLPSpec((4,)), instrument_network=MLPSpec((8,)), n_functions=1, train=brief)
    design = datasets.make_curve(400, curve="linear", seed=0)
    metric = []
    result = prudent.tune(
        estimator,
        {"ridge": [(1e-3, 1e-3), (1e-3, 300.0)]},
        design,
        n_splits=2,
        metric=lambda f: metric.append(f) or 1.0,
    )
    assert result.best == {"function.ridge": (1e-3, 1e-3)}
    assert result.trials[0].losses["metric"] == 1.0
    assert len(metric) == 4


def test_candidates_that_differ_in_numbers_share_a_stack():
    wide, narrow = TabularSpec(widths=(64,)), TabularSpec(widths=(32,))
    rates = [dataclasses.replace(BRIEF, learning_rate=rate) for rate in (1e-3, 1e-2)]
    dropped = dataclasses.replace(wide, dropout_rate=0.3)
    groups = stack_groups([(wide, rates[0]), (narrow, rates[0]), (dropped, rates[1])])
    assert [group.places for group in groups] == [[0, 2], [1]]
    np.testing.assert_allclose(groups[0].numbers.learning_rate, [1e-3, 1e-2])
    np.testing.assert_allclose(groups[0].numbers.dropout_rate, [0.1, 0.3])
    assert groups[1].numbers.dropout_rate is None


def test_settings_start_from_the_rule_of_the_estimator():
    model = apply_settings(DMLCMR(2), "nuisance", {"learning_rate": 0.01, "widths": (16,)}, 1000)
    assert model.train == dataclasses.replace(DMLCMR(2).train_configs(1000)["nuisance"], learning_rate=0.01)
    assert model.nuisance_network == TabularSpec(widths=(16,))
    assert model.function_train is None


@pytest.mark.parametrize(
    ("space", "data", "error", "message"),
    [
        ({"speed": [1]}, None, ValueError, "'speed' is neither a parameter of DMLCMR nor a field"),
        ({"critic.learning_rate": [1e-3]}, None, ValueError, "DMLCMR has no stage 'critic'"),
        ({"learning_rate": []}, None, ValueError, "must be a list of values to try"),
        ({"learning_rate": 1e-3}, None, ValueError, "must be a list of values to try"),
        ([], None, ValueError, "at least one candidate, got none"),
        (["widths"], None, TypeError, r"must be a dict of lists.*or a list of dicts, got \['widths'\]"),
        ("widths", None, TypeError, "must be a dict of lists.*or a list of dicts, got 'widths'"),
        (5, None, TypeError, "must be a dict of lists.*or a list of dicts, got 5"),
        ({"learning_rate": [1e-3]}, [1, 2], DataError, "data must be a Design, arrays by role"),
        ({"learning_rate": [1e-3]}, {"y": [1.0], "x": [1.0], "c": [1.0]}, DataError, "needs at least 20 rows"),
    ],
)
def test_bad_requests(space, data, error, message):
    data = datasets.make_curve(100, seed=0) if data is None else data
    with pytest.raises(error, match=message):
        prudent.tune(small(), space, data)


@pytest.mark.parametrize("name", ["outcome_model", "n_folds", "n_repeats", "discrete", "network"])
def test_nuisances_are_compared_only_by_what_leaves_their_losses_comparable(name):
    # Another outcome model has no loss here, folds change none, and levels have probabilities in place of densities.
    with pytest.raises(ValueError, match=f"'nuisance.{name}' has no effect on DMLCMR by which.*Tune '{name}', by"):
        prudent.tune(small(), {f"nuisance.{name}": [2, 5]}, datasets.make_curve(100, seed=0))
    assert _assign(small(), {name: 2}, two_stages=True) == {"function": {name: 2}}


def test_parameters_that_leave_losses_comparable_may_belong_to_the_nuisances():
    candidate = {"nuisance.n_components": 2, "nuisance.nuisance_network": MLPSpec((8,)), "nuisance.train": BRIEF}
    bare = {name.removeprefix("nuisance."): value for name, value in candidate.items()}
    assert _assign(small(), candidate, two_stages=True) == {"nuisance": bare}


def test_lists_as_values_become_tuples():
    # A network with a list for its widths cannot be hashed, which the training loop wants.
    assert _expand({"widths": [[16, 8], [8]]}) == [{"widths": (16, 8)}, {"widths": (8,)}]
    assert _expand([{"widths": [16, 8]}]) == [{"widths": (16, 8)}]


@pytest.mark.parametrize(
    ("name", "n_groups", "message"),
    [
        ("learning_rate", 9, "n_splits=3 needs at least 12 groups, 4 in every split, got 9. Lower n_splits or bring"),
        ("nuisance.learning_rate", 5, "n_splits=3 needs at least 6 groups, 2 in every split, got 5. Lower n_splits"),
    ],
)
def test_few_groups_are_refused_before_anything_is_trained(name, n_groups, message):
    data = dict(datasets.make_curve(90, seed=0).roles(), groups=np.arange(90) % n_groups)
    with pytest.raises(DataError, match=message):
        prudent.tune(small(), {name: [1e-3]}, data)


@pytest.mark.parametrize("name", ["learning_rate", "function.patience", "optimistic"])
def test_fields_that_deepgmm_sets_itself_are_refused(name):
    with pytest.raises(ValueError, match=f"{name!r} has no effect on DeepGMM: "):
        prudent.tune(DeepGMM(), {name: [1, 2]}, datasets.make_curve(100, seed=0))


def test_images_of_a_design_become_features():
    design = datasets.make_demand_images(60, seed=1000, images="digits")
    data = _read_data(design)
    assert [part.shape for part in data[:3]] == [(60, 1), (60, 18), (60, 18)]
    assert (data.groups, data.n_features, data.n_actions) == (None, 16, 1)
    with pytest.raises(DataError, match=r"no use for images\. Its entries are y, x, c, groups"):
        _read_data({"y": data.y, "x": data.x, "c": data.c, "images": (8, 8)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contexts": "x"}, "data has no use for contexts"),
        ({"group": "g"}, "data has no use for group"),
        ({"outcome": "word"}, "Outcome must be numeric"),
        ({"instruments": "copy"}, "is the action 'a' in other units"),
        ({"context": "one"}, None),
    ],
)
def test_tables_are_read_as_a_fit_reads_them(change, message):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 4)), columns=list("yazx"))
    frame = frame.assign(word=np.where(frame.y > 0, "high", "low"), copy=2 * frame.a, g=1)
    frame["one"] = np.where(np.arange(60) < 1, "rare", "usual")
    given = {"data": frame, "outcome": "y", "action": "a", "instruments": "z", "context": "x"} | change
    if message is None:
        assert _read_data(given).x.shape == (60, 3)
        return
    with pytest.raises((DataError, RoleError), match=message):
        _read_data(given)


def test_levels_of_these_rows_are_not_the_settings_of_the_result():
    design = datasets.make_linear_gaussian(200, seed=0, discrete=True)
    found = prudent.tune(KernelCMR(n_folds=2, n_landmarks=40), {"n_landmarks": [30, 40]}, design)
    assert found.estimator.get_params()["discrete"] == "auto"


def test_bad_estimator_and_splits():
    data = datasets.make_curve(100, seed=0)
    with pytest.raises(TypeError, match="estimator must be a moment estimator"):
        prudent.tune("DMLCMR", {"learning_rate": [1e-3]}, data)
    with pytest.raises(ValueError, match="n_splits must be a whole number of at least 2"):
        prudent.tune(small(), {"learning_rate": [1e-3]}, data, n_splits=1)
