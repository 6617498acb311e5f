"""The app of the deployment example without a deployment, which takes minutes to test."""

import numpy as np

from tests.deployment.test_deployment import local_weights


def test_app_runs_with_its_default_settings(tmp_path, monkeypatch):
    """Earlier, the app's options of CoPreFL were read as settings of every run."""
    rng = np.random.default_rng(0)
    for node in range(2):
        images = rng.integers(0, 256, (20, 28, 28), dtype=np.uint8)
        np.savez(tmp_path / f"node-{node}.npz", images=images, labels=rng.integers(0, 100, 20))
    weights = local_weights(tmp_path, tmp_path, monkeypatch, rounds=1, seed=0, nodes=2)
    assert all(np.isfinite(array.numpy()).all() for array in weights.values())
