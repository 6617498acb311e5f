"""Natural mistakes in a call: a one-line error names the wrong value and the needed value."""

import numpy as np
import pytest
import torch
from flwr.serverapp import strategy as flower
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.grids import LocalGrid
from tests.common.data import images
from tests.common.networks import Perceptron

DATA = images()
CLIENTS = cp.partition(DATA, 4, "iid")
TASKS = cp.tasks(DATA, 1, 3, 2, "iid")
ORDER = r"cp\.pretrain\(method, model, clients\)"


def pretrain(method=None, model=None, clients=CLIENTS, **more):
    method = cp.FedAvg() if method is None else method
    more = {"rounds": 1, "quiet": True, "local_steps": 1, "checkpoint": "kept", **more}
    return cp.pretrain(method, Perceptron() if model is None else model, clients, **more)


def evaluate(starts=None, tasks=TASKS, **more):
    starts = {"a": Perceptron()} if starts is None else starts
    more = {"rounds": 1, "quiet": True, "local_steps": 1, "checkpoint": "kept", **more}
    return cp.evaluate_starts(starts, tasks, **more)


def top3(logits, labels):
    """Return the fraction of samples whose class is among the three largest logits."""
    return float((logits.topk(3, dim=1).indices == labels[:, None]).any(dim=1).double().mean())


TWO_PHASES = [(cp.FedProx(), 1), (cp.FedAvg(), 1)]
FROZEN, LAZY = Perceptron().requires_grad_(False), nn.Sequential(nn.Flatten(), nn.LazyLinear(8))
TWO = cp.tasks(DATA, 1, 2, 2, "iid")

MISTAKES = {
    # Methods.
    "class": (lambda: pretrain(cp.CoPreFL), r"class CoPreFL; .* as in CoPreFL\(\)"),
    "name": (lambda: pretrain("fedprx"), "'fedprx'.*'fedprox'"),
    "no training": (lambda: pretrain("random"), "random.*trains nothing"),
    "personalised": (lambda: pretrain(cp.FedPCL()), "'fedpcl' is a personalised method; a pre"),
    "too many": (lambda: pretrain(cp.FedAvg(participants=9)), "participants = 9: .*clients = 4"),
    "two shares": (lambda: cp.FedAvg(participants=2, fraction_train=0.5), "set one of them"),
    "Flower's class": (lambda: pretrain(flower.FedAdam), r"class FedAdam; .* as in FedAdam\(\)"),
    # Networks and clients.
    "network class": (lambda: pretrain(model=Perceptron), r"model: .* as in Perceptron\(\)"),
    "swapped": (lambda: cp.pretrain(cp.FedAvg(), CLIENTS, Perceptron()), f"Clients; .* {ORDER}"),
    "order": (lambda: cp.pretrain(Perceptron(), cp.FedAvg(), CLIENTS), f"method.*{ORDER}"),
    "tasks": (lambda: pretrain(clients=TASKS), r"type Tasks; .*cp\.partition\("),
    "dataset": (lambda: pretrain(clients=DATA), r"type TensorDataset; .*cp\.partition\("),
    "state_dict": (lambda: pretrain(model=Perceptron().state_dict()), "model: got .*type Ordered"),
    "lazy network": (lambda: pretrain(model=LAZY), "lazy layers: call it once"),
    "frozen network": (lambda: pretrain(model=FROZEN), "no trainable parameters"),
    "input shape": (lambda: pretrain(model=Perceptron(10)), r"model fails for .*\(2, 1, 6, 6\)"),
    "few classes": (lambda: pretrain(model=Perceptron(classes=4)), "model has 4 .* 8 classes"),
    # Options.
    "option": (lambda: pretrain(learning_rat=1), "'learning_rat'.*'learning_rate'"),
    "workers": (lambda: pretrain(workers="2"), "workers = '2': must be a whole number"),
    "text": (lambda: pretrain(learning_rate="x"), "learning_rate = 'x': .* number"),
    "precision": (lambda: pretrain(precision="tf32"), "unknown value 'tf32'"),
    # Data.
    "dataset name": (lambda: cp.partition("glyphs", 4), r"cp\.load_dataset\('glyphs'\)"),
    "scheme": (lambda: cp.partition(DATA, 4, "idd"), "'idd'.*'iid'"),
    "only no class": (lambda: cp.partition(DATA, 4, only=[9]), "class '9'"),
    "many classes": (lambda: cp.tasks(DATA, 1, 9), "needs 9 classes, .* only 8"),
    # Starts and tasks.
    "list": (lambda: evaluate([Perceptron()]), "starts: got .*type list; .*mapping"),
    "start class": (lambda: evaluate({"a": Perceptron}), r"start 'a': .*Perceptron\(\)"),
    "start": (lambda: evaluate({"x": 1}), "start 'x': got 1; .*network"),
    "other": (lambda: evaluate({"b": Perceptron(), "c": Perceptron(9)}), "start 'c'"),
    "no layer": (lambda: evaluate({"a": nn.Sequential(nn.Flatten())}), "nn.Linear"),
    "swapped tasks": (lambda: evaluate(TASKS, {"a": 1}), r"tasks: got .*type dict; .*cp\.tasks"),
    "task option": (lambda: evaluate(local_stesp=1), "'local_stesp'.*'local_steps'"),
    # Methods, metrics and networks of tasks.
    "task method": (lambda: evaluate(method=cp.CoPreFL()), "'coprefl' is a .* a task method is"),
    "nested schedule": (lambda: cp.Schedule([(cp.Schedule([(cp.FedAvg(), 1)]), 2)]), "no Schedule"),
    "schedule": (lambda: evaluate(method=cp.Schedule(TWO_PHASES)), "Schedule: a task has one"),
    "lambda": (lambda: evaluate(client_metrics=lambda *_: 1.0), "a metric needs a name: .*def"),
    "fails": (lambda: evaluate(tasks=TWO, client_metrics=top3), "top3 failed: .*out of range"),
    "network": (lambda: evaluate(network=Perceptron()), "network: got .*Perceptron; .*function"),
    "inputs": (lambda: evaluate(network=Perceptron), r"network\(3\) fails for a batch of samples"),
    "no network": (lambda: evaluate(network=lambda classes: None), r"network\(3\): got None; "),
    "same": (lambda: evaluate(network=lambda classes: Perceptron()), "the same shapes for 3 and 4"),
}


@pytest.mark.parametrize(("call", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_refused_in_one_line_before_any_work(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalGrid, "push_messages", lambda *_: pytest.fail("it began to work"))
    with pytest.raises(SettingsError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_classes_can_be_numbers_names_an_array_or_a_tensor():
    expected = cp.partition(DATA, 2, "iid", only=[0, 1, 2])
    for only in (np.arange(3), torch.arange(3), range(3), ["2", 0, 1]):
        found = cp.partition(DATA, 2, "iid", only=only)
        assert [one.indices.tolist() for one in found] == [one.indices.tolist() for one in expected]
