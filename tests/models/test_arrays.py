import warnings

import numpy as np
import pytest
import torch

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models import (
    build_model,
    head_names,
    load_arrays,
    model_arrays,
    with_fresh_head,
)
from coprefl_flwr.models.arrays import check_weights
from tests.common.checks import refusal

CIFAR = (3, 32, 32)


def resnet8(num_classes: int = 10, key: int = 0) -> torch.nn.Module:
    return build_model("resnet8", num_classes, CIFAR, seed_key=("model", key))


def test_arrays_are_copies_in_the_memory_format_of_the_network() -> None:
    model = resnet8().to(memory_format=torch.channels_last)
    arrays = model_arrays(model)
    assert list(arrays) == list(model.state_dict())
    assert arrays["fc.weight"].dtype == np.float32
    counter = arrays["bn1.num_batches_tracked"]
    assert isinstance(counter, np.ndarray)
    assert counter.dtype == np.int64
    assert counter.shape == ()
    arrays["conv1.weight"][:] = 0
    assert model.get_parameter("conv1.weight").abs().sum().item() > 0
    assert arrays["conv1.weight"].transpose(0, 2, 3, 1).flags.c_contiguous


def test_arrays_are_loaded_in_place() -> None:
    source, target = resnet8(key=1), resnet8(key=2)
    source(torch.ones(2, *CIFAR))  # This changes the BatchNorm buffers.
    pointers = {name: tensor.data_ptr() for name, tensor in target.state_dict().items()}
    arrays = model_arrays(source)
    load_arrays(target, dict(reversed(arrays.items())))
    after = target.state_dict()
    assert {name: tensor.data_ptr() for name, tensor in after.items()} == pointers
    loaded = model_arrays(target)
    assert all(loaded[name].tobytes() == arrays[name].tobytes() for name in arrays)
    assert loaded["bn1.num_batches_tracked"] == 1


def test_read_only_strided_and_scalar_arrays_are_loaded() -> None:
    """Read-only, strided, float64 and NumPy scalar values are loaded, without a warning."""
    model = resnet8()
    arrays = model_arrays(resnet8(key=1))
    expected = {name: array.copy() for name, array in arrays.items()}
    arrays["fc.bias"].flags.writeable = False
    arrays["fc.weight"] = arrays["fc.weight"].astype(np.float64)
    arrays["bn1.weight"] = np.arange(16, dtype=np.float32)[::-1]
    expected["bn1.weight"] = np.arange(15, -1, -1, dtype=np.float32)
    scalars = {**arrays, "bn1.num_batches_tracked": np.float64(3.0)}
    expected["bn1.num_batches_tracked"] = np.array(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_arrays(model, scalars)  # type: ignore[arg-type]  # what a weighted mean of 0-d gives
    loaded = model_arrays(model)
    assert all(loaded[name].tobytes() == expected[name].tobytes() for name in expected)


def test_arrays_of_another_model_are_refused_without_a_change() -> None:
    model = resnet8()
    before = model_arrays(model)
    good = model_arrays(resnet8(key=1))
    renamed = {name.replace("fc.weight", "fc.weights"): array for name, array in good.items()}
    with pytest.raises(SettingsError, match=r"'fc\.weight' is missing; array 'fc\.weights' is not"):
        load_arrays(model, renamed)
    with pytest.raises(SettingsError, match=r"'fc.weight' has shape \(5, 64\), .* \(10, 64\)"):
        load_arrays(model, model_arrays(resnet8(num_classes=5)))
    after = model_arrays(model)
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)


def test_task_model_has_the_starts_body_and_a_fresh_head() -> None:
    start = model_arrays(resnet8(num_classes=80, key=1))
    task_model = resnet8(num_classes=5, key=2)
    fresh = model_arrays(task_model)
    head = head_names("resnet8", 5, CIFAR, "batch")
    swapped = with_fresh_head(dict(reversed(start.items())), task_model, head)
    assert list(swapped) == list(task_model.state_dict())
    for name, array in swapped.items():
        expected = fresh[name] if name in {"fc.weight", "fc.bias"} else start[name]
        assert array.tobytes() == expected.tobytes()
        assert array.dtype == expected.dtype
    swapped["conv1.weight"][:] = 0
    assert np.abs(start["conv1.weight"]).sum() > 0
    load_arrays(task_model, {**swapped})
    body = {name: array for name, array in start.items() if name not in head}
    assert with_fresh_head(body, task_model, head)["fc.weight"].shape == (5, 64)


def test_start_of_another_model_is_refused() -> None:
    head = frozenset({"fc.weight", "fc.bias"})
    start = model_arrays(resnet8(key=1))
    with pytest.raises(SettingsError, match=r"'conv1\.weight' has shape \(16, 3, 3, 3\)"):
        with_fresh_head(start, build_model("resnet8", 5, (1, 28, 28)), head)


def test_layers_without_weights_or_buffers_yet_are_refused() -> None:
    """Before, layers with buffers only ended in a ValueError."""
    network = torch.nn.LazyBatchNorm1d(affine=False)
    line = refusal(check_weights, network, "model")
    assert line.startswith("model has lazy layers: call")
    network(torch.rand(4, 5))
    check_weights(network, "model")
