"""Every estimator answers every question that its method allows: fit, save, load and predict; else it says why not."""

import numpy as np
import pytest

import prudent
from prudent import CausalImitation, IVRegression, ProximalRegression, cmr, datasets
from prudent.cmr._names import NAMES
from prudent.errors import DataError
from prudent.imitation import Trajectory
from prudent.nn import MLPSpec, TrainConfig

BRIEF = TrainConfig(batch_size=32, max_steps=10, evaluate_every=5)
TINY = {"network": MLPSpec((4,)), "train": BRIEF}
TWO_STAGES = {**TINY, "nuisance_network": MLPSpec((4,)), "function_train": BRIEF, "n_components": 1, "n_repeats": 1}
SETTINGS = {
    "ControlFunction": {"n_folds": 2, "n_landmarks": 40},
    "DFIV": {**TINY, "context_network": MLPSpec((4,)), "instrument_network": MLPSpec((4,)), "n_functions": 1},
    "DFPV": {**TINY, "n_folds": 2, "n_functions": 1},
    "DMLCMR": {**TWO_STAGES, "n_folds": 2, "n_functions": 1},
    "DeepGMM": {**TINY, "critic_network": MLPSpec((4,)), "learning_rates": (1e-3,), "n_functions": 1},
    "DeepIV": {**TWO_STAGES, "n_functions": 1},
    "KPV": {"n_folds": 2, "n_landmarks": 40},
    "KernelCMR": {"n_folds": 2, "n_landmarks": 40},
    "KernelIV": {"n_features": 40},
    "NMMR": {**TINY, "n_networks": 1},
    "PMMR": {"n_folds": 2, "n_landmarks": 40},
    "TreeCMR": {"model": "forest", "n_folds": 1},
    "TwoStageLeastSquares": {},
}


def iv(estimator):
    model = IVRegression(estimator, seed=0).fit(**datasets.make_linear_gaussian(80, seed=0).roles())
    return model, lambda fitted: fitted.effect([0.0, 1.0], [0.5])


def proximal(estimator):
    model = ProximalRegression(estimator, seed=0).fit(**datasets.make_linear_proximal(80, seed=0).roles())
    return model, lambda fitted: fitted.effect([0.0, 1.0])


def imitation(estimator):
    rng = np.random.default_rng(0)
    states, actions = rng.normal(size=(2, 8, 16, 2))
    for t in range(15):
        actions[:, t] = 0.5 * states[:, t] + 0.3 * actions[:, t]
        states[:, t + 1] = 0.6 * states[:, t] + 0.3 * actions[:, t] + 0.3 * states[:, t + 1]
    demos = [Trajectory(s, a[:15, :1]) for s, a in zip(states, actions, strict=True)]
    model = CausalImitation(estimator, noise_horizon=1, policy_states=1, seed=0).fit(demos)
    return model, lambda fitted: fitted.policy().act(np.array([0.3, 0.2]))


# What a method does not allow, and its words for that.
REFUSED = {
    ("ControlFunction", "imitation"): "ControlFunction needs exactly one action, got 2 columns",
}


def test_no_estimator_is_left_out():
    assert set(SETTINGS) == set(NAMES.values())


# Weak instruments and unfinished training do not matter here.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("question", [iv, proximal, imitation])
@pytest.mark.parametrize("name", SETTINGS)
def test_saved_and_loaded(name, question, tmp_path):
    estimator = getattr(cmr, name)(**SETTINGS[name])
    if (name, question.__name__) in REFUSED:
        with pytest.raises(DataError, match=REFUSED[name, question.__name__]):
            question(estimator)
        return
    model, ask = question(estimator)
    answer = ask(model)
    assert np.isfinite(answer).all()
    np.testing.assert_allclose(ask(prudent.load(model.save(tmp_path / "model"))), answer, rtol=1e-6)
