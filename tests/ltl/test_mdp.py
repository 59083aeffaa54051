"""Labelled MDPs: construction, refusal of bad tables, and conversion."""

import gymnasium
import numpy as np
import pytest
import scipy.sparse as sp

from prudent import envs, ltl

TWO_STATES = np.array([[[0.2, 0.8], [1.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]])


def test_all_zero_rows_are_actions_that_do_not_exist():
    mdp = ltl.LabelledMDP.from_arrays(TWO_STATES, {"goal": [1]}, actions=["go", "stay"])
    assert mdp.available(0) == (0, 1)
    assert mdp.available(1) == (0,)
    assert mdp.successors(0, 0) == {0: 0.2, 1: 0.8}
    assert (mdp.n_states, mdp.n_choices, mdp.n_actions) == (2, 3, 2)
    with pytest.raises(ValueError, match="action 1 does not exist in state 1"):
        mdp.row(1, 1)


def test_labels_by_proposition_and_by_state_agree():
    by_name = ltl.LabelledMDP.from_arrays(TWO_STATES, {"a": [0, 1], "b": [1]})
    by_state = ltl.LabelledMDP.from_arrays(TWO_STATES, [{"a"}, {"a", "b"}])
    assert [by_name.labels(s) for s in (0, 1)] == [by_state.labels(s) for s in (0, 1)] == [{"a"}, {"a", "b"}]
    assert by_name.propositions == by_state.propositions == ("a", "b")


def test_sparse_and_dense_tables_agree():
    slabs = [sp.csr_array(TWO_STATES[:, a, :]) for a in range(2)]
    sparse = ltl.LabelledMDP.from_arrays(slabs, {"goal": [1]})
    dense = ltl.LabelledMDP.from_arrays(TWO_STATES, {"goal": [1]})
    assert np.array_equal(sparse.transitions.toarray(), dense.transitions.toarray())
    assert np.array_equal(sparse.choice_start, dense.choice_start)


def test_rounded_rows_are_rescaled():
    third = 0.3333333333
    mdp = ltl.LabelledMDP.from_arrays([[[third, third, 1 - 2 * third - 1e-10]]] * 1 + [[[0, 1, 0]], [[0, 0, 1]]], {})
    assert np.abs(mdp.transitions.sum(axis=1) - 1).max() < 1e-15


def test_arrays_are_read_only():
    mdp = ltl.LabelledMDP.from_arrays(TWO_STATES, {})
    with pytest.raises(ValueError, match="read-only"):
        mdp.transitions.data[0] = 0.5
    with pytest.raises(AttributeError):
        mdp.actions = ("x",)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ([[[0.2, 0.7]], [[0, 1]]], {}, r"must sum to 1; state 0, action 'a0' sums to 0\.9"),
        ([[[1.2, -0.2]], [[0, 1]]], {}, "not negative"),
        ([[[0, 0]], [[0, 1]]], {}, "state 0 has no action"),
        ([[0.5, 0.5], [0, 1]], {}, "shape"),
        (TWO_STATES, {"initial": 5}, r"initial state must be in 0\.\.1, got 5"),
        (TWO_STATES, {"initial": [0.5, 0.4]}, "sums to 0.9"),
        (TWO_STATES, {"labels": {"a": [7]}}, "label 'a' is given to state 7"),
        (TWO_STATES, {"labels": [{"a"}]}, "one set for each of the 2 states"),
        (TWO_STATES, {"labels": {"goal": [0]}, "propositions": ["gaol"]}, r"\['goal'\] are not among"),
        (TWO_STATES, {"actions": ["x", "x"]}, "distinct name"),
        (TWO_STATES, {"state_names": ["only one"]}, "state_names"),
    ],
)
def test_bad_tables_are_refused(table, options, message):
    options = {"labels": {}} | options
    with pytest.raises(ValueError, match=message):
        ltl.LabelledMDP.from_arrays(table, **options)


def test_a_string_is_not_a_set_of_labels():
    with pytest.raises(TypeError, match="give a set"):
        ltl.LabelledMDP.from_arrays(TWO_STATES, ["goal", set()])


def test_restrict_keeps_a_closed_part():
    table = np.zeros((3, 1, 3))
    table[0, 0, 2] = table[2, 0, 0] = table[1, 0, 0] = 1
    mdp = ltl.LabelledMDP.from_arrays(table, {"a": [2]}, initial=0)
    assert mdp.reachable().tolist() == [0, 2]
    part = mdp.restrict(np.array([2, 0]))
    assert part.labels(0) == {"a"}
    assert part.successors(0, 0) == {1: 1.0}
    assert part.initial.tolist() == [0, 1]
    with pytest.raises(ValueError, match="no choice leaves"):
        mdp.restrict(np.array([1]))


def test_gymnasium_frozen_lake_has_its_known_optimum():
    env = gymnasium.make("FrozenLake-v1", is_slippery=True)
    mdp = ltl.LabelledMDP.from_gymnasium(env, lambda s: {"goal"} if s == 15 else set())
    # 14/17 is the undiscounted value of the 4 x 4 map.
    assert ltl.optimum(mdp, "F goal") == pytest.approx(14 / 17, abs=1e-12)


def test_the_end_of_a_gymnasium_episode_is_an_absorbing_copy():
    env = gymnasium.make("Taxi-v4")
    mdp = ltl.LabelledMDP.from_gymnasium(env, lambda s: {f"at{s % 4}"})
    assert mdp.n_states > 500
    last = mdp.n_states - 1
    assert mdp.name(last).endswith("(over)")
    assert all(mdp.successors(last, a) == {last: 1.0} for a in range(6))
    assert mdp.initial.sum() == pytest.approx(1)


def test_an_environment_without_a_table_is_refused():
    with pytest.raises(TypeError, match="no transition table"):
        ltl.LabelledMDP.from_gymnasium(gymnasium.make("CartPole-v1"), lambda s: set())


def test_prism_text_round_trip():
    pytest.importorskip("stormpy")
    lake = envs.frozen_lake()
    back = ltl.LabelledMDP.from_prism(lake.to_prism())
    assert (back.n_states, back.n_choices, back.transitions.nnz) == (64, 256, lake.transitions.nnz)
    assert back.actions == lake.actions
    assert set(back.propositions) == set(lake.propositions)


def test_prism_constants_and_unnamed_choices(tmp_path):
    pytest.importorskip("stormpy")
    path = tmp_path / "m.prism"
    path.write_text(
        "mdp\nconst double p;\nmodule m\n s:[0..2] init 0;\n [go] s=0 -> p:(s'=1)+1-p:(s'=2);\n [] s=0 -> (s'=0);\n"
        ' [] s=0 -> (s\'=2);\n [] s>0 -> true;\nendmodule\nlabel "a" = s=1;\n'
    )
    mdp = ltl.LabelledMDP.from_prism(path, constants="p=0.25")
    assert mdp.n_choices == 5
    assert {"go", "act", "act_1"} == set(mdp.actions)
    assert ltl.optimum(mdp, "F a", exact=True) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="cannot read this PRISM model"):
        ltl.LabelledMDP.from_prism("mdp\nmodule broken\n")
    with pytest.raises(FileNotFoundError, match="no PRISM file"):
        ltl.LabelledMDP.from_prism(tmp_path / "absent.prism")


def test_prism_needs_one_initial_state_and_plain_labels():
    table = np.eye(2)[:, None, :]
    with pytest.raises(ValueError, match="one initial state"):
        ltl.LabelledMDP.from_arrays(table, {}, initial=[0.5, 0.5]).to_prism()
    with pytest.raises(ValueError, match="reserved"):
        ltl.LabelledMDP.from_arrays(table, {"init": [0]}).to_prism()
    with pytest.raises(ValueError, match="identifiers"):
        ltl.LabelledMDP.from_arrays(table, {"two words": [0]}).to_prism()


def test_only_tasks_have_a_default_goal():
    assert envs.probabilistic_gate().goal == "(F G a) & (G !c)"
    with pytest.raises(ValueError, match="no default goal"):
        _ = ltl.LabelledMDP.from_arrays(TWO_STATES, {}).goal


def test_a_prism_model_with_several_initial_states_is_refused():
    pytest.importorskip("stormpy")
    text = "dtmc\nmodule m\n s:[0..1];\n [] true -> true;\nendmodule\ninit true endinit\n"
    with pytest.raises(ValueError, match="2 initial states"):
        ltl.LabelledMDP.from_prism(text)
