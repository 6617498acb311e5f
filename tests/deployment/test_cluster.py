"""`coprefl run --workers` on a Ray cluster of two nodes, on this machine."""

import tempfile

import pytest

from coprefl_flwr.cli import main
from tests.common.checks import assert_same_results
from tests.common.recipes import tiny_recipe, write_recipe


def add_node(cluster, tries=3):
    """Add a node; try again, because a busy machine may need more than Ray's 30 seconds."""
    for left in reversed(range(tries)):
        try:
            cluster.add_node(num_cpus=1, include_dashboard=False)
        except Exception as error:
            if not left or "timed out" not in str(error):
                raise
        else:
            return


@pytest.fixture
def cluster(monkeypatch):
    """Start a Ray cluster of two nodes of one CPU each on this machine; RAY_ADDRESS names it."""
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    # In Ray's usual folder other programs would find it; the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="ray.", dir="/tmp", ignore_cleanup_errors=True) as one:
        monkeypatch.setenv("RAY_TMPDIR", one)
        made = cluster_utils.Cluster()
        for _ in range(2):
            add_node(made)
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.mark.deployment
def test_run_on_a_ray_cluster_equals_a_local_run(cluster, tiny_images, tmp_path, capfd):
    """The numbers equal those of a run in this process; the cluster continues to run."""
    settings = {"rounds": 2, "tasks": 1, "task-rounds": 1}
    content = tiny_recipe(tiny_images, settings, methods=["fedavg"], reference=None, seeds=[0, 1])
    path = write_recipe(tmp_path / "recipe.yaml", content)
    arguments = ["run", str(path), "--out", str(tmp_path / "two" / "out"), "--workers", "2"]
    assert main([*arguments, "--tracker", "tests.common.own_parts:nodes"]) == 0
    assert len(list((tmp_path / "two" / "out" / "nodes").iterdir())) == 2
    assert "Error" not in capfd.readouterr().err
    assert cluster.list_all_nodes()
    assert main(["run", str(path), "--out", str(tmp_path / "one" / "out"), "--workers", "1"]) == 0
    assert_same_results(tmp_path / "two" / "models", tmp_path / "one" / "models")
