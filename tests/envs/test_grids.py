"""Grids from text maps, the three benchmark tasks, and generated models."""

import numpy as np
import pytest

from prudent import envs, ltl

UP, DOWN, RIGHT, LEFT = range(4)


def state(mdp, cell):
    return int(np.flatnonzero((mdp.state_cells == cell).all(axis=1))[0])


def moves(mdp, cell, action):
    """Successor cells with probabilities."""
    return {tuple(mdp.state_cells[s]): p for s, p in mdp.successors(state(mdp, cell), action).items()}


def test_free_cells_move_surely_and_walls_stop():
    mdp = envs.grid(". .\n# .", {})
    assert mdp.n_states == 3
    assert moves(mdp, (0, 0), RIGHT) == {(0, 1): 1.0}
    assert moves(mdp, (0, 0), DOWN) == {(0, 0): 1.0}
    assert moves(mdp, (0, 0), UP) == {(0, 0): 1.0}
    assert moves(mdp, (1, 1), LEFT) == {(1, 1): 1.0}


def test_slippery_cells_slip_sideways_only():
    mdp = envs.grid(["...", ".~.", "..."], {}, p=0.5)
    assert moves(mdp, (1, 1), UP) == {(0, 1): 0.5, (1, 0): 0.25, (1, 2): 0.25}
    assert moves(mdp, (1, 1), LEFT) == {(1, 0): 0.5, (0, 1): 0.25, (2, 1): 0.25}


def test_slipping_into_a_wall_stays():
    mdp = envs.grid("~", {}, p=0.5)
    assert moves(mdp, (0, 0), RIGHT) == {(0, 0): 1.0}


def test_one_way_cells_have_one_action():
    mdp = envs.grid(["..", ">.", "..", "^."], {})
    assert mdp.available(state(mdp, (1, 0))) == (RIGHT,)
    assert mdp.available(state(mdp, (3, 0))) == (UP,)


def test_gates_ignore_the_action():
    mdp = envs.grid(["%.", ".."], {}, p=0.8)
    for action in range(4):
        assert moves(mdp, (0, 0), action) == pytest.approx({(0, 1): 0.8, (1, 0): 0.2})


def test_absorbing_cells_stay():
    mdp = envs.grid("T.", {})
    assert moves(mdp, (0, 0), RIGHT) == {(0, 0): 1.0}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (". ?", {}, r"unknown kind of cell '\?' at \(0, 1\)"),
        ("..\n.", {}, "equal length"),
        ("", {}, "equal length"),
        (".#", {"start": (0, 1)}, "start is at"),
        ("..", {"labels": {"a": [(3, 3)]}}, "label 'a' is at"),
        ("..", {"p": 1.5}, "p must be in"),
    ],
)
def test_bad_maps_are_refused(text, options, message):
    with pytest.raises(ValueError, match=message):
        envs.grid(text, **({"labels": {}} | options))


@pytest.mark.parametrize(
    ("make", "n_states", "optimum", "steps"),
    [
        (envs.probabilistic_gate, 22, 0.8, 4_000_000),
        (envs.frozen_lake, 64, 1.0, 1_200_000),
        (envs.office_world, 122, 1.0, 6_000_000),
    ],
)
def test_tasks_have_their_known_optimum(make, n_states, optimum, steps):
    mdp = make()
    assert mdp.n_states == n_states
    assert mdp.task.steps == steps
    assert ltl.optimum(mdp, mdp.goal) == pytest.approx(optimum, abs=1e-12)


def test_frozen_lake_slips_everywhere_but_in_holes_and_camp_a():
    lake = envs.frozen_lake()
    assert len(lake.successors(state(lake, (4, 6)), UP)) == 3
    assert len(lake.successors(state(lake, (7, 7)), UP)) == 1
    assert len(lake.successors(state(lake, (2, 3)), UP)) == 1


def test_office_gates_are_one_way():
    office = envs.office_world()
    assert office.available(state(office, (1, 3))) == (RIGHT,)
    assert moves(office, (9, 3), RIGHT) == {(9, 4): 1.0}
    assert office.labels(state(office, (8, 10))) == {"t"}


def test_random_models_repeat_with_their_seed():
    first, second = (envs.random_mdp(8, 3, ["a", "b"], seed=5) for _ in range(2))
    other = envs.random_mdp(8, 3, ["a", "b"], seed=6)
    assert np.array_equal(first.transitions.toarray(), second.transitions.toarray())
    assert first.transitions.shape != other.transitions.shape or not np.array_equal(
        first.transitions.toarray(), other.transitions.toarray()
    )
    assert np.all(first.transitions.data * 16 == np.round(first.transitions.data * 16))


def test_slippery_grid_labels_each_proposition_once():
    mdp = envs.slippery_grid(6, ["a", "b"], holes=0.2, seed=3)
    counts = {name: sum(name in mdp.labels(s) for s in range(mdp.n_states)) for name in ("a", "b", "h")}
    assert counts == {"a": 1, "b": 1, "h": 7}
    assert mdp.labels(0).isdisjoint({"h"})


def test_generators_refuse_impossible_sizes():
    with pytest.raises(ValueError, match="n_states >= 1"):
        envs.random_mdp(0, 1, "a", seed=0)
    with pytest.raises(ValueError, match="keeps 'h'"):
        envs.slippery_grid(4, ["h"])
