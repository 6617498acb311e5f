import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from coprefl_flwr.checksums import write_sums
from coprefl_flwr.errors import SettingsError, short
from coprefl_flwr.models import build_model, load_saved_model, model_arrays, save_model
from tests.common.checks import flip

CIFAR = (3, 32, 32)
ABOUT = {"strategy": "coprefl", "rounds": 50, "data": {"alpha": 0.5}}


def trained_arrays() -> dict[str, np.ndarray]:
    model = build_model("resnet8", 10, CIFAR)
    model(torch.ones(2, *CIFAR))  # the BatchNorm buffers move
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
    with pytest.raises(SettingsError, match=f"it has no file {name}"):
        load_saved_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"[" * 100_000], ids=short)
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
        SettingsError, match=r"SHA256SUMS says another content of model\.safetensors"
    ):
        load_saved_model(tmp_path)
    save_model(tmp_path, {"w": np.ones(1)}, ABOUT)  # Another model has none of the old one's.
    assert load_saved_model(tmp_path)[0]["w"].item() == 1.0
