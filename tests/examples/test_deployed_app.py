"""The deployment example without a deployment, which takes minutes to test."""

import importlib.util
import time

import numpy as np
import pytest
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.superexec.executor import SubprocessExecutor
from flwr.supernode import start_client_internal

from tests.common.simulation import ROOT
from tests.deployment.test_deployment import local_weights


def test_app_runs_with_its_default_settings(tmp_path, monkeypatch):
    """Earlier, the app's options of CoPreFL were read as settings of every run."""
    rng = np.random.default_rng(0)
    for node in range(2):
        images = rng.integers(0, 256, (20, 28, 28), dtype=np.uint8)
        np.savez(tmp_path / f"node-{node}.npz", images=images, labels=rng.integers(0, 100, 20))
    weights = local_weights(tmp_path, tmp_path, monkeypatch, rounds=1, seed=0, nodes=2)
    assert all(np.isfinite(array.numpy()).all() for array in weights.values())


@pytest.fixture(scope="module")
def warm_node():
    path = ROOT / "examples" / "deployment" / "warm_node.py"
    spec = importlib.util.spec_from_file_location("warm_node", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_warm_node_finds_in_flower_what_it_changes(warm_node):
    assert {"initial_backoff", "backoff_cap"} <= pull_objects.__kwdefaults__.keys()
    assert start_client_internal.time is time
    assert start_client_internal.subprocess.Popen
    assert SubprocessExecutor.launch
    for name in warm_node.IMPORTS:
        assert importlib.util.find_spec(name)


def test_warm_node_waits_a_tenth_of_the_time_since_the_last_message(warm_node, monkeypatch):
    now, slept = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", slept.append)
    waits = warm_node.Waits()
    for now[0], seconds in ((100.5, 3), (110, 3), (200, 3), (210, 0.5), (215, 3)):
        waits.sleep(seconds)
    assert slept == pytest.approx([0.1, 1, 3, 0.1, 0.5])
