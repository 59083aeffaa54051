"""Cloning corrected in states and innovations."""

import numpy as np
import pytest

import prudent
from prudent import CausalImitation, imitation
from prudent.cmr import DMLCMR, TwoStageLeastSquares
from prudent.errors import DataError
from prudent.imitation._innovations import MEMORY, Innovations
from prudent.imitation._windows import View, history_windows


@pytest.fixture(scope="module")
def demonstrations():
    env = imitation.make_env("TicketPricing-v0", noise_horizon=1)
    return imitation.demonstrate(env, episodes=24, steps=120, seed=0)


@pytest.fixture(scope="module")
def fitted(demonstrations, quick_estimator):
    estimator = quick_estimator(n_folds=2, start="tested")
    return CausalImitation(estimator, noise_horizon=1, correction="straight", seed=0).fit(demonstrations)


def test_innovations_are_what_the_states_before_do_not_predict(demonstrations):
    view = View(MEMORY + 2)
    windows = history_windows(demonstrations, view.length)
    columns = view.columns(windows.states, windows.actions)
    terms = Innovations.fit(windows, columns, view, seed=0)
    values = terms(columns)
    assert values.shape == (len(columns), MEMORY + 4)
    np.testing.assert_array_equal(values[:, : MEMORY + 2], columns)
    # One function for all lags: the innovation of a state is the same, however long ago it was.
    later, earlier = windows.step == 50, windows.step == 49
    np.testing.assert_allclose(values[later][:, -1], values[earlier][:, -2], atol=1e-5)
    settled = windows.step >= view.length
    assert values[settled][:, -1].var() < 0.9 * columns[settled][:, 0].var()
    again = Innovations.from_state(*terms.to_state())
    np.testing.assert_array_equal(again(columns), values)


def test_a_straight_correction_takes_the_noise_away(fitted, demonstrations, quick_estimator, tmp_path):
    assert fitted.diagnose().correction == "straight"
    env = imitation.make_env("TicketPricing-v0", noise_horizon=1)
    cloned = imitation.SequenceCloning(window=4, use_actions=False, n_networks=2, seed=0).fit(demonstrations)
    ours, theirs = (
        imitation.evaluate(model.policy(), env, episodes=5, steps=200, seed=1).mse for model in (fitted, cloned)
    )
    assert ours < 0.75 * theirs
    fitted.save(tmp_path / "policy")
    again = prudent.load(tmp_path / "policy")
    windows = history_windows(demonstrations, 4)
    np.testing.assert_array_equal(again.predict_windows(windows), fitted.predict_windows(windows))
    assert again.correction == "straight"


def test_episodes_that_are_too_short_get_no_straight_correction(demonstrations, quick_estimator):
    short = [imitation.Trajectory(t.observations[:7], t.actions[:6]) for t in demonstrations]
    with pytest.warns(UserWarning, match="for want of evidence"), pytest.warns(match="no straight correction"):
        CausalImitation(quick_estimator(), noise_horizon=1, correction="straight").fit(short)


@pytest.mark.filterwarnings("ignore:weak instrument")
def test_a_few_long_episodes_get_no_straight_correction(demonstrations, quick_estimator):
    mixed = demonstrations[:4] + [imitation.Trajectory(t.observations[:4], t.actions[:3]) for t in demonstrations[4:8]]
    # Four are enough to measure, but may all be in one of the two folds.
    with pytest.warns(
        UserWarning, match=r"no straight correction: .* in 4 episodes, have .* and 5 episodes are needed"
    ):
        CausalImitation(quick_estimator(), noise_horizon=1, correction="straight").fit(mixed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": TwoStageLeastSquares()}, "Leave correction out"),
        ({"estimator": DMLCMR(start="zero")}, "start='zero'"),
        ({"estimator": DMLCMR(n_folds=1)}, "raise n_folds"),
        ({"estimator": DMLCMR(correction_terms=np.sin)}, "correction='straight' brings its own"),
        ({"policy_states": 1}, "one state has no innovation"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, message, demonstrations):
    with pytest.raises(DataError, match=message):
        CausalImitation(noise_horizon=1, correction="straight", **settings).fit(demonstrations)
