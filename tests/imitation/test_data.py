"""Trajectories and windows."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from prudent import DataError
from prudent.imitation import (
    Trajectory,
    View,
    demonstrate,
    from_arrays,
    from_minari,
    history_windows,
    load_trajectories,
    save_trajectories,
    to_minari,
)


def numbered(start, length):
    """An episode whose state at step t is start + t, and whose action is minus that."""
    s = start + np.arange(length + 1.0)
    return Trajectory(s, -s[:-1], {"u_o": s * 10})


def test_an_episode_has_one_more_observation_than_actions():
    with pytest.raises(DataError, match="5 actions needs 6 observations"):
        Trajectory(np.zeros(5), np.zeros(5))


def test_trajectories_are_checked_and_cannot_be_changed():
    with pytest.raises(DataError, match="observations must be finite"):
        Trajectory([0.0, np.nan], [1.0])
    with pytest.raises(DataError, match="hidden variable 'u_o'"):
        Trajectory([0.0, 1.0], [1.0], {"u_o": [1.0, 2.0, 3.0]})
    episode = numbered(0, 3)
    for array in (episode.observations, episode.actions, episode.hidden["u_o"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
    with pytest.raises(DataError, match="equal"):
        from_arrays([np.zeros((3, 1)), np.zeros((3, 2))], [np.zeros(2), np.zeros(2)])
    with pytest.raises(DataError, match="one array per episode"):
        from_arrays([np.zeros(3)], [])
    with pytest.raises(
        DataError, match=r"episode 1 \(counted from 0\): actions must be finite.*row index 1.*Cut the ep"
    ):
        from_arrays([np.zeros(3), np.zeros(3)], [np.zeros(2), np.array([0.0, np.nan])])
    for wrong in ([np.zeros(3)], 5, "demos.npz"):
        with pytest.raises(TypeError, match=r"Trajectory records, got .* Make them with"):
            history_windows(wrong, 2)


def test_one_episode_is_not_taken_for_many():
    observations, actions = np.arange(12.0).reshape(6, 2), np.zeros((6, 1))
    with pytest.raises(DataError, match=r"may be one episode. A single episode: from_arrays\(\[observations\]"):
        from_arrays(observations, actions)
    (episode,) = from_arrays([observations], [actions[1:]])
    assert len(episode) == 5
    assert len(from_arrays(list(observations), list(actions))) == 6
    assert len(from_arrays(observations[..., None], actions)) == 6


def test_discrete_actions_are_no_numbers():
    with pytest.raises(DataError, match=r"actions must be continuous, got Discrete\(2\)"):
        from_minari(SimpleNamespace(iterate_episodes=list, action_space=Discrete(2)))
    with pytest.raises(DataError, match="a Minari dataset or its id, got int"):
        from_minari(3)


def test_hidden_variables_are_numbers_with_names():
    for hidden, message in (
        ([1, 2], "hidden must be a dict of names and values, got list"),
        ({"a": ["x", "y"]}, "hidden variable 'a' must be an array of numbers, got list"),
    ):
        with pytest.raises(DataError, match=message):
            Trajectory(np.zeros(3), np.zeros(2), hidden)

    class Dataset:
        action_space = Box(-1, 1)

        def __init__(self, hidden):
            self.hidden = hidden

        def iterate_episodes(self):
            return [
                SimpleNamespace(
                    observations=np.zeros((3, 1)),
                    actions=np.zeros((2, 1)),
                    infos={"hidden": self.hidden},
                    terminations=np.zeros(2, bool),
                )
            ]

    for hidden, message in (
        (np.zeros((3, 2)), r"infos\['hidden'\] must be a dict of names and values, got ndarray"),
        ({"a": np.array(["x", "y"])}, "hidden variable 'a' must be an array of numbers"),
        ({"a": 1.0}, "hidden variable 'a' must have a row per step"),
    ):
        with pytest.raises(DataError, match=message):
            from_minari(Dataset(hidden))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_trajectories_can_be_copied_and_sent(duplicate):
    episode = Trajectory([0.0, 1.0], [1.0], {"u_o": [3.0, 4.0]}, terminated=True)
    again = duplicate(episode)
    assert np.array_equal(again.observations, episode.observations)
    assert again.hidden["u_o"].tolist() == [3.0, 4.0]
    assert again.terminated


def test_npz_keeps_everything(tmp_path):
    episodes = [numbered(0, 4), Trajectory([5.0, 6.0], [1.0], {"u_o": [3.0, 4.0]}, terminated=True)]
    path = save_trajectories(tmp_path / "demos.npz", episodes)
    again = load_trajectories(path)
    for one, two in zip(episodes, again, strict=True):
        assert np.array_equal(one.observations, two.observations)
        assert np.array_equal(one.actions, two.actions)
        assert np.array_equal(one.hidden["u_o"], two.hidden["u_o"])
        assert one.terminated == two.terminated
    # A variable that only a later episode has is not dropped in silence.
    with pytest.raises(DataError, match="'u_o' must be recorded alike"):
        save_trajectories(tmp_path / "some.npz", [Trajectory([0.0, 1.0], [1.0]), episodes[0]])


def test_a_file_that_is_not_demonstrations_is_refused(tmp_path):
    with pytest.raises(DataError, match="not a file"):
        load_trajectories(tmp_path / "absent.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(DataError, match="does not hold demonstrations"):
        load_trajectories(tmp_path / "other.npz")
    (tmp_path / "text.npz").write_text("hello")
    whole = save_trajectories(tmp_path / "whole.npz", [numbered(0, 400)]).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "renamed.npz")
    for name in ("text", "cut", "renamed"):
        with pytest.raises(DataError, match="does not hold demonstrations"):
            load_trajectories(tmp_path / f"{name}.npz")


@pytest.mark.filterwarnings("ignore")  # Minari remarks on facts that a test does not give.
def test_minari_there_and_back(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    # One hidden variable per observation, one per action.
    per_action = Trajectory(np.arange(3.0), np.ones(2), {"u_o": np.arange(2.0)}, terminated=True)
    for number, episodes in enumerate(([numbered(0, 4), numbered(100, 2)], [per_action, per_action])):
        dataset = to_minari(episodes, f"prudent/test-v{number}")
        for one, two in zip(episodes, from_minari(dataset), strict=True):
            assert np.allclose(one.observations, two.observations)
            assert np.allclose(one.actions, two.actions)
            assert one.hidden["u_o"].tolist() == two.hidden["u_o"].tolist()
            assert one.terminated == two.terminated
    with pytest.raises(DataError, match="minari download no/such-v0"):
        from_minari("no/such-v0")


def test_windows_do_not_cross_episodes():
    windows = history_windows([numbered(0, 5), numbered(100, 5)], 3)
    assert len(windows) == 10
    for states, episode in zip(windows.states, windows.episode, strict=True):
        assert np.all((states >= 100) == (episode == 1))


def test_windows_align_states_and_actions_and_mark_padding():
    windows = history_windows([numbered(0, 4)], 3)
    assert windows.states[:, :, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert windows.actions[:, :, 0].tolist() == [[0, 0, 0], [0, 0, -1], [0, -1, -2], [-1, -2, -3]]
    assert windows.is_real.sum(axis=1).tolist() == [1, 2, 3, 3]
    assert windows.complete.step.tolist() == [2, 3]
    with pytest.raises(DataError, match="length of a window"):
        history_windows([numbered(0, 4)], 0)


def test_the_instrument_has_nothing_newer_than_the_horizon():
    windows = history_windows([numbered(0, 12)], 8).complete
    t = windows.states[:, -1, 0]
    instrument = View(3, 3, newest=5).columns(windows.states, windows.actions)
    assert np.array_equal(instrument[:, :3], np.stack([t - 5, t - 6, t - 7], axis=1))
    assert np.array_equal(instrument[:, 3:], -np.stack([t - 5, t - 6, t - 7], axis=1))
    policy = View(2, 1).columns(windows.states, windows.actions)
    assert np.array_equal(policy, np.stack([t, t - 1, -(t - 1)], axis=1))
    assert View(3, 3, newest=5).length == 8
    assert View(3, 2).width(4, 5) == 22
    assert np.all(View(2, 0, relative=(0,)).columns(windows.states, windows.actions) == 1.0)


def test_the_first_steps_have_no_instrument_but_their_number():
    from prudent.imitation._windows import instrument_columns

    windows = history_windows([numbered(0, 6)], 4)
    c = instrument_columns(windows, View(1, 1, newest=3))
    # States 0, 1, 2 and their actions are the history of steps 3, 4, 5; before, there are means.
    assert c[:, 0].tolist() == [1, 1, 1, 0, 1, 2]
    assert c[:, 1].tolist() == [-1, -1, -1, 0, -1, -2]
    assert c[:, 2].tolist() == [0, 1, 2, 3, 3, 3]
    late = windows.take(np.arange(3, 6))
    assert instrument_columns(late, View(1, 1, newest=3)).shape == (3, 2)


def test_demonstrations_carry_the_noise_and_their_hidden_variables():
    from prudent.envs import ticket_expert
    from prudent.imitation import make_env

    demos = demonstrate(make_env("TicketPricing-v0", noise_horizon=3), episodes=3, steps=20, seed=1)
    again = demonstrate(make_env("TicketPricing-v0", noise_horizon=3), episodes=3, steps=20, seed=1)
    other = demonstrate(make_env("TicketPricing-v0", noise_horizon=3), episodes=3, steps=20, seed=2)
    for episode, same in zip(demos, again, strict=True):
        u_o, u_e = episode.hidden["u_o"], episode.hidden["u_e"]
        clean = ticket_expert(np.column_stack([episode.observations[:-1, 0], u_o[:-1]]))
        assert np.allclose(episode.actions, clean + 10 * u_e[:-1, None])
        s = episode.observations[:, 0]
        assert np.allclose(s[1:], np.sign(s[:-1]) * u_o[:-1] - u_e[1:])
        assert np.array_equal(episode.actions, same.actions)
    assert not any(np.array_equal(a.actions, b.actions) for a in demos for b in other)
