"""The model and its weights as arrays, and data that need no download: three spirals."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_net() -> nn.Module:
    """Return a small classifier of points in the plane."""
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))


def get_weights(model):
    """Return the model's arrays in the order of its state_dict."""
    return [tensor.numpy() for tensor in model.state_dict().values()]


def set_weights(model, arrays):
    """Give the model the arrays that `get_weights` returned."""
    names = model.state_dict()
    model.load_state_dict({n: torch.tensor(a) for n, a in zip(names, arrays, strict=True)})


def load_data(partition_id, first, last):
    """Return the batches of a node's points from `first` to `last`; there are 200."""
    generator = torch.Generator().manual_seed(partition_id)
    labels = torch.randint(0, 3, (200,), generator=generator)
    radius = torch.rand(200, generator=generator) * 2
    angle = radius + 2.1 * labels + 0.3 * partition_id
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return DataLoader(TensorDataset(points[first:last], labels[first:last]), batch_size=32)


def train(model, batches, learning_rate):
    """Train the model for one epoch of SGD and return the last batch's loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for points, labels in batches:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimiser.step()
    return loss.item()


@torch.no_grad()
def test(model, batches):
    """Return the mean loss and the accuracy, a fraction."""
    points, labels = batches.dataset.tensors
    outputs = model(points)
    loss = nn.functional.cross_entropy(outputs, labels).item()
    return loss, float((outputs.argmax(1) == labels).float().mean())
