"""The example of adapters for speakers of a text, with a made text and few steps."""

import importlib.util
import math

import numpy as np
import pytest
import torch

from coprefl_flwr.models import model_arrays
from tests.common.simulation import ROOT

pytest.importorskip("peft")


@pytest.fixture
def example(monkeypatch):
    spec = importlib.util.spec_from_file_location("speakers", ROOT / "examples/text/speakers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    few = {"FEWEST": 700, "CLIENTS": 3, "PARTICIPANTS": 2, "OF_TASK": 2}
    for name, number in few.items():
        monkeypatch.setattr(module, name, number)
    return module


@pytest.fixture
def text(tmp_path):
    """Return a file of nine speakers, and one who says too little."""
    rng, letters = np.random.default_rng(0), list("abcdefgh .")
    said = ["".join(rng.choice(letters, 380)) for _ in range(18)]
    blocks = [f"SPEAKER {n % 9}:\n{speech}" for n, speech in enumerate(said)]
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join([*blocks, "SPEAKER 9:\nA word."]))
    return file


def test_speakers_are_clients_and_several_are_a_task(example, text):
    texts, characters = example.read(text)
    assert [len(one) for one in texts] == [2 * 380 + 1] * 9
    data = example.samples(texts[:4], characters)
    assert np.bincount(data.groups).tolist() == [11] * 4
    assert data.domains[data.groups == 2].tolist() == [1] * 11
    first = "".join(characters[token] for token in data.values[:11].flatten())
    assert first == texts[0][:704]
    assert (data.targets[:, 0] == -100).all()
    assert torch.equal(data.targets[:, 1:], data.values[:, 1:])


def test_starts_are_compared_and_adapters_send_less(example, text, tmp_path):
    folder = tmp_path / "model"
    table = example.main(text, folder, steps=1, rounds=1, task_rounds=1)
    methods = ["as given", "fedavg", "coprefl"]
    assert [*table.index] == [(kind, m) for kind in example.RATES for m in methods]
    for kind in example.RATES:
        network = example.AutoModelForCausalLM.from_pretrained(folder)
        if kind == "adapters":
            network = example.with_adapters(network)
        kilobytes = sum(array.nbytes for array in model_arrays(network).values()) / 1000
        sent, in_tasks = table.loc[kind, "kB, pre-training"], table.loc[kind, "kB, task"]
        # A message has a header for each array. CoPreFL's clients send a gradient too.
        assert kilobytes < sent["fedavg"] < kilobytes + 10
        assert sent["coprefl"] == 2 * sent["fedavg"]
        assert math.isnan(sent["as given"])
        assert (in_tasks == sent["fedavg"]).all()
    assert table["worst tenth %"].le(table["correct %"]).all()
