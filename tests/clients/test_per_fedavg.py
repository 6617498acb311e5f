"""The batches and the dropout masks in the steps of a Per-FedAvg client."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coprefl_flwr import seeds
from coprefl_flwr.clients import PerFedAvgClient
from coprefl_flwr.learning.training import LocalTraining, endless_batches
from coprefl_flwr.models import model_arrays
from tests.common.federation import CPU
from tests.common.networks import CLASSES, double_model

CONFIG = {
    "seed": 3,
    "population": "p",
    "server-round": 2,
    "client": 1,
    "inner-learning-rate": 0.5,
}
TRAINING = LocalTraining(
    local_steps=2, batch_size=6, learning_rate=0.2, schedule="exponential:factor=0.5", clip_norm=0.6
)


def slope(weight, samples, positions):
    """Return the gradient of softmax regression without a bias."""
    inputs, targets = samples.batch(positions, CPU)
    weight = weight.clone().requires_grad_()
    loss = functional.cross_entropy(inputs.flatten(1).double() @ weight.T, targets)
    (gradient,) = torch.autograd.grad(loss, weight)
    return loss.item(), gradient


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_two_steps_on_separate_batches_by_hand(federation, variant):
    """FO uses two batches per step, HF three; 23 samples make four, so HF starts a second epoch."""
    samples, start = federation.samples[2], np.linspace(-1, 1, CLASSES * 16).reshape(CLASSES, 16)
    model = nn.Sequential(double_model(norm=False)[:2], nn.Linear(16, CLASSES, bias=False).double())
    client = PerFedAvgClient(model, samples, training=TRAINING, device=CPU)
    (array,), n, metrics = client.fit([start], {**CONFIG, "meta-variant": variant})

    rng = seeds.generator(3, "p", 2, 1, "batches")
    batches = list(islice(endless_batches(23, 6, rng), 8))
    weight, losses, norms = torch.from_numpy(start), [], []
    for _ in range(2):
        _, inner = slope(weight, samples, batches.pop(0))
        loss, step = slope(weight - 0.5 * inner, samples, batches.pop(0))
        if variant == "hf":
            third = batches.pop(0)
            ahead, behind = (slope(weight + d * step, samples, third)[1] for d in (1e-3, -1e-3))
            step = step - 0.5 * (ahead - behind) / 2e-3
        norms.append(float(step.norm()))
        weight = weight - 0.1 * step * min(1.0, 0.6 / (norms[-1] + 1e-6))
        losses.append(loss)
    assert max(norms) > 0.6
    assert n == 23
    np.testing.assert_allclose(array, weight, rtol=0, atol=1e-11)
    assert metrics == {"loss": pytest.approx(np.mean(losses), rel=1e-12)}


def test_both_sides_of_the_difference_have_the_same_dropout(federation):
    """With different masks, the difference of the masks would be divided by delta."""
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, CLASSES))
    masks = []
    model[1].register_forward_hook(lambda _, inputs, output: masks.append(output != 0))
    training = replace(TRAINING, batch_size=1000)
    client = PerFedAvgClient(model, federation.samples[2], training=training, device=CPU)
    client.fit(list(model_arrays(model).values()), {**CONFIG, "meta-variant": "hf"})
    seen = [mask.numpy().tobytes() for mask in masks]
    assert seen[2] == seen[3]
    assert seen[6] == seen[7]
    assert len(set(seen)) == len(seen) - 2 == 6
