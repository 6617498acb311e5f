"""Natural mistakes in a call: one line that says what was given, and what is needed."""

import numpy as np
import pytest
import torch
from flwr.serverapp import strategy as flower
from torch import nn
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.errors import SettingsError
from tests.common.data import images
from tests.common.networks import Perceptron

DATA = images()
CLIENTS = cp.partition(DATA, 4, "iid")
TASKS = cp.tasks(DATA, 1, 3, 2, "iid")
ORDER = r"cp\.pretrain\(method, model, clients\)"


def pretrain(method=None, model=None, clients=CLIENTS, **more):
    method = cp.FedAvg() if method is None else method
    more = {"rounds": 1, "quiet": True, "local_steps": 1, **more}
    return cp.pretrain(method, Perceptron() if model is None else model, clients, **more)


def frozen():
    return Perceptron().requires_grad_(False)


MISTAKES = {
    "a class of a method": (
        lambda: pretrain(cp.CoPreFL),
        r"method is the class CoPreFL: make one of it, as in cp\.CoPreFL\(",
    ),
    "a class of a network": (
        lambda: pretrain(model=Perceptron),
        r"model is the class Perceptron: .*Perceptron\(\)",
    ),
    "a network and clients swapped": (
        lambda: cp.pretrain(cp.FedAvg(), CLIENTS, Perceptron()),
        f"model is <4 clients, .*; needed is a network, an nn.Module: {ORDER}",
    ),
    "a method and a network swapped": (
        lambda: cp.pretrain(Perceptron(), cp.FedAvg(), CLIENTS),
        f"method is a network .Perceptron.; needed is a method .*: {ORDER}",
    ),
    "tasks in the place of clients": (lambda: pretrain(clients=TASKS), "clients are Tasks"),
    "a dataset in the place of clients": (
        lambda: pretrain(clients=DATA),
        r"clients are TensorDataset; .*cp\.partition\(",
    ),
    "a state_dict": (lambda: pretrain(model=Perceptron().state_dict()), "model is of type Ordered"),
    "Flower's strategy": (
        lambda: pretrain(flower.FedAvg()),
        r"FedAvg, a strategy of Flower's own, .*give cp\.FedAvg\(\)",
    ),
    "Flower's class": (lambda: pretrain(flower.FedAdam), r"give cp\.FedAdam\(\)"),
    "Flower's other name": (
        lambda: pretrain(flower.QFedAvg(client_learning_rate=0.1)),
        r"give cp\.QFFL\(\)",
    ),
    "Flower's robust one": (
        lambda: pretrain(flower.FedMedian()),
        r"give cp\.FedAvg\(aggregation='median'\)",
    ),
    "a lazy network": (
        lambda: pretrain(model=nn.Sequential(nn.Flatten(), nn.LazyLinear(8))),
        "do not know their size yet: call it once",
    ),
    "a frozen network": (lambda: pretrain(model=frozen()), "no parameters that are trained"),
    "workers as a text": (lambda: pretrain(workers="2"), "workers = '2': must be a whole number"),
    "a checkpoint that is no path": (lambda: pretrain(checkpoint=True), "checkpoint = True: must"),
    "a rate as a text": (lambda: pretrain(learning_rate="x"), "learning_rate = 'x': must be a num"),
    "a class in a schedule": (lambda: cp.Schedule([(cp.Cyclic, 2)]), "a phase is .*a pair of"),
    "a schedule without rounds": (lambda: cp.Schedule([cp.FedAvg()]), "a phase is FedAvg.*a pair"),
    "a name of a dataset": (
        lambda: cp.partition("glyphs", 4),
        r"dataset is a text: .*cp\.load_dataset\('glyphs'\)",
    ),
    "a class of a dataset": (
        lambda: cp.partition(TensorDataset, 4),
        "dataset is the class TensorDataset",
    ),
    "clients in the place of a dataset": (lambda: cp.tasks(CLIENTS), "dataset is of type Clients"),
    "a pair of arrays": (
        lambda: cp.partition((np.zeros((40, 3)), np.zeros(40, int)), 4),
        "write torch.utils.data.TensorDataset",
    ),
    "only one number": (lambda: cp.partition(DATA, 4, only=3), "only = 3: must be a list"),
    "only a text": (lambda: cp.partition(DATA, 4, only="35"), "only = '35': must be a list"),
    "only a fraction": (
        lambda: cp.partition(DATA, 2, "iid", only=[1.5]),
        "only: 1.5: must be a whole number",
    ),
    "a seed that is none": (lambda: cp.partition(DATA, 4, seed=None), "seed = None: must be a who"),
    "no tasks": (lambda: cp.tasks(DATA, 0), "number = 0: at least one task"),
    "classes as a list": (lambda: cp.tasks(DATA, 1, [1, 2]), r"^classes = \[1, 2\]: must be"),
    "starts as a list": (
        lambda: cp.evaluate_starts([Perceptron()], TASKS),
        "starts is of type list; needed is a mapping",
    ),
    "a class as a start": (
        lambda: cp.evaluate_starts({"a": Perceptron}, TASKS),
        r"start 'a' is the class Perceptron: .*Perceptron\(\)",
    ),
    "starts and tasks swapped": (
        lambda: cp.evaluate_starts(TASKS, {"a": Perceptron()}),
        r"tasks are of type dict; .*cp\.tasks\(dataset\)",
    ),
    "clients in the place of tasks": (
        lambda: cp.evaluate_starts({"a": Perceptron()}, CLIENTS),
        "tasks are <4 clients",
    ),
    "a start's name": (lambda: cp.evaluate_starts({1: Perceptron()}, TASKS), "must be a text"),
    "Flower's method of tasks": (
        lambda: cp.evaluate_starts({"a": Perceptron()}, TASKS, method=flower.FedProx(1.0)),
        r"give cp\.FedProx\(\)",
    ),
}


@pytest.mark.parametrize(("call", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_in_one_line(call, said):
    with pytest.raises(SettingsError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_classes_may_be_an_array_or_a_tensor():
    expected = cp.partition(DATA, 2, "iid", only=[0, 1, 2])
    for only in (np.arange(3), torch.arange(3), range(3)):
        found = cp.partition(DATA, 2, "iid", only=only)
        assert [one.indices.tolist() for one in found] == [one.indices.tolist() for one in expected]


def test_quiet_says_nothing_of_the_device_either(caplog):
    caplog.set_level("INFO", "flwr.coprefl")
    from coprefl_flwr.learning.device import default_device

    default_device.cache_clear()
    pretrain(local_steps=20, learning_rate=0.3)
    assert caplog.text == ""
