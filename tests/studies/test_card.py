"""A start to hand on: its folder, its card, and which weights `load_start` refuses."""

import hashlib
import json
import math
import re
import shutil
import subprocess
import sys

import huggingface_hub
import numpy as np
import pytest
import scipy.stats
import torch
from huggingface_hub import ModelCard
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.models import load_saved_model, model_arrays
from tests.common.checks import flip, refusal

NETWORK = "from torch import nn\n\nmodel = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))"
OPTIONS = {"participants": 2, "local_steps": 2, "batch_size": 4, "quiet": True}
STATED = {
    "license": "apache-2.0",
    "data": "Points | of nobody",
    "data_license": "cc0-1.0",
    "datasets": ["name/points"],
    "network": NETWORK,
    "not_for": "Faces.",
}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def network(seed=0, classes=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(9, classes))


def data():
    generator = np.random.default_rng(0)
    images = generator.normal(size=(90, 1, 3, 3)).astype("float32")
    labels = torch.arange(90) % 3
    return torch.utils.data.TensorDataset(torch.from_numpy(images), labels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a pre-training, of two phases with 2 and 3 rounds."""
    folder = tmp_path_factory.mktemp("pretraining") / "run"
    clients = cp.partition(data(), 4, "iid")
    cp.pretrain("cyclic:rounds=2+fedavg", network(), clients, 3, checkpoint=folder, **OPTIONS)
    return folder


def row(card, name):
    """Return the cell behind a name in the card's tables."""
    return re.search(rf"^\| {name} \| (.*) \|$", card, re.MULTILINE)[1]


def test_pretraining_writes_a_card_with_what_it_knows(folder):
    card = (folder / "README.md").read_text()
    about = ModelCard(card).data
    assert (about.license, about.library_name) == (None, "coprefl-flwr")
    assert about.tags[-2:] == ["cyclic", "fedavg"]
    assert row(card, "Licence of the weights") == "not stated"
    assert "\nLicence of the data: not stated.\n" in card
    assert row(card, "Classes") == "3: 0, 1, 2"
    assert "participants = 2" in card
    result = json.loads((folder / "result.json").read_text())["rounds"]
    sent = sum(r["client-bytes-down"] + r["client-bytes-up"] for r in result)
    assert row(card, "Megabytes that clients send and receive") == f"{sent / 1e6:.2f}"
    # 2 clients, 2 steps of 4 samples in each of the last 3 rounds; the first 2 rounds have epochs.
    gradients = int(row(card, "Gradients of one sample").replace(",", ""))
    assert gradients > 3 * 2 * 2 * 4
    assert (row(card, "Clients"), row(card, "Rounds")) == ("4", "5")
    assert "Not measured here." in card


@pytest.fixture(scope="module")
def result(folder):
    """Two starts on three tasks."""
    tasks = cp.tasks(data(), number=3, classes=2, clients=2, scheme="iid")
    starts = {"random": network(), "mine": folder}
    return cp.evaluate_starts(starts, tasks, rounds=1, quiet=True)


@pytest.fixture
def saved(folder, result, tmp_path):
    return cp.save_start(folder, tmp_path / "saved", name="mine", result=result, **STATED)


def test_card_has_what_is_stated_and_measured(saved, folder, result):
    card = (saved / "README.md").read_text()
    about = ModelCard(card).data
    assert (about.license, about.datasets) == ("apache-2.0", ["name/points"])
    assert "Points | of nobody\n\nLicence of the data: cc0-1.0.\n" in card
    assert "Faces." in card
    # An interval by hand: the mean over tasks of the clients' mean, and its t interval.
    of_tasks = result.rows.groupby(["start", "task"])["accuracy"].mean().unstack("start")
    for values in (of_tasks["mine"], of_tasks["mine"] - of_tasks["random"]):
        half = scipy.stats.t.ppf(0.975, 2) * values.std() / math.sqrt(3)
        assert f"{values.mean():.2f} ± {half:.2f}" in card
    assert "`tasks = 3, task-rounds = 1, " in card
    weights = (saved / "model.safetensors").read_bytes()
    assert weights == (folder / "model.safetensors").read_bytes()
    digest = hashlib.sha256(weights).hexdigest()
    assert row(card, "SHA-256 of `model.safetensors`") == f"`{digest}`"
    subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=saved, check=True)
    # The same call again replaces the files; another program's files are not replaced.
    cp.save_start(folder, saved, name="mine", result=result, **STATED)
    assert (saved / "README.md").read_text() == card
    (saved.parent / "README.md").write_text("my own")
    assert "has files that coprefl did not write" in refusal(cp.save_start, folder, saved.parent)
    line = refusal(cp.save_start, folder, saved, name="mime", result=result)
    assert line == "result: unknown row 'mime': did you mean 'mine'?"


def test_card_of_a_network_of_the_package(tmp_path, folder):
    """A recipe's `model.json` names its network, so that the card needs no code of the user."""
    shutil.copytree(folder, tmp_path / "run")
    about = {"model": "lenet5", "norm": "batch", "num-classes": 7, "input-shape": [1, 28, 28]}
    model = cp.models.build_model("lenet5", 7, (1, 28, 28))
    cp.models.save_model(tmp_path / "run", model_arrays(model), about)
    saved = cp.save_start(tmp_path / "run", tmp_path / "saved")
    block = BLOCK.findall((saved / "README.md").read_text())[0]
    assert 'build_model("lenet5", 7, (1, 28, 28), "batch")' in block
    names = {}
    exec(block.replace('"."', repr(str(saved))), names)
    assert torch.equal(names["model"].fc1.weight, model.fc1.weight)


def test_start_is_loaded_without_this_package(saved):
    """All but the first block of the card are run where this package cannot be imported."""
    blocks = BLOCK.findall((saved / "README.md").read_text())
    code = f"import sys\nsys.modules['coprefl_flwr'] = None\n{''.join(blocks[1:])}"
    code += "\nassert os.path.exists(checkpoint)\n"
    code += "assert list(initial_arrays) == list(torch.load(checkpoint, weights_only=True))\n"
    code += "print(model[1].weight.double().sum().item())"
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=saved)
    arrays, _ = load_saved_model(saved)
    assert float(printed) == pytest.approx(arrays["1.weight"].astype("float64").sum())


def test_network_alone_is_saved(tmp_path):
    model = network(seed=1)
    saved = cp.save_start(model, tmp_path / "saved", method="By hand.")
    card = (saved / "README.md").read_text()
    assert "By hand." in card
    assert "| Rounds |" not in card
    loaded = cp.load_start(network(), saved)
    assert torch.equal(loaded[1].weight, model[1].weight)
    assert "start: got 3; pass a network" in refusal(cp.save_start, 3, tmp_path / "other")


def test_other_weights_are_refused(saved, tmp_path):
    weights = saved / "model.safetensors"
    whole = weights.read_bytes()
    flip(weights, -1)
    assert "is not the one in SHA256SUMS" in refusal(cp.load_start, network(), saved)
    weights.write_bytes(whole[: len(whole) // 2])
    assert "is not the one in SHA256SUMS" in refusal(cp.load_start, network(), saved)
    (saved / "SHA256SUMS").unlink()
    assert "cannot be read: SafetensorError" in refusal(cp.load_start, network(), saved)
    weights.write_bytes(whole)
    assert "'1.weight' has shape (3, 9), but the model has (4, 9)" in refusal(
        cp.load_start, network(classes=4), saved
    )
    frozen = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), network())
    mine = cp.save_start(frozen, tmp_path / "frozen")
    other = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), network())
    assert "it belongs to the frozen weights of Sequential" in refusal(cp.load_start, other, mine)


def test_start_of_the_hub(saved, monkeypatch):
    asked = []

    def downloaded(repo, revision, allow_patterns):
        asked.append((repo, revision))
        assert not [name for name in allow_patterns if name.endswith((".bin", ".pt", ".py"))]
        if repo == "name/none":
            raise huggingface_hub.errors.LocalEntryNotFoundError("no\nnetwork")
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", downloaded)
    loaded = cp.load_start(network(), "hub:name/start@v1")
    assert torch.equal(loaded[1].weight, cp.load_start(network(), saved)[1].weight)
    tasks = cp.tasks(data(), number=1, classes=2, clients=2, scheme="iid")
    starts = {"hub": "hub:name/start", "folder": saved, "random": network()}
    rows = cp.evaluate_starts(starts, tasks, rounds=1, quiet=True).rows
    assert rows["loss"][:2].tolist() == rows["loss"][2:4].tolist()
    line = refusal(cp.load_start, network(), "hub:name/none")
    assert line.startswith("hub:name/none: name/none could not be downloaded: LocalEntryNotFound")
    assert asked == [("name/start", "v1"), ("name/start", None), ("name/none", None)]
