import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coprefl_flwr.data import CHARACTERS, TextDataset
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import placed
from coprefl_flwr.models import build_model, head_names, load_arrays, model_arrays

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
    other = placed(build_model("char-lstm", 81, (LENGTH,), seed_key=("other",)), text.device)
    assert not torch.equal(other(text), model(text))
    load_arrays(other, model_arrays(model))
    assert torch.equal(other(text), model(text))


def test_it_learns_a_text_that_repeats_itself(model: nn.Module) -> None:
    """From log(81) = 4.4; a model that ignores its input cannot go below log(5) = 1.6."""
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
