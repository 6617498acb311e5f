"""A model's weights on disk, and weights from other sources; error messages name the tensors."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch import nn

from coprefl_flwr.errors import SettingsError, excerpt
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
    arrays = trained_arrays()
    save_model(tmp_path / "new" / "folder", arrays, ABOUT)
    loaded, about = load_saved_model(tmp_path / "new" / "folder")
    assert about == ABOUT
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)
        assert loaded[name].tobytes() == array.tobytes()


def test_any_pytorch_program_loads_it(tmp_path: Path) -> None:
    arrays = trained_arrays()
    save_model(tmp_path, arrays, ABOUT)
    state = safetensors.torch.load_file(tmp_path / "model.safetensors")
    model = build_model("resnet8", 10, CIFAR, seed_key=("another",))
    model.load_state_dict(state, strict=True)
    assert state["bn1.num_batches_tracked"].dtype == torch.int64
    assert model.get_buffer("bn1.num_batches_tracked").item() == 1
    assert all(model_arrays(model)[name].tobytes() == arrays[name].tobytes() for name in arrays)


def test_a_strided_array_is_saved_by_its_values(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    save_model(tmp_path, {"transposed": values.T, "reversed": values[::-1]}, {})
    loaded, _ = load_saved_model(tmp_path)
    assert np.array_equal(loaded["transposed"], values.T)
    assert np.array_equal(loaded["reversed"], values[::-1])


def test_the_same_model_gives_the_same_bytes_and_nothing_else(tmp_path: Path) -> None:
    save_model(tmp_path / "a", trained_arrays(), ABOUT)
    save_model(tmp_path / "b", trained_arrays(), dict(reversed(ABOUT.items())))
    assert sorted(os.listdir(tmp_path / "a")) == ["model.json", "model.safetensors"]
    for name in ("model.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    expected = json.dumps(ABOUT, indent=2, sort_keys=True) + "\n"
    assert (tmp_path / "a" / "model.json").read_text() == expected


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_stopped_while_replacing_leaves_no_mixed_model(
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
    loaded, about = load_saved_model(tmp_path)
    assert (loaded["w"].item(), about) == (1.0, {"model": "new"})
    assert sorted(os.listdir(tmp_path)) == ["model.json", "model.safetensors"]


def test_a_description_that_json_cannot_hold_leaves_the_old_model(tmp_path: Path) -> None:
    save_model(tmp_path, {"w": np.zeros(1)}, {"model": "old"})
    with pytest.raises(TypeError):
        save_model(tmp_path, {"w": np.ones(1)}, {"model": object()})
    loaded, about = load_saved_model(tmp_path)
    assert (loaded["w"].item(), about) == (0.0, {"model": "old"})


def test_weights_that_another_program_wrote_are_loaded(tmp_path: Path) -> None:
    save_model(tmp_path, {"w": np.zeros(1)}, {})
    safetensors.numpy.save_file({"v": np.ones(2)}, tmp_path / "model.safetensors")
    loaded, _ = load_saved_model(tmp_path)
    assert loaded["v"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_missing_and_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    save_model(tmp_path, {"w": np.zeros(1)}, ABOUT)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-3])
    with pytest.raises(SettingsError, match="is damaged"):
        load_saved_model(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(SettingsError, match=f"the file {name} is missing"):
        load_saved_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"[" * 100_000], ids=excerpt)
def test_a_description_that_is_none_is_one_line(content: bytes, tmp_path: Path) -> None:
    save_model(tmp_path, {"w": np.zeros(1)}, ABOUT)
    (tmp_path / "model.json").write_bytes(content)
    with pytest.raises(SettingsError, match="is damaged: ") as caught:
        load_saved_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_what_their_checksum_says_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path, {"w": np.zeros(1)}, ABOUT)
    write_sums(tmp_path, ["model.json", "model.safetensors"], {})
    load_saved_model(tmp_path)
    flip(tmp_path / "model.safetensors", -1)
    with pytest.raises(
        SettingsError, match=r"the checksum of model\.safetensors does not match SHA256SUMS"
    ):
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
def test_a_file(tmp_path, other, suffix):
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
    assert path_of(f"file:{path}") == path


def test_a_folder_that_this_package_left(tmp_path, other):
    save_model(tmp_path / "run", expected(other), {"start": "coprefl"})
    same(arrays_from(f"file:{tmp_path / 'run'}", network(), 0), expected(other))
    assert path_of(f"file:{tmp_path / 'run'}") == tmp_path / "run" / "model.safetensors"


def test_the_last_layer_is_the_networks_own_where_the_file_has_none_that_fits(tmp_path):
    wide = build_model(NAME, CLASSES + 4, SHAPE, seed_key=(1,)).state_dict()
    torch.save(wide, tmp_path / "wide.pt")
    own = network()
    arrays = arrays_from(f"file:{tmp_path / 'wide.pt'}", own, 0)
    assert own.head
    for name, array in arrays.items():
        source = own.arrays[name] if name in own.head else wide[name].numpy()
        assert (array == source).all()


def test_missing_unknown_and_misshapen_tensors_are_told_by_name(tmp_path, other):
    body = [name for name in other if name not in network().head]
    wrong = dict(other)
    del wrong[body[0]]
    wrong[body[1]] = torch.zeros(2, 3)
    wrong["more.weight"] = torch.zeros(1)
    torch.save(wrong, tmp_path / "wrong.pt")
    needed = (
        f"missing: '{body[0]}'; unknown: 'more.weight'; "
        f"of another shape: '{body[1]}' has (2, 3), needs {tuple(other[body[1]].shape)}"
    )
    assert needed in refusal(arrays_from, f"file:{tmp_path / 'wrong.pt'}", network(), 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file, and no folder with model.safetensors"),
        (b"not weights", "the weights cannot be read"),
        ([1, 2], "the file has no state_dict"),
        ({"a": 1}, "the file has no state_dict"),
        (Path("x"), "the weights cannot be read: .*[Ww]eights.only"),
    ],
)
def test_files_that_are_no_weights(tmp_path, content, message):
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


def test_a_nan_is_refused(tmp_path, other):
    first = next(iter(other))
    other[first][0] = float("nan")
    torch.save(other, tmp_path / "nan.pt")
    with pytest.raises(SettingsError, match=f"'{first}' holds a NaN"):
        arrays_from(f"file:{tmp_path / 'nan.pt'}", network(), 0)


def test_torchvisions_weights_from_torchs_cache(tmp_path, monkeypatch):
    """The file has 1,000 classes.

    The network keeps its own last layer, and gets all other layers from the file.
    """
    from torchvision.models import SqueezeNet1_1_Weights, squeezenet1_1

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    squeezenet = squeezenet1_1()
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    file = SqueezeNet1_1_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    torch.save(squeezenet.state_dict(), cache / file)
    name, shape = "torchvision.models:squeezenet1_1", (3, 32, 32)
    own = network(name=name, shape=shape)
    arrays = arrays_from("torchvision:SqueezeNet1_1_Weights.IMAGENET1K_V1", own, 0)
    assert own.head == {"classifier.1.weight", "classifier.1.bias"}
    for key, array in model_arrays(squeezenet).items():
        assert (arrays[key] == (own.arrays[key] if key in own.head else array)).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ResNet18_Weight.X", "unknown weights .* mean 'ResNet18_Weights.IMAGENET1K_V1'"),
        ("ResNet18_Weights.IMAGENET1K_V2", "unknown weights .*: did you mean .*IMAGENET1K_V1'"),
    ],
)
def test_unknown_weights_of_torchvision(name, message):
    with pytest.raises(SettingsError, match=message):
        arrays_from(f"torchvision:{name}", network(), 0)


def test_a_function_that_returns_a_module(tmp_path):
    path = tmp_path / "starts.py"
    path.write_text(
        "from coprefl_flwr.models import build_model\n\n"
        "def made(num_classes, input_shape, seed=5):\n"
        "    return build_model('femnist-cnn', num_classes, input_shape, seed_key=(seed,))\n"
    )
    place = f"{path}:made:seed=8"
    assert is_external(place)
    same(arrays_from(place, network(), 0), model_arrays(build_model(NAME, 3, SHAPE, seed_key=(8,))))


def test_a_function_with_random_weights_depends_on_the_seed(tmp_path):
    path = tmp_path / "starts.py"
    path.write_text(
        "from torch import nn\n\ndef made(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(16, num_classes))\n"
    )
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    own = Network("own", module, 3, (1, 4, 4), frozenset())
    first, again, other = (arrays_from(f"{path}:made", own, seed) for seed in (0, 0, 1))
    assert (first["1.weight"] == again["1.weight"]).all()
    assert (first["1.weight"] != other["1.weight"]).any()


def test_methods_do_not_come_from_elsewhere(tmp_path):
    (tmp_path / "mine.py").write_text("class Method:\n    pass\n")
    assert not is_external("coprefl:gamma=0.5")
    assert not is_external(f"{tmp_path / 'mine.py'}:Method")
    assert is_external("file:x.pt")
