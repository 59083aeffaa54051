"""``prudent proximal`` as people type it."""

import json

import pytest
from typer.testing import CliRunner

from prudent import datasets
from prudent.cli import app
from prudent.errors import DataError, ModelFileError, RoleError

FIT = ["--outcome", "y", "--treatment", "a", "--outcome-proxy", "w", "--treatment-proxy", "v"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("proximal") / "data.csv"
    datasets.make_linear_proximal(300, seed=0).frame().to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def folder(table):
    # Without networks, whose compilation would take most of the time; tests/examples has a fit with them.
    settings = ["--estimator", "kernel-cmr", "--folds", "2", "--out", str(table.parent / "model")]
    output = run("proximal", "fit", str(table), *FIT, *settings)
    assert "effective F" in output
    return table.parent


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
        (["--treatment", ","], "Give treatments, as --grid name=low:high:count or --treatment"),
        (["--treatment", "1", "--grid", "a=1:2:3"], "Give one of --grid, --treatment and --at"),
        (["--treatment", "high"], "Treatment must be numeric, got 'high'"),
        (["--treatment", "1", "--level", "2"], "--level must be between 0 and 1, got 2"),
    ],
)
def test_bad_input_is_explained(folder, arguments, message):
    with pytest.raises(DataError, match=message):
        run("proximal", "effect", str(folder / "model"), *arguments)


@pytest.mark.parametrize("estimator", ["kernel-cmr", "pmmr", "kpv", "2sls"])
def test_other_estimators_fit_and_load(table, tmp_path, estimator):
    fit = ["proximal", "fit", str(table), *FIT, "--estimator", estimator, "--out", str(tmp_path / "m")]
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


def test_several_treatments_are_asked_for_by_name(tmp_path):
    frame = datasets.make_linear_proximal(300, seed=0).frame()
    frame.assign(b=frame["a"] ** 2).to_csv(tmp_path / "data.csv", index=False)
    fit = ["proximal", "fit", str(tmp_path / "data.csv"), *FIT, "--estimator", "2sls", "--out", str(tmp_path / "m")]
    output = run(*[("a,b" if argument == "a" else argument) for argument in fit])
    assert "no picture, which needs one treatment column, not 2" in " ".join(output.split())
    model = str(tmp_path / "m")
    with pytest.raises(DataError, match=r"ask about one column; the treatment has a, b. Use --at name=value"):
        run("proximal", "effect", model, "--treatment", "1,2")
    with pytest.raises(RoleError, match="Treatment column 'b' is not in the data"):
        run("proximal", "effect", model, "--at", "a=1")
    rows = json.loads(run("proximal", "effect", model, "--at", "b=1,a=1", "--at", "b=1,a=0", "--json"))
    assert [(row["a"], row["b"]) for row in rows] == [(1.0, 1.0), (0.0, 1.0)]
    assert rows[0]["effect"] - rows[1]["effect"] == pytest.approx(2.0, abs=0.5)


def test_two_levels_are_shown_at_their_values_and_models_replaced_in_words(tmp_path):
    frame = datasets.make_linear_proximal(300, seed=0).frame()
    frame.assign(a=(frame["a"] > 0).astype(int)).to_csv(tmp_path / "data.csv", index=False)
    fit = ["proximal", "fit", str(tmp_path / "data.csv"), *FIT, "--estimator", "2sls", "--out", str(tmp_path / "m")]
    assert "in place of" not in run(*fit)
    assert "in place of the model that was there" in " ".join(run(*fit).split())
    rows = json.loads(run("proximal", "effect", str(tmp_path / "m"), "--json"))
    assert [row["a"] for row in rows] == [0.0, 1.0]


def test_bad_cells_are_named_by_their_line(table, tmp_path):
    lines = table.read_text().splitlines()
    fit = ["proximal", "fit", str(tmp_path / "data.csv"), *FIT, "--estimator", "2sls", "--out", str(tmp_path / "m")]
    place = lines[0].split(",").index("a")
    for cell, message in (
        ("n/k", r"Treatment column 'a' is text: 1 of 300 values are no numbers, first 'n/k' \(line 4\). Mend"),
        ("", r"Treatment column 'a' must be finite, got NaN or infinity in 1 rows \(first: line 4\)"),
    ):
        cells = lines[3].split(",")
        cells[place] = cell
        (tmp_path / "data.csv").write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]) + "\n")
        with pytest.raises(DataError, match=message):
            run(*fit)


def test_a_folder_that_cannot_be_made_is_noticed_before_the_fit(table, tmp_path):
    (tmp_path / "file").write_text("")
    fit = ["proximal", "fit", str(table), *FIT, "--out"]
    for out in (tmp_path / "file" / "m", tmp_path / ("x" * 300)):
        with pytest.raises(ModelFileError, match=r"cannot be created or written to .* Choose a folder where you may"):
            run(*fit, str(out))
