import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import tiny_bench

from prudent import bench
from prudent.bench import Task
from prudent.bench._cell import execute_alone

RUN = "from prudent.cli import main; main()"


def start(*args, **kwargs):
    """``prudent bench ...`` in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", RUN, "bench", *map(str, args)], **kwargs)


def numbers(folder, name):
    """What a sweep found out, times aside."""
    (sweep,) = bench.load_folder(folder, [name])
    return {key: (entry["status"], entry.get("metrics"), entry["definition"]) for key, entry in sweep.results.items()}


def lines(folder, name):
    return (folder / f"{name}.jsonl").read_text().splitlines()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    bench.run([replace(tiny_bench.slow, budget={})], folder)
    return {key: (status, metrics) for key, (status, metrics, _) in numbers(folder, "tiny/slow").items()}


def test_a_sweep_records_every_cell_with_cost_and_surroundings(tmp_path):
    bench.run([tiny_bench.curve], tmp_path, workers=2)
    (sweep,) = bench.load_folder(tmp_path)
    assert not sweep.missing()
    assert not sweep.errors()
    for entry in sweep.results.values():
        assert entry["wall_seconds"] >= 0
        assert entry["cpu_seconds"] >= 0
        assert entry["peak_mb"] > 1
        assert entry["versions"]["python"]
        assert entry["machine"]["cores"] >= 1
        assert entry["definition"] == tiny_bench.curve.digest(entry["method"])


def test_a_cell_alone_is_not_charged_for_the_memory_of_others():
    held = np.ones(50_000_000)  # 400 MB
    task = Task(method="good", settings={"scale": 1.0}, point={"n": 100}, seed=0, budget={})
    outcome = execute_alone("tiny_bench:run_cell", ["error"], task)
    assert outcome["metrics"]["error"] == tiny_bench.run_cell(task)["error"]
    assert outcome["peak_mb"] < 200 < held.nbytes / 1e6
    with pytest.raises(RuntimeError, match="not finite"):
        execute_alone("tiny_bench:return_nan", [], task)


def test_killed_three_times_and_resumed_equals_undisturbed(tmp_path, monkeypatch, undisturbed):
    log = tmp_path / "log"
    monkeypatch.setenv("TINY_LOG", str(log))
    out = tmp_path / "out"
    for count in (2, 5, 8):
        process = start("run", "tiny/slow", "--out", out, "--workers", 2, "--resume")
        deadline = time.monotonic() + 120
        while not (log.exists() and len(log.read_text().splitlines()) >= count):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
    executed = len(log.read_text().splitlines())
    done = len(numbers(out, "tiny/slow"))
    assert executed <= done + 3 * 2  # each kill loses at most the cells of the two workers
    assert start("run", "tiny/slow", "--out", out, "--resume").wait(120) == 0
    result = numbers(out, "tiny/slow")
    assert {key: value[:2] for key, value in result.items()} == undisturbed
    plans = sum('"kind": "plan"' in line for line in lines(out, "tiny/slow"))
    assert len(lines(out, "tiny/slow")) == plans + len(result)  # no cell twice


def test_two_processes_share_one_folder_without_running_a_cell_twice(tmp_path, monkeypatch, undisturbed):
    log = tmp_path / "log"
    monkeypatch.setenv("TINY_LOG", str(log))
    out = tmp_path / "out"
    processes = [start("run", "tiny/slow", "--out", out, "--workers", 1, "--resume") for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    executed = log.read_text().splitlines()
    assert len(executed) == len(set(executed)) == 16
    assert {key: value[:2] for key, value in numbers(out, "tiny/slow").items()} == undisturbed


def test_resume_runs_only_what_is_missing(tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("TINY_LOG", str(log))
    bench.run([tiny_bench.curve], tmp_path, runs=2)
    assert len(log.read_text().splitlines()) == 8
    bench.run([tiny_bench.curve], tmp_path, runs=3, resume=True)
    assert len(log.read_text().splitlines()) == 12
    bench.run([tiny_bench.curve], tmp_path, runs=1, resume=True)
    assert len(log.read_text().splitlines()) == 12
    (sweep,) = bench.load_folder(tmp_path)
    assert sweep.experiment.runs == 3
    assert not sweep.missing()


def test_a_new_method_or_longer_grid_keeps_recorded_cells(tmp_path):
    bench.run([replace(tiny_bench.curve, methods=tiny_bench.curve.methods[:1], grid={"n": (100,)})], tmp_path, runs=1)
    bench.run([tiny_bench.curve], tmp_path, runs=1, resume=True)
    assert len(numbers(tmp_path, "tiny/curve")) == 4
    assert sum('"kind": "run"' in line for line in lines(tmp_path, "tiny/curve")) == 4


def test_methods_can_be_run_one_after_the_other(tmp_path):
    assert bench.run([tiny_bench.curve, tiny_bench.slow], tmp_path, runs=1, methods=["bad"]) == {"tiny/curve": 2}
    (sweep,) = bench.load_folder(tmp_path)
    assert len(sweep.missing()) == 2
    bench.run([tiny_bench.curve], tmp_path, runs=1, resume=True)
    assert len(numbers(tmp_path, "tiny/curve")) == 4
    with pytest.raises(bench.BenchError, match="no experiment of this run has a method 'ugly'; they have bad, good"):
        bench.run([tiny_bench.curve], tmp_path / "other", methods=["bad", "ugly"])


def test_a_raising_cell_is_recorded_and_the_others_go_on(tmp_path):
    bench.run([tiny_bench.raises], tmp_path)
    (sweep,) = bench.load_folder(tmp_path)
    (error,) = sweep.errors()
    assert error["seed"] == 1
    assert error["error"]["type"] == "RuntimeError"
    assert "raise_on_seed_one" in error["error"]["traceback"]
    assert len(sweep.results) == 3
    before = len(lines(tmp_path, "tiny/raises"))
    bench.run([tiny_bench.raises], tmp_path, resume=True)
    assert len(lines(tmp_path, "tiny/raises")) == before + 1  # the plan: an error is a result
    bench.run([tiny_bench.raises], tmp_path, resume=True, retry_errors=True)
    assert len(lines(tmp_path, "tiny/raises")) == before + 3


def test_a_metric_that_is_not_finite_is_a_failure(tmp_path):
    bench.run([tiny_bench.nan], tmp_path)
    (sweep,) = bench.load_folder(tmp_path)
    assert "not finite" in sweep.errors()[0]["error"]["message"]


def test_a_killed_worker_is_recorded_and_its_cell_retried_once(tmp_path, monkeypatch):
    bench.run([tiny_bench.dies], tmp_path / "always", workers=1)
    (sweep,) = bench.load_folder(tmp_path / "always")
    (error,) = sweep.errors()
    assert error["seed"] == 1
    assert error["attempt"] == 2
    assert "SIGKILL" in error["error"]["message"]
    assert sweep.lost_workers == 2
    assert len(sweep.results) == 3
    monkeypatch.setenv("TINY_FLAG", str(tmp_path / "flag"))
    bench.run([tiny_bench.dies], tmp_path / "once", workers=1)
    (sweep,) = bench.load_folder(tmp_path / "once")
    assert not sweep.errors()
    assert sweep.lost_workers == 1
    assert len(sweep.results) == 3


@pytest.mark.skipif(not hasattr(__import__("os"), "sched_getaffinity"), reason="no core affinity on this system")
def test_workers_have_disjoint_cores(tmp_path):
    from prudent.bench._threads import available_cores

    cores = len(available_cores())
    bench.run([tiny_bench.threads], tmp_path, workers=cores)
    (sweep,) = bench.load_folder(tmp_path)
    metrics = [entry["metrics"] for entry in sweep.results.values()]
    assert all(metric["cores"] == metric["threads"] == 1 for metric in metrics)
    assert len({metric["core"] for metric in metrics}) == min(cores, 4)


def test_records_of_another_definition_are_refused(tmp_path):
    bench.run([tiny_bench.curve], tmp_path, runs=1)
    before = lines(tmp_path, "tiny/curve")
    with pytest.raises(bench.BenchError, match="add --resume"):
        bench.run([tiny_bench.curve], tmp_path)
    with pytest.raises(bench.BenchError, match="another definition"):
        bench.run([tiny_bench.curve], tmp_path, quick=True, resume=True)
    with pytest.raises(bench.BenchError, match="another definition"):
        bench.run([replace(tiny_bench.curve, version=2)], tmp_path, resume=True)
    assert lines(tmp_path, "tiny/curve") == before


def test_a_plan_of_another_definition_is_refused(tmp_path):
    """Also before its first cell is recorded: both would count the other's cells as done."""
    bench.run([tiny_bench.curve], tmp_path, runs=1)
    path = tmp_path / "tiny/curve.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(bench.BenchError, match="another definition"):
        bench.run([tiny_bench.curve], tmp_path, quick=True, resume=True)


def test_a_removed_method_is_ignored(tmp_path):
    bench.run([tiny_bench.curve], tmp_path, runs=1)
    shorter = replace(tiny_bench.curve, methods=tiny_bench.curve.methods[:1], grid={"n": (100,)})
    assert bench.run([shorter], tmp_path, runs=1, resume=True) == {"tiny/curve": 0}
    (sweep,) = bench.load_folder(tmp_path)
    assert len(sweep.results) == len(sweep.experiment.cells()) == 1


def test_an_experiment_is_named_once(tmp_path):
    with pytest.raises(bench.BenchError, match="twice"):
        bench.run([tiny_bench.curve, tiny_bench.curve], tmp_path)


def test_a_worker_ends_with_its_parent(tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("TINY_LOG", str(log))
    import psutil

    process = start("run", "tiny/slow", "--out", tmp_path / "out", "--workers", 2)
    while not log.exists():
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert children
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
