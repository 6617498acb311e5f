"""The example of a frozen body, with a body that was not trained and fewer rounds."""

import importlib.util

import torch

from coprefl_flwr.models import build_model, model_arrays
from tests.common.simulation import ROOT

FILE = ROOT / "examples" / "frozen" / "frozen_body.py"


def test_starts_of_the_head_are_compared_and_the_body_stays(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("frozen_body", FILE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    weights = build_model("resnet8", 40, (1, 28, 28)).state_dict()
    torch.save(weights, tmp_path / "body.pt")
    network = example.network(weights)
    sent = sum(array.nbytes for array in model_arrays(network).values())
    whole = sum(weight.nbytes for weight in network.state_dict().values())
    assert sent < whole / 10
    result = example.main(tmp_path / "body.pt", rounds=1, task_rounds=1, tasks=1)
    assert list(result.summary().index) == ["random", "fedavg", "coprefl:meta-learning-rate=0.01"]
    # Ten participants; a message has a few hundred bytes beside the arrays.
    megabytes = float(capsys.readouterr().out.split("fedavg: ")[1].split(" ")[0])
    assert 10 * sent / 1e6 <= megabytes < 11 * sent / 1e6 + 0.01
