from collections import OrderedDict

import pytest
import torch
from torch import nn

from coprefl_flwr.learning import torch_seeded
from coprefl_flwr.models import build_model

IMAGES = torch.linspace(-1, 1, 2 * 28 * 28).reshape(2, 1, 28, 28)


def test_dropout_follows_the_callers_seed_and_is_off_in_eval_mode() -> None:
    model = build_model("fashion-mnist-cnn", 10, (1, 28, 28))
    outputs = []
    for seed in (0, 0, 1):
        with torch_seeded("dropout", seed):
            outputs.append(model(IMAGES))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    model.eval()
    assert torch.equal(model(IMAGES), model(IMAGES))


def test_dropout_stands_between_the_convolutions_and_the_linear_layers() -> None:
    layers = [type(module).__name__ for module in build_model("fashion-mnist-cnn", 10, (1, 28, 28))]
    kinds = [name for name in layers if name in ("Conv2d", "Dropout", "Linear")]
    assert kinds == ["Conv2d", "Conv2d", "Dropout", "Linear", "Linear"]


def relu_first(model: nn.Sequential) -> nn.Sequential:
    """Return the same network with ReLU before each pooling, as the papers name them."""
    layers = dict(model.named_children())
    for number in (1, 2):
        pool, relu = layers[f"pool{number}"], layers[f"relu{number}"]
        layers |= {f"pool{number}": nn.ReLU(), f"relu{number}": pool}
        assert isinstance(relu, nn.ReLU)
    return nn.Sequential(OrderedDict(layers))


@pytest.mark.parametrize("name", ["lenet5", "femnist-cnn", "femnist-cnn-linear"])
def test_pooling_first_changes_no_bit(name: str) -> None:
    """With ties, as whole numbers in weights and pixels make them, and many below 0."""
    model = build_model(name, 10, (1, 28, 28))
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(-2, 3, (4, 1, 28, 28), generator=generator).float()
    with torch.no_grad():
        for p in model.conv1.parameters():
            p.copy_(torch.randint(-1, 2, p.shape, generator=generator))
    found = []
    for one in (model, relu_first(model)):
        outputs = one(images)
        gradients = torch.autograd.grad(outputs.square().sum(), list(one.parameters()))
        found.append([outputs, *gradients])
    for ours, papers in zip(*found, strict=True):
        assert ours.detach().numpy().tobytes() == papers.detach().numpy().tobytes()


def test_the_arrays_have_the_names_that_they_always_had() -> None:
    names = [*build_model("femnist-cnn", 10, (1, 28, 28)).state_dict()]
    layers = ("conv1", "conv2", "fc1", "fc2")
    assert names == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
