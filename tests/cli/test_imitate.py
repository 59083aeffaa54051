"""``prudent imitate`` as people type it."""

import json

import pytest
from typer.testing import CliRunner

import prudent
from prudent import DataError
from prudent.cli import app


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_from_demonstrations_to_a_judged_policy(tmp_path):
    demos, model = str(tmp_path / "demos.npz"), str(tmp_path / "model")
    made = run(
        *("imitate", "demonstrate", "--env", "TicketPricing-v1", "--noise-horizon", "2", "--out", demos),
        *("--noise", "recorded", "--episodes", "4", "--steps", "40", "--json"),
    )
    assert json.loads(made)[0]["steps"] == 160
    assert "horizon" in run("imitate", "horizon", demos, "--max-horizon", "4", "--relative", "0")
    fitted = run("imitate", "fit", demos, "--method", "bc", "--out", model)
    assert "Without a model" not in run("imitate", "horizon", demos, "--max-horizon", "4", "--model", model)
    assert "error of recorded actions" in fitted
    with pytest.raises(DataError, match="--noise-horizon is needed: a BehaviourCloning does not know"):
        CliRunner().invoke(app, ["imitate", "evaluate", model, "--env", "TicketPricing-v1"], catch_exceptions=False)
    with pytest.raises(DataError, match="nothing to diagnose"):
        CliRunner().invoke(app, ["imitate", "diagnose", model], catch_exceptions=False)
    judged = run(
        *("imitate", "evaluate", model, "--env", "TicketPricing-v1", "--noise-horizon", "2", "--episodes", "3"),
        *("--steps", "30", "--out", str(tmp_path / "pictures"), "--json"),
    )
    rows = {row["policy"]: row for row in json.loads(judged)}
    assert rows["expert"]["mse"] == 0.0
    assert rows["policy"]["mse"] > 0.0
    assert (tmp_path / "pictures" / "rollout.png").stat().st_size > 1000


@pytest.mark.slow
def test_the_default_method_is_fitted_diagnosed_and_judged(tmp_path):
    demos, model = str(tmp_path / "demos.npz"), str(tmp_path / "model")
    run(
        *("imitate", "demonstrate", "--env", "TicketPricing-v1", "--noise-horizon", "2", "--out", demos),
        *("--noise", "recorded", "--episodes", "10", "--steps", "30"),
    )
    run("imitate", "fit", demos, "--noise-horizon", "2", "--folds", "2", "--out", model)
    assert "correction of cloning" in run("imitate", "diagnose", model)
    judged = run(
        *("imitate", "evaluate", model, "--env", "TicketPricing-v1", "--episodes", "3", "--steps", "30", "--json")
    )
    assert {row["policy"] for row in json.loads(judged)} >= {"expert", "policy"}


@pytest.mark.slow  # Networks of the default size.
@pytest.mark.filterwarnings("ignore:weak instrument")
def test_a_straight_correction_is_asked_for(tmp_path):
    demos, model = str(tmp_path / "demos.npz"), str(tmp_path / "model")
    run(*("imitate", "demonstrate", "--env", "TicketPricing-v0", "--out", demos, "--episodes", "12", "--steps", "100"))
    run(
        *("imitate", "fit", demos, "--noise-horizon", "1", "--folds", "2", "--correction", "straight", "--out", model),
    )
    fitted = prudent.load(model)
    # The policy sees as many states as is the rule for it.
    assert (fitted.correction, fitted.policy_view.n_states) == ("straight", 4)
    assert "correction of cloning" in run("imitate", "diagnose", model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "absent.npz", "--noise-horizon", "1", "--out", "m"), "absent.npz is not a file"),
        (("fit", "absent.npz", "--noise-horizon", "1", "--out", "m", "--method", "gail"), "--method must be one of"),
        (("fit", "absent.npz", "--out", "m"), "dml-il needs --noise-horizon"),
        (
            ("fit", "a.npz", "--noise-horizon", "1", "--out", "m", "--method", "residuil", "--correction", "straight"),
            "--correction is for dml-il",
        ),
        (("fit", "absent.npz", "--noise-horizon", "1", "--out", "m", "--relative", "x"), "--relative must be"),
        (("demonstrate", "--env", "TicketPricing-v0", "--out", "demos.csv"), r"ends in \.npz"),
        (
            ("fit", "a.npz", "--out", "m", "--method", "bc", "--folds", "7"),
            "--folds is for dml",
        ),
        (
            ("fit", "a.npz", "--noise-horizon", "1", "--out", "m", "--method", "bc-seq", "--policy-states", "3"),
            "--policy-states is for dml-il",
        ),
        (("fit", "a.npz", "--noise-horizon", "1", "--out", "m", "--method", "bc"), "--noise-horizon is not for bc"),
        (("demonstrate", "--env", "bad:id:x", "--out", "demos.npz"), "no environment 'bad:id:x'"),
        (("demonstrate", "--env", "TicketPricing-v0", "--noise", "loud", "--out", "d.npz"), "noise must be one of"),
        (("demonstrate", "--env", "NoSuch-v0", "--out", "demos.npz"), "no environment 'NoSuch-v0'"),
        (("demonstrate", "--env", "Pendulum-v1", "--out", "demos.npz"), "If it is not a confounded environment"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=message):
        CliRunner().invoke(app, ["imitate", *arguments], catch_exceptions=False)


def test_no_fold_is_refused_before_anything_is_learnt(tmp_path):
    demos = str(tmp_path / "demos.npz")
    run(
        *("imitate", "demonstrate", "--env", "TicketPricing-v0", "--out", demos, "--episodes", "4", "--steps", "20"),
    )
    fit = ["imitate", "fit", demos, "--noise-horizon", "1", "--folds", "0", "--out", str(tmp_path / "model")]
    with pytest.raises(ValueError, match="n_folds must be a whole number of at least 1"):
        CliRunner().invoke(app, fit, catch_exceptions=False)


def test_a_picture_needs_a_folder_before_the_roll_outs(tmp_path, monkeypatch):
    import prudent
    from prudent import imitation

    class Fitted(imitation.BehaviourCloning):
        def policy(self, action_space=None):
            raise AssertionError("the roll-outs have begun")

    monkeypatch.setattr(prudent, "load", lambda folder: Fitted())
    (tmp_path / "taken").write_text("a file")
    evaluate = ["imitate", "evaluate", "model", "--env", "TicketPricing-v0", "--noise-horizon", "1"]
    evaluate += ["--out", str(tmp_path / "taken")]
    with pytest.raises(FileExistsError):
        CliRunner().invoke(app, evaluate, catch_exceptions=False)


@pytest.mark.parametrize("command", [("train", "hopper", "--out", "e"), ("evaluate", "hopper")])
def test_experts_refuse_a_negative_seed(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="seed must be a whole number from 0"):
        CliRunner().invoke(app, ["experts", *command, "--seed", "-4"], catch_exceptions=False)
