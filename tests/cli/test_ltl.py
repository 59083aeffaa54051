"""``prudent ltl``: what it prints, what it writes, and what it says to bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from calls import fail
from typer.testing import CliRunner

from prudent.cli import app

GATE = ["ltl", "learn", "--env", "probabilistic-gate", "--steps", "20000"]


def ask(*arguments: object) -> str:
    """Standard output of a command that must succeed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learnt policy of the gate."""
    folder = tmp_path_factory.mktemp("gate")
    ask(*GATE, "--out", folder)
    assert (folder / "curve.png").stat().st_size > 1000
    return folder / "policy.json"


def test_translate_prints_hoa_that_reads_back():
    from prudent import ltl

    text = ask("ltl", "translate", "(F G a) & (G !c)", "--hoa")
    assert ltl.Automaton.from_hoa(text) == ltl.translate("(F G a) & (G !c)")


def test_translate_prints_dot_table_and_json():
    assert ask("ltl", "translate", "G F a", "--dot").startswith("digraph")
    assert "accepting" in ask("ltl", "translate", "G F a")
    record = json.loads(ask("ltl", "translate", "G F a", "--json"))
    assert (record["states"], record["trap"], record["epsilon moves"]) == (1, False, 0)


def test_plot_writes_only_the_picture(tmp_path: Path):
    ask("ltl", "plot", "F G a", "--out", tmp_path / "new" / "automaton.png")
    assert [path.name for path in tmp_path.rglob("*.*")] == ["automaton.png"]


def test_learn_reports_probability_beside_the_optimum():
    rows = json.loads(ask(*GATE, "--runs", 2, "--seed", 3, "--json"))
    assert [row["seed"] for row in rows] == [3, 4]
    assert all(0 <= row["probability"] <= row["optimum"] + 1e-9 for row in rows)
    assert rows[0]["optimum"] == pytest.approx(0.8)
    assert rows == json.loads(ask(*GATE, "--runs", 2, "--seed", 3, "--json"))


def test_learn_passes_settings_on():
    (row,) = json.loads(ask(*GATE, "--method", "kc", "--gamma", "auto", "--U", "0.05", "--K", 3, "--json"))
    assert row["method"] == "kc"
    assert row["gamma"] > 0.999


def test_check_agrees_with_learn_and_with_fractions(policy: Path):
    (row,) = json.loads(ask(*GATE, "--json"))
    value = json.loads(ask("ltl", "check", "probabilistic-gate", policy, "--json"))
    exact = json.loads(ask("ltl", "check", "probabilistic-gate", policy, "--exact", "--json"))
    assert value["probability"] == pytest.approx(row["probability"], abs=1e-9)
    assert exact["probability"] == pytest.approx(value["probability"], abs=1e-9)
    assert exact["exact"] in ("0", "4/5")


def test_optimum_is_exact():
    record = json.loads(ask("ltl", "optimum", "probabilistic-gate", "--exact", "--json"))
    assert record["exact"] == "4/5"
    assert "4/5" in ask("ltl", "optimum", "probabilistic-gate", "--exact")


def test_prism_file_and_storm_backend_give_the_same_optimum(tmp_path: Path, policy: Path):
    pytest.importorskip("stormpy", reason="reading PRISM files needs stormpy")
    from prudent import envs

    file = tmp_path / "gate.prism"
    file.write_text(envs.probabilistic_gate().to_prism())
    goal = ["--formula", "(F G a) & (G !c)", "--json"]
    assert json.loads(ask("ltl", "optimum", file, *goal))["probability"] == pytest.approx(0.8)
    assert json.loads(ask("ltl", "optimum", file, *goal, "--backend", "storm"))["probability"] == pytest.approx(0.8)
    learnt = ["ltl", "learn", "--env", file, "--steps", 1000, "--out", tmp_path / "out", *goal]
    (row,) = json.loads(ask(*learnt))
    checked = json.loads(ask("ltl", "check", file, tmp_path / "out" / "policy.json", *goal, "--backend", "storm"))
    assert checked["probability"] == pytest.approx(row["probability"], abs=1e-6)


def test_a_goal_may_be_an_automaton_in_a_file(tmp_path: Path):
    file = tmp_path / "goal.hoa"
    file.write_text(ask("ltl", "translate", "(F G a) & (G !c)", "--hoa"))
    assert json.loads(ask("ltl", "optimum", "probabilistic-gate", "--automaton", file, "--json"))["probability"] == 0.8
    file.write_text("HOA: v1\n--BODY--")
    assert "line" in fail("ltl", "optimum", "probabilistic-gate", "--automaton", file)


def test_check_uses_the_goal_of_the_policy(tmp_path: Path):
    ask(*GATE, "--formula", "F a", "--out", tmp_path)
    checked = ["ltl", "check", "probabilistic-gate", tmp_path / "policy.json", "--json"]
    assert json.loads(ask(*checked))["formula"] == "F a"
    assert json.loads(ask(*checked, "--formula", "G !c"))["formula"] == "G !c"


def test_translating_an_unsatisfiable_formula_says_so():
    assert "unsatisfiable" in CliRunner().invoke(app, ["ltl", "translate", "a & !a"]).stderr


def test_unsatisfiable_formula_has_probability_zero_and_says_so():
    result = CliRunner().invoke(app, ["ltl", "optimum", "frozen-lake", "--formula", "F a & G !a", "--json"])
    assert json.loads(result.stdout)["probability"] == 0.0
    assert "unsatisfiable" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["translate", "G (a & "], "at character 8"),
        (["translate", "G a", "--hoa", "--dot"], "at most one"),
        (["plot", "G a", "--out", "automaton.doc"], ".png"),
        (["learn", "--env", "nowhere"], "neither a PRISM file nor an environment"),
        (["learn", "--env", "frozen-lake", "--method", "sarsa"], "cf+kc"),
        (["learn", "--env", "frozen-lake", "--steps", "0"], "steps must be at least 1"),
        (["learn", "--env", "frozen-lake", "--runs", "0"], "--runs must be at least 1"),
        (["learn", "--env", "frozen-lake", "--gamma", "high"], "--gamma must be a number or 'auto'"),
        (["learn", "--env", "frozen-lake", "--p-min", "0.1"], "--p-min is for --method certified"),
        (["learn", "--env", "frozen-lake", "--method", "certified", "--U", "0.1"], "--U is for other methods"),
        (["optimum", "frozen-lake", "--formula", "F zebra"], "'zebra'"),
        (["optimum", "frozen-lake", "--backend", "spin"], "backend must be one of"),
        (["optimum", "frozen-lake", "--constants", "N=3"], "--constants is for PRISM files"),
        (["optimum", "frozen-lake", "--automaton", "absent.hoa"], "absent.hoa"),
        (["optimum", "frozen-lake", "--automaton", "absent.hoa", "--formula", "F a"], "not both"),
        (["check", "frozen-lake", "absent.json"], "absent.json does not exist"),
        (["check", "frozen-lake", "."], ". is a folder; give a file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], expected: str):
    assert expected in fail("ltl", *arguments)


def test_damaged_policy_is_refused(tmp_path: Path, policy: Path):
    broken = tmp_path / "policy.json"
    broken.write_text(policy.read_text()[:100])
    assert "not a policy file" in fail("ltl", "check", "probabilistic-gate", broken)
    assert "the policy is for 22 states" in fail("ltl", "check", "frozen-lake", policy)


def test_absent_prism_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "'prism' on the PATH" in fail("ltl", "optimum", "frozen-lake", "--backend", "prism")


def test_help_does_not_load_heavy_modules():
    code = (
        "import sys; from typer.testing import CliRunner; from prudent.cli import app;"
        "CliRunner().invoke(app, ['--help']); print(sorted({'numba', 'jax', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=True
    )
    assert done.stdout.strip() == "[]"


def test_certified_learning_shows_bounds_and_writes_files(tmp_path: Path):
    command = ["ltl", "learn", "--env", "frozen-lake", "--method", "certified", "--seed", "1000"]
    text = ask(*command, "--out", tmp_path)
    assert "With confidence 0.95" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bounds.png",
        "certificate.json",
        "policy.json",
        "visits.png",
    ]
    (row,) = json.loads(ask(*command, "--json"))
    assert (row["policy at least"], row["optimum at most"], row["certified"]) == (1.0, 1.0, True)


def test_certified_learning_continues_from_a_checkpoint(tmp_path: Path):
    file = tmp_path / "run.npz"
    command = ["ltl", "learn", "--env", "probabilistic-gate", "--method", "certified", "--checkpoint", file, "--json"]
    first = json.loads(ask(*command, "--steps", "500"))[0]
    second = json.loads(ask(*command, "--steps", "900"))[0]
    assert (first["steps"], second["steps"]) == (500, 900)
    assert second["optimum at most"] <= first["optimum at most"]


def test_certified_learning_refuses_a_bad_p_min():
    line = fail("ltl", "learn", "--env", "frozen-lake", "--method", "certified", "--p-min", "2")
    assert "p_min must be in (0, 1], got 2" in line
