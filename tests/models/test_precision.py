"""Networks that compute with a lower precision than their weights, losses and sums have."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from coprefl_flwr.models import (
    computing,
    load_arrays,
    load_saved_model,
    model_arrays,
    outputs_and_representation,
    save_model,
)
from coprefl_flwr.models.backbones import Backbone
from tests.common.networks import tiny_model

INPUTS = torch.linspace(-1, 1, 64).view(4, 1, 4, 4)


class DtypeRecorder(nn.Module):
    """A layer that records the dtype of the inputs."""

    def __init__(self):
        super().__init__()
        self.types = []

    def forward(self, inputs):
        self.types.append(inputs.dtype)
        return inputs


def recorded_model(dtype=torch.float32):
    """Return the tiny model with a `DtypeRecorder` after the first and after the last layer."""
    first, *layers = tiny_model()
    return nn.Sequential(first, DtypeRecorder(), *layers, DtypeRecorder()).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.float32, "bf16"), (torch.bfloat16, "float32"), (torch.float16, "float32")],
)
def test_low_precision_is_used_only_inside_the_network(dtype, precision):
    """With bf16, the outputs are equal to the outputs under autocast.

    A network of 16 bits gets inputs of the same dtype.
    """
    model = recorded_model(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        expected = model(INPUTS.to(dtype))
    with computing(model, precision):
        outputs = model(INPUTS)
        assert not torch.is_autocast_enabled("cpu")
        z = outputs_and_representation(model, INPUTS)[1]
    short = torch.bfloat16 if precision == "bf16" else dtype
    assert set(model[-1].types) == {expected.dtype} == {short}
    assert torch.equal(outputs, expected.float())
    assert (outputs.dtype, z.dtype) == (torch.float32, torch.float32)
    cross_entropy(outputs, torch.tensor([0, 1, 2, 0])).backward()
    assert {p.grad.dtype for p in model.parameters()} == {dtype}
    if precision == "bf16":
        assert not torch.equal(model(INPUTS), outputs)
    else:
        with pytest.raises(RuntimeError, match="dtype"):
            model(INPUTS)


def test_model_is_restored_after_computing_also_after_an_error():
    model = recorded_model()
    outer = model.forward
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes"), computing(model, "bf16"):
            model(torch.zeros(2, 1, 3, 3))
    assert "forward" not in vars(model)
    model.forward = lambda inputs: outer(inputs) + 1  # Another library may do this.
    with computing(model, "bf16"):
        pass
    assert torch.equal(model(INPUTS), outer(INPUTS) + 1)


def test_copy_made_while_computing_uses_its_weights():
    model = tiny_model().eval()
    with computing(model, "bf16"):
        other = copy.deepcopy(model)
        nn.init.zeros_(other[-1].weight)
        nn.init.zeros_(other[-1].bias)
        assert not other(INPUTS).any()
        assert model(INPUTS).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backbone_features_are_float32_in_every_precision(dtype):
    """A bfloat16 network can be a backbone.

    An earlier version refused such a network, because the first, empty image had another dtype.
    """
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    plain = Backbone.of(tiny_model(), (1, 4, 4), [0.5], [0.3]).features(images)
    low = Backbone.of(tiny_model().to(dtype), (1, 4, 4), [0.5], [0.3])
    features = low.features(images, "bf16")
    assert features.dtype == torch.float32
    assert not torch.equal(features, plain)
    assert torch.allclose(features, plain, atol=0.02)


# ---- arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "carried"), [(torch.bfloat16, np.float32), (torch.float16, np.float16)]
)
def test_weights_of_16_bits_are_unchanged_by_arrays_and_files(dtype, carried, tmp_path):
    """An earlier version raised a TypeError: Got unsupported ScalarType BFloat16."""
    model, other = tiny_model().to(dtype), tiny_model().to(dtype)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1)
    arrays = model_arrays(model)
    assert {a.dtype for n, a in arrays.items() if "num_batches" not in n} == {np.dtype(carried)}
    save_model(tmp_path, arrays, {})
    load_arrays(other, load_saved_model(tmp_path)[0])
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
    assert {p.dtype for p in other.parameters()} == {dtype}
