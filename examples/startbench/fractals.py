"""A start without anyone's data: startbench's network, trained on the embedded fractals.

It is a row of a recipe as `fractals: {method: "startbench/fractals.py:start"}`.
"""

import functools
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from coprefl_flwr.data import load_dataset

sys.path.append(str(Path(__file__).parents[1] / "claims"))
from networks import ThreeConvolutions

STEPS, BATCH = 3200, 32
"""As many gradients as 40 rounds of 10 clients with 8 steps of 32 samples have."""
RATE, MOMENTUM = 0.05, 0.9
"""Of SGD. Adam at 1e-3 gave less accurate starts on two draws of glyph tasks."""


@functools.cache
def start(_: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Return the network after training on the fractals, the same for every seed (20 seconds).

    The number of classes is not used: a task replaces the last layer, which has 1,000 outputs here.
    If the images have colours, each fractal gets a random one in each batch.
    """
    torch.manual_seed(0)
    dataset = load_dataset("fractals", image_size=input_shape[-1])
    rows = np.flatnonzero(~dataset.test)
    inputs, labels = dataset.inputs(rows, torch.device("cpu")), torch.from_numpy(dataset.labels)
    model = ThreeConvolutions(len(dataset.classes), input_shape)
    optimiser = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    for _ in range(STEPS):
        batch = torch.randint(len(rows), (BATCH,))
        colours = torch.ones(1) if input_shape[0] == 1 else torch.rand(BATCH, input_shape[0], 1, 1)
        loss = cross_entropy(model(inputs[batch] * colours), labels[rows[batch]])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model
