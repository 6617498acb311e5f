"""The papers' networks: layers, sizes, and weights that are a function of a key.

The networks on features have the sizes of Table 7.
"""

import re
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coprefl_flwr.data import CHARACTERS, Samples, TensorDataset, TextDataset
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import placed, torch_seeded
from coprefl_flwr.models import build_model, head_names, load_arrays, model_arrays
from coprefl_flwr.models.networks import lightweight_model, projection_head

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


def test_a_network_of_volumes_is_placed() -> None:
    """Before, torch refused the memory format channels last for weights of five dimensions."""
    model = nn.Sequential(nn.Conv3d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 4**3, 3))
    volumes, labels = torch.randn(3, 1, 6, 6, 6), np.arange(3)
    samples = Samples(
        TensorDataset(volumes, labels=labels, classes=("a", "b", "c")), labels, labels
    )
    assert placed(model, torch.device("cpu"), samples)(volumes).shape == (3, 3)


def test_dropout_stands_between_the_convolutions_and_the_linear_layers() -> None:
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
def test_pooling_first_changes_no_bit(name: str) -> None:
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


def test_the_arrays_have_the_names_that_they_always_had() -> None:
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


def test_it_gives_logits_for_every_character(model: nn.Module, text: Tensor) -> None:
    logits = model(text)
    assert logits.shape == (5, len(CHARACTERS))
    assert logits.dtype == torch.float32


@pytest.mark.parametrize("position", [0, LENGTH - 1])
def test_every_character_counts_and_samples_do_not_mix(
    model: nn.Module, text: Tensor, position: int
) -> None:
    changed = text.clone()
    changed[2, position] = (changed[2, position] + 1) % len(CHARACTERS)
    differing = (model(text) != model(changed)).any(dim=1)
    assert differing.tolist() == [False, False, True, False, False]


def test_it_takes_any_length_and_the_samples_of_a_text(model: nn.Module) -> None:
    data = TextDataset.of("text", "A:\n" + "To be, or not to be $" * 3, length=30)
    assert model(data.inputs(np.arange(4), torch.device("cpu"))).shape == (4, len(CHARACTERS))


def test_only_the_head_depends_on_the_number_of_classes() -> None:
    assert head_names("char-lstm", 5, (LENGTH,), "batch") == {"fc.weight", "fc.bias"}


def test_weights_are_a_function_of_the_key_alone() -> None:
    torch.manual_seed(1)
    first = model_arrays(build_model("char-lstm", 5, (LENGTH,), seed_key=("model", 3)))
    torch.manual_seed(2)
    again = model_arrays(build_model("char-lstm", 5, (LENGTH,), seed_key=("model", 3)))
    other = model_arrays(build_model("char-lstm", 5, (LENGTH,), seed_key=("model", 4)))
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    assert all(first[name].tobytes() != other[name].tobytes() for name in first)


def test_weights_can_be_loaded_into_a_placed_model(model: nn.Module, text: Tensor) -> None:
    labels = np.zeros(len(text), np.int64)
    samples = Samples(TensorDataset(text, labels=labels, classes=("a",)), labels, labels)
    other = build_model("char-lstm", 81, (LENGTH,), seed_key=("other",))
    other = placed(other, text.device, samples)
    assert not torch.equal(other(text), model(text))
    load_arrays(other, model_arrays(model))
    assert torch.equal(other(text), model(text))


def test_it_learns_a_text_that_repeats_itself(model: nn.Module) -> None:
    """The loss starts at log(81) = 4.4.

    A model that ignores its input cannot go below log(5) = 1.6.
    """
    data = TextDataset.of("text", "A:\n" + "abcde" * 4, length=4)
    inputs = data.inputs(np.arange(5), torch.device("cpu"))
    labels = torch.from_numpy(data.labels[:5])
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(40):
        optimiser.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        torch.autograd.backward(loss)
        optimiser.step()
    assert loss.item() < 0.5


@pytest.mark.parametrize("shape", [(1, 28, 28), (0,), ()])
def test_images_are_refused(shape: tuple[int, ...]) -> None:
    message = rf"input shape is {re.escape(str(shape))}; char-lstm takes \(length,\).*femnist-cnn"
    with pytest.raises(SettingsError, match=message):
        build_model("char-lstm", 5, shape)


def test_text_is_refused_by_a_model_of_images() -> None:
    with pytest.raises(SettingsError, match=r"input shape is \(80,\); lenet5 takes .* char-lstm"):
        build_model("lenet5", 5, (80,))


@pytest.mark.parametrize("backbones", [1, 3])
def test_the_papers_counts_of_weights(backbones):
    """Table 2: 133,632 weights of one backbone, 395,776 of three."""
    arrays = model_arrays(lightweight_model(512 * backbones, 10))
    weights = sum(array.size for array in arrays.values() if array.ndim > 1)
    assert weights == {1: 133_632, 3: 395_776}[backbones]


def names(model):
    return [name for name, _ in model.named_children()]


def test_layers():
    assert names(projection_head(8)) == ["projection", "relu", "norm"]
    assert names(projection_head(8, "none")) == ["projection", "relu"]
    assert names(lightweight_model(8, 5)) == ["projection", "relu", "norm", "classifier"]
    assert names(lightweight_model(8, 5, "none")) == ["projection", "relu", "classifier"]
    assert projection_head(8)(torch.rand(3, 8)).shape == (3, 256)
    assert lightweight_model(8, 5)(torch.rand(3, 8)).shape == (3, 5)


def test_weights_are_a_function_of_the_key_and_the_callers_generator_is_left_alone():
    before = torch.random.get_rng_state()
    first, again, other = (projection_head(8, seed_key=(k,))[0].weight for k in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
