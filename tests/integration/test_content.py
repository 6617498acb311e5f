"""Files, numbers and arguments with wrong content: a one-line error for each, before any work.

Some of this content made earlier versions use memory without a limit. A test with such content gets
only one GiB of memory in addition to the memory at its start. The package must therefore refuse the
content before it reads the content or writes it out.
"""

import hashlib
import json
import os
import pickle
import resource
import shutil
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin
from safetensors.numpy import load_file, save_file
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.arrays import write_sealed
from coprefl_flwr.cli import main
from coprefl_flwr.data import load_dataset
from coprefl_flwr.errors import RunFailedError, SettingsError, excerpt
from coprefl_flwr.federation.checkpoint import read_checkpoint
from coprefl_flwr.files import write_sums
from coprefl_flwr.models import build_model, model_arrays, save_model
from coprefl_flwr.models.backbones import load_backbone
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.studies.store import Store
from tests.common.data import images
from tests.common.recipes import tiny_recipe, write_recipe

HUGE = "1" + 350 * "0"
DEEP = 100_000 * "["


@pytest.fixture
def little_memory():
    """Limit this process to one GiB of address space in addition to its present size."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def said(capsys):
    """Return a function that runs `coprefl` with arguments and returns its one-line error."""

    def line(*arguments):
        assert main([str(one) for one in arguments]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert len(lines[0]) < 1000
        return lines[0]

    return line


# ---- images -------------------------------------------------------------------------------------


def of_files(root, content):
    """Make a folder of two classes with one image per class; return the folder."""
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        (root / name / "1.png").write_bytes(content)
    return root


def png(side):
    """Return the bytes of a square grey PNG, `side` pixels wide, without the pixel data."""

    def chunk(kind, data):
        end = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + end

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_an_eps_that_is_called_png_starts_no_ghostscript(tmp_path, monkeypatch):
    program, started = tmp_path / "bin" / "gs", tmp_path / "started"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 12 12\n%%EndComments\nshowpage\n"
    with pytest.raises(SettingsError, match=r"a/1\.png: not a readable image") as caught:
        load_dataset(str(of_files(tmp_path / "images", eps)))
    assert not started.exists()
    assert "allowed are BMP, JPEG" in str(caught.value)
    stored = datasets.Dataset.from_dict({"image": [{"bytes": eps, "path": None}], "label": [0]})
    stored.cast_column("image", datasets.Image()).save_to_disk(str(tmp_path / "stored"))
    with pytest.raises(SettingsError, match=r"dataset 'hf:.*Ghostscript"):
        load_dataset(f"hf:{tmp_path / 'stored'}")
    assert not started.exists()


@pytest.mark.parametrize("side", [10_000, 40_000])
def test_an_image_of_too_many_pixels(tmp_path, side, recwarn):
    with pytest.raises(SettingsError, match=rf"a/1\.png: not a readable image.*{side**2} pixels"):
        load_dataset(str(of_files(tmp_path / "images", png(side))))
    assert not recwarn.list


def test_a_folder_without_a_folder_of_a_class(tmp_path, said):
    (tmp_path / "images").mkdir()
    recipe = write_recipe(tmp_path / "a.yaml", tiny_recipe(tmp_path / "images"))
    assert "images: no images found; write them as class/file" in said("plan", recipe)


# ---- recipes and commands -----------------------------------------------------------------------

RATES = [number / 1000 for number in range(1, 101)]
GRID = dict.fromkeys(("learning-rate", "momentum", "weight-decay"), RATES)
FOUR = {**GRID, "batch-size": list(range(1, 101))}
PROTOCOL = {"because": "so it is", "rates": int(HUGE)}


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"protocols": {"a": PROTOCOL}}, "is not a finite number"),
        ({"settings": {"clients": int(HUGE)}}, "is not a finite number"),
        ({"settings": {"rounds": int(HUGE)}}, "is not a finite number"),
        ({"settings": {"learning-rate": float("inf")}}, "'.inf' is not a finite number"),
        ({"search": GRID, "methods": [{"fedprox": {"mu": RATES}}], "reference": None},
         "'fedprox' has 100000000 combinations of searched values: at most 100000 are allowed"),
        ({"settings": FOUR},
         "100000000 combinations of settings x 4 searched values x 1 seeds: a recipe can have at"),
        ({"settings": {"learning-rate": RATES}, "seeds": list(range(1000))},
         "100 combinations of settings x 4 searched values x 1000 seeds: a recipe can have at"),
        ({"protocols": {"a": {"because": "so it is", "settings": FOUR}}},
         "100000000 combinations of settings"),
    ],
    ids=excerpt,
)  # fmt: skip
@pytest.mark.usefixtures("little_memory")
def test_numbers_that_no_float_holds_and_values_too_many_to_list(tiny_images, tmp_path, keys, line):
    recipe = write_recipe(tmp_path / "a.yaml", tiny_recipe(tiny_images, **keys))
    with pytest.raises(SettingsError, match=r"a\.yaml, line \d+: ") as caught:
        read_recipe(recipe)
    assert line in str(caught.value)


def test_a_cut_of_a_number_that_no_float_holds(tiny_images, tmp_path, said):
    content = tiny_recipe(tiny_images, {"clients": int(HUGE)})
    recipe = write_recipe(tmp_path / "a.yaml", content)
    assert "is not a finite number" in said("plan", recipe, "--scale", "small")


@pytest.mark.parametrize(
    "number", ["1" + 1000 * ":59", "1" + 1000 * ":59" + ".5", "0x" + 1000 * "f"]
)
def test_a_long_number(tmp_path, said, number):
    (tmp_path / "a.yaml").write_text(f"title: {number}\n")
    assert "has at most 400 characters" in said("plan", tmp_path / "a.yaml")


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_recipe_that_is_a_device_or_a_link_to_one(tmp_path, said, command):
    link = tmp_path / "a.yaml"
    link.symlink_to("/dev/zero")
    for place in ("/dev/zero", link):
        line = said(command, place)
        assert line == f"coprefl: {place} cannot be read: it is not a regular file"


# ---- weights ------------------------------------------------------------------------------------

KINDS = {
    "sparse": lambda one: one.to_sparse(),
    "quantised": lambda one: torch.quantize_per_tensor(one, 0.1, 0, torch.qint8),
    "on the meta device": lambda one: one.to("meta"),
    "complex64": lambda one: one.to(torch.complex64),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_weights_that_are_no_arrays_of_numbers(tmp_path, kind):
    model, path = nn.Sequential(nn.Flatten(), nn.Linear(36, 8)), tmp_path / "a.pt"
    of_file = model.state_dict()
    of_file["1.weight"] = KINDS[kind](of_file["1.weight"])
    torch.save(of_file, path)
    line = rf"'1\.weight' is {kind}"
    tasks = cp.tasks(images(), number=1, classes=2, clients=2)
    with pytest.raises(SettingsError, match=line):
        cp.evaluate_starts({"a": model, "b": path}, tasks, 1)
    if kind == "quantised":  # A module cannot have a quantised parameter.
        return
    model[1].weight = nn.Parameter(of_file["1.weight"])
    with pytest.raises(SettingsError, match=line):
        cp.evaluate_starts({"a": model}, tasks, 1)
    with pytest.raises(SettingsError, match=line):
        cp.pretrain("fedavg", model, cp.partition(images(), clients=2), 1)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (lambda of: dict(enumerate(of.values())), "the key 0 is of the type int"),
        (lambda of: {"model": of}, "the value of 'model' is of the type OrderedDict"),
        (lambda of: {"1.wieght": of["1.weight"], "1.bias": of["1.bias"], "0.x": of["1.bias"]},
         "'1.wieght' (nearest: '1.weight')"),
        (lambda of: list(of.values()), "but a list"),
    ],
)  # fmt: skip
def test_weights_of_other_keys(tmp_path, content, line):
    model, path = nn.Sequential(nn.Flatten(), nn.Linear(36, 8)), tmp_path / "a.pt"
    model.append(nn.Linear(8, 8))
    torch.save(content(model.state_dict()), path)
    with pytest.raises(SettingsError) as caught:
        cp.evaluate_starts(
            {"a": model, "b": path}, cp.tasks(images(), number=1, classes=2, clients=2), 1
        )
    assert line in str(caught.value)


@pytest.mark.parametrize("kind", ["sparse", "on the meta device", "no matrix"])
def test_weights_of_a_backbone(tmp_path, kind):
    from torchvision.models import resnet18

    found = resnet18(num_classes=3).state_dict()
    other = KINDS.get(kind, lambda one: torch.zeros(1).expand(10**9, 512))
    found["fc.weight"] = other(found["fc.weight"])
    torch.save(found, tmp_path / "a.pt")
    with pytest.raises(SettingsError, match=rf"'fc\.weight' is {kind}"):
        load_backbone(f"resnet18={tmp_path / 'a.pt'}")


# ---- model.json and the header of its weights ---------------------------------------------------

ABOUT = {"model": "femnist-cnn", "num-classes": 3, "input-shape": [1, 12, 12], "norm": "batch"}
ABOUT |= {"pixel-mean": [0.5], "pixel-std": [0.25]}


@pytest.fixture
def saved(tmp_path):
    """Return the folder of a small model."""
    save_model(tmp_path / "a", model_arrays(build_model("femnist-cnn", 3, (1, 12, 12))), ABOUT)
    return tmp_path / "a"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (json.dumps(ABOUT | {"input-shape": [1, 512, 512]}), "by its model.json needs"),
        (json.dumps(ABOUT | {"input-shape": [1, 4096, 4096]}), "whole numbers up to 512"),
        (
            json.dumps(ABOUT | {"num-classes": 3.0}),
            "has 3.0 classes, but its weights have another number",
        ),
        (json.dumps(ABOUT | {"model": "resnet18"}), "by its model.json needs"),
        (json.dumps(ABOUT)[:-1] + f', "a": {HUGE}}}', "is not finite, or too large"),
        (json.dumps(ABOUT)[:-1] + ', "a": 1e999}', "is not finite, or too large"),
        (DEEP, "brackets are nested too deeply"),
    ],
    ids=excerpt,
)
@pytest.mark.usefixtures("little_memory")
def test_what_a_model_is_said_to_be(saved, text, line):
    (saved / "model.json").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_backbone(str(saved))
    assert line in str(caught.value)


@pytest.mark.parametrize("order", ["5", "[1, 2]", "[]", "1e999"], ids=excerpt)
def test_another_order_of_the_weights(saved, order):
    file = saved / "model.safetensors"
    save_file(load_file(file), file, {"order": order})
    with pytest.raises(SettingsError, match="is damaged: "):
        load_backbone(str(saved))


# ---- checkpoints --------------------------------------------------------------------------------


def checkpoint(path, lines=b"", about="", **changes):
    """Write a checkpoint with the history `lines` and correct checksums; return its path."""
    known = {"bytes": len(lines), "sha256": hashlib.sha256(lines).hexdigest()}
    whole = {"round": 1, "names": ["w"], "state": {}, "options": {}, "versions": {}}
    whole |= {"bound": {}, "most-clients": 1, "history": known, **changes}
    write_sealed(path, {"arrays/w": np.zeros(2)}, about or json.dumps(whole))
    Path(f"{path}.rounds.jsonl").write_bytes(lines)
    return path


def test_what_a_checkpoint_may_hold(tmp_path):
    path = checkpoint(tmp_path / "a", b'{"round": 1, "train": {"loss": NaN}}\n')
    assert np.isnan(read_checkpoint(path).history.train[1]["loss"])


@pytest.mark.parametrize(
    "content",
    [
        {"lines": b'{"round": 1, "train": {"loss": 1e999}}'},
        {"lines": f'{{"round": 1, "train": {{"loss": {HUGE}}}}}'.encode()},
        {"lines": b'{"round": 1, "train": {"loss": "x"}}'},
        {"lines": b'{"round": 1, "trains": {"loss": 1.0}}'},
        {"lines": b'{"round": Infinity, "train": {"loss": 1.0}}'},
        {"lines": b"[1, 2]"},
        {"lines": b"\xff\n"},
        {"lines": DEEP.encode()},
        {"about": f'{{"round": {DEEP}'},
        {"about": '{"round": 1e999}'},
        {"round": float("inf")},
        {"state": {"a": int(HUGE)}},
        {"options": 5},
        {"history": 5},
        {"history": {"bytes": 2**62, "sha256": ""}},
        {"history": {"bytes": -1, "sha256": ""}},
        {"history": {"bytes": None, "sha256": ""}},
    ],
    ids=excerpt,
)
def test_a_checkpoint_of_other_content(tmp_path, content):
    with pytest.raises(SettingsError, match="is not a complete checkpoint of this package: "):
        read_checkpoint(checkpoint(tmp_path / "a", **content))


@pytest.mark.usefixtures("little_memory")
def test_gigabytes_behind_a_history_are_not_read(tmp_path):
    path = checkpoint(tmp_path / "a", b'{"round": 1, "train": {"loss": 0.5}}\n')
    os.truncate(f"{path}.rounds.jsonl", 2**32)
    assert read_checkpoint(path).history.rounds() == {1: {"loss": 0.5}}


# ---- a recipe's folder --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tiny_images, tmp_path_factory):
    """Return the folder that contains a recipe's folder and the folder of its models."""
    folder = tmp_path_factory.mktemp("made")
    keys = {"methods": ["random", "fedavg"], "reference": "fedavg", "figures": ["landscape"]}
    recipe = write_recipe(
        folder / "a.yaml",
        tiny_recipe(tiny_images, {"tasks": 1, "rounds": 1, "model": "femnist-cnn"}, **keys),
    )
    assert main(["run", str(recipe), "--out", str(folder / "out"), "--workers", "1"]) == 0
    return folder


@pytest.fixture
def copied(made, tmp_path):
    """Return a copy of the folder `made`, and the folder of the trained model."""
    shutil.copytree(made, tmp_path / "a")
    (run,) = (tmp_path / "a" / "models").glob("fedavg-*")
    return tmp_path / "a", run


@pytest.mark.parametrize(
    "arrays",
    [
        None,
        {"losses": np.zeros(3)},
        {"losses": np.zeros((3, 4))},
        {"losses": np.zeros((0, 0))},
        {"others": np.zeros((3, 3))},
    ],
    ids=excerpt,
)
def test_a_landscape_of_other_content(copied, caplog, arrays):
    folder, run = copied
    file = run / "landscape.safetensors"
    if arrays is None:
        file.write_bytes(pickle.dumps([1]))
    else:
        save_file(arrays, file)
    assert main(["report", str(folder / "out")]) == 0  # The report has no such figure.
    (line,) = [one for one in caplog.messages if "landscape.safetensors" in one]
    assert "damaged" in line
    assert line.endswith("remove it, then it is computed again")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"loss": "x"}, "'loss' of a round is 'x'"),
        ({"loss": [1]}, "'loss' of a round is [1]"),
        ({"round": "x"}, "'round' of a round is 'x'"),
        ({"replies-left-out": "x"}, "'replies-left-out' of a round is 'x'"),
        (HUGE, "is not finite, or too large"),
        ("1e999", "is not finite, or too large"),
        (DEEP, "brackets are nested too deeply"),
    ],
    ids=excerpt,
)
def test_rounds_of_other_content(copied, said, change, line):
    folder, run = copied
    found = json.loads((run / "result.json").read_text())
    if isinstance(change, dict):
        found["rounds"][-1].update(change)
        text = json.dumps(found)
    else:
        text = json.dumps(found).replace('"round": 1', f'"round": {change}')
    (run / "result.json").write_text(text)
    write_sums(run, ["result.json"], {})
    assert line in said("show", "fedavg", "--models", folder / "models")
    assert main(["report", str(folder / "out")]) == 0  # The damaged result is left out.


@pytest.mark.parametrize("text", ["[1]", "1e999", DEEP, "null"], ids=excerpt)
def test_lists_of_a_recipes_folder_of_other_content(copied, said, capsys, text):
    folder, _ = copied
    failed = folder / "out" / "failed.json"
    failed.write_text(text)
    assert "failed.json is damaged: " in said("report", folder / "out")
    failed.unlink()
    (folder / "out" / "runs.json").write_text(text)
    assert main(["list", str(folder)]) == 0
    assert "runs.json is damaged: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"study": "starts", "seed": 1, "method": 5}},
        {"settings": {"study": "starts", "seed": 1, "method": "fedavg"}},
        {"phases": [5]},
        {"phases": [{"a": 1}]},
    ],
    ids=str,
)
def test_a_run_that_is_said_to_be_made_otherwise(copied, said, caplog, change):
    folder, run = copied
    about = json.loads((run / "model.json").read_text()) | change
    (run / "model.json").write_text(json.dumps(about))
    assert main(["list", str(folder)]) == 0
    assert "model.json is damaged: its settings are incomplete" in caplog.text
    assert "unknown run 'fedavg'" in said("show", "fedavg", "--models", folder / "models")


@pytest.mark.parametrize("text", ["- 1", DEEP, "a: " + 400 * "1:" + "1.5", "1: 2", "a: [" * 1000])
def test_settings_of_other_content(copied, capsys, text):
    folder, _ = copied
    (folder / "study").mkdir()
    (folder / "study" / "settings.yaml").write_text(text)
    assert main(["list", str(folder)]) == 0
    assert "its settings.yaml cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ['{"a": 1}', '["x", 1]', "[[1], 2, 3]", "[1e999, 1]", DEEP], ids=excerpt
)
def test_seconds_of_other_content(tmp_path, text):
    (tmp_path / "seconds.json").write_text(text)
    with pytest.raises(SettingsError, match=r"seconds\.json is damaged: "):
        Store(tmp_path).seconds(SimpleNamespace(key=""))


@pytest.mark.usefixtures("little_memory")
def test_files_of_a_recipes_folder_that_are_devices(copied, said, caplog):
    folder, run = copied
    (run / "SHA256SUMS").unlink()
    (run / "SHA256SUMS").symlink_to("/dev/zero")
    assert main(["report", str(folder / "out")]) == 0
    assert "its checksum is not the one in SHA256SUMS" in caplog.text
    (folder / "out" / "models.txt").unlink()
    (folder / "out" / "models.txt").symlink_to("/dev/zero")
    assert "models.txt is damaged" in said("report", folder / "out")


# ---- the evaluation of a user's own method ------------------------------------------------------


def test_an_evaluation_without_the_number_of_hits():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8))
    tasks = cp.tasks(images(), number=1, classes=2, clients=2)
    with pytest.raises(RunFailedError, match="of a client has no metric 'correct'; `evaluate` "):
        cp.evaluate_starts(
            {"a": model}, tasks, 1, method="tests.common.own_parts:WithoutHits", quiet=True
        )
