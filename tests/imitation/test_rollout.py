"""Demonstrations and evaluation: which environment runs, episodes that end early, reference lines, bad input."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import NormalizeObservation, TimeLimit, TransformObservation, TransformReward

from prudent import DataError
from prudent.envs import ConfoundedWrapper, EpisodeBatch, TicketPricing, TicketPricingBatch, ticket_expert
from prudent.imitation import demonstrate, evaluate, make_env, plot_rollout


class Ledge(gymnasium.Env):
    """Reward 1 per step; actions add up, and a sum above 3 is a fall."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float64)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = 0.0
        return np.array([self.x]), {}

    def step(self, action):
        self.x += float(action[0])
        return np.array([self.x]), 1.0, self.x > 3, False, {}


def ledge(**settings):
    return ConfoundedWrapper(Ledge(), u_o=lambda rng, n: np.zeros(n), state_noise=1e-3, **settings)


def stay(obs):
    return np.zeros((len(obs), 1))


def go(obs):
    return np.ones((len(obs), 1))


def test_an_episode_that_ends_is_shorter_and_says_so():
    fallen = demonstrate(ledge(), go, episodes=3, steps=10, seed=1000)
    assert [len(t) for t in fallen] == [4, 4, 4]
    assert all(t.terminated and len(t.hidden["u_e"]) == 5 for t in fallen)
    standing = demonstrate(ledge(), stay, episodes=2, steps=10, seed=1000)
    assert [(len(t), t.terminated) for t in standing] == [(10, False)] * 2


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_missing_steps_count_as_no_reward():
    result = evaluate(go, ledge(), episodes=3, steps=10, seed=1000, expert=stay)
    assert result.reward == pytest.approx(0.4)
    assert result.references["expert"].reward == 1.0
    # The distance to the expert is a mean over the steps that were taken.
    assert result.mse == pytest.approx(1.0)


def test_what_stands_around_ticket_pricing_is_not_ignored():
    plain = make_env("TicketPricing-v0", noise_horizon=2)
    seen = TransformObservation(plain, lambda obs: 2 * obs + 10, Box(-np.inf, np.inf, (1,), np.float64))
    one, two = (demonstrate(env, episodes=2, steps=15, seed=1000) for env in (plain, seen))
    for a, b in zip(one, two, strict=True):
        assert np.allclose(b.observations, 2 * a.observations + 10)
        assert np.allclose(b.actions, a.actions)

    class Generous(TicketPricing):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, reward + 5, *rest

    poor, rich = (
        evaluate(stay, env, episodes=2, steps=15, seed=1000)
        for env in (TicketPricing(noise_horizon=2), Generous(noise_horizon=2))
    )
    assert rich.reward == pytest.approx(poor.reward + 5)
    # One of them runs in a batch, the other one episode after the other: random actions are the same.
    assert rich.references["random"].reward == pytest.approx(poor.references["random"].reward + 5)
    with pytest.raises(DataError, match="brings no expert"):
        demonstrate(ConfoundedWrapper(TicketPricing()), episodes=2, steps=5)


def test_a_time_limit_without_an_id_is_kept():
    limited = TimeLimit(TicketPricing(), 7)
    assert [len(t) for t in demonstrate(limited, episodes=2)] == [7, 7]
    assert evaluate(stay, limited, episodes=2).steps == 7
    for call in (lambda: evaluate(stay, limited, episodes=2, steps=20), lambda: demonstrate(limited, steps=20)):
        with pytest.raises(DataError, match="steps=20 is beyond the time limit of 7"):
            call()


def test_an_expert_for_one_observation_is_not_spread_over_episodes():
    def alone(obs):
        return -obs[0, :1]

    for call in (
        lambda: demonstrate("TicketPricing-v0", alone, episodes=3, steps=5),
        lambda: evaluate(stay, "TicketPricing-v0", episodes=3, steps=5, expert=alone),
        lambda: plot_rollout({"a": stay}, "TicketPricing-v0", steps=5, expert=lambda obs: 0.0),
    ):
        with pytest.raises(DataError, match=r"expert must give finite actions of shape .* Write it for a batch"):
            call()
    with pytest.raises(DataError, match="expert must be a function of info"):
        demonstrate("TicketPricing-v0", "expert", episodes=2, steps=5)


def test_a_score_has_the_error_of_shared_episodes():
    result = evaluate(stay, "TicketPricing-v0", episodes=20, steps=50, seed=1000)
    lines = result.references
    assert lines["expert"].score_se == pytest.approx(0.0, abs=1e-12)
    assert lines["random"].score_se == pytest.approx(0.0, abs=1e-12)
    # A jackknife over episodes as the judge.
    own, random, expert = (np.array(line.rewards) for line in (result, lines["random"], lines["expert"]))
    kept = ~np.eye(20, dtype=bool)
    left_out = np.array([(own[k] - random[k]).mean() / (expert[k] - random[k]).mean() for k in kept])
    assert result.score_se == pytest.approx(np.sqrt(19 * left_out.var()), rel=0.1)


def test_reference_lines_are_taken_over():
    settings = {"episodes": 3, "steps": 20, "seed": 1000}
    first = evaluate(stay, "TicketPricing-v0", **settings)
    again = evaluate(go, "TicketPricing-v0", **settings, beside=first)
    assert again == evaluate(go, "TicketPricing-v0", **settings)
    assert again.references == first.references
    for name, changes in (
        ("TicketPricing-v0", {"episodes": 4}),
        ("TicketPricing-v1", {}),
        (make_env("TicketPricing-v0", noise_horizon=2), {}),
        ("TicketPricing-v0", {"expert": stay}),
    ):
        with pytest.raises(DataError, match="beside must be an evaluation with the same episodes"):
            evaluate(go, name, **settings | changes, beside=first)


def test_reference_lines_are_taken_over_with_an_expert_that_was_given():
    settings = {"episodes": 2, "steps": 20, "seed": 1000}
    first = evaluate(go, "TicketPricing-v0", **settings, expert=ticket_expert)
    assert (
        evaluate(stay, "TicketPricing-v0", **settings, expert=ticket_expert, beside=first).references
        == first.references
    )
    with pytest.raises(DataError, match="the expert does in the first episode"):
        evaluate(stay, "TicketPricing-v0", **settings, expert=lambda seen: 0.5 * ticket_expert(seen), beside=first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (TicketPricing(noise_horizon=1), TicketPricing(noise_horizon=10)),
        (TicketPricing(), TicketPricing(closed_loop=True)),
        *(
            tuple(TransformReward(make_env("TicketPricing-v0"), change) for change in changes)
            for changes in ((float, lambda reward: 10 * reward + 5),)
        ),
    ],
)
def test_reference_lines_of_an_environment_that_does_something_else_are_refused(first, second):
    settings = {"episodes": 2, "steps": 20, "seed": 1000}
    result = evaluate(stay, first, **settings)
    assert evaluate(go, first, **settings, beside=result).references == result.references
    with pytest.raises(DataError, match="differs in what the environment or the expert does in the first episode"):
        evaluate(go, second, **settings, beside=result)


def test_what_a_wrapper_has_learnt_is_not_lost():
    env = NormalizeObservation(make_env("TicketPricing-v0", noise_horizon=5))
    env.reset(seed=0)
    for step in range(300):
        env.step(np.full(1, np.sin(step)))
    env.update_running_mean = False
    wanted, _ = env.reset(seed=1)
    # Every episode starts at s = 1; fresh statistics would show it as 0.
    assert abs(wanted[0]) > 1
    demos = demonstrate(env, episodes=3, steps=10, seed=0)
    assert np.array_equal([t.observations[0] for t in demos], [wanted] * 3)


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize(("env", "expert"), [("TicketPricing-v0", lambda obs: -ticket_expert(obs)), (ledge(), stay)])
def test_an_expert_that_is_no_better_than_chance_gives_no_score(env, expert):
    with pytest.warns(UserWarning, match="no score: it needs an expert that earns more than random actions"):
        result = evaluate(stay, env, episodes=5, steps=3, seed=0, expert=expert)
    assert all(np.isnan([line.score, line.score_se]).all() for line in (result, *result.references.values()))


def test_the_best_policy_without_history_is_that_of_the_open_loop():
    result = evaluate(stay, "TicketPricing-v0", episodes=20, steps=300, seed=1000)
    lines = result.references
    # By symmetry it is zero for k = 1, and has its error.
    assert lines["best history-free"].mse == pytest.approx(lines["zero"].mse, abs=0.003)
    assert lines["zero"].score == result.score
    closed = evaluate(stay, "TicketPricing-v1", episodes=2, steps=10, seed=1000)
    assert "best history-free" not in closed.references


class Unbounded(Ledge):
    action_space = Box(-np.inf, np.inf, (1,), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluate(stay, 5), "env must be an environment of Gymnasium or the id of one, got int"),
        (lambda: evaluate(stay, "Pendulum-v1", steps=5, expert=stay), "must be confounded"),
        (lambda: demonstrate("Pendulum-v1", stay, steps=5), "must be confounded"),
        (lambda: evaluate(stay, "CartPole-v1", steps=5, expert=stay), "must be a Box, got Discrete"),
        (lambda: evaluate(stay, ConfoundedWrapper(Unbounded()), steps=5, expert=stay), "must be bounded"),
        (lambda: evaluate(stay, "TicketPricing-v0", steps=501), "beyond the time limit of 500"),
        (lambda: evaluate(stay, "Pendulum-v1", steps=5), "must be confounded"),
        (
            lambda: make_env("Pendulum-v1", noise_horizon=5),
            "cannot be made with noise_horizon .* If it is not a confounded",
        ),
        (lambda: ConfoundedWrapper("Pendulum-v1"), "env must be an environment of Gymnasium, got str"),
        (lambda: ConfoundedWrapper(Unbounded(), action_noise=-1), "action_noise must be a finite number"),
        (lambda: ConfoundedWrapper(Unbounded(), state_noise=np.nan), "state_noise must be a finite number"),
        (lambda: ConfoundedWrapper(Unbounded(), window=0), "window must be a whole number"),
        (lambda: ConfoundedWrapper(Ledge(), u_o=0.5), r"u_o must be a function u_o\(rng, n\), got 0\.5"),
        (lambda: ConfoundedWrapper(Ledge(), apply=3), r"apply must be a function apply\(action, u_o\), got 3"),
        (lambda: ConfoundedWrapper(Ledge()).step(np.zeros(1)), "must be reset before its first step"),
        (lambda: TicketPricing().step(np.zeros(1)), "must be reset before its first step"),
        (lambda: TicketPricingBatch(2).step(np.zeros((2, 1))), "must be reset before its first step"),
        (lambda: EpisodeBatch([TicketPricing()]).step(np.zeros((1, 1))), "must be reset before its first step"),
        (
            lambda: plot_rollout({"a": lambda obs: 0.0}, "TicketPricing-v0", steps=5),
            r"policy must give finite actions of shape \(1, 1\) .* got \(\)",
        ),
        (lambda: make_env(ledge(), noise_horizon=5), r"settings \(noise_horizon\) are for ids"),
        (lambda: make_env("bad:id:x"), "no environment 'bad:id:x'"),
        (lambda: make_env("no_such_module:Env-v0"), "no environment 'no_such_module:Env-v0'"),
        (lambda: make_env("TicketPricing-v0", noise_horizon=2.5), "noise_horizon must be a whole number"),
        (lambda: plot_rollout({}, "TicketPricing-v0"), "one or more names and policies"),
        (lambda: plot_rollout({"a": stay}, "TicketPricing-v0", column=4), "one of the actions 0 to 0, got 4"),
        (lambda: plot_rollout({"a": stay}, "TicketPricing-v0", steps=-1), "steps must be a whole number"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(DataError, match=message):
        call()
