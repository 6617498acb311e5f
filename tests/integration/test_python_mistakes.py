"""Natural mistakes in a call: a one-line error names the wrong value and the needed value."""

import numpy as np
import pytest
import torch
from flwr.clientapp import ClientApp
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.serverapp import strategy as flower
from flwr_datasets.partitioner import IidPartitioner
from torch import nn
from torch.utils.data import TensorDataset

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


class Unmade(cp.RoundStrategy):
    """A task method whose constructor needs a value."""

    roles = ("task",)

    def __init__(self, share):
        super().__init__()

    def round(self, ctx, arrays):
        """Return the arrays that were sent."""
        return arrays, {}
        yield


def top3(logits, labels):
    """Return the fraction of samples whose class is among the three largest logits."""
    return float((logits.topk(3, dim=1).indices == labels[:, None]).any(dim=1).double().mean())


FROZEN, LAZY = Perceptron().requires_grad_(False), nn.Sequential(nn.Flatten(), nn.LazyLinear(8))
ARRAYS = (np.zeros((40, 3)), np.zeros(40, int))
TWO = cp.tasks(DATA, 1, 2, 2, "iid")

MISTAKES = {
    # Methods.
    "a class of a method": (lambda: pretrain(cp.CoPreFL), r"class CoPreFL; .* as in CoPreFL\(\)"),
    "a method's name": (lambda: pretrain("fedprx"), "'fedprx'.*'fedprox'"),
    "no training": (lambda: pretrain("random"), "random.*trains nothing"),
    "a personalised method": (
        lambda: pretrain(cp.FedPCL()),
        "fedpcl is a personalised method; a pretraining method is needed",
    ),
    "too many": (lambda: pretrain(cp.FedAvg(participants=9)), "participants = 9: .*clients = 4"),
    "Flower's class": (lambda: pretrain(flower.FedAdam), r"class FedAdam; .* as in FedAdam\(\)"),
    "Flower's older kind": (lambda: pretrain(OlderFedAvg()), "FedAvg.*flwr.serverapp.strategy"),
    "Flower's trees": (lambda: pretrain(flower.FedXgbBagging()), "aggregates boosted trees"),
    "a class in a schedule": (lambda: cp.Schedule([(cp.Cyclic, 2)]), "a phase is .*a pair of"),
    "a schedule without rounds": (lambda: cp.Schedule([cp.FedAvg()]), "FedAvg.*a pair"),
    # Networks and clients.
    "a class of a network": (
        lambda: pretrain(model=Perceptron),
        r"model: .* class Perceptron; .* as in Perceptron\(\)",
    ),
    "swapped": (
        lambda: cp.pretrain(cp.FedAvg(), CLIENTS, Perceptron()),
        f"model: got .*Clients; .* {ORDER}",
    ),
    "begun wrongly": (lambda: cp.pretrain(Perceptron(), cp.FedAvg(), CLIENTS), f"method.*{ORDER}"),
    "clients of the strategy": (
        lambda: pretrain(cp.FedAvg(clients=4)),
        "clients = 4 of the strategy: leave it out",
    ),
    "tasks for clients": (lambda: pretrain(clients=TASKS), r"type Tasks; .*cp\.partition\("),
    "a dataset for clients": (
        lambda: pretrain(clients=DATA),
        r"type TensorDataset; .*cp\.partition\(",
    ),
    "a state_dict": (
        lambda: pretrain(model=Perceptron().state_dict()),
        "model: got .*type Ordered",
    ),
    "a lazy network": (lambda: pretrain(model=LAZY), "lazy layers, .*: call it once"),
    "a frozen network": (lambda: pretrain(model=FROZEN), "no trainable parameters"),
    "other samples": (lambda: pretrain(model=Perceptron(10)), r"model fails for .*\(2, 1, 6, 6\)"),
    "few classes": (lambda: pretrain(model=Perceptron(classes=4)), "model gives 4 .* 8 classes"),
    # Options.
    "an option": (lambda: pretrain(learning_rat=1), "'learning_rat'.*'learning_rate'"),
    "workers as a text": (lambda: pretrain(workers="2"), "workers = '2': must be a whole number"),
    "many workers": (lambda: pretrain(workers=10_001), "workers .*between 1 and 10000"),
    "a checkpoint that is no path": (
        lambda: pretrain(checkpoint=True),
        "checkpoint: got True; .*folder",
    ),
    "a rate as a text": (lambda: pretrain(learning_rate="x"), "learning_rate = 'x': .* number"),
    "a precision": (lambda: pretrain(precision="tf32"), "precision = tf32: .*NVIDIA GPU"),
    "a wrapper's share": (lambda: pretrain(client_wrapper_share=0.5), "share = 0.5: .*client"),
    # Data.
    "a name of a dataset": (lambda: cp.partition("glyphs", 4), r"cp\.load_dataset\('glyphs'\)"),
    "a class of a dataset": (lambda: cp.partition(TensorDataset, 4), "class TensorDataset"),
    "clients for a dataset": (lambda: cp.tasks(CLIENTS), "dataset: got .*type Clients"),
    "a pair of arrays": (
        lambda: cp.partition(ARRAYS, 4),
        r"tuple; .*torch\.utils\.data\.TensorDataset\(",
    ),
    "a scheme": (lambda: cp.partition(DATA, 4, "idd"), "'idd'.*'iid'"),
    "a class of a scheme": (
        lambda: cp.partition(DATA, 3, IidPartitioner),
        "scheme: got the class IidPartitioner",
    ),
    "a scheme of 3": (lambda: cp.partition(DATA, 4, IidPartitioner(3)), "3 clients, .*clients = 4"),
    "only one number": (lambda: cp.partition(DATA, 4, only=3), "only: got 3; pass a list"),
    "only a text": (lambda: cp.partition(DATA, 4, only="35"), "only: got '35'; pass a list"),
    "only a fraction": (lambda: cp.partition(DATA, 2, "iid", only=[1.5]), "only: 1.5: .*whole"),
    "only no class": (lambda: cp.partition(DATA, 4, only=[9]), "class 9"),
    "a seed that is none": (lambda: cp.partition(DATA, 4, seed=None), "seed = None: .*whole"),
    "no tasks": (lambda: cp.tasks(DATA, 0), "number = 0: at least one task"),
    "classes as a list": (lambda: cp.tasks(DATA, 1, [1, 2]), r"classes = \[1, 2\]"),
    "many classes": (lambda: cp.tasks(DATA, 1, 9), "classes = 9: there are only 8"),
    # Starts and tasks.
    "starts as a list": (lambda: evaluate([Perceptron()]), "starts: got .*type list; .*mapping"),
    "a class as a start": (lambda: evaluate({"a": Perceptron}), r"start 'a': .*Perceptron\(\)"),
    "a number as a start": (lambda: evaluate({"x": 1}), "start 'x': got 1; .*network"),
    "a start's name": (lambda: evaluate({1: Perceptron()}), "must be a text"),
    "a start of others": (lambda: evaluate({"b": Perceptron(), "c": Perceptron(9)}), "start 'c'"),
    "no layer": (lambda: evaluate({"a": nn.Sequential(nn.Flatten())}), "nn.Linear"),
    "starts and tasks": (lambda: evaluate(TASKS, {"a": 1}), r"tasks: got .*type dict; .*cp\.tasks"),
    "clients for tasks": (lambda: evaluate(tasks=CLIENTS), "tasks: got .*type Clients"),
    "its option": (lambda: evaluate(local_stesp=1), "'local_stesp'.*'local_steps'"),
    "its precision": (lambda: evaluate(precision="tf32"), "precision = tf32: .*NVIDIA GPU"),
    # Methods, metrics and networks of tasks.
    "Flower's method": (lambda: evaluate(method=flower.FedProx(0.5)), "fraction_train = 0.5"),
    "no task's method": (
        lambda: evaluate(method=cp.CoPreFL()),
        "method = CoPreFL: .* a task method is needed, such as .*fedavg",
    ),
    "a schedule": (lambda: evaluate(method=cp.Schedule([(cp.FedAvg(), 1)])), "method = Schedule"),
    "one takes part": (lambda: evaluate(method=cp.FedAvg(participants=1)), "participants = 1"),
    "a class to be made": (lambda: evaluate(method=Unmade), "method = Unmade: .*share"),
    "no name": (
        lambda: evaluate(client_metrics=lambda logits, labels: 1.0),
        "a metric needs a name: .*def, not lambda",
    ),
    "one name": (lambda: evaluate(client_metrics=[top3, top3]), "two have the name 'top3'"),
    "no metric": (lambda: evaluate(client_metrics=3), "int: a metric must be a function"),
    "it fails": (lambda: evaluate(tasks=TWO, client_metrics=top3), "top3 failed: .*out of range"),
    "a made network": (
        lambda: evaluate(network=Perceptron()),
        "network: got .*Perceptron; .*function",
    ),
    "of other inputs": (
        lambda: evaluate(network=Perceptron),
        r"network\(3\) fails for a batch of samples",
    ),
    "of no classes": (lambda: evaluate(network=lambda: 1), r"network\(3\) failed: TypeError"),
    "no network": (
        lambda: evaluate(network=lambda classes: None),
        r"network\(3\): got None; .*a network",
    ),
    "all alike": (
        lambda: evaluate(network=lambda classes: Perceptron()),
        "the same shapes for 3 and 4",
    ),
    # A client app has its own training.
    "no nodes": (lambda: cp.pretrain(cp.CoPreFL(), Perceptron(), ClientApp()), "nodes = 0"),
    "an app's rate": (
        lambda: pretrain(cp.CoPreFL(), clients=ClientApp(), nodes=3),
        "local_steps: set .*ClientApp",
    ),
    "a name for an app": (lambda: pretrain("fedavg", clients=ClientApp(), nodes=3), "a strategy"),
}


@pytest.mark.parametrize(("call", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_in_one_line_before_any_work(call, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalGrid, "push_messages", lambda *_: pytest.fail("it began to work"))
    with pytest.raises(SettingsError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_classes_may_be_an_array_or_a_tensor():
    expected = cp.partition(DATA, 2, "iid", only=[0, 1, 2])
    for only in (np.arange(3), torch.arange(3), range(3)):
        found = cp.partition(DATA, 2, "iid", only=only)
        assert [one.indices.tolist() for one in found] == [one.indices.tolist() for one in expected]


def test_quiet_says_nothing_of_the_device_either(caplog):
    caplog.set_level("INFO", "flwr.coprefl")
    from coprefl_flwr.learning.device import default_device

    default_device.cache_clear()
    pretrain(local_steps=20, learning_rate=0.3, checkpoint=None)
    assert caplog.text == ""
