"""Cells of the IV experiments return their metrics; definitions are complete. A least-squares stub does the fits."""

from pathlib import Path

import numpy as np
import pytest

from prudent import bench, cmr
from prudent.bench._cell import _load

NAMES = ["iv/bandit", "iv/context", "iv/demand", "iv/ihdp", "iv/images", "iv/pm-cmr", "iv/speed", "iv/trees", "iv/weak"]


class LeastSquares(cmr.MomentEstimator):
    """y on x, its squares and its products with the first column."""

    def fit(self, y, x, c, *, seed, groups=None):
        self.coef_ = np.linalg.lstsq(self._design(x), y, rcond=None)[0]
        return self

    def predict(self, x):
        return self._design(x) @ self.coef_

    def to_state(self):
        return {}, {}

    def _design(self, x):
        return np.hstack([np.ones((len(x), 1)), x, x[:, :1] * x])


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_cell_returns_every_metric(name, monkeypatch, request):
    if name == "iv/pm-cmr":
        request.getfixturevalue("data_folder")
    monkeypatch.setattr(cmr, "LeastSquares", LeastSquares, raising=False)
    experiment = bench.load_all()[name].quick_version()
    cell = experiment.cells()[0]
    task = experiment.task(cell)
    # Its fit runs in another process, which does not know the estimator of this file.
    estimator = "TwoStageLeastSquares" if name == "iv/speed" else "LeastSquares"
    settings = {"estimator": estimator, "contexts": 50} if "bandit" not in task.settings else task.settings
    point = {axis: 300 if axis == "n" else value for axis, value in cell.point.items()}
    task = bench.Task(method=cell.method, settings=settings, point=point, seed=1000, budget=task.budget)
    result = _load(experiment.run_cell)(task)
    assert {metric.name for metric in experiment.metrics if metric.is_returned} <= set(result)
    assert all(np.isfinite(value) for value in result.values())


def test_bandit_and_random_cells():
    experiment = bench.load_all()["iv/context"].quick_version()
    run_cell = _load(experiment.run_cell)
    losses = {}
    for method in ("linlcb", "linlcb-without", "random"):
        settings = experiment.method(method).settings
        task = bench.Task(method=method, settings=settings, point={"n": 1000}, seed=1000, budget=experiment.budget)
        losses[method] = run_cell(task)["suboptimality"]
    assert losses["random"] == pytest.approx(3.87, abs=0.5)
    # Worse than one price for everybody: given the cost, price and hidden demand are nearly the same thing.
    assert losses["linlcb"] > 0.87
    assert losses["linlcb-without"] < losses["linlcb"]


def test_records_of_demand_keep_their_definition():
    """A change of these would throw recorded runs away."""
    demand = bench.load_all()["iv/demand"]
    assert demand.method("dml-cmr").settings == {"estimator": "DMLCMR", "n_folds": 10}
    assert demand.method("ce-dml-cmr").settings == {"estimator": "DMLCMR", "n_folds": 1}
    assert (demand.budget, demand.version) == ({}, 1)
    assert demand.digest("dml-cmr") == "e7b42da34e083ac3"


def test_estimators_are_the_same_everywhere():
    known = bench.load_all()
    methods = list(known["iv/demand"].methods)
    assert {m.name for m in methods} >= {
        "dml-cmr",
        "ce-dml-cmr",
        "deepiv",
        "deepgmm",
        "dfiv",
        "kiv",
        "kernel-cmr",
        "2sls",
    }
    for name in ("iv/weak", "iv/ihdp", "iv/pm-cmr"):
        assert known[name].methods == tuple(methods)
    # Trees have a table of their own, and stand beside the others where time is compared.
    trees = [m for m in known["iv/trees"].methods if m.name in ("forest-dml", "boosting-dml")]
    assert known["iv/speed"].methods == (*methods, *trees)
    assert {m.name for m in known["iv/images"].methods} == {m.name for m in methods} - {"2sls"}
    assert all(experiment.estimate_seconds() > 0 for experiment in known.values())


def test_tables_leave_out_runs_from_before_a_metric(tmp_path):
    from dataclasses import replace

    from prudent.bench._folder import Sweep

    demand = replace(bench.load_all()["iv/demand"], runs=2, grid={"n": (1000,)})
    results = {
        cell.key: {
            "status": "ok",
            "metrics": {"mse": 0.1} | ({"reward": 0.5} if cell.seed else {}),
            "cpu_seconds": 2.0 + cell.seed,
        }
        for cell in demand.cells()
        if cell.method == "2sls"
    }
    sweep = Sweep(demand, "", results, 0, Path("records"))
    tables = {table.metric.name: table for table in bench.tables(sweep)}
    entry = next(row for row in tables["reward"].rows if row.label == "2SLS").entries[0]
    assert (entry.value, entry.runs, entry.errors) == (0.5, 1, 0)
    assert next(row for row in tables["mse"].rows if row.label == "2SLS").entries[0].runs == 2
    # What a cell cost is in its record, not among what it returned.
    assert next(row for row in tables["cpu_seconds"].rows if row.label == "2SLS").entries[0].value == 2.5
