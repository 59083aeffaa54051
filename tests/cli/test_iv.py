"""The command as people type it."""

import json
import re

import pytest
from calls import fail
from typer.testing import CliRunner

from prudent import datasets
from prudent.cli import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    datasets.make_linear_gaussian(300, seed=0).frame().to_csv(folder / "data.csv", index=False)
    result = CliRunner().invoke(
        app,
        [
            *("iv", "fit", str(folder / "data.csv"), "--outcome", "y", "--action", "a", "--instrument", "z1,z2"),
            *("--context", "x", "--folds", "2", "--out", str(folder / "model")),
        ],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    assert "effective F" in result.output
    return folder


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_fit_saves_a_model_and_a_picture(folder):
    assert {p.name for p in (folder / "model").iterdir()} == {"model.json", "weights.safetensors", "effect.png"}


def test_effect_policy_and_diagnose_speak_json(folder):
    model = str(folder / "model")
    rows = json.loads(run("iv", "effect", model, "--grid", "a=-1:1:5", "--context", "x=0", "--json"))
    assert [row["a"] for row in rows] == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert rows[-1]["effect"] - rows[0]["effect"] == pytest.approx(4.0, abs=1.0)
    best = json.loads(run("iv", "policy", model, "--actions=-1:1", "--context", "x=0", "--json"))
    assert best[0]["a"] == pytest.approx(1.0, abs=0.01)
    many = json.loads(run("iv", "policy", model, "--actions=-1,0.5", "--contexts", str(folder / "data.csv"), "--json"))
    assert len(many) == 300
    assert json.loads(run("iv", "diagnose", model, "--json"))["moment"]["n_rows"] == 300


def test_value_shows_policies_with_intervals(folder):
    given = ["iv", "value", str(folder / "model"), "--contexts", str(folder / "data.csv"), "--json"]
    best = json.loads(run(*given, "--actions=-1:1"))[0]
    assert best["a"] == "best"
    assert best["lower"] < best["value"] < best["upper"]
    fixed = json.loads(run(*given, "--action=-1,1"))
    assert [row["a"] for row in fixed] == [-1.0, 1.0]
    assert best["value"] == pytest.approx(fixed[1]["value"], abs=0.05)
    gain = json.loads(run(*given, "--action=1", "--baseline=-1", "--level=0.5"))[0]
    assert gain["value"] == pytest.approx(fixed[1]["value"] - fixed[0]["value"])
    assert gain["upper"] - gain["lower"] < 1.4 * gain["standard_error"]
    assert "less that under -1" in run(*given[:-1], "--action=1", "--baseline=-1")


FIT = ["--action", "a", "--instrument", "z1", "--out", "{folder}/m", "--outcome"]
EFFECT = ["iv", "effect", "{folder}/model", "--context"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["iv", "diagnose", "{folder}/absent"], "is not a folder"),
        ([*EFFECT, "x=0", "--grid", "b=1:2:3"], "must name the action"),
        ([*EFFECT, "x=0", "--grid", "a=1:2"], "name=low:high:count"),
        ([*EFFECT, "x=0"], "Give actions"),
        ([*EFFECT, "x", "--action", "1"], "Expected name=value"),
        ([*EFFECT, "w=1", "--action", "1"], r"--context must name the context \['x'\], got 'w'"),
        (["iv", "value", "{folder}/model"], "Name the context"),
        (
            ["iv", "value", "{folder}/model", "--context", "x=0,w=1"],
            r"--context must name the context \['x'\], got 'w'",
        ),
        (["iv", "value", "{folder}/model", "--context", "x=0,x=1"], "--context names 'x' twice"),
        (["iv", "value", "{folder}/model", "--context", "x=0", "--level", "95"], "between 0 and 1"),
        (["iv", "value", "{folder}/model", "--context", "x=0", "--baseline", "1,2"], "must be one action"),
        (["iv", "value", "{folder}/model", "--context", "x=0", "--action", "1", "--minimise"], "leave them out"),
        (["iv", "fit", "{folder}/picture.csv", *FIT, "y"], "cannot be read as CSV|a table needs more"),
        (["iv", "fit", "{folder}/none.csv", *FIT, "y"], "is not a file"),
        (["iv", "fit", "{folder}/data.csv", *FIT, "q"], "Outcome column 'q' is not in the data"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, arguments, message):
    (folder / "picture.csv").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    assert re.search(message, fail(*(part.format(folder=folder) for part in arguments)))
    assert not (folder / "m").exists()


def test_version_and_help():
    assert run("--version").strip()
    assert "demo" in run("--help")
