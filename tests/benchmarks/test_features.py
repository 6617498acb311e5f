"""The benchmark of cached features: without the cache, the features are the same."""

import numpy as np
import torch

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
