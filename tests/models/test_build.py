import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models import build_model, head_names, model_arrays

CIFAR = (3, 32, 32)
FEMNIST = (1, 28, 28)
TEXT = (80,)
NETWORKS = (
    "resnet18",
    "resnet8",
    "lenet5",
    "fashion-mnist-cnn",
    "femnist-cnn",
    "femnist-cnn-linear",
)

MODEL_FILE = """
import torch

def linear_model(num_classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, num_classes))

def not_a_model(num_classes):
    return num_classes

def headless(num_classes):
    return torch.nn.Linear(784, 10)
"""


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_networks.py").write_text(MODEL_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_networks"


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "num_classes", "input_shape", "expected"),
    [
        # torchvision's 11,689,512, but 10 classes instead of 1000 and a 3x3 stem instead of 7x7.
        ("resnet18", 10, CIFAR, 11_689_512 - 990 * 513 - 64 * 3 * (49 - 9)),
        # Stem 464, blocks 4,672 + 14,528 + 57,728, classifier 650.
        ("resnet8", 10, CIFAR, 78_042),
        # The count commonly given for LeNet-5 on CIFAR-10.
        ("lenet5", 10, CIFAR, 62_006),
        # Two convolutions, then (64 * 7 * 7 + 1) * 128 and (128 + 1) * 62.
        ("femnist-cnn", 62, FEMNIST, 320 + 18_496 + 401_536 + 7_998),
        # Two convolutions, then 64 * 7 * 7 + 1 inputs for each class.
        ("femnist-cnn-linear", 62, FEMNIST, 832 + 51_264 + 3_137 * 62),
        # Two convolutions, then (20 * 4 * 4 + 1) * 50 and (50 + 1) * 10.
        ("fashion-mnist-cnn", 10, FEMNIST, 260 + 5_020 + 16_050 + 510),
        # 81 embeddings of 8; a layer has four gates of 256 units, with two biases in PyTorch.
        ("char-lstm", 81, TEXT, 648 + 1_024 * (8 + 256 + 2) + 1_024 * (256 + 256 + 2) + 257 * 81),
    ],
)
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_network_has_the_published_number_of_parameters(
    name: str, num_classes: int, input_shape: tuple[int, ...], expected: int, norm: str
) -> None:
    assert parameter_count(build_model(name, num_classes, input_shape, norm)) == expected


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("input_shape", [CIFAR, FEMNIST, (1, 32, 32), (3, 28, 20)])
def test_network_gives_one_logit_per_class(
    name: str, norm: str, input_shape: tuple[int, int, int]
) -> None:
    model = build_model(name, 7, input_shape, norm)
    logits = model(torch.zeros(2, *input_shape))
    assert logits.shape == (2, 7)
    assert logits.dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "side", "head"),
    [
        ("resnet18", 8, "fc"),
        ("resnet8", 4, "fc"),
        ("lenet5", 16, "fc3"),
        ("fashion-mnist-cnn", 16, "fc2"),
        ("femnist-cnn", 4, "fc2"),
        ("femnist-cnn-linear", 4, "fc"),
    ],
)
def test_network_takes_its_smallest_image_and_its_head_is_the_last_layer(
    name: str, side: int, head: str
) -> None:
    shape = (1, side, side)
    assert build_model(name, 3, shape)(torch.zeros(2, *shape)).shape == (2, 3)
    for norm in ("batch", "group"):
        assert head_names(name, 5, shape, norm) == {f"{head}.weight", f"{head}.bias"}
    message = re.escape(f"{name} takes (channels, height, width)")
    for wrong in [(1, side - 1, side), TEXT]:
        with pytest.raises(SettingsError, match=message):
            build_model(name, 3, wrong)


def test_resnets_keep_the_resolution_before_their_first_block() -> None:
    for name in ("resnet18", "resnet8"):
        widths: list[int] = []
        model = build_model(name, 10, CIFAR)
        first_block = model.get_submodule("layer1")
        first_block.register_forward_pre_hook(
            lambda _, inputs, widths=widths: widths.append(inputs[0].shape[-1])
        )
        model(torch.zeros(2, *CIFAR))
        assert widths == [32]


@pytest.mark.parametrize("name", ["resnet18", "resnet8"])
def test_resnet_convolutions_have_he_initialisation(name: str) -> None:
    for module in build_model(name, 10, CIFAR).modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            # The standard deviation of a sample of n normal values is off by about 1 / sqrt(2 n).
            tolerance = 5 / (2 * module.weight.numel()) ** 0.5
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=tolerance)


@pytest.mark.parametrize("name", ["resnet18", "resnet8"])
def test_group_norm_has_sixteen_channels_per_group_and_no_buffers(name: str) -> None:
    model = build_model(name, 10, CIFAR, "group")
    assert list(model.buffers()) == []
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert norms
    assert all(module.num_channels == 16 * module.num_groups for module in norms)
    assert list(build_model(name, 10, CIFAR, "batch").buffers())


@pytest.mark.parametrize("name", NETWORKS)
def test_initial_weights_depend_only_on_the_key(name: str) -> None:
    torch.manual_seed(1)
    first = model_arrays(build_model(name, 10, CIFAR, seed_key=("model", 3)))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = model_arrays(build_model(name, 10, CIFAR, seed_key=("model", 3)))
    assert torch.equal(torch.get_rng_state(), state)
    other = model_arrays(build_model(name, 10, CIFAR, seed_key=("model", 4)))
    assert all(first[array].tobytes() == again[array].tobytes() for array in first)
    head = head_names(name, 10, CIFAR, "batch")
    assert all(not np.array_equal(first[array], other[array]) for array in head)
    assert not np.array_equal(first["conv1.weight"], other["conv1.weight"])


def test_users_model_is_built_seeded_and_has_a_head(model_file: str) -> None:
    name = f"{model_file}:linear_model"
    model = build_model(name, 62, FEMNIST, seed_key=("own", 1))
    assert model(torch.zeros(2, *FEMNIST)).shape == (2, 62)
    again = build_model(name, 62, FEMNIST, seed_key=("own", 1))
    other = build_model(name, 62, FEMNIST, seed_key=("own", 2))
    assert torch.equal(model.get_parameter("1.weight"), again.get_parameter("1.weight"))
    assert not torch.equal(model.get_parameter("1.weight"), other.get_parameter("1.weight"))
    assert head_names(name, 62, FEMNIST, "batch") == {"1.weight", "1.bias"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet9", "unknown model 'resnet9': did you mean 'resnet8'.*module:NAME"),
        ("no_such_networks:f", "does not import: .*No module named 'no_such_networks'"),
        ("own_networks:linear", "unknown name 'linear': did you mean 'linear_model'"),
        ("own_networks:not_a_model", "returned int, not a torch.nn.Module"),
    ],
)
@pytest.mark.usefixtures("model_file")
def test_unusable_model_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as raised:
        build_model(name, 10, CIFAR)
    assert "\n" not in str(raised.value)


def test_network_without_a_head_is_refused(model_file: str) -> None:
    with pytest.raises(SettingsError, match="no array that depends"):
        head_names(f"{model_file}:headless", 5, FEMNIST, "batch")
