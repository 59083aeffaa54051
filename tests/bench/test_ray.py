"""The Ray engine on a local cluster of two nodes, one of which is lost during the run."""

import threading
import time

import pytest
import tiny_bench

from prudent import bench

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(monkeypatch):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # A head without cores: both nodes that work can be removed.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster
    cluster.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_numbers_of_the_local_engine_although_a_node_is_lost(cluster, tmp_path):
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    records = tmp_path / "ray" / "tiny" / "slow.jsonl"

    def lose_a_node():
        while not records.exists() or records.read_text().count('"kind": "run"') < 4:
            time.sleep(0.05)
        cluster.remove_node(nodes[1], allow_graceful=False)

    saboteur = threading.Thread(target=lose_a_node)
    saboteur.start()
    bench.run([tiny_bench.slow, tiny_bench.raises], tmp_path / "ray", engine="ray")
    saboteur.join()
    assert len(cluster.list_all_nodes()) == 2  # the head and the node that is left
    bench.run([tiny_bench.slow, tiny_bench.raises], tmp_path / "local")
    for name in ("tiny/slow", "tiny/raises"):
        (ray_sweep,), (local,) = (bench.load_folder(tmp_path / engine, [name]) for engine in ("ray", "local"))
        assert not ray_sweep.missing()
        assert {key: entry.get("metrics") for key, entry in ray_sweep.results.items()} == {
            key: entry.get("metrics") for key, entry in local.results.items()
        }
        assert {entry["engine"] for entry in ray_sweep.results.values()} == {"ray"}


def test_no_cluster_at_the_address_is_bad_input(monkeypatch, tmp_path):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(bench.BenchError, match="no Ray cluster answers at RAY_ADDRESS='127.0.0.1:1'"):
        bench.run([tiny_bench.curve], tmp_path, engine="ray")
    assert not list(tmp_path.iterdir())
