"""The Python interface with a 16-bit network, and with the option `precision`."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import coprefl_flwr as cp
from tests.common.data import images
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
