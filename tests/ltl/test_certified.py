"""Certified learning: the statistics by exact sums, the values by linear programming, then whole runs."""

import itertools
import math

import gymnasium
import numpy as np
import pytest
from scipy.optimize import linprog

from prudent import envs, ltl
from prudent.bench.experiments.ltl_certified import PATROL, fill_book, is_wrong, patrol_grid, random_case
from prudent.ltl import _explore as ex
from prudent.ltl._book import foresee
from prudent.ltl._certified import Learner
from prudent.ltl._confidence import (
    bernoulli_interval,
    concentration,
    log_ratio,
    most_successors,
    slot_level,
    support_visits,
)
from prudent.ltl._interval import choice_values
from prudent.ltl._product import as_automaton, degeneralise
from prudent.ltl._source import ModelSource

GATE = envs.probabilistic_gate()
LAKE = envs.frozen_lake()


def certify(env, goal, **settings):
    settings = {"p_min": getattr(env, "minimum_probability", None), "seed": 1000, "progress": False} | settings
    return ltl.learn(env, goal, method="certified", **settings)


def learner_of(mdp, goal, **settings):
    source = ModelSource(mdp, degeneralise(as_automaton(goal)), 1000)
    settings = {"confidence": 0.95, "p_min": mdp.minimum_probability, "epsilon": 0.05, "gap": 0.05} | settings
    return Learner(source, resets=True, **settings)


# Supports.


def probability_of_exactly(p, j, m):
    """Probability that m draws show exactly j different outcomes, by inclusion and exclusion."""
    total = 0.0
    for chosen in itertools.combinations(range(len(p)), j):
        for size in range(j + 1):
            for kept in itertools.combinations(chosen, size):
                total += (-1) ** (j - size) * sum(p[i] for i in kept) ** m
    return total


@pytest.mark.parametrize("p_min", [0.5, 0.3, 0.2, 0.1])
def test_wrong_claims_about_supports_stay_within_their_share(p_min):
    share, most = 1e-3, most_successors(p_min, 100)
    needed = support_visits(p_min, most, share)
    rng = np.random.default_rng(1000)
    for k in range(2, min(most, 4) + 1):
        extra = rng.dirichlet(np.full(k, 0.3), size=5) * (1 - k * p_min)
        for p in [*(p_min + extra), np.array([p_min] * (k - 1) + [1 - (k - 1) * p_min])]:
            wrong = sum(probability_of_exactly(p, j, int(needed[j])) for j in range(1, k))
            assert wrong <= share
    # Not wasteful either: two successors need about log(1/share) / p_min visits.
    assert needed[1] <= 1.1 * math.log(1 / share) / -math.log1p(-p_min) + 2
    assert needed[most] == 1


def test_shares_of_intervals_sum_to_at_most_one():
    rows = sum(slot_level(1.0, i, 1, 2) for i in range(1, 20_000))
    assert 0.99 < rows <= 1.0
    places = sum(slot_level(1.0, 1, j, 10) for j in range(1, 1000)) / slot_level(1.0, 1, 1, 2)
    assert 0.99 < places <= 1.0


# Intervals.


@pytest.mark.parametrize("p", [0.03, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("n", [1, 7, 60])
def test_likelihood_ratio_has_mean_one(p, n):
    v = concentration(0.1)
    weights = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    mean = sum(w * math.exp(log_ratio(p, k, n, v)) for k, w in enumerate(weights))
    assert mean == pytest.approx(1.0, abs=1e-9)


def test_interval_ends_where_the_ratio_reaches_the_bar():
    v = concentration(0.05)
    low, high = bernoulli_interval(80, 100, 0.01, v)
    assert low < 0.8 < high
    for end in (low, high):
        assert log_ratio(end, 80, 100, v) == pytest.approx(math.log(100), abs=1e-6)
    assert bernoulli_interval(0, 50, 0.01, v)[0] == 0.0
    assert bernoulli_interval(50, 50, 0.01, v)[1] == 1.0
    assert bernoulli_interval(0, 0, 0.01, v) == (0.0, 1.0)


def test_intervals_hold_at_all_times_at_once():
    rng = np.random.default_rng(1000)
    v, level, misses, runs = concentration(0.05), 0.1, 0, 150
    for p in rng.uniform(0.05, 0.95, runs):
        k = np.cumsum(rng.random(600) < p)
        misses += any(log_ratio(p, int(k[n]), n + 1, v) >= -math.log(level) for n in range(600))
    assert misses <= level * runs + 3 * math.sqrt(level * (1 - level) * runs)


def test_foreseen_intervals_lie_within_the_present_ones():
    learner = learner_of(GATE, GATE.goal)
    fill_book(learner, GATE, 300, seed=1000)
    learner.plan()
    book, settings = learner.book, (learner.p_min, learner.interval_share, concentration(learner.epsilon))
    is_asked = np.ones(len(book.visits), np.bool_)
    is_asked[: GATE.n_actions] = False
    widths = []
    for times in (1, 2, 8):
        low, high = foresee(book, is_asked, *settings, times)
        assert np.all(low >= book.slot_low)
        assert np.all(high <= book.slot_high)
        widths.append((high - low).sum())
    assert widths[0] == pytest.approx((book.slot_high - book.slot_low).sum(), abs=1e-9)
    assert widths[0] > widths[1] > widths[2]


# Values.


def test_extreme_expectations_match_linear_programming():
    rng = np.random.default_rng(1000)
    for _ in range(30):
        n = int(rng.integers(2, 6))
        p, value = rng.dirichlet(np.ones(n)), rng.random(n)
        low, high = np.maximum(0, p - 0.2 * rng.random(n)), np.minimum(1, p + 0.2 * rng.random(n))
        arrays = (np.array([0, 1]), np.array([0, n]), np.arange(n), low, high, value)
        for sign in (-1.0, 1.0):
            answer = linprog(-sign * value, A_eq=np.ones((1, n)), b_eq=[1], bounds=list(zip(low, high, strict=True)))
            assert choice_values(*arrays, sign)[0] == pytest.approx(-sign * answer.fun, abs=1e-9)


def robust_reference(learner, sign, sweeps=400):
    """Value of (F a) & (G !c) at the start by plain iteration over the book, without quotient or product."""
    book, mdp = learner.book, learner.source.mdp
    rows = {}
    for slot in range(book.tally[0]):
        rows.setdefault(int(book.slot_row[slot]), []).append(
            (int(book.slot_state[slot]), book.slot_low[slot], book.slot_high[slot])
        )
    value = np.zeros(mdp.n_states) if sign < 0 else np.ones(mdp.n_states)

    def expectation(row):
        free = 1.0 - sum(low for _, low, _ in rows[row])
        total = sum(low * value[s] for s, low, _ in rows[row])
        for s, low, high in sorted(rows[row], key=lambda edge: -sign * value[edge[0]]):
            mass = min(free, high - low)
            total, free = total + mass * value[s], free - mass
        if not book.certified[row]:
            total += free if sign > 0 else 0.0
        return total

    for _ in range(sweeps):
        for s in range(mdp.n_states):
            if "c" in mdp.labels(s):
                value[s] = 0.0
            elif "a" in mdp.labels(s):
                value[s] = 1.0
            else:
                value[s] = max(expectation(s * mdp.n_actions + a) for a in mdp.available(s))
    return value[int(np.flatnonzero(mdp.initial)[0])]


def test_bounds_match_plain_iteration():
    # From 0 the actions reach a (state 2) or c (state 3) through state 1, with different odds.
    P = np.zeros((4, 2, 4))
    P[0, 0, [1, 2, 3]] = 0.5, 0.2, 0.3
    P[0, 1, [0, 1]] = 0.6, 0.4
    P[1, 0, [0, 2, 3]] = 0.3, 0.4, 0.3
    P[1, 1, [2, 3]] = 0.5, 0.5
    P[2, :, 2] = P[3, :, 3] = 1
    mdp = ltl.LabelledMDP.from_arrays(P, {"a": [2], "c": [3]})
    learner = learner_of(mdp, "(F a) & (G !c)")
    for visits in (60, 1000):
        learner = learner_of(mdp, "(F a) & (G !c)")
        fill_book(learner, mdp, visits, seed=1000)
        plan = learner.plan()
        # Reaching c after a also breaks the goal, but a is absorbing here.
        assert plan.lower == pytest.approx(robust_reference(learner, -1), abs=1e-5)
        assert plan.upper == pytest.approx(robust_reference(learner, 1), abs=1e-5)
        assert plan.lower < ltl.optimum(mdp, "(F a) & (G !c)") < plan.upper


def test_a_deterministic_model_is_known_exactly():
    mdp = envs.grid("...", {"a": [(0, 2)]})
    learner = learner_of(mdp, "G F a", p_min=0.5)
    fill_book(learner, mdp, 100, seed=1000)
    plan = learner.plan()
    assert (plan.lower, plan.upper, plan.policy_upper, plan.mode) == (1.0, 1.0, 1.0, "done")


# Whole runs.


def test_frozen_lake_is_certified_with_exactly_one():
    run = certify(LAKE, LAKE.goal)
    c = run.certificate
    assert (c.lower, c.policy_upper, c.upper, c.is_certified) == (1.0, 1.0, 1.0, True)
    assert c.steps < 50_000
    assert ltl.check(LAKE, run.policy, LAKE.goal) == 1.0
    assert run.curve.final == 1.0
    assert "confidence 0.95" in str(c)
    assert "0.333333" in c.assumption
    assert "policy in [1, 1]" in repr(run)
    assert run.visits.sum() + c.resets == c.steps


def test_gate_bounds_contain_the_truth_and_close():
    run = certify(GATE, GATE.goal, epsilon=0.2)
    c = run.certificate
    assert c.is_certified
    assert c.lower <= 0.8 <= c.upper <= c.lower + 0.2
    assert ltl.check(GATE, run.policy, GATE.goal) == pytest.approx(0.8)
    assert run.bounds.steps_to(0.2) == c.steps
    assert run.bounds.steps_to(0.2, of="policy") <= c.steps


def test_samples_go_to_the_row_that_the_bound_rests_on():
    # All four actions of the gate do the same. p_min alone bounds them from above, and one of them is enough below.
    run = certify(GATE, GATE.goal, evaluate=False)
    gate = int(np.flatnonzero([GATE.name(s) == "(2,0)" for s in range(GATE.n_states)])[0])
    assert run.visits[gate].max() > 0.75 * run.visits[gate].sum()
    assert run.certificate.steps < 10_000


@pytest.mark.parametrize("steps", [1, 30, 300, 3000])
def test_a_run_can_stop_at_any_step(steps):
    run = certify(GATE, GATE.goal, steps=steps)
    c = run.certificate
    assert c.steps == steps
    assert not c.is_certified
    assert "budget" in c.reason
    assert not is_wrong(c.lower, ltl.check(GATE, run.policy, GATE.goal), c.policy_upper, 0.8, c.upper)


def test_same_seed_same_run():
    runs = certify(GATE, GATE.goal, steps=2000, seed=[1000, 1001])
    again = certify(GATE, GATE.goal, steps=2000, seed=1001)
    assert np.array_equal(runs[1].visits, again.visits)
    assert not np.array_equal(runs[0].visits, again.visits)
    assert len(runs) == 2


def test_depth_is_the_expected_number_of_tries_from_the_start():
    learner = learner_of(envs.grid("~~~~", {"a": [(0, 3)]}, p=0.8), "G F a")
    fill_book(learner, learner.source.mdp, 1000, seed=1000)
    depth = learner.wishes.depth
    ex.depths(learner.book, learner.source.actions, 4, depth)
    # One reset, then moves to the right that succeed four times out of five.
    assert depth[:4] == pytest.approx(1 + 1.25 * np.arange(4), rel=0.05)
    ex.depths(learner.book, learner.source.actions, 2, depth)
    assert depth[:4] == pytest.approx(1.25 * np.array([2, 1, 0, 1]), rel=0.05)
    assert depth[4] == np.inf


def test_far_rooms_of_a_large_grid_are_left_alone():
    mdp = patrol_grid(40, 1001)
    assert ltl.optimum(mdp, PATROL) == 1.0
    run = certify(mdp, PATROL, steps=200_000, evaluate=False)
    assert (run.certificate.lower, run.certificate.is_certified) == (1.0, True)
    assert ltl.check(mdp, run.policy, PATROL) == 1.0
    n_draws = run.visits.sum(axis=1)
    assert (n_draws > 0).mean() < 0.5
    assert (n_draws >= 50).mean() < 0.25


@pytest.mark.filterwarnings("ignore:.*holds in no reachable state")
def test_bounds_are_true_and_shrink_on_random_models():
    rng = np.random.default_rng(1000)
    wrong = 0
    for _ in range(25):
        mdp, goal = random_case(rng)
        run = certify(mdp, goal, steps=int(rng.integers(50, 4000)), confidence=0.9, evaluate=False)
        c, b = run.certificate, run.bounds
        wrong += is_wrong(c.lower, ltl.check(mdp, run.policy, goal), c.policy_upper, ltl.optimum(mdp, goal), c.upper)
        assert np.all(np.diff(b.lower) >= -1e-12)
        assert np.all(np.diff(b.upper) <= 1e-12)
        assert np.all(b.policy_upper <= b.upper)
    # At most 10 % may fail; in truth far fewer do.
    assert wrong <= 2


def test_several_first_states_are_learnt():
    P = np.zeros((3, 1, 3))
    P[0, 0, 0] = P[1, 0, 1] = P[2, 0, 2] = 1
    mdp = ltl.LabelledMDP.from_arrays(P, {"a": [1]}, initial=[0.25, 0.75, 0.0])
    assert mdp.minimum_probability == 0.25
    run = certify(mdp, "F a", epsilon=0.1)
    c = run.certificate
    assert c.is_certified
    assert c.lower <= 0.75 <= c.upper
    # State 2 is never first: unreachable states cost nothing.
    assert run.visits[2].sum() == 0


def test_without_resets_the_first_state_is_certified():
    run = certify(LAKE, LAKE.goal, resets=False, steps=3000)
    assert run.certificate.resets == 1
    assert run.certificate.first_state == "(0,0)"
    ring = envs.grid("...", {"a": [(0, 2)]})
    c = certify(ring, "G F a", p_min=0.5, resets=False).certificate
    assert (c.lower, c.upper, c.resets) == (1.0, 1.0, 1)
    assert "from state (0,0)" in str(c)
    # The first move decides, and it cannot be taken back.
    P = np.zeros((3, 2, 3))
    P[0, 0, 1] = P[0, 1, 2] = P[1, :, 1] = P[2, :, 2] = 1
    once = ltl.LabelledMDP.from_arrays(P, {"a": [2]})
    c = certify(once, "F a", p_min=0.5, resets=False).certificate
    assert not c.is_certified
    assert "reached" in c.reason


def test_a_policy_whose_memory_commits_is_not_undervalued():
    # F G a needs an epsilon move, and the policy takes it.
    mdp = envs.grid("..", {"a": [(0, 1)]})
    c = certify(mdp, "F G a", p_min=0.5).certificate
    assert (c.lower, c.policy_upper, c.upper) == (1.0, 1.0, 1.0)


def test_an_impossible_goal_is_certified_with_zero():
    mdp = envs.grid("..", {"a": [(0, 1)], "b": [(0, 0)]})
    c = certify(mdp, "G (a & b)", p_min=0.5).certificate
    assert (c.lower, c.upper, c.is_certified) == (0.0, 0.0, True)


def test_too_large_p_min_is_noticed():
    P = np.zeros((4, 1, 4))
    P[0, 0, [1, 2, 3]] = 0.4, 0.4, 0.2
    P[1:, 0, 0] = 1
    mdp = ltl.LabelledMDP.from_arrays(P, {"a": [1]})
    with pytest.warns(UserWarning, match="more than 2 successors"):
        c = certify(mdp, "G F a", p_min=0.5).certificate
    assert (c.lower, c.upper, c.is_certified) == (0.0, 1.0, False)
    assert "No guarantee" in str(c)
    # One rare successor: found late, or found to be rare.
    P = np.zeros((4, 1, 4))
    P[0, 0, [1, 2, 3]] = 0.5, 0.47, 0.03
    P[[1, 2, 3], 0, [1, 2, 3]] = 1
    rare = ltl.LabelledMDP.from_arrays(P, {"a": [1]})
    with pytest.warns(UserWarning, match="after its support counted|rarer than p_min|exclude each other"):
        c = certify(rare, "F a", p_min=0.3, epsilon=0.01).certificate
    assert c.upper == 1.0


# Gymnasium.

CELLS = "SFFFFHFHFFFHHFFG"


def lake_label(state):
    return {"goal"} if CELLS[state] == "G" else {"hole"} if CELLS[state] == "H" else set()


def test_gymnasium_environment_through_reset_and_step_only():
    env = gymnasium.make("FrozenLake-v1", is_slippery=False, max_episode_steps=50)
    goal = "(F goal) & (G !hole)"
    run = certify(env, goal, p_min=0.5, label=lake_label)
    assert (run.certificate.lower, run.certificate.upper) == (1.0, 1.0)
    assert run.curve is None
    model = ltl.LabelledMDP.from_gymnasium(env, lake_label)
    assert ltl.check(model, run.policy, goal) == 1.0
    # The path ends in the goal, which then holds for ever; this is known and not sampled.
    assert certify(env, "F G goal", p_min=0.5, label=lake_label).certificate.lower == 1.0


def test_gymnasium_input_is_checked():
    env = gymnasium.make("FrozenLake-v1")
    with pytest.raises(ValueError, match="label="):
        certify(env, "F goal", p_min=0.3)
    with pytest.raises(TypeError, match="Discrete"):
        certify(gymnasium.make("CartPole-v1"), "F goal", p_min=0.3, label=lake_label)


# Checkpoints, input, pictures.


def test_checkpoint_continues_a_run(tmp_path):
    file = tmp_path / "run.npz"
    first = certify(GATE, GATE.goal, steps=1500, checkpoint=file)
    assert first.certificate.steps == 1500
    with pytest.raises(ValueError, match="exists"):
        certify(GATE, GATE.goal, steps=3000, checkpoint=file)
    with pytest.raises(ValueError, match="another goal"):
        certify(GATE, "F a", steps=3000, checkpoint=file, resume=True)
    second = certify(GATE, GATE.goal, steps=3000, checkpoint=file, resume=True)
    assert second.certificate.steps == 3000
    assert np.all(second.visits >= first.visits)
    n = len(first.bounds.steps)
    assert np.array_equal(second.bounds.upper[:n], first.bounds.upper)
    assert second.certificate.upper <= first.certificate.upper
    # Where nothing is left to do, nothing is done.
    third = certify(GATE, GATE.goal, steps=3000, checkpoint=file, resume=True)
    assert np.array_equal(third.visits, second.visits)
    file.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        certify(GATE, GATE.goal, steps=3000, checkpoint=file, resume=True)


class Coin(gymnasium.Env):
    """One toss, then over."""

    observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 1 + int(self.np_random.random() < 0.5), 0.0, True, False, {}


def toss_label(observation):
    return {"a"} if observation == 2 else set()


def test_resuming_does_not_count_old_draws_again(tmp_path):
    """An environment that were reseeded by every resume would show the same tosses again and again."""
    wrong = 0
    for seed in range(1000, 1006):
        for part in range(1, 16):
            run = certify(
                Coin(),
                "F a",
                p_min=0.2,
                label=toss_label,
                steps=40 * part,
                seed=seed,
                checkpoint=tmp_path / f"{seed}.npz",
                resume=True,
            )
        wrong += not run.certificate.lower <= 0.5 <= run.certificate.upper
    assert wrong == 0


def test_a_checkpoint_belongs_to_one_model_and_seed(tmp_path):
    file, continued = tmp_path / "run.npz", {"steps": 300, "resume": True}
    P = np.zeros((2, 1, 2))
    P[0, 0], P[1, 0] = [0.5, 0.5], [0, 1]
    model = ltl.LabelledMDP.from_arrays(P, {"a": [1]})
    P[0, 0] = [0.25, 0.75]
    other = ltl.LabelledMDP.from_arrays(P, {"a": [1]})
    certify(model, "F a", p_min=0.2, steps=20, checkpoint=file)
    for env, seed in ((model, 7), (other, 1000)):
        with pytest.raises(ValueError, match="another goal, environment, seed"):
            certify(env, "F a", p_min=0.2, seed=seed, checkpoint=file, **continued)
    for damage in (b"", file.read_bytes()[:100]):
        file.write_bytes(damage)
        with pytest.raises(ValueError, match="is not a checkpoint"):
            certify(model, "F a", p_min=0.2, checkpoint=file, **continued)


def test_without_resets_learning_ends_where_nothing_can_be_reached():
    P = np.zeros((4, 1, 4))
    P[0, 0, [1, 2]] = P[1, 0, [0, 3]] = P[2, 0, [0, 2]] = 0.5
    P[3, 0, 3] = 1
    mdp = ltl.LabelledMDP.from_arrays(P, {"a": [3], "h": [2]})
    for seed in range(10):
        run = certify(mdp, "(F a) & (G !h)", p_min=0.35, epsilon=0.02, resets=False, seed=seed, steps=5000)
        assert run.certificate.steps <= 5000


def test_bounds_are_rounded_outwards():
    from prudent.ltl._certificate import rounded_down, rounded_up

    assert (rounded_down(0.99996), rounded_up(0.00004)) == ("0.9999", "0.0001")
    assert (rounded_down(1.0), rounded_up(0.0)) == ("1", "0")


def test_the_likelihood_ratio_keeps_its_digits_for_small_epsilon():
    for epsilon in (0.05, 1e-3, 1e-6):
        v = concentration(epsilon)
        mean = sum(math.exp(log_ratio(0.5, k, 20, v)) * math.comb(20, k) * 0.5**20 for k in range(21))
        assert mean == pytest.approx(1.0, abs=1e-5)


def test_labels_are_sets_of_names():
    with pytest.raises(TypeError, match="label must return the propositions"):
        certify(Coin(), "F a", p_min=0.2, label=lambda observation: "a", steps=10)
    with pytest.warns(UserWarning, match="true in no state seen: gaol"):
        certify(Coin(), "F gaol", p_min=0.2, label=toss_label, steps=5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"p_min": None}, "needs p_min"),
        ({"epsilon": 1e-9}, "epsilon must be below 1 and at least 1e-06"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({"p_min": 0.0}, "p_min must be in"),
        ({"p_min": 1.5}, "p_min must be in"),
        ({"confidence": 1.0}, "confidence must be"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"gap": 1.0}, "gap must be"),
        ({"steps": 0}, "steps must be"),
        ({"seed": []}, "seed needs"),
        ({"resume": True}, "checkpoint"),
        ({"label": lake_label}, "label is for Gymnasium"),
        ({"seed": [1, 2], "checkpoint": "x.npz"}, "one run"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        certify(GATE, GATE.goal, **settings)


def test_unknown_propositions_are_refused():
    with pytest.raises(ValueError, match="uses 'z'"):
        certify(GATE, "F z")


def test_pictures():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    run = certify(GATE, GATE.goal, steps=500)
    assert run.plot().get_xlabel() == "steps"
    assert run.plot_visits(GATE).images
    assert run.plot_visits().patches
    plt.close("all")
