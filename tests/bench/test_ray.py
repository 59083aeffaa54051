"""The Ray engine on a local cluster of two nodes, one of which is lost during the run."""

import threading
import time
from dataclasses import replace

import pytest
import tiny_bench

from prudent import bench

# Ray warns about its own future defaults and leaves sockets to the garbage collector.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def log(tmp_path, monkeypatch):
    """File with a line per execution; nodes inherit its name, so it comes before the cluster."""
    monkeypatch.setenv("TINY_LOG", str(tmp_path / "log"))
    (tmp_path / "log").touch()
    return tmp_path / "log"


@pytest.fixture
def cluster(log, monkeypatch):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # A head without cores: the work is on the nodes that are added, and any of them can be lost.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster
    cluster.shutdown()


def test_ray_gives_the_numbers_of_the_local_engine_although_a_node_is_lost(cluster, log, tmp_path):
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    # Long enough that a node dies before the cell on it has ended: to remove one takes Ray a second or two.
    experiments = [replace(tiny_bench.slow, budget={"sleep": 5.0}, runs=4), tiny_bench.raises]
    records = tmp_path / "ray" / "tiny" / "slow.jsonl"

    def lose_a_busy_node():
        recorded = executed = 0
        # Two executions more than records: both nodes are in the middle of a cell.
        while recorded < 2 or executed < recorded + 2:
            time.sleep(0.02)
            executed = len(log.read_text().splitlines())
            recorded = records.read_text().count('"kind": "run"') if records.exists() else 0
        cluster.remove_node(nodes[1], allow_graceful=False)

    saboteur = threading.Thread(target=lose_a_busy_node, daemon=True)
    saboteur.start()
    bench.run(experiments, tmp_path / "ray", engine="ray")
    saboteur.join(120)
    assert len(log.read_text().splitlines()) > 8  # what the lost node was at has run again
    bench.run(experiments, tmp_path / "local")
    for experiment in experiments:
        (on_ray,), (local,) = (bench.load_folder(tmp_path / engine, [experiment.name]) for engine in ("ray", "local"))
        assert not on_ray.missing()
        assert _numbers(on_ray) == _numbers(local)
        assert {entry["engine"] for entry in on_ray.results.values()} == {"ray"}


def test_no_cluster_at_the_address_is_bad_input(monkeypatch, tmp_path):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(bench.BenchError, match=r"no Ray cluster answers at RAY_ADDRESS='127\.0\.0\.1:1'"):
        bench.run([tiny_bench.curve], tmp_path, engine="ray")
    assert not list(tmp_path.iterdir())


def _numbers(sweep):
    return {key: (entry["status"], entry.get("metrics")) for key, entry in sweep.results.items()}
