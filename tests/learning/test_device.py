"""The memory format in which a network trains, and its layers with sparse gradients."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.data import as_samples
from coprefl_flwr.learning.device import placed
from coprefl_flwr.models import model_arrays
from tests.common.federation import CPU

SMALL = {"rounds": 1, "local_steps": 2, "batch_size": 20, "learning_rate": 0.1, "quiet": True}
LABELS = torch.arange(20) % 4


class Viewed(torch.autograd.Function):
    """A function of a user whose backward pass views the gradient."""

    @staticmethod
    def forward(ctx, inputs):
        return inputs * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient.view(len(gradient), -1).clamp(-1, 1).view(gradient.shape)


class Net(nn.Module):
    """A network of which one part needs PyTorch's default memory format."""

    def __init__(self, kind=""):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.a, self.b, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(64, 4)
        self.norm, self.kind = nn.BatchNorm2d(4), kind

    def forward(self, images):
        hidden = self.norm(self.a(images))
        if self.kind == ("in training" if self.training else "in evaluation"):
            hidden = hidden + 0 * hidden.view(len(hidden), -1).mean()
        if self.kind == "in the gradient":
            hidden = Viewed.apply(hidden)
        if self.kind == "in another way":
            assert hidden.is_contiguous()
        return self.last(self.b(relu(hidden)).flatten(1))


def of_a_plain_loop(network, inputs, steps=2):
    """Return the arrays of a network after full-batch steps of plain PyTorch."""
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(network(inputs), LABELS).backward()
        optimiser.step()
    return model_arrays(network)


def assert_same(start, expected):
    for name, array in model_arrays(start).items():
        assert array == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


KINDS = ("in training", "in the gradient", "in evaluation", "in another way")


@pytest.mark.parametrize("kind", KINDS)
def test_what_trains_in_a_plain_loop_trains_here(kind):
    """Before, each client failed, because only a call in eval mode was tried."""
    images = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    start = cp.pretrain("coprefl", Net(kind), [TensorDataset(images, LABELS)], **SMALL)
    assert all(map(torch.isfinite, start.last.bias))
    start = cp.pretrain("fedavg", Net(kind), [TensorDataset(images, LABELS)], **SMALL)
    assert_same(start, of_a_plain_loop(Net(kind).train(), images))


def test_network_that_works_in_channels_last_keeps_it_and_its_state():
    samples = as_samples("made up", TensorDataset(torch.rand(20, 3, 8, 8), LABELS))
    network, random = Net(), torch.get_rng_state()
    before = model_arrays(network)
    weight = placed(network, CPU, samples).a.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert weight.grad is None
    assert network.training
    assert torch.equal(torch.get_rng_state(), random)
    after = model_arrays(network)
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)
    # Without samples the format cannot be tried.
    assert placed(Net(), CPU, samples.take(np.arange(0))).a.weight.is_contiguous()


class Words(nn.Module):
    """A network for word indices, with sparse gradients of its first layer."""

    def __init__(self, kind, sparse):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layer = nn.EmbeddingBag if kind == "bag" else nn.Embedding
            self.words, self.last = layer(50, 8), nn.Linear(8, 4)
        self.words.sparse, self.kind = sparse, kind

    def forward(self, words):
        if self.kind == "bag":
            return self.last(self.words(words))
        return self.last(self.words(words).mean(1))


@pytest.mark.parametrize(
    ("kind", "method", "more"),
    [
        ("bag", "coprefl", {}),
        ("layer", "fedmeta", {}),
        ("layer", "per-fedavg:variant=hf", {}),
        ("layer", "fedavg", {"clip_norm": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ],
)
def test_sparse_gradients_give_the_same_model_as_dense_ones(kind, method, more):
    """Before, clients failed where a sparse gradient was clipped, changed or sent."""
    words = torch.randint(0, 50, (20, 7), generator=torch.Generator().manual_seed(0))
    sites = [TensorDataset(words[rows], LABELS[rows]) for rows in (slice(10), slice(10, 20))]
    sparse, dense = (
        cp.pretrain(method, Words(kind, sparse), sites, **SMALL, **more) for sparse in (True, False)
    )
    assert_same(sparse, model_arrays(dense))
