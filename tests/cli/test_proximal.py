"""``prudent proximal`` as people type it."""

import json

import pytest
from typer.testing import CliRunner

from prudent import datasets
from prudent.cli import app
from prudent.errors import DataError

FIT = ["--outcome", "y", "--treatment", "a", "--outcome-proxy", "w", "--treatment-proxy", "v"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proximal")
    datasets.make_linear_proximal(300, seed=0).frame().to_csv(folder / "data.csv", index=False)
    output = run("proximal", "fit", str(folder / "data.csv"), *FIT, "--folds", "2", "--out", str(folder / "model"))
    assert "effective F" in output
    return folder


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_fit_saves_a_model_and_a_picture(folder):
    assert {p.name for p in (folder / "model").iterdir()} == {"model.json", "weights.safetensors", "effect.png"}


def test_effect_and_diagnose_speak_json(folder):
    model = str(folder / "model")
    rows = json.loads(run("proximal", "effect", model, "--grid", "a=-1:1:3", "--json"))
    assert [row["a"] for row in rows] == [-1.0, 0.0, 1.0]
    assert rows[2]["debiased"] - rows[0]["debiased"] == pytest.approx(4.0, abs=1.0)
    assert all(row["lower"] < row["debiased"] < row["upper"] for row in rows)
    assert json.loads(run("proximal", "diagnose", model, "--json"))["n_rows"] == 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "b=1:2:3"], r"--grid must name the treatment \['a'\], got 'b'"),
        ([], "Give treatments, as --grid name=low:high:count or --treatment"),
        (["--treatment", "1", "--level", "2"], "--level must be between 0 and 1, got 2"),
    ],
)
def test_bad_input_is_explained(folder, arguments, message):
    with pytest.raises(DataError, match=message):
        run("proximal", "effect", str(folder / "model"), *arguments)


@pytest.mark.parametrize("estimator", ["kernel-cmr", "pmmr", "kpv", "2sls"])
def test_other_estimators_fit_and_load(folder, tmp_path, estimator):
    fit = ["proximal", "fit", str(folder / "data.csv"), *FIT, "--estimator", estimator, "--out", str(tmp_path / "m")]
    run(*fit)
    (row,) = json.loads(run("proximal", "effect", str(tmp_path / "m"), "--treatment", "1", "--json"))
    assert row["effect"] == pytest.approx(row["debiased"], abs=2.0)


def test_estimator_options_are_checked(folder, tmp_path):
    fit = ["proximal", "fit", str(folder / "data.csv"), *FIT, "--out", str(tmp_path / "m")]
    with pytest.raises(DataError, match="--estimator must be one of dml-cmr, kernel-cmr, nmmr"):
        run(*fit, "--estimator", "magic")
    with pytest.raises(DataError, match="--folds is for estimators that cross-fit; 2sls does not"):
        run(*fit, "--estimator", "2sls", "--folds", "5")
    with pytest.raises(DataError, match="holds a ProximalRegression, not IVRegression"):
        run("iv", "diagnose", str(folder / "model"))


def test_several_treatments_are_asked_for_in_python(tmp_path):
    frame = datasets.make_linear_proximal(300, seed=0).frame()
    frame.assign(b=frame["a"] ** 2).to_csv(tmp_path / "data.csv", index=False)
    fit = ["proximal", "fit", str(tmp_path / "data.csv"), *FIT, "--estimator", "2sls", "--out", str(tmp_path / "m")]
    run(*[("a,b" if argument == "a" else argument) for argument in fit])
    with pytest.raises(DataError, match="asks about one column; the treatment has a, b"):
        run("proximal", "effect", str(tmp_path / "m"), "--treatment", "1,2")
