"""``prudent imitate`` as people type it."""

import json

import pytest
from typer.testing import CliRunner

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
        *("--episodes", "4", "--steps", "40", "--json"),
    )
    assert json.loads(made)[0]["steps"] == 160
    assert "suggested" in run("imitate", "horizon", demos, "--max-horizon", "4")
    fitted = run("imitate", "fit", demos, "--noise-horizon", "2", "--method", "bc", "--out", model)
    assert "error of recorded actions" in fitted
    judged = run(
        *("imitate", "evaluate", model, "--env", "TicketPricing-v1", "--noise-horizon", "2", "--episodes", "3"),
        *("--steps", "30", "--out", str(tmp_path / "pictures"), "--json"),
    )
    rows = {row["policy"]: row for row in json.loads(judged)}
    assert rows["expert"]["mse"] == 0.0
    assert rows["policy"]["mse"] > 0.0
    assert (tmp_path / "pictures" / "rollout.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "absent.npz", "--noise-horizon", "1", "--out", "m"), "absent.npz is not a file"),
        (("fit", "absent.npz", "--noise-horizon", "1", "--out", "m", "--method", "gail"), "--method must be one of"),
        (("fit", "absent.npz", "--noise-horizon", "1", "--out", "m", "--relative", "x"), "--relative must be"),
        (("demonstrate", "--env", "TicketPricing-v0", "--out", "demos.csv"), r"must end in \.npz"),
        (("demonstrate", "--env", "NoSuch-v0", "--out", "demos.npz"), "no environment 'NoSuch-v0'"),
        (("demonstrate", "--env", "Pendulum-v1", "--out", "demos.npz"), "not a confounded environment"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=message):
        CliRunner().invoke(app, ["imitate", *arguments], catch_exceptions=False)
