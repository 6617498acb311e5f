"""The Python interface with a 16-bit network, and with the option `precision`."""

import copy
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.models import model_arrays
from tests.common.data import images, table
from tests.common.networks import Perceptron

SMALL = {"local_steps": 2, "batch_size": 8, "learning_rate": 0.1, "quiet": True}


@pytest.fixture
def clients():
    return cp.partition(images(), clients=3, scheme="iid")


@pytest.mark.parametrize(
    ("dtype", "kept"), [(torch.bfloat16, "float32"), (torch.float16, "float16")]
)
def test_module_of_16_bits_is_pretrained_stored_and_evaluated(dtype, kept, clients, tmp_path):
    """Before the fix, the call raised a bare TypeError: Got unsupported ScalarType BFloat16."""
    first = Perceptron().to(dtype)
    made = cp.pretrain("coprefl", first, clients, rounds=2, checkpoint=tmp_path, **SMALL)
    assert {p.dtype for p in made.parameters()} == {p.dtype for p in first.parameters()} == {dtype}
    plain = cp.pretrain("coprefl", Perceptron(), clients, rounds=2, **SMALL)
    for found, expected in zip(made.parameters(), plain.parameters(), strict=True):
        assert found.float().detach() == pytest.approx(expected.detach(), abs=0.02)
    again = cp.pretrain("coprefl", first, clients, 2, checkpoint=tmp_path, **SMALL)
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), made.parameters(), strict=True)
    )
    [file] = tmp_path.rglob("model.safetensors")
    assert {array.dtype.name for array in load_file(file).values()} == {kept}
    tasks = cp.tasks(images(), number=1, classes=3, clients=2, scheme="iid")
    starts = {"random": first, "made": made, "file": file}
    found = cp.evaluate_starts(starts, tasks, rounds=1, head="ncm", **SMALL).rows.set_index("start")
    assert np.isfinite(found["loss"]).all()
    assert len(found) == 6


def test_precision_is_an_option_of_both_calls(clients, tmp_path):
    first, weights, losses = Perceptron(), [], []
    tasks = cp.tasks(images(), number=1, classes=3, clients=2, scheme="iid")
    for precision in ("float32", "bf16"):
        options = {"rounds": 1, "precision": precision, **SMALL}
        folder = tmp_path / precision
        made = cp.pretrain("fedavg", first, clients, checkpoint=folder, **options)
        weights.append(torch.cat([p.detach().flatten() for p in made.parameters()]))
        [about] = folder.rglob("model.json")
        assert json.loads(about.read_text())["phases"][0]["precision"] == precision
        losses.append(list(cp.evaluate_starts({"x": first}, tasks, **options).rows["loss"]))
    assert weights[1].dtype == torch.float32
    assert 0 < (weights[0] - weights[1]).abs().max() < 0.01
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def double_steps(network, inputs, labels, steps=2):
    """Return the arrays after full-batch steps of plain PyTorch."""
    network = copy.deepcopy(network)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(network(inputs), labels).backward()
        optimiser.step()
    return model_arrays(network)


def test_module_of_float64_is_trained_in_float64():
    """Before, it was refused: its inputs were float32, whatever the dtype of the data."""
    values, labels = table().tensors
    network = Perceptron(10).double()
    one = {**SMALL, "batch_size": len(labels)}
    for inputs in (values, values.double()):
        made = cp.pretrain("fedavg", network, [TensorDataset(inputs, labels)], rounds=1, **one)
        for name, expected in double_steps(network, values.double(), labels).items():
            found = model_arrays(made)[name]
            assert found.dtype == np.float64
            assert found == pytest.approx(expected, rel=1e-13, abs=1e-15)


@pytest.mark.parametrize(
    "method", ["coprefl", "fedmeta:variant=maml", "per-fedavg:variant=hf", "moon"]
)
def test_methods_with_separate_loops_train_a_module_of_float64(method, clients):
    double, plain = (
        cp.pretrain(method, network, clients, rounds=2, **SMALL)
        for network in (Perceptron().double(), Perceptron())
    )
    for found, expected in zip(double.parameters(), plain.parameters(), strict=True):
        assert found.dtype == torch.float64
        assert found.float().detach() == pytest.approx(expected.detach(), rel=1e-3, abs=1e-4)


class Mixed(Perceptron):
    """A network whose first parameter is float64, and whose layers are float32."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, inputs):
        return super().forward(inputs) * self.scale


def test_tasks_of_a_module_of_float64_and_a_module_of_both_dtypes(clients):
    tasks = cp.tasks(images(), number=1, classes=3, clients=2, scheme="iid")
    starts = {"random": Perceptron().double()}
    for head in ("fresh", "ridge"):
        found = cp.evaluate_starts(starts, tasks, 1, head=head, diagnostics=True, **SMALL)
        assert np.isfinite(found.rows["loss"]).all()
    network = Mixed()
    assert next(network.parameters()).dtype == torch.float64
    assert cp.pretrain("fedavg", network, clients, rounds=1, **SMALL).scale.dtype == torch.float64
