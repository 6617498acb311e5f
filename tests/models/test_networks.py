"""The papers' networks: layers, sizes, and weights that are a function of a key.

The networks on features have the sizes of Table 7.
"""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coprefl_flwr.data import CHARACTERS, Samples, TensorDataset
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.device import placed
from coprefl_flwr.learning.training import torch_seeded
from coprefl_flwr.models import build_model, head_names, model_arrays
from coprefl_flwr.models.networks import lightweight_model, projection_head

IMAGES = torch.linspace(-1, 1, 2 * 28 * 28).reshape(2, 1, 28, 28)


def test_dropout_follows_the_seed_and_is_off_in_eval_mode() -> None:
    model = build_model("fashion-mnist-cnn", 10, (1, 28, 28))
    outputs = []
    for seed in (0, 0, 1):
        with torch_seeded("dropout", seed, network=model):
            outputs.append(model(IMAGES))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    model.eval()
    assert torch.equal(model(IMAGES), model(IMAGES))


def test_network_of_volumes_is_placed() -> None:
    """Before, torch refused the memory format channels last for weights of five dimensions."""
    model = nn.Sequential(nn.Conv3d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 4**3, 3))
    volumes, labels = torch.randn(3, 1, 6, 6, 6), np.arange(3)
    samples = Samples(
        TensorDataset(volumes, labels=labels, classes=("a", "b", "c")), labels, labels
    )
    assert placed(model, torch.device("cpu"), samples)(volumes).shape == (3, 3)


def test_dropout_is_between_the_convolutions_and_the_linear_layers() -> None:
    layers = [type(module).__name__ for module in build_model("fashion-mnist-cnn", 10, (1, 28, 28))]
    kinds = [name for name in layers if name in ("Conv2d", "Dropout", "Linear")]
    assert kinds == ["Conv2d", "Conv2d", "Dropout", "Linear", "Linear"]


def relu_first(model: nn.Sequential) -> nn.Sequential:
    """Return the same network with ReLU before each pooling, as in the papers."""
    layers = dict(model.named_children())
    for number in (1, 2):
        pool, relu = layers[f"pool{number}"], layers[f"relu{number}"]
        layers |= {f"pool{number}": nn.ReLU(), f"relu{number}": pool}
        assert isinstance(relu, nn.ReLU)
    return nn.Sequential(OrderedDict(layers))


@pytest.mark.parametrize("name", ["lenet5", "femnist-cnn", "femnist-cnn-linear"])
def test_pooling_before_relu_gives_the_same_bits(name: str) -> None:
    """Whole numbers in weights and pixels make ties, and many values are below 0."""
    model = build_model(name, 10, (1, 28, 28))
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(-2, 3, (4, 1, 28, 28), generator=generator).float()
    with torch.no_grad():
        for p in model.conv1.parameters():
            p.copy_(torch.randint(-1, 2, p.shape, generator=generator))
    results = []
    for network in (model, relu_first(model)):
        outputs = network(images)
        gradients = torch.autograd.grad(outputs.square().sum(), list(network.parameters()))
        results.append([outputs, *gradients])
    for ours, papers in zip(*results, strict=True):
        assert ours.detach().numpy().tobytes() == papers.detach().numpy().tobytes()


def test_array_names_are_those_of_published_models() -> None:
    names = [*build_model("femnist-cnn", 10, (1, 28, 28)).state_dict()]
    layers = ("conv1", "conv2", "fc1", "fc2")
    assert names == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


LENGTH = 12


@pytest.fixture
def model() -> nn.Module:
    return build_model("char-lstm", len(CHARACTERS), (LENGTH,))


@pytest.fixture
def text() -> Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(0, len(CHARACTERS), (5, LENGTH)))


def test_char_lstm_gives_one_logit_per_character(model: nn.Module, text: Tensor) -> None:
    logits = model(text)
    assert logits.shape == (5, len(CHARACTERS))
    assert logits.dtype == torch.float32
    assert model(text[:, :7]).shape == (5, len(CHARACTERS))
    assert head_names("char-lstm", 5, (LENGTH,), "batch") == {"fc.weight", "fc.bias"}


def test_network_of_text_refuses_images() -> None:
    with pytest.raises(SettingsError, match=r"char-lstm takes \(length,\), a text"):
        build_model("char-lstm", 5, (1, 28, 28))


@pytest.mark.parametrize("backbones", [1, 3])
def test_networks_on_features_have_the_papers_numbers_of_weights(backbones):
    """Table 2: 133,632 weights of one backbone, 395,776 of three."""
    arrays = model_arrays(lightweight_model(512 * backbones, 10))
    weights = sum(array.size for array in arrays.values() if array.ndim > 1)
    assert weights == {1: 133_632, 3: 395_776}[backbones]


def names(model):
    return [name for name, _ in model.named_children()]


def test_layers_of_the_networks_on_features():
    assert names(projection_head(8)) == ["projection", "relu", "norm"]
    assert names(lightweight_model(8, 5, "none")) == ["projection", "relu", "classifier"]
    assert projection_head(8)(torch.rand(3, 8)).shape == (3, 256)
    assert lightweight_model(8, 5)(torch.rand(3, 8)).shape == (3, 5)


def test_projection_head_depends_only_on_the_key():
    before = torch.random.get_rng_state()
    first, again, other = (projection_head(8, seed_key=(k,))[0].weight for k in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
