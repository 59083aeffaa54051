"""Cells of the imitation experiments: every method returns every metric, with small networks and few steps."""

import numpy as np
import pytest

from prudent import bench, cmr
from prudent.bench._cell import _load
from prudent.bench.experiments import _iv

BUDGET = {"episodes": 8, "steps": 40, "test_episodes": 2}
# Networks of the learners that are no moment estimators.
SMALL = {name: {"n_networks": 1, "max_steps": 150} for name in ("BehaviourCloning", "SequenceCloning")}
SMALL["ResiduIL"] = {"n_networks": 1, "max_steps": 500}


def run(name, method, k=2):
    experiment = bench.load_all()[name]
    settings = experiment.method(method).settings
    settings = settings | SMALL.get(settings["learner"], {})
    task = bench.Task(method=method, settings=settings, point={"k": k}, seed=1000, budget=experiment.budget | BUDGET)
    result = _load(experiment.run_cell)(task)
    assert {metric.name for metric in experiment.metrics if metric.is_returned} <= set(result)
    assert all(np.isfinite(value) for value in result.values())
    return result


@pytest.fixture(autouse=True)
def small_estimators(monkeypatch, quick_estimator):
    """DML-IL with small networks, and two-stage least squares in place of its rivals."""

    def make(settings):
        return quick_estimator() if settings["estimator"] == "DMLCMR" else cmr.TwoStageLeastSquares()

    monkeypatch.setattr(_iv, "make_estimator", make)


# Eight episodes of forty steps are few.
@pytest.mark.filterwarnings("ignore:weak instrument", "ignore:this policy is plain cloning")
def test_every_method_of_ticket_pricing_returns_every_metric():
    methods = [method.name for method in bench.load_all()["imitation/ticket-pricing"].methods]
    assert methods == ["dml-il", "dml-il-straight", "residuil", "bc", "bc-seq", "clean", "dfiv", "deepgmm"]
    results = [run("imitation/ticket-pricing", method) for method in methods]
    # All have met the same episodes.
    assert len({(r["expert_reward"], r["zero_mse"], r["best_history_free_mse"]) for r in results}) == 1
    # Nobody else has the actions without noise, which are within [-1, 1].
    assert results[methods.index("clean")]["mse_unclipped"] < 1.0


def test_the_closed_loop_has_no_best_policy_without_history():
    assert "best_history_free_mse" not in run("imitation/ticket-pricing-v1", "bc")


def test_the_odometer_enters_as_it_is_on_request():
    pytest.importorskip("mujoco")
    assert run("imitation/half-cheetah", "bc-level")["mse"] != run("imitation/half-cheetah", "bc")["mse"]
