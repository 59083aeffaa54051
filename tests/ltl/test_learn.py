"""The learners: update rules on models small enough to follow by hand, then learning on the three tasks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prudent import envs, ltl
from prudent.ltl._kernels import (
    UNSTARTED,
    Rates,
    greedy_actions,
    make_q,
    make_tables,
    run_counter,
    run_hahn,
    run_hasanbeig,
)
from prudent.ltl._product import build_product
from prudent.ltl._rewards import reward_table, sufficient_bounds
from prudent.ltl._rng import below, next_word, seed_state, uniform

METHODS = ("kc", "cf", "cf+kc", "bozkurt", "hahn", "hasanbeig")
GATE = envs.probabilistic_gate()
GATE_FORMULA = GATE.goal


def edges(*rows):
    return [[ltl.Edge(ltl.parse(g), t, frozenset(s)) for g, t, s in row] for row in rows]


def loop(labels=frozenset("a")):
    """One state, one action."""
    return ltl.LabelledMDP.from_arrays([[[1.0]]], [labels], propositions=["a", "b"])


VISIT_A = ltl.Automaton(("a",), 0, edges([("a", 0, [0]), ("!a", 0, [])]), [()])
# Automaton state 1 accepts on a, state 0 does not; both stay where they are.
TWO_VIEWS = ltl.Automaton(("a",), 0, edges([("true", 0, [])], [("a", 1, [0]), ("!a", 1, [])]), [(), ()])


class Bench:
    """A kernel with its working arrays."""

    def __init__(self, mdp, automaton, value, *, alpha=0.5, explore=0.0, gamma=0.9, length=1000, patience=-1, seed=0):
        self.product = build_product(mdp, automaton, strict=False)
        self.tables = make_tables(self.product)
        self.rates = Rates(alpha, explore, gamma, length, patience)
        self.q, self.best = make_q(self.product, value)
        self.position = np.array([UNSTARTED, 0, 0, 0, 0])
        self.rng = seed_state(seed)

    def counter(self, n, rewards, is_counterfactual=False):
        rest = (self.q, self.best, self.position, self.rng, rewards, is_counterfactual)
        run_counter(n, self.tables, self.rates, *rest)

    def hahn(self, n, zeta):
        run_hahn(n, self.tables, self.rates, self.q, self.best, self.position, self.rng, zeta)

    def hasanbeig(self, n):
        run_hasanbeig(n, self.tables, self.rates, self.q, self.best, self.position, self.rng)


def test_generator_is_xoshiro256pp():
    mask = (1 << 64) - 1

    def rotate(x, k):
        return ((x << k) | (x >> (64 - k))) & mask

    state = seed_state(12345)
    s = [int(x) for x in state]
    for _ in range(20):
        expected = (rotate((s[0] + s[3]) & mask, 23) + s[0]) & mask
        t = (s[1] << 17) & mask
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotate(s[3], 45)
        assert int(next_word(state)) == expected


def test_draws_are_uniform():
    state = seed_state(1)
    draws = np.array([uniform(state) for _ in range(20_000)])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 4 * np.sqrt(1 / 12 / 20_000)
    counts = np.bincount([below(state, 5) for _ in range(20_000)], minlength=5)
    assert np.all(np.abs(counts - 4000) < 4 * np.sqrt(20_000 * 0.2 * 0.8))


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("linear", [0.025, 0.05, 0.075, 0.1]),
        ("constant", [0.1, 0.1, 0.1, 0.1]),
        ("exponential", [0.0125, 0.025, 0.05, 0.1]),
        ("decreasing", [0.1, 0.075, 0.05, 0.025]),
    ],
)
def test_reward_families_stay_in_the_allowed_range(family, expected):
    table = reward_table(family, 0.1, 3)
    assert table == pytest.approx(expected)
    assert np.all(table > 0)
    assert np.all(table <= 0.1)


def test_kc_update_by_hand():
    bench = Bench(loop(), VISIT_A, 0.2, alpha=0.5)
    bench.counter(2, reward_table("linear", 0.1, 1))  # R_0 = 0.05, R_1 = 0.1
    first = 0.2 + 0.5 * (0.05 + 0.95 * 0.2 - 0.2)
    second = first + 0.5 * (0.1 + 0.9 * first - first)
    assert bench.q[0, 0, 0] == pytest.approx(second, abs=1e-15)
    assert bench.position[2] == 1  # the counter is capped at K


def test_steps_without_acceptance_are_discounted_by_gamma():
    bench = Bench(loop(frozenset()), VISIT_A, 0.2, alpha=0.5, gamma=0.9)
    bench.counter(1, reward_table("linear", 0.1, 1))
    assert bench.q[0, 0, 0] == pytest.approx(0.2 + 0.5 * (0.9 * 0.2 - 0.2), abs=1e-15)
    assert bench.position[2] == 0


def test_rewarded_steps_are_discounted_too_when_asked():
    run = ltl.learn(
        loop(),
        VISIT_A,
        method="bozkurt",
        U=0.1,
        gamma=0.9,
        discount_rewarded=True,
        steps=50_000,
        seed=0,
        progress=False,
    )
    assert run.settings.discount_rewarded
    bench = Bench(loop(), VISIT_A, 0.2, alpha=0.5, gamma=0.9)
    bench.rates = bench.rates._replace(gamma_rewarded=0.9)
    bench.counter(200, reward_table("constant", 0.1, 0))
    assert bench.q[0, 0, 0] == pytest.approx(0.1 / (1 - 0.9 * 0.9))


def test_counterfactual_steps_teach_every_automaton_state():
    bench = Bench(loop(), TWO_VIEWS, 0.2, alpha=0.5, gamma=0.9)
    bench.counter(1, reward_table("constant", 0.1, 0), True)
    assert bench.q[0, 0, 0] == pytest.approx(0.2 + 0.5 * (0.9 * 0.2 - 0.2))
    assert bench.q[0, 1, 0] == pytest.approx(0.2 + 0.5 * (0.1 + 0.9 * 0.2 - 0.2))
    plain = Bench(loop(), TWO_VIEWS, 0.2, alpha=0.5, gamma=0.9)
    plain.counter(1, reward_table("constant", 0.1, 0), False)
    assert plain.q[0, 1, 0] == 0.2


def test_epsilon_moves_keep_the_state_and_pay_nothing():
    jump = ltl.Automaton(("a",), 0, edges([("true", 0, [])], [("a", 1, [0]), ("!a", 1, [])]), [(1,), ()])
    bench = Bench(loop(), jump, 0.2, alpha=0.5, gamma=0.9)
    bench.q[0, 0, 0], bench.best[0, 0] = 0.1, 0.2  # the epsilon slot is the best one
    bench.counter(1, reward_table("constant", 0.1, 0))
    assert bench.position[:3].tolist() == [0, 1, 0]
    assert bench.q[0, 0, 1] == pytest.approx(0.2 + 0.5 * (0.9 * 0.2 - 0.2))


def test_hahn_ends_the_episode_with_reward_one():
    bench = Bench(loop(), VISIT_A, 0.0, alpha=0.5)
    bench.hahn(1, zeta=0.0)
    assert bench.q[0, 0, 0] == 0.5
    assert bench.position[0] == UNSTARTED
    never = Bench(loop(), VISIT_A, 0.0, alpha=0.5)
    never.hahn(100, zeta=1.0)
    assert never.q[0, 0, 0] == 0.0
    assert never.position[0] == 0


def test_hahn_converges_to_probability_one_in_an_accepting_loop():
    bench = Bench(loop(), VISIT_A, 0.0, alpha=0.1)
    bench.hahn(50_000, zeta=0.9)
    assert bench.q[0, 0, 0] == pytest.approx(1.0, abs=1e-3)


def test_hasanbeig_discounts_rewarded_steps_only():
    bench = Bench(loop(), VISIT_A, 0.0, alpha=0.5, gamma=0.9)
    bench.hasanbeig(2)
    assert bench.q[0, 0, 0] == pytest.approx(0.5 + 0.5 * (1 + 0.9 * 0.5 - 0.5))
    silent = Bench(loop(frozenset()), VISIT_A, 0.0, alpha=0.5, gamma=0.9)
    silent.q[0, 0, 0] = silent.best[0, 0] = 0.4
    silent.hasanbeig(3)
    assert silent.q[0, 0, 0] == pytest.approx(0.4)


def test_hasanbeig_frontier_drops_visited_sets_and_refills():
    both = ltl.Automaton(
        ("a", "b"),
        0,
        edges([("a & !b", 0, [0]), ("b & !a", 0, [1]), ("a & b", 0, [0, 1]), ("!a & !b", 0, [])]),
        [()],
        n_sets=2,
    )
    bench = Bench(loop(), both, 0.0, alpha=1.0, gamma=0.5)
    bench.hasanbeig(3)  # only set 0 is ever visited: one reward, then the frontier waits for set 1
    assert bench.q[0, 0, 0] == 1.0
    assert bench.position[2] == 0b10
    full = Bench(loop(frozenset("ab")), both, 0.0, alpha=1.0, gamma=0.5)
    full.hasanbeig(2)
    assert full.q[0, 0, 0] == 1.5
    assert full.position[2] == 0b11


@pytest.mark.parametrize(("length", "patience", "age"), [(7, -1, 6), (1000, 4, 0), (1000, -1, 20)])
def test_episodes_are_cut_by_length_and_by_patience(length, patience, age):
    bench = Bench(loop(frozenset()), VISIT_A, 0.2, length=length, patience=patience)
    bench.counter(20, reward_table("constant", 0.1, 0))
    # 20 steps: two full episodes of 7 and 6 steps; or four episodes of patience + 1 = 5 steps, the last just cut.
    assert (0 if bench.position[0] == UNSTARTED else bench.position[3]) == age


def test_exploration_draws_every_action_that_exists():
    bench = Bench(GATE, VISIT_A, 0.2, explore=1.0, length=5)
    before = bench.q.copy()
    bench.counter(5000, reward_table("constant", 0.1, 0))
    start = (GATE.state_names or ()).index("(1,0)")
    assert np.all(bench.q[start, 0, :4] != before[start, 0, :4])
    assert np.all(np.isinf(bench.q[0, 0, [0, 1, 3]]))
    assert np.isfinite(bench.q[0, 0, 2])


@settings(derandomize=True, deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.booleans())
def test_cached_maxima_stay_exact(seed, is_counterfactual):
    mdp = envs.random_mdp(6, 3, ["a", "b"], seed)
    bench = Bench(mdp, ltl.translate(ltl.parse("F G a | G F b")), 0.2, explore=0.3, length=20, seed=seed)
    bench.counter(500, reward_table("linear", 0.1, 3), is_counterfactual)
    assert np.array_equal(bench.best, bench.q.max(axis=2))


def test_transitions_are_sampled_with_their_probability():
    table = np.zeros((2, 1, 2))
    table[0, 0] = [0.7, 0.3]
    table[1, 0] = [1, 0]
    mdp = ltl.LabelledMDP.from_arrays(table, {"a": [1]})
    # With alpha = 1/t-like averaging impossible, count acceptances: leaving state 1 accepts once for each visit.
    bench = Bench(mdp, VISIT_A, 0.2, length=10**9)
    rewards = np.full(200_000, 0.1)
    bench.counter(100_000, rewards)
    visits = bench.position[2]
    assert abs(visits / 100_000 - 0.3 / 1.3) < 0.01


def test_wide_rows_are_sampled_by_bisection():
    n = 40
    table = np.full((n, 1, n), 1 / n)
    mdp = ltl.LabelledMDP.from_arrays(table, {"a": [0, n - 1]}, initial=np.full(n, 1 / n))
    bench = Bench(mdp, VISIT_A, 0.2, length=10)
    bench.counter(40_000, np.full(40_001, 0.1))
    assert np.all(bench.q[:, 0, 0] != 0.2)


def test_greedy_policies_take_the_first_of_equal_actions():
    q_table = np.array([[[0.1, 0.3, 0.3], [-np.inf, 0.2, 0.5]]])
    action = np.zeros((1, 2), np.int32)
    greedy_actions(q_table, np.array([[-1], [0]], np.int32), 2, action)
    assert action.tolist() == [[1, 2]]


@pytest.mark.parametrize("method", METHODS)
def test_runs_repeat_and_end_with_what_check_says(method):
    first, second = (ltl.learn(GATE, GATE_FORMULA, method=method, steps=60_000, seed=3) for _ in range(2))
    assert np.array_equal(first.curve.probability, second.curve.probability)
    assert np.array_equal(first.policy.choices, second.policy.choices)
    assert first.curve.steps.tolist() == [0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000]
    assert first.curve.final == ltl.check(GATE, first.policy, GATE_FORMULA)
    assert first.settings.method == method
    assert first.settings.zeta == 0.995


def test_many_seeds_do_not_depend_on_threads():
    one = ltl.learn(GATE, GATE_FORMULA, steps=50_000, seed=[0, 1, 2], n_jobs=1)
    two = ltl.learn(GATE, GATE_FORMULA, steps=50_000, seed=[0, 1, 2], n_jobs=3)
    alone = ltl.learn(GATE, GATE_FORMULA, steps=50_000, seed=1)
    assert np.array_equal(one.curve.probability, two.curve.probability)
    assert np.array_equal(one[1].policy.choices, alone.policy.choices)
    assert len(one) == 3
    assert one.curve.deviation is not None


def test_kc_with_no_counter_is_bozkurt():
    kc = ltl.learn(GATE, GATE_FORMULA, method="kc", K=0, steps=100_000, seed=5)
    bozkurt = ltl.learn(GATE, GATE_FORMULA, method="bozkurt", steps=100_000, seed=5)
    assert np.array_equal(kc.policy.choices, bozkurt.policy.choices)


def test_cf_kc_learns_the_gate():
    runs = ltl.learn(GATE, GATE_FORMULA, method="cf+kc", steps=1_500_000, seed=range(4))
    assert np.mean(runs.curve.probability[-30:]) > 0.6  # published mean: 0.75
    assert max(runs.curve.probability) == pytest.approx(0.8)


def test_office_world_is_learnt():
    office = envs.office_world()
    run = ltl.learn(office, office.goal, steps=600_000, seed=1)
    assert run.curve.probability.max() == 1.0


def test_discount_bias_of_the_frozen_lake():
    lake = envs.frozen_lake()
    goal = ltl.translate(ltl.parse(lake.goal))
    assert ltl.reward_optimum(lake, goal, gamma=0.99) < 0.85
    assert ltl.reward_optimum(lake, goal, gamma=0.9999) == pytest.approx(1.0)
    needed = ltl.needed_gamma(lake, goal, tolerance=0.01)
    assert needed is not None
    assert 0.99 < needed < 0.9999


def test_automatic_gamma_removes_the_bias():
    lake = envs.frozen_lake()
    runs = ltl.learn(lake, lake.goal, gamma="auto", seed=range(4))
    assert runs.settings.gamma == pytest.approx(sufficient_bounds(64, 1 / 3).gamma)
    assert np.median(runs.curve.probability[-20:]) > 0.99
    assert pytest.approx(1 / 192) == ltl.learn(lake, lake.goal, U="auto", steps=1).settings.U


def test_several_acceptance_sets_are_learnt():
    both = ltl.Automaton(
        ("a", "b"),
        0,
        edges([("a & b", 0, [0, 1]), ("a & !b", 0, [0]), ("!a & b", 0, [1]), ("!a & !b", 0, [])]),
        [()],
        n_sets=2,
    )
    mdp = envs.grid("....", {"a": [(0, 0)], "b": [(0, 3)]})
    for method in ("cf+kc", "kc"):
        run = ltl.learn(mdp, both, method=method, steps=100_000, seed=0, episode_length=100)
        assert run.curve.final == 1.0
    # One memory state cannot alternate between two places: that is why the others get a level counter.
    assert ltl.learn(mdp, both, method="hasanbeig", steps=20_000, seed=0).policy.automaton.n_states == 1


def test_curves_know_when_a_level_is_reached():
    curve = ltl.Curve(np.array([0, 10, 20, 30]), np.array([0.0, 0.9, 0.5, 0.9]))
    assert curve.first_at(0.8) == 10
    assert curve.steps_to(0.8) == 30
    assert curve.first_at(0.95) is None
    assert curve.steps_to(0.95) is None
    assert curve.steps_to(0.0) == 0


def test_results_draw_themselves():
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    runs = ltl.learn(GATE, GATE_FORMULA, steps=20_000, seed=[0, 1])
    assert runs.plot().get_ylabel() == "satisfaction probability"
    assert len(runs[0].plot().lines) == 1
    plt.close("all")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "sarsa"}, "method must be one of kc, cf, cf"),
        ({"reward": "cubic"}, "reward must be one of linear"),
        ({"U": 1.5}, r"U must be in \(0, 1\], got 1.5"),
        ({"U": "big"}, "U must be a number or 'auto'"),
        ({"gamma": 0.0}, "gamma must be in"),
        ({"alpha": 0}, "alpha must be in"),
        ({"epsilon": 2}, "epsilon must be in"),
        ({"zeta": -1.0}, "zeta must be in"),
        ({"K": -1}, "K must not be negative"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"episode_length": 0}, "episode_length must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"seed": []}, "seed needs one or more distinct integers"),
        ({"seed": [1, 1]}, "seed needs one or more distinct integers"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ltl.learn(GATE, GATE_FORMULA, **options)


def test_a_goal_of_the_wrong_kind_is_refused():
    with pytest.raises(TypeError, match="a goal is an LTL formula"):
        ltl.learn(GATE, 7)  # type: ignore[arg-type]


def test_a_model_without_task_has_general_defaults():
    mdp = envs.random_mdp(5, 2, ["a"], seed=1)
    settings = ltl.learn(mdp, "G F a | F G !a", steps=10, method="kc").settings
    assert (settings.K, settings.patience, settings.episode_length, settings.zeta) == (10, 300, 1000, 0.99)
    assert ltl.learn(mdp, "G F a | F G !a", steps=10, patience=None).settings.patience is None
