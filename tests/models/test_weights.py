"""A model's weights on disk, and weights from other sources; error messages name the tensors."""

import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import write_sums
from coprefl_flwr.models import build_model, head_names, load_saved_model, model_arrays, save_model
from coprefl_flwr.models.build import Network
from coprefl_flwr.models.weights import arrays_from, is_external, path_of
from tests.common.checks import flip, refusal

CIFAR = (3, 32, 32)
ABOUT = {"strategy": "coprefl", "rounds": 50, "data": {"alpha": 0.5}}


def trained_arrays() -> dict[str, np.ndarray]:
    model = build_model("resnet8", 10, CIFAR)
    model(torch.ones(2, *CIFAR))  # This changes the BatchNorm buffers.
    return model_arrays(model)


def test_round_trip_keeps_bytes_types_and_order(tmp_path: Path) -> None:
    """The same model is saved to the same bytes."""
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    arrays = trained_arrays() | {"transposed": transposed}
    save_model(tmp_path / "new" / "folder", arrays, ABOUT)
    save_model(tmp_path / "again", arrays, dict(reversed(ABOUT.items())))
    for name in ("model.json", "model.safetensors"):
        written = (tmp_path / folder / name for folder in ("new/folder", "again"))
        assert len({path.read_bytes() for path in written}) == 1
    loaded, about = load_saved_model(tmp_path / "new" / "folder")
    assert about == ABOUT
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)
        assert loaded[name].tobytes() == array.tobytes()


def test_saved_model_loads_with_safetensors_and_plain_pytorch(tmp_path: Path) -> None:
    arrays = trained_arrays()
    save_model(tmp_path, arrays, ABOUT)
    state = safetensors.torch.load_file(tmp_path / "model.safetensors")
    model = build_model("resnet8", 10, CIFAR, seed_key=("another",))
    model.load_state_dict(state, strict=True)
    assert state["bn1.num_batches_tracked"].dtype == torch.int64
    assert model.get_buffer("bn1.num_batches_tracked").item() == 1
    assert all(model_arrays(model)[name].tobytes() == arrays[name].tobytes() for name in arrays)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_interrupted_save_leaves_no_mixed_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, {"w": np.zeros(1)}, {"model": "old"})
    replace = os.replace

    def stop_at(source: Path, target: Path) -> None:
        if target.name == name:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", stop_at)
    with pytest.raises(KeyboardInterrupt):
        save_model(tmp_path, {"w": np.ones(1)}, {"model": "new"})
    assert not (tmp_path / "model.safetensors").exists()
    monkeypatch.undo()
    save_model(tmp_path, {"w": np.ones(1)}, {"model": "new"})
    assert load_saved_model(tmp_path)[1] == {"model": "new"}


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_missing_or_damaged_model_file_is_refused(name: str, tmp_path: Path) -> None:
    save_model(tmp_path, {"w": np.zeros(1)}, ABOUT)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-3])
    with pytest.raises(SettingsError, match="is damaged"):
        load_saved_model(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(SettingsError, match=f"the file {name} is missing"):
        load_saved_model(tmp_path)


def test_weights_with_a_wrong_checksum_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path, {"w": np.zeros(1)}, ABOUT)
    write_sums(tmp_path, ["model.json", "model.safetensors"], {})
    load_saved_model(tmp_path)
    flip(tmp_path / "model.safetensors", -1)
    with pytest.raises(SettingsError, match="is not the one in SHA256SUMS"):
        load_saved_model(tmp_path)
    save_model(tmp_path, {"w": np.ones(1)}, ABOUT)  # This removes the old checksums.
    assert load_saved_model(tmp_path)[0]["w"].item() == 1.0


NAME, CLASSES, SHAPE = "femnist-cnn", 3, (1, 12, 12)


def network(seed=0, name=NAME, classes=CLASSES, shape=SHAPE):
    module = build_model(name, classes, shape, seed_key=(seed,))
    return Network(name, module, classes, shape, head_names(name, classes, shape, "batch"))


def same(arrays, expected):
    assert list(arrays) == list(expected)
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype
        assert (arrays[name] == array).all(), name


@pytest.fixture
def other():
    """Weights of the same network, made with another seed, as a state_dict."""
    return build_model(NAME, CLASSES, SHAPE, seed_key=(1,)).state_dict()


def expected(other):
    return {name: tensor.numpy() for name, tensor in other.items()}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".nested", ".wrapped", ".half"])
def test_weights_are_read_from_every_usual_kind_of_file(tmp_path, other, suffix):
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        safetensors.torch.save_file(other, path)
    elif suffix == ".pt":
        torch.save(other, path)
    elif suffix == ".nested":
        torch.save({"epoch": 3, "state_dict": other}, path)
    elif suffix == ".wrapped":
        torch.save({f"module.{name}": tensor for name, tensor in other.items()}, path)
    else:
        other = {name: tensor.bfloat16() for name, tensor in other.items()}
        torch.save(other, path)
        other = {name: tensor.float() for name, tensor in other.items()}
    arrays = arrays_from(f"file:{path}", network(), 0)
    same(arrays, expected(other))


def test_weights_are_read_from_a_folder_of_this_package(tmp_path, other):
    save_model(tmp_path / "run", expected(other), {"start": "coprefl"})
    same(arrays_from(f"file:{tmp_path / 'run'}", network(), 0), expected(other))
    assert path_of(f"file:{tmp_path / 'run'}") == tmp_path / "run" / "model.safetensors"


def test_head_of_another_size_in_the_file_is_replaced_by_the_networks_head(tmp_path):
    wide = build_model(NAME, CLASSES + 4, SHAPE, seed_key=(1,)).state_dict()
    torch.save(wide, tmp_path / "wide.pt")
    of_task = network()
    arrays = arrays_from(f"file:{tmp_path / 'wide.pt'}", of_task, 0)
    assert of_task.head
    for name, array in arrays.items():
        source = of_task.arrays[name] if name in of_task.head else wide[name].numpy()
        assert (array == source).all()


def test_missing_unknown_and_misshapen_tensors_are_named(tmp_path, other):
    body = [name for name in other if name not in network().head]
    wrong = dict(other)
    wrong[body[1]] = torch.zeros(2, 3)
    torch.save(wrong, tmp_path / "shape.pt")
    line = f"'{body[1]}' has shape (2, 3), but the model has {tuple(other[body[1]].shape)}"
    assert line in refusal(arrays_from, f"file:{tmp_path / 'shape.pt'}", network(), 0)
    wrong["more.weight"] = wrong.pop(body[0])
    torch.save(wrong, tmp_path / "names.pt")
    line = f"array '{body[0]}' is missing; array 'more.weight' is not in the model"
    assert line in refusal(arrays_from, f"file:{tmp_path / 'names.pt'}", network(), 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file .*weights.pt"),
        (b"not weights", "cannot be read"),
        ({"a": 1}, "'a' is a int, not a tensor"),
        (Path("x"), "cannot be read: .*[Ww]eights.only"),
    ],
)
def test_file_without_weights_is_refused(tmp_path, content, message):
    """These files are refused.

    The last content is an object. To make the object, torch.load would have to run code.
    """
    path = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(SettingsError, match=message) as raised:
        arrays_from(f"file:{path}", network(), 0)
    assert "\n" not in str(raised.value)


def test_weights_with_a_nan_are_refused(tmp_path, other):
    first = next(iter(other))
    other[first][0] = float("nan")
    torch.save(other, tmp_path / "nan.pt")
    with pytest.raises(SettingsError, match=f"'{first}' holds a NaN"):
        arrays_from(f"file:{tmp_path / 'nan.pt'}", network(), 0)


def test_torchvision_weights_are_read_from_the_cache_of_torch(tmp_path, monkeypatch):
    """The file has 1,000 classes.

    The network keeps its of_task last layer, and gets all other layers from the file.
    """
    from torchvision.models import SqueezeNet1_1_Weights, squeezenet1_1

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    squeezenet = squeezenet1_1()
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    file = SqueezeNet1_1_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    torch.save(squeezenet.state_dict(), cache / file)
    name, shape = "torchvision.models:squeezenet1_1", (3, 32, 32)
    of_task = network(name=name, shape=shape)
    arrays = arrays_from("torchvision:SqueezeNet1_1_Weights.IMAGENET1K_V1", of_task, 0)
    assert of_task.head == {"classifier.1.weight", "classifier.1.bias"}
    for key, array in model_arrays(squeezenet).items():
        assert (arrays[key] == (of_task.arrays[key] if key in of_task.head else array)).all()


def test_unknown_torchvision_weights_are_refused_with_the_nearest_name():
    with pytest.raises(SettingsError, match=r"did you mean .*IMAGENET1K_V1'"):
        arrays_from("torchvision:ResNet18_Weights.IMAGENET1K_V2", network(), 0)


def test_function_that_returns_a_module_gives_its_weights(tmp_path):
    path = tmp_path / "starts.py"
    path.write_text(
        "from coprefl_flwr.models import build_model\n\n"
        "def made(num_classes, input_shape, seed=5):\n"
        "    return build_model('femnist-cnn', num_classes, input_shape, seed_key=(seed,))\n"
    )
    place = f"{path}:made:seed=8"
    assert is_external(place)
    assert not is_external("coprefl:gamma=0.5")
    same(arrays_from(place, network(), 0), model_arrays(build_model(NAME, 3, SHAPE, seed_key=(8,))))
