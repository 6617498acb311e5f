"""Networks that a program passes: the head, the identity, and refused networks."""

import pytest
import torch
from torch import nn
from torch.utils import data

import coprefl_flwr as cp
from coprefl_flwr.data.partition import Spread
from coprefl_flwr.models import model_arrays
from coprefl_flwr.studies.architecture import CPU, Architecture, copies_of
from coprefl_flwr.studies.populations import LoadedSource
from coprefl_flwr.studies.task_data import Tasks
from coprefl_flwr.studies.tasks import architecture_of_tasks
from tests.common.checks import refusal
from tests.common.data import images
from tests.common.networks import Perceptron


@pytest.fixture
def tasks():
    return Tasks(LoadedSource.of(images()), Spread(clients=2, partition="iid"), 1, 3)


def test_task_replaces_the_last_layer_alone(tasks):
    first = Perceptron()
    architecture = architecture_of_tasks({"a": first}, None, tasks, 0, keeps_head=False)
    before, after = model_arrays(first), model_arrays(architecture.make())
    changed = {name for name in after if after[name].shape != before[name].shape}
    assert changed == architecture.head == {"last.weight", "last.bias"}
    assert architecture.make(7).last.out_features == 7
    weights, again, other = (model_arrays(architecture.make(3, key)) for key in ("a", "a", "b"))
    for name in after:
        assert (weights[name] == again[name]).all()
        assert (weights[name] == other[name]).all() == (name not in architecture.head)


def test_identity_includes_weights_only_where_no_head_is_replaced(tasks):
    networks = [Perceptron(seed=seed) for seed in (0, 1)]
    first, second = (
        architecture_of_tasks({"a": one}, None, tasks, 0, keeps_head=False) for one in networks
    )
    assert first.identity() == second.identity()
    whole = [Architecture("a", copies_of(one), tasks.source, 0) for one in networks]
    assert whole[0].head == frozenset()
    assert whole[0].identity() != whole[1].identity()


class Named(nn.Module):
    """A network whose last layer has two names, of which `forward` uses the second."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(8, 4)
        self.net = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), self.classifier)

    def forward(self, inputs):
        return self.net(inputs)


def test_last_layer_with_two_names_is_replaced_under_both(tasks):
    """Before, `net.3` remained the trained layer, and the task's head was never used."""
    first = Named()
    sample = tasks[0].clients[0].train.batch(slice(0, 2), CPU)[0]
    first(sample)
    task = architecture_of_tasks({"a": first}, None, tasks, 0, keeps_head=False).make(3)
    assert task.classifier is task.net[3]
    assert task(sample).shape == (2, 3)


class Scaled(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


def test_last_layer_of_another_class_is_refused(tasks):
    """Before, tasks trained a plain nn.Linear, which computes something else."""
    network = nn.Sequential(nn.Flatten(), Scaled(36, 8))
    line = refusal(architecture_of_tasks, {"a": network}, None, tasks, 0, keeps_head=False)
    assert "outputs are not those of a plain nn.Linear, which 1 would have to be; pass net" in line


def test_starts_must_be_the_same_network(tasks, caplog):
    """Before, the first start's network was used for all: its frozen layers, its activations."""
    frozen = Perceptron()
    next(frozen.parameters()).requires_grad_(False)
    starts = {"plain": Perceptron(), "other": Perceptron(seed=1), "frozen": frozen}
    line = refusal(architecture_of_tasks, starts, None, tasks, 0, keeps_head=False)
    assert line.startswith("starts 'plain' and 'frozen' differ in layers, code or requires_grad: ")
    del starts["frozen"]
    state = torch.get_rng_state()
    architecture_of_tasks(starts, None, tasks, 0, keeps_head=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert caplog.text == ""
    starts["other"].steps = 3
    architecture_of_tasks(starts, None, tasks, 0, keeps_head=False)
    assert "'plain' and 'other' differ in attributes of layers; tasks use those of 'plain'" in (
        caplog.text
    )


def site(*shape, dtype=torch.float32):
    return data.TensorDataset(torch.ones(20, *shape).to(dtype), torch.arange(20) % 4)


CONVOLUTION = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)
)


def test_clients_may_have_several_shapes_that_the_network_takes():
    start = cp.pretrain("fedavg", CONVOLUTION, [site(1, 8, 8), site(1, 5, 9)], 1, quiet=True)
    assert start[0].weight.isfinite().all()
    for channels in (1, 3), (3, 1):
        sites = [site(number, 8, 8) for number in channels]
        assert "(2, 3, 8, 8)" in refusal(cp.pretrain, "fedavg", CONVOLUTION, sites, 1, quiet=True)
