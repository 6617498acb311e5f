"""The deployment example's app, without a deployment: `make deployment-test` takes minutes."""

import numpy as np

from tests.deployment.test_deployment import local_weights


def test_it_runs_with_its_own_settings(tmp_path, monkeypatch):
    """Its options of CoPreFL were read as settings of every run, which they had been once."""
    rng = np.random.default_rng(0)
    for node in range(2):
        images = rng.integers(0, 256, (20, 28, 28), dtype=np.uint8)
        np.savez(tmp_path / f"node-{node}.npz", images=images, labels=rng.integers(0, 100, 20))
    weights = local_weights(tmp_path, tmp_path, monkeypatch, rounds=1, seed=0, nodes=2)
    assert all(np.isfinite(array.numpy()).all() for array in weights.values())
