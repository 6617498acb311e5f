"""The FAQ page quotes error messages exactly as the package prints them."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.settings import Settings
from tests.common.simulation import ROOT

PAGE = " ".join((ROOT / "docs" / "faq.md").read_text().split())


def images(*labels):
    """Return a dataset with 20 grey images of each label."""
    numbers = torch.tensor(labels * 20)
    return TensorDataset(torch.zeros(len(numbers), 1, 8, 8), numbers)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Settings.from_config({"lerning-rate": 0.1}),
        lambda: Settings.from_config({"learning-rate": -1}),
        lambda: build(Settings(method="fedavg", participants=200)),
        lambda: Settings.from_config({"local-steps": 5, "local-epochs": 1}),
        lambda: cp.load_dataset("none.npz"),
        lambda: cp.FedAvg(min_train_nodes=3),
        lambda: cp.partition(cp.load_dataset("glyphs"), clients=100000),
        lambda: cp.tasks(cp.load_dataset("glyphs"), classes=200),
    ],
)
def test_page_quotes_the_whole_message(wrong):
    with pytest.raises(SettingsError) as raised:
        wrong()
    assert " ".join(str(raised.value).split()) in PAGE


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        (
            lambda _: cp.partition(images(0, 5), clients=2),
            "labels must be 0, 1, 2, ... without gaps",
        ),
        (
            lambda folder: train(nn.Linear(5, 2), folder / "new"),
            "model fails for a batch of samples, float32 (",
        ),
        (
            lambda folder: train(nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), folder / "new"),
            "outputs, but there are",
        ),
        (
            lambda folder: train(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), folder),
            "has files that coprefl did not write, such as 'a.txt'; choose a new or empty folder",
        ),
    ],
)
def test_page_quotes_a_part_of_the_message(wrong, part, tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(SettingsError) as raised:
        wrong(tmp_path)
    assert part in str(raised.value)
    assert part in PAGE


def train(model, folder):
    """Start a pre-training on two clients that hold images of 8x8 pixels."""
    clients = cp.partition(images(0, 1), clients=2, scheme="iid")
    cp.pretrain(cp.FedAvg(), model, clients, rounds=1, checkpoint=folder)
