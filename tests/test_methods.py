"""Declarations of every method, if no other test would notice that they are wrong."""

import importlib
import inspect
from dataclasses import dataclass

import numpy as np
import pytest

from coprefl_flwr import strategies
from coprefl_flwr.clients import (
    CoPreFLClient,
    FedPCLClient,
    SCAFFOLDClient,
    StatefulClient,
    TorchClient,
)
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.methods import METHODS as KINDS
from coprefl_flwr.options import declared
from coprefl_flwr.strategies import (
    SCAFFOLD,
    FedAvg,
    FedPCL,
    FedProto,
    FedRep,
    HybridCoPreFL,
    RoundStrategy,
    ServerRefined,
    Solo,
)

METHODS = {
    kind.name: kind
    for kind in vars(strategies).values()
    if isinstance(kind, type) and issubclass(kind, RoundStrategy) and kind.name
}
OF_A_RUN = declared(RoundStrategy).keys()


def test_the_table_has_every_method_of_the_papers():
    assert METHODS.keys() >= {
        "centralised",
        "centralised-hybrid",
        "coprefl",
        "coprefl-hybrid",
        "cyclic",
        "fedadam",
        "fedavg",
        "fedavgm",
        "feddyn",
        "fedmeta",
        "fedpcl",
        "fedproto",
        "fedprox",
        "fedrep",
        "fedyogi",
        "moon",
        "per-fedavg",
        "pfedme",
        "qffl",
        "scaffold",
        "solo",
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_method_finds_its_client_and_its_own_options(name):
    method = METHODS[name]
    module, _, client = method.client.partition(":")
    client_class = getattr(importlib.import_module(module), client)
    assert issubclass(client_class, TorchClient)
    assert set(method.roles) <= {"pretraining", "task", "personalised", "head"}
    assert method.server_data in ("", "server", "clients", "both")
    training = declared(LocalTraining)
    assert method.training_defaults.keys() <= training.keys()
    own = declared(method).keys() - OF_A_RUN
    # A method that ignores the settings of local training may have an option with their names.
    heeded = training.keys() if KINDS[name].trains_locally else set()
    assert not own & (heeded | declared(client_class).keys())


def test_what_runs_as_a_task_or_personalised():
    of = {
        role: {name for name, method in METHODS.items() if role in method.roles}
        for role in ("task", "personalised")
    }
    assert of["task"] >= {"fedavg", "feddyn", "fedprox", "moon", "qffl", "scaffold"}
    assert of["personalised"] >= {
        "fedavg",
        "fedpcl",
        "fedproto",
        "fedrep",
        "per-fedavg",
        "pfedme",
        "solo",
    }


def test_keys_that_are_not_the_fields_names():
    assert declared(strategies.FedDyn)["feddyn-alpha"].name == "alpha"
    refined = declared(ServerRefined)
    assert {refined[key].name for key in refined.keys() - OF_A_RUN} == {"steps", "learning_rate"}
    assert declared(LocalTraining)["max-local-steps"].name == "max_steps"
    parameters = inspect.signature(ServerRefined).parameters
    for key in ("server-steps", "server-learning-rate"):
        assert parameters[refined[key].name].default == refined[key].default


@dataclass
class Network:
    name = "net"
    arrays = {  # noqa: RUF012
        "body.weight": np.ones((4, 6), np.float32),
        "body.bias": np.ones(4, np.float32),
        "last.weight": np.ones((3, 4), np.float32),
        "last.bias": np.ones(3, np.float32),
    }
    num_classes, outputs, representation = 3, 5, 4
    head = frozenset({"last.weight", "last.bias"})


def test_what_a_run_begins_with():
    network = Network()
    assert FedAvg.initial(network) is network.arrays
    assert Solo.initial(network) == {}
    assert {n: a.shape for n, a in FedPCL.initial(network).items()} == {
        "prototypes": (3, 5),
        "counts": (3,),
    }
    assert FedProto.initial(network)["prototypes"].shape == (3, 4)
    assert list(FedRep.initial(network)) == ["body.weight", "body.bias"]
    network.head = frozenset({"body.weight", "body.bias"})
    with pytest.raises(SettingsError, match=r"^model = net: fedrep needs a model whose head"):
        FedRep.initial(network)


def test_training_that_does_not_fit():
    SCAFFOLD.check_training({"variant": "I"}, 1.0)
    SCAFFOLD.check_training({"variant": "II"}, None)
    FedAvg.check_training({}, 1.0)
    with pytest.raises(SettingsError, match="clip-norm needs scaffold:variant=I"):
        SCAFFOLD.check_training({"variant": "II"}, 1.0)


def test_samples_that_are_needed():
    assert (FedAvg.server_samples_needed(7), HybridCoPreFL.server_samples_needed(7)) == (1, 7)
    TorchClient.check_samples(1)
    CoPreFLClient.check_samples(2)
    CoPreFLClient.check_samples(2, support_fraction=0.5, resplit=False)
    with pytest.raises(SettingsError, match=r"1 samples cannot be split at 0.8"):
        CoPreFLClient.check_samples(1)
    with pytest.raises(SettingsError, match=r"4 samples cannot be split at 0.1"):
        CoPreFLClient.check_samples(4, support_fraction=0.1)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"min_evaluate_nodes": 2}, "'min_evaluate_nodes' of Flower: use fraction_evaluate, "),
        ({"min_train_nodes": 2}, "'min_train_nodes' of Flower: use participants, "),
        ({"participant": 2}, "unknown option 'participant': did you mean 'participants'"),
    ],
)
def test_arguments_that_a_strategy_does_not_have(arguments, line):
    for kind in (FedAvg, HybridCoPreFL, SCAFFOLD):
        with pytest.raises(SettingsError, match=line) as caught:
            kind(**arguments)
        assert str(caught.value).startswith(f"{kind.__name__}: ")


def test_what_a_clients_constructor_is_given():
    assert TorchClient.injected == CoPreFLClient.injected == frozenset()
    assert StatefulClient.injected == SCAFFOLDClient.injected == {"state", "initial"}
    assert FedPCLClient.injected == {"state", "initial", "noise"}
    for client in (StatefulClient, FedPCLClient):
        parameters = inspect.signature(client.__init__).parameters
        assert (client.injected - {"state", "initial"}) <= parameters.keys()
