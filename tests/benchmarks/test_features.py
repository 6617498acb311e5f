"""The benchmark of cached features: without the cache, the features are the same."""

import numpy as np
import pytest
import torch

from benchmarks import features
from benchmarks.features import Encoded, random_backbones, random_images, samples_of
from coprefl_flwr.data.features import features_of


def test_features_without_the_cache_are_equal():
    images, backbones = random_images(), random_backbones("lenet5", 2)
    encoded = samples_of(Encoded.of(images, backbones), 3)
    cached = features_of(
        samples_of(images, 3), [b.features for b in backbones], torch.device("cpu")
    )
    rows = np.array([5, 0, 99])
    now, then = (part.batch(rows, torch.device("cpu")) for part in (encoded, cached))
    assert torch.allclose(now[0], then[0], atol=1e-5)
    assert torch.equal(now[1], then[1])
    assert encoded.dataset.shape == cached.dataset.shape == (168,)


def test_bytes_sent_by_hand(monkeypatch):
    """FedPCL: a client sends one prototype set, and gets the global set and all clients' sets."""
    monkeypatch.setattr(features, "SAMPLES", 10)
    found = features.compare("lenet5", 1, 1)
    rows, counts = 10 * 256 * 4, 10 * 4
    assert found["FedPCL, cached"].bytes_up == pytest.approx(5 * (rows + counts), rel=0.1)
    assert found["FedPCL, cached"].bytes_down == pytest.approx(
        5 * (rows + counts + 5 * rows), rel=0.1
    )
    model = 84 * 256 + 256 * 10
    assert found["FedAvg, cached"].bytes_up == pytest.approx(5 * 4 * model, rel=0.1)
