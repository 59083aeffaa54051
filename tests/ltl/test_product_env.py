"""The Gymnasium wrapper: its contract, rewards, and time."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from prudent import ltl

HOLES = (5, 7, 11, 12)


def lake_labels(state):
    return {"goal"} if state == 15 else {"hole"} if state in HOLES else set()


@pytest.fixture
def lake():
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    return ltl.ProductEnv(env, lake_labels, "(F G goal) & (G !hole)")


@pytest.mark.filterwarnings("ignore::UserWarning")  # the checker recommends unwrapped environments
@pytest.mark.parametrize(
    ("name", "label", "goal"),
    [
        ("FrozenLake-v1", lake_labels, "(F G goal) & (G !hole)"),
        ("CartPole-v1", lambda o: {"up"} if abs(o[2]) < 0.1 else set(), "G up"),
        ("Pendulum-v1", lambda o: {"up"} if o[0] > 0.9 else set(), "F G up"),
    ],
)
def test_the_gymnasium_checker_passes(name, label, goal):
    check_env(ltl.ProductEnv(gymnasium.make(name).unwrapped, label, goal), skip_render_check=True)


def test_epsilon_moves_take_no_time(lake):
    observation, info = lake.reset(seed=0)
    assert lake.action_space.n == 5
    assert info["action_mask"].tolist() == [1, 1, 1, 1, 1]
    after, reward, terminated, truncated, info = lake.step(4)
    assert after["observation"] == observation["observation"] == 0
    assert after["automaton"] != observation["automaton"]
    assert reward == 0
    assert not terminated
    assert not truncated
    assert info["discount"] == 0.99
    assert info["action_mask"].tolist() == [1, 1, 1, 1, 0]
    again = lake.step(4)[0]
    assert again["automaton"] == after["automaton"]  # a move that does not exist does nothing


def test_reaching_the_goal_satisfies_it(lake):
    lake.reset(seed=0)
    for action in (1, 1, 2, 1, 2, 2):
        observation, _, terminated, _, info = lake.step(action)
    assert terminated
    assert observation["observation"] == 15
    assert info["satisfied"]


def test_falling_into_a_hole_does_not(lake):
    lake.reset(seed=0)
    lake.step(1)
    _, _, terminated, _, info = lake.step(2)
    assert terminated
    assert not info["satisfied"]


def test_rewards_grow_with_the_counter_up_to_u():
    env = ltl.ProductEnv(gymnasium.make("CartPole-v1"), lambda o: {"up"}, "G F up", U=0.2, K=3)
    env.reset(seed=0)
    seen = [env.step(i % 2)[1] for i in range(6)]
    assert seen == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2, 0.2])


def test_discount_is_one_minus_the_reward():
    env = ltl.ProductEnv(gymnasium.make("CartPole-v1"), lambda o: {"up"}, "G F up", U=0.2, K=0, gamma=0.9)
    env.reset(seed=0)
    info = env.step(0)[4]
    assert info["accepting"]
    assert info["discount"] == pytest.approx(0.8)
    assert info["labels"] == {"up"}


def test_reset_restarts_automaton_and_counter(lake):
    lake.reset(seed=0)
    lake.step(4)
    observation, _ = lake.reset(seed=0)
    assert observation["automaton"] == lake.automaton.initial == lake.automaton_state


def test_labels_are_those_of_the_state_that_is_left(lake):
    lake.reset(seed=0)
    for action in (1, 1, 2, 1, 2):
        info = lake.step(action)[4]
    assert info["labels"] == frozenset()
    assert lake.step(2)[4]["labels"] == frozenset()  # leaves 14 and enters the goal


def test_tabular_agents_can_index_the_joint_observation(lake):
    observation, _ = lake.reset(seed=1)
    table = np.zeros((16, lake.automaton.n_states, lake.action_space.n))
    assert table[observation["observation"], observation["automaton"]].shape == (5,)
