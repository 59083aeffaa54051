"""Learners on a linear system with a known answer, policies as agents, saving.

System: s_{t+1} = 0.9 s_t + 0.5 a_t + u_{t+1} + w_{t+1}, a_t = -K s_t + g u_t, u a moving average of k draws.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

import prudent
from prudent import CausalImitation, DataError, ModelFileError, NotFittedError
from prudent.cmr import DFIV, DMLCMR, DeepGMM, MomentError, MomentEstimator, TwoStageLeastSquares
from prudent.cmr._arrays import shared_columns
from prudent.cmr._report import partial_strength
from prudent.envs import TicketPricing
from prudent.imitation import (
    BehaviourCloning,
    ImitationDiagnosis,
    ResiduIL,
    SequenceCloning,
    Trajectory,
    View,
    evaluate,
    history_windows,
    suggest_horizon,
)
from prudent.imitation._causal import _strengths
from prudent.imitation._windows import instrument_columns
from prudent.nn import MLPSpec, TrainConfig

GAIN, SHARE = 0.4, 1.0
BRIEF = TrainConfig(learning_rate=2e-2, weight_decay=0.0, batch_size=256, max_steps=400, evaluate_every=100)


class TwoStage(MomentEstimator):
    """Two-stage least squares by hand: an independent solver of the moment."""

    def fit(self, y, x, c, *, seed, groups=None):
        c = np.hstack([np.ones((len(c), 1)), c])
        x = np.hstack([np.ones((len(x), 1)), x])
        projected = c @ np.linalg.lstsq(c, x, rcond=None)[0]
        self.coefficients = np.linalg.lstsq(projected, y, rcond=None)[0]
        self.x, self.c, self.groups = x[:, 1:], c[:, 1:], groups
        return self

    def predict(self, x):
        return np.hstack([np.ones((len(x), 1)), x]) @ self.coefficients

    def to_state(self):
        raise NotImplementedError


def linear_demos(k, episodes=100, steps=500, seed=1000, first=0.0):
    """Episodes of the system; ``first`` is added to the state with which they begin."""
    rng = np.random.default_rng(seed)
    q = rng.normal(0, k**0.5, (episodes, steps + k + 51))
    total = np.cumsum(np.pad(q, ((0, 0), (1, 0))), axis=1)
    u = (total[:, k:] - total[:, :-k]) / k
    w = rng.normal(size=u.shape)
    s = np.zeros((episodes, u.shape[1]))
    a = np.zeros_like(s)
    for t in range(u.shape[1]):
        if t:
            s[:, t] = 0.9 * s[:, t - 1] + 0.5 * a[:, t - 1] + u[:, t] + w[:, t] + (first if t == 50 else 0.0)
        a[:, t] = -GAIN * s[:, t] + SHARE * u[:, t]
    # The first steps are dropped: the closed form speaks of the stationary law.
    return [Trajectory(s[i, 50 : 50 + steps + 1], a[i, 50 : 50 + steps]) for i in range(episodes)]


def slope(model):
    at = np.zeros((2, model.view_.n_states + model.view_.n_actions))
    at[1, 0] = 1.0
    low, high = model.predict(at)[:, 0]
    return high - low


def cloning_bias(k=1):
    """Cov(s, u) / Var(s) for k = 1, by the stationary variance of s."""
    rho = 0.9 - 0.5 * GAIN
    variance = (1 + (0.5 * SHARE) ** 2 + 2 * rho * 0.5 * SHARE + 1) / (1 - rho**2)
    return SHARE / variance


@pytest.fixture(scope="module")
def short_noise():
    return linear_demos(1)


@pytest.fixture(scope="module")
def long_noise():
    return linear_demos(3)


@pytest.mark.parametrize("k", [1, 3])
def test_the_moment_gives_the_experts_gain(k, short_noise, long_noise):
    model = CausalImitation(TwoStage(), noise_horizon=k, policy_states=1).fit(short_noise if k == 1 else long_noise)
    assert slope(model) == pytest.approx(-GAIN, abs=0.02)
    # Cross-fitting is by episode.
    assert len(np.unique(model.estimator_.groups)) == 100
    # All steps are learnt from, also the first k, whose history carries their noise.
    assert len(model.estimator_.groups) == 100 * 500


def test_the_start_of_an_episode_is_learnt_from():
    demos = linear_demos(3, episodes=40, steps=100, first=20.0)
    model = CausalImitation(TwoStage(), noise_horizon=3, policy_states=1).fit(demos)
    assert np.isin([t.observations[0, 0] for t in demos], model.estimator_.x).all()
    assert slope(model) == pytest.approx(-GAIN, abs=0.03)


def test_history_that_is_not_there_yet_is_seen_as_its_mean(short_noise):
    model = CausalImitation(TwoStage(), noise_horizon=1, policy_states=2).fit(short_noise)
    x, c = model.estimator_.x, model.estimator_.c
    assert len(x) == 100 * 500
    # s_{t-1} stands in both in every row, so that estimators take it as given; s_0 is never shown as history of t = 0.
    assert np.array_equal(x[:, 1], c[:, 0])
    first = np.flatnonzero(c[:, -1] == 0)
    assert len(first) == 100
    assert np.ptp(x[first, 1]) == 0.0
    assert x[first, 0].tolist() == [t.observations[0, 0] for t in short_noise]
    assert model.estimator_.coefficients[1:, 0] == pytest.approx([-GAIN, 0.0], abs=0.03)


def test_a_saved_policy_starts_like_the_one_that_was_saved(short_noise, tmp_path):
    model = CausalImitation(TwoStageLeastSquares(), noise_horizon=1, policy_states=2).fit(short_noise)
    model.mean_seen_ += 3.0  # Far from zero, so that it shows.
    model.save(tmp_path / "model")
    first = model.policy().act(np.array([0.5]))
    assert prudent.load(tmp_path / "model").policy().act(np.array([0.5])) == pytest.approx(first)


def test_a_constant_column_stays_out_of_the_policy(short_noise):
    # The mean of many 0.1 is not 0.1.
    demos = [
        Trajectory(np.column_stack([t.observations[:, 0], np.full(len(t) + 1, 0.1)]), t.actions) for t in short_noise
    ]
    model = CausalImitation(TwoStage(), noise_horizon=1, policy_states=2).fit(demos)
    assert model.varying_.tolist() == [0, 2]


def test_the_number_of_the_step_is_no_history(short_noise):
    # A policy that sees all of the history and, as a flag of the first step, its number.
    demos = [
        Trajectory(np.column_stack([t.observations[:, 0], np.arange(len(t) + 1) > 0]), t.actions) for t in short_noise
    ]
    with pytest.raises(DataError, match="not see all of the instrument"):
        CausalImitation(TwoStage(), noise_horizon=1, policy_states=3, policy_actions=2, window=3).fit(demos)


def test_history_that_the_policy_sees_is_part_of_the_instrument(short_noise):
    model = CausalImitation(TwoStage(), noise_horizon=1, policy_states=7).fit(short_noise[:10])
    windows = history_windows(short_noise[:10], model._window_length()).complete
    c = instrument_columns(windows, model._instrument_view)
    x = model.policy_view.columns(windows.states, windows.actions)
    assert len(shared_columns(x, c)) == x.shape[1] - 1


def test_policies_act_on_the_columns_that_they_were_fitted_on():
    demos = linear_demos(3, episodes=4, steps=12)
    for k, n_states, n_actions in ((1, 3, 0), (3, 5, 0), (2, 3, 2), (3, 2, 0)):
        model = CausalImitation(
            TwoStage(), noise_horizon=k, policy_states=n_states, policy_actions=n_actions, window=k + 7
        ).fit(demos)
        policy, trajectory = model.policy(), demos[1]
        wanted = model.predict_windows(history_windows([trajectory], model.policy_view.length))
        for step in range(len(trajectory)):
            # The second row begins its episode late.
            batch = np.stack([trajectory.observations[step], trajectory.observations[max(0, step - 4)]])
            if step == 4:
                policy.reset(np.array([False, True]))
            acted = policy.act(batch)
            assert acted[0] == pytest.approx(wanted[step])
            if step >= 4:
                assert acted[1] == pytest.approx(wanted[step - 4])
            policy._actions[:, -1] = trajectory.actions[step]
            if step >= 4:
                policy._actions[1, -1] = trajectory.actions[step - 4]


def test_keeping_real_lags_newer_than_the_horizon_is_biased(long_noise):
    ours = CausalImitation(TwoStage(), noise_horizon=3, policy_states=2).fit(long_noise)
    assert ours.estimator_.coefficients[1:, 0] == pytest.approx([-GAIN, 0.0], abs=0.03)
    windows = history_windows(long_noise, 6).complete
    x, older, newer = (
        view.columns(windows.states, windows.actions) for view in (View(2), View(3, 3, newest=3), View(1, 1, newest=1))
    )
    # s_{t-1} and a_{t-1} as they were, instead of a model of them given what is older than the noise.
    kept = TwoStage().fit(windows.actions[:, -1], x, np.hstack([older, newer]), seed=0)
    assert kept.coefficients[1, 0] + GAIN > 0.5
    assert kept.coefficients[2, 0] < -0.3


def test_too_small_a_horizon_is_biased(long_noise):
    valid = slope(CausalImitation(TwoStage(), noise_horizon=3, policy_states=1).fit(long_noise))
    invalid = slope(CausalImitation(TwoStage(), noise_horizon=1, policy_states=1).fit(long_noise))
    assert abs(valid + GAIN) < 0.03
    assert invalid + GAIN > 0.1


def test_an_upper_bound_of_the_horizon_is_valid(short_noise):
    model = CausalImitation(TwoStage(), noise_horizon=3, policy_states=1).fit(short_noise)
    assert slope(model) == pytest.approx(-GAIN, abs=0.03)


def test_cloning_is_biased_by_the_predicted_amount(short_noise):
    model = BehaviourCloning(network=MLPSpec(()), n_networks=2, train=BRIEF).fit(short_noise)
    assert slope(model) == pytest.approx(-GAIN + cloning_bias(), abs=0.02)


@pytest.mark.slow
def test_dml_il_recovers_the_gain(long_noise, quick_estimator):
    # The linear f starts at zero: the rate must carry it to its slope within the steps.
    brief = TrainConfig(learning_rate=1e-2, weight_decay=0.01, batch_size=256, max_steps=1000, evaluate_every=100)
    estimator = quick_estimator(network=MLPSpec(()), train=brief, function_train=brief)
    model = CausalImitation(estimator, noise_horizon=3, policy_states=1).fit(long_noise)
    assert slope(model) == pytest.approx(-GAIN, abs=0.05)


def test_what_an_estimator_leaves_open_is_filled_in():
    from prudent.imitation._causal import _fill_in

    given = DMLCMR(n_folds=5, outcome="fitted", network=MLPSpec(()))
    _fill_in(given, 20_000, 2, explained=lambda: 0.9)
    assert (given.outcome, given.network, given.n_repeats) == ("fitted", MLPSpec(()), 2)
    assert given.train.max_steps == 2000
    open_ = DMLCMR()
    _fill_in(open_, 1000, 2, explained=lambda: 0.9)
    assert (open_.outcome, open_.n_repeats, open_.train.max_steps) == ("observed", 1, 1000)
    weak = DMLCMR()
    _fill_in(weak, 1000, 2, explained=lambda: 0.1)
    assert weak.outcome == "fitted"


@pytest.mark.slow
def test_residuil_stays_small_where_the_instrument_says_nothing():
    from prudent.imitation import demonstrate, make_env

    # E[s_t | s_{t-1}] = 0 here, so that the moment says nothing about odd policies; zero has 0.77, cloning above 1.1.
    env = make_env("TicketPricing-v0", noise_horizon=1)
    model = ResiduIL(noise_horizon=1, n_networks=1, seed=1000).fit(demonstrate(env, seed=1000))
    assert evaluate(model.policy(), env, seed=1000).mse_unclipped < 0.95


@pytest.mark.slow
def test_residuil_removes_most_of_the_bias(short_noise):
    brief = TrainConfig(learning_rate=1e-3, weight_decay=0.0, batch_size=256, max_steps=4000, evaluate_every=500)
    model = ResiduIL(noise_horizon=1, network=MLPSpec(()), n_networks=2, train=brief).fit(short_noise)
    assert abs(slope(model) + GAIN) < 0.35 * cloning_bias()


def test_suggest_horizon_sees_where_the_noise_ends(long_noise):
    report = suggest_horizon(
        long_noise, max_horizon=8, model=CausalImitation(TwoStage(), noise_horizon=6, policy_states=1).fit(long_noise)
    )
    # A mean of three draws: correlations 2/3 and 1/3, then none.
    assert report.autocorrelation[:3] == pytest.approx([2 / 3, 1 / 3, 0.0], abs=0.04)
    assert report.suggested == 3
    assert report.strength[0] > report.strength[2] > report.strength[7]
    assert "suggested: k = 3" in str(report)
    assert "Without a model" not in str(report)


def test_suggest_horizon_without_a_model():
    short, long = (linear_demos(k, episodes=20, steps=100) for k in (5, 8))
    report = suggest_horizon(short, max_horizon=12)
    assert report.suggested == 5
    assert "ask again with that model" in str(report)
    assert "hardly moves the state" in replace(report, strength=(0.01,) * 12).advice
    # The noise has only just ended at the last lag: no level is seen.
    report = suggest_horizon(long, max_horizon=8)
    assert report.suggested is None
    assert "no horizon found up to 8" in str(report)


def test_suggest_horizon_refuses_what_it_cannot_read(clone_model):
    demos, model = clone_model
    for trajectories, settings, message in (
        (demos[:2], {"max_horizon": 4}, "four episodes"),
        (demos, {"max_horizon": 50}, "four episodes of at least 103 steps"),
        (demos, {"max_horizon": 3}, "max_horizon must be a whole number of at least 4"),
        (demos, {"max_horizon": 4, "relative": 0}, "relative must be a tuple"),
        (demos, {"max_horizon": 4, "model": "il"}, "model must be a fitted imitator"),
        ([Trajectory(np.arange(61.0), np.ones(60))] * 4, {"max_horizon": 4}, "actions never vary"),
        ([Trajectory(np.ones(61), np.arange(60.0))] * 4, {"max_horizon": 4}, "observations never vary"),
        ([Trajectory(np.eye(61, 2), np.arange(60.0))] * 4, {"max_horizon": 4, "model": model}, "1 observed"),
        (demos, {"max_horizon": 4, "model": model, "relative": (0,)}, "is not that of the model"),
    ):
        with pytest.raises(DataError, match=message):
            suggest_horizon(trajectories, **settings)
    with pytest.raises(NotFittedError, match="not fitted"):
        suggest_horizon(demos, max_horizon=4, model=BehaviourCloning())


@pytest.fixture(scope="module")
def clone_model():
    demos = linear_demos(1, episodes=6, steps=60)
    settings = {"network": MLPSpec((8,)), "n_networks": 1, "train": BRIEF}
    return demos, SequenceCloning(window=3, seed=3, **settings).fit(demos)


def test_a_policy_keeps_the_history_that_windows_have(clone_model):
    _, model = clone_model
    policy = model.policy()
    states = np.array([0.3, -1.0, 2.0, 0.5])
    acted = [policy.act(np.array([s])) for s in states]
    # Its own actions are its history.
    a = [v[0] for v in acted]
    row = np.array([[states[3], states[2], states[1], a[2], a[1]]])
    assert np.allclose(acted[3], model.predict(row)[0], atol=1e-6)
    first = np.array([[states[0]] * 3 + [0.0, 0.0]])
    assert np.allclose(acted[0], model.predict(first)[0], atol=1e-6)


def test_a_batch_acts_as_its_episodes_do(clone_model):
    _, model = clone_model
    rng = np.random.default_rng(0)
    states = rng.normal(size=(5, 3, 1))
    batch, one = model.policy(), model.policy()
    together = np.stack([batch.act(s) for s in states])
    alone = np.stack([one.act(s) for s in states[:, 1]])
    assert np.allclose(together[:, 1], alone, atol=1e-6)
    with pytest.raises(DataError, match="runs 3 episodes"):
        batch.act(states[0][:2])
    batch.reset()
    assert np.allclose(batch.act(states[0]), together[0])


def test_single_episodes_of_a_batch_can_be_forgotten(clone_model):
    _, model = clone_model
    states = np.random.default_rng(0).normal(size=(5, 2, 1))
    batch, one, other = model.policy(), model.policy(), model.policy()
    batch.reset(np.array([True, False]))  # Before the first observation there is nothing to forget.
    for step, seen in enumerate(states):
        if step == 3:
            batch.reset(np.array([False, True]))
            other.reset()
        acted = batch.act(seen)
        assert np.allclose(acted[0], one.act(seen[0]), atol=1e-6)
        assert np.allclose(acted[1], other.act(seen[1]), atol=1e-6)
    with pytest.raises(DataError, match="one truth value for each of the 2 episodes"):
        batch.reset(np.array([0, 1]))


def test_a_policy_refuses_what_it_was_not_made_for(clone_model):
    import gymnasium

    demos, model = clone_model
    with pytest.raises(DataError, match=r"a batch \(n, d\), got \(2, 3, 1\)"):
        model.policy().act(np.zeros((2, 3, 1)))
    with pytest.raises(DataError, match=r"Box of 1 numbers .* got Discrete\(2\)"):
        model.policy(gymnasium.spaces.Discrete(2))
    with pytest.raises(DataError, match="must have 5 columns as in fit, got 4"):
        model.predict(np.zeros((2, 4)))
    with pytest.raises(DataError, match="learnt from 1 observed and 1 action columns, got 2 and 1"):
        model.action_error([Trajectory(np.zeros((5, 2)), np.zeros(4))])
    with pytest.raises(DataError, match="windows of at least 3 steps"):
        model.predict_windows(history_windows(demos, 2))
    with pytest.raises(DataError, match="learnt from 1 observed columns, got an observation of 2"):
        model.policy().act(np.zeros(2))
    with pytest.raises(DataError, match="must be finite, got nan in column 0 of row 1"):
        model.policy().act(np.array([[0.0], [np.nan]]))
    with pytest.raises(DataError, match="an array of numbers, got 'left'"):
        model.policy().act("left")
    with pytest.raises(NotFittedError, match="fit"):
        BehaviourCloning().policy()


def test_saved_policies_act_alike(clone_model, tmp_path):
    demos, model = clone_model
    model.policy().save(tmp_path / "model")
    again = prudent.load(tmp_path / "model")
    assert type(again) is SequenceCloning
    assert again.train == BRIEF
    assert again.action_error(demos) == pytest.approx(model.action_error(demos), rel=1e-6)


def test_bad_settings_and_data_are_refused(short_noise):
    few = short_noise[:4]
    for model, message in (
        (CausalImitation(noise_horizon=0), "noise_horizon must be a whole number of at least 1"),
        (CausalImitation(noise_horizon=2, window=2), "window must be a whole number of at least 3"),
        (
            CausalImitation(noise_horizon=2, policy_states=7, window=6),
            "as far back as the policy sees: at least 7 with",
        ),
        (CausalImitation(noise_horizon=1, relative=(4,)), "relative names column 4"),
        (CausalImitation(noise_horizon=1, relative=0), "relative must be a tuple of column numbers, got 0"),
        (BehaviourCloning(relative=(0.5,)), "every column in relative must be a whole number"),
        (CausalImitation(TwoStage(), noise_horizon=1, policy_states=4, policy_actions=3), "not see all of the instr"),
        (CausalImitation(noise_horizon=600), "at least two episodes of more than 600 steps"),
        (CausalImitation(DMLCMR(n_folds=0), noise_horizon=1), "n_folds must be a whole number of at least 1, got 0"),
        (
            CausalImitation(DMLCMR(n_folds=10), noise_horizon=1),
            "n_folds=10 needs at least two episodes per fold, got 4 .* Lower n_folds to at most 2",
        ),
        (CausalImitation(DMLCMR(correction_terms=np.sin), noise_horizon=1), "are not for demonstrations"),
        (CausalImitation(noise_horizon=1, correction="curved"), "correction must be one of network, straight"),
        (SequenceCloning(window=0), "window must be"),
        (ResiduIL(noise_horizon=0), "noise_horizon must be"),
        (ResiduIL(noise_horizon=1, towards="zero"), "towards must be"),
    ):
        with pytest.raises(DataError, match=message):
            model.fit(few)
    with pytest.raises(TypeError, match="moment estimator"):
        CausalImitation("DMLCMR", noise_horizon=1).fit(few)
    constant = [Trajectory(np.ones(60), np.arange(59.0)) for _ in range(3)]
    with pytest.raises(DataError, match="never vary"):
        BehaviourCloning().fit(constant)
    with pytest.raises(DataError, match="at least one trajectory"):
        BehaviourCloning().fit([])
    for model, message in (
        (
            CausalImitation(noise_horizon=1),
            "two episodes of more than 1 steps are needed, got 1 among 1 .* Bring more episodes",
        ),
        (BehaviourCloning(), "at least two episodes are needed, got 1"),
    ):
        with pytest.raises(DataError, match=message):
            model.fit(few[:1])


def test_a_fit_that_fails_leaves_the_earlier_one_as_it_was():
    demos = linear_demos(1, episodes=6, steps=60)
    model = CausalImitation(TwoStageLeastSquares(), noise_horizon=1, policy_states=2).fit(demos)
    windows = history_windows(demos, model.policy_view.length)
    before = model.predict_windows(windows)
    wide = [Trajectory(np.ones((61, 2)), t.actions) for t in demos]
    model.policy_states = 3
    with pytest.raises(DataError, match="never vary"):
        model.fit(wide)
    assert np.array_equal(model.predict_windows(windows), before)


def test_a_model_of_another_kind_is_not_replaced(clone_model, tmp_path):
    model = clone_model[1]
    design = prudent.datasets.make_linear_gaussian(50, seed=0)
    prudent.IVRegression(TwoStageLeastSquares()).fit(**design.roles()).save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"another kind of model \(IVRegression, not SequenceCloning\)"):
        model.save(tmp_path / "model")
    model.save(tmp_path / "policy")
    model.save(tmp_path / "policy")


def test_a_diagnosis_survives_json_and_says_what_is_not_known():
    some = MomentError(0.5, 0.1, 100)
    unknown = ImitationDiagnosis(100, 3, (float("nan"),), "made", None, some)
    again = ImitationDiagnosis.from_json(json.loads(json.dumps(unknown.to_json(), allow_nan=False)))
    assert str(again) == str(unknown)
    assert unknown.weakest_f is None
    assert "too few episodes" in str(unknown)
    assert "not measured" in str(unknown)
    assert "audited folds" in str(ImitationDiagnosis(100, 3, (30.0,), None, some, some))
    assert "something speaks against it" in str(ImitationDiagnosis(100, 3, (3.0,), "diverged", some, some))
    assert "DMLCMR and KernelCMR measure it" in str(ImitationDiagnosis.of(TwoStage(), 100, 3))


@pytest.mark.filterwarnings("ignore:weak instrument")
def test_cloning_for_want_of_evidence_is_told(quick_estimator):
    rng = np.random.default_rng(0)
    noise = [Trajectory(rng.normal(size=41), rng.normal(size=40)) for _ in range(6)]
    with pytest.warns(UserWarning, match="plain cloning, for want of evidence"):
        model = CausalImitation(quick_estimator(), noise_horizon=2, seed=0).fit(noise)
    assert "the data cannot tell" in str(model.diagnose())


@pytest.mark.filterwarnings("ignore:weak instrument")  # Sixty steps are few.
def test_causal_imitation_fits_saves_and_loads(quick_estimator, tmp_path):
    demos = linear_demos(2, episodes=6, steps=60)
    model = CausalImitation(quick_estimator(), noise_horizon=2, seed=1).fit(demos)
    model.save(tmp_path / "model")
    again = prudent.load(tmp_path / "model")
    row = np.array([[0.5, -0.2]])
    assert np.allclose(again.predict(row), model.predict(row))
    assert again.noise_horizon == 2
    assert str(again.diagnose()) == str(model.diagnose())
    assert "instrument strength" in str(again.diagnose())
    # Its networks and training are not saved: a fit would be another one.
    with pytest.raises(DataError, match="a loaded model cannot be fitted again"):
        again.fit(demos)
    assert np.array_equal(again.predict(row), model.predict(row))
    assert np.allclose(
        CausalImitation(quick_estimator(), noise_horizon=2, seed=1).fit(demos).predict(row), model.predict(row)
    )


@pytest.mark.slow  # Two programs to compile.
@pytest.mark.parametrize("kind", [DFIV, DeepGMM])
def test_other_moment_estimators_fit_save_and_load(kind, tmp_path):
    demos = linear_demos(2, episodes=6, steps=60)
    brief = TrainConfig(batch_size=64, max_steps=40, evaluate_every=20)
    own = {"learning_rates": (1e-3,)} if kind is DeepGMM else {}
    estimator = kind(network=MLPSpec((8,)), n_functions=1, train=brief, **own)
    model = CausalImitation(estimator, noise_horizon=2, seed=1).fit(demos)
    model.save(tmp_path / "model")
    again = prudent.load(tmp_path / "model")
    assert type(again.estimator_) is kind
    assert again.action_error(demos) == pytest.approx(model.action_error(demos), rel=1e-6)


def test_strength_is_that_of_the_history_and_not_of_the_first_steps():
    rng, k = np.random.default_rng(1000), 8
    early = np.maximum(0.0, 4.0 - np.arange(41.0))  # The same in all episodes, gone before there is a history.
    forgetful = [Trajectory(early + rng.normal(size=41), rng.normal(size=40)) for _ in range(30)]
    state = np.cumsum(rng.normal(size=(30, 41)), axis=1)
    lasting = [Trajectory(s, rng.normal(size=40)) for s in state]
    for demos, is_strong in ((forgetful, False), (lasting, True)):
        windows = history_windows(demos, k + 3)
        c = instrument_columns(windows, View(3, 3, newest=k))
        (found,) = _strengths(windows.states[:, -1], [0], c, windows, k)
        assert (found.effective_f > 100) == is_strong
        assert (found.effective_f < 10) != is_strong
        few = windows.take(np.flatnonzero(windows.episode < 2))
        assert np.isnan(_strengths(windows.states[:, -1], [0], c, few, k)[0].effective_f)
    is_start = (windows.step == 0).astype(float)
    found = _strengths(np.column_stack([windows.states[:, -1], is_start]), [0, 1], c, windows, k)
    assert found[0].effective_f > 100
    assert np.isnan(found[1].effective_f)


def test_strength_of_dependent_rows():
    rng = np.random.default_rng(0)
    z, groups = rng.normal(size=12), np.repeat(np.arange(4), 3)
    a = z + rng.normal(size=12)
    found = partial_strength(a, z, np.zeros(12), groups=groups)
    z, a = z - z.mean(), a - a.mean()
    slope = z @ a / (z @ z)
    sums = [np.sum((z * (a - slope * z))[groups == g]) for g in range(4)]
    assert found.effective_f == pytest.approx(slope**2 / (4 / 3 * np.sum(np.square(sums)) / (z @ z) ** 2))


def test_a_weak_column_is_named():
    model = CausalImitation(noise_horizon=4)
    with pytest.warns(UserWarning, match=r"t - 4 hardly moves 1 of the 3 columns .* \(smallest effective F 2\.5,"):
        model._warn_if_weak([80.0, 2.5, 30.0, np.nan])
    with pytest.warns(UserWarning, match="strength of the instrument is unknown"):
        model._warn_if_weak([np.nan])
    model._warn_if_weak([80.0, 30.0])
    model._warn_if_weak([])


@pytest.mark.parametrize(("k", "n_states", "n_actions"), [(1, 4, 2), (2, 5, 0), (3, 2, 0)])
def test_relative_columns_are_the_same_everywhere(k, n_states, n_actions, tmp_path):
    rng = np.random.default_rng(0)
    demos = [Trajectory(np.cumsum(rng.normal(size=(41, 3)), axis=0), rng.normal(size=(40, 2))) for _ in range(8)]
    model = CausalImitation(
        TwoStageLeastSquares(),
        noise_horizon=k,
        policy_states=n_states,
        policy_actions=n_actions,
        window=k + 6,
        relative=(0, 2),
    ).fit(demos)
    windows = history_windows(demos, model._window_length())
    x = model._columns(windows.states, windows.actions, windows.step)
    # What the policy sees of the history stands in the instrument, too, so that it is taken as given.
    c = instrument_columns(windows, model._instrument_view)
    assert len(shared_columns(x, c)) == model.policy_view.is_history(k, 3, 2).sum()
    policy, wanted = model.policy(), model.predict_windows(history_windows([demos[2]], model.policy_view.length))
    for step in range(len(demos[2])):
        assert policy.act(demos[2].observations[step]) == pytest.approx(wanted[step])
        policy._actions[:, -1] = demos[2].actions[step]
    model.save(tmp_path / "model")
    again = prudent.load(tmp_path / "model")
    assert again.relative == (0, 2)
    assert np.array_equal(again.predict_windows(windows), model.predict_windows(windows))


def test_a_policy_runs_in_environments_that_restart_by_themselves():
    """The loop of docs/imitation.md: every episode is acted in as it would be alone."""
    import gymnasium

    demos = linear_demos(1, episodes=6, steps=60)
    model = CausalImitation(TwoStageLeastSquares(), noise_horizon=1, policy_states=3).fit(demos)
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda limit=limit: gymnasium.wrappers.TimeLimit(TicketPricing(closed_loop=True), limit) for limit in (4, 7)]
    )
    policy = model.policy(vector.action_space)
    alone = [model.policy(vector.single_action_space) for _ in range(2)]
    observations, _ = vector.reset(seed=0)
    ended = np.zeros(vector.num_envs, bool)
    n_ended = np.zeros(vector.num_envs, int)
    for _ in range(20):
        acted = policy.act(observations)
        for i in np.flatnonzero(~ended):
            assert acted[i] == pytest.approx(alone[i].act(observations[i]))
        was_ended = ended
        observations, _, terminated, truncated, _ = vector.step(acted)
        policy.reset(ended)  # an ended episode shows its new start one step later
        for i in np.flatnonzero(was_ended):
            assert observations[i] == 1.0
            alone[i].reset()
        ended = terminated | truncated
        n_ended += ended
    assert n_ended.tolist() == [4, 2]


def test_residuil_fits_and_acts(tmp_path):
    demos = linear_demos(1, episodes=4, steps=60)
    model = ResiduIL(noise_horizon=2, network=MLPSpec((8,)), n_networks=1, train=BRIEF).fit(demos)
    assert model.policy().act(np.zeros(1)).shape == (1,)
    model.save(tmp_path / "model")
    assert prudent.load(tmp_path / "model").train == BRIEF


def test_evaluation_of_the_expert_and_of_zero():
    from prudent.envs import ticket_expert
    from prudent.imitation import make_env

    env = make_env("TicketPricing-v0", noise_horizon=5)
    result = evaluate(lambda obs: np.zeros_like(obs), env, episodes=10, steps=100, seed=1000)
    lines = result.references
    assert result.mse == lines["zero"].mse
    assert result.score == lines["zero"].score
    assert lines["expert"].mse == 0.0
    assert lines["expert"].score == pytest.approx(1.0)
    assert lines["random"].score == pytest.approx(0.0)
    assert lines["noised expert"].mse_unclipped == pytest.approx(1.0, abs=0.3)
    assert 0.6 < lines["zero"].mse < 0.9
    assert "best history-free" in str(result)
    again = evaluate(lambda obs: np.zeros_like(obs), env, episodes=10, steps=100, seed=1000)
    assert again.reward == result.reward
    with pytest.raises(DataError, match=r"finite actions of shape \(2, 1\) for .* got \(1, 3\)"):
        evaluate(lambda obs: np.zeros((1, 3)), env, episodes=2, steps=3)
    with pytest.raises(DataError, match="got NaN or infinity"):
        evaluate(lambda obs: obs * np.nan, env, episodes=2, steps=3)
    assert repr(SequenceCloning(window=8)) == "SequenceCloning(n_networks=4, window=8, use_actions=True), not fitted"
    with pytest.raises(TypeError, match=r"got BehaviourCloning. Give its policy\(\)"):
        evaluate(BehaviourCloning(), env, episodes=2, steps=3)
    assert ticket_expert(np.array([[0.5, 0.0]])).tolist() == [[0.0]]


def test_evaluation_in_another_confounded_environment():
    import gymnasium

    from prudent.envs import ConfoundedWrapper

    env = ConfoundedWrapper(gymnasium.make("Pendulum-v1"), noise_horizon=2)
    expert = ConfoundedWrapper.expert(lambda state: -9.0 * state[..., -1:])  # beyond the action space, which ends at 2
    result = evaluate(lambda obs: np.zeros((len(obs), 1)), env, episodes=2, steps=5, seed=0, expert=expert)
    assert result.references["expert"].mse == 0.0
    with pytest.raises(DataError, match="brings no expert"):
        evaluate(lambda obs: np.zeros((len(obs), 1)), env, episodes=2, steps=5)
