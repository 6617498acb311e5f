"""What every method says of itself, where nothing else would notice that it is wrong."""

import importlib
import inspect
import math
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
from coprefl_flwr.learning import AdamTraining, LocalTraining
from coprefl_flwr.options import declared
from coprefl_flwr.strategies import (
    MOON,
    QFFL,
    SCAFFOLD,
    CoPreFL,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedMeta,
    FedPCL,
    FedProto,
    FedProx,
    FedRep,
    HybridCoPreFL,
    PerFedAvg,
    PFedMe,
    RoundStrategy,
    ServerRefined,
    Solo,
)

METHODS = {
    one.name: one
    for one in vars(strategies).values()
    if isinstance(one, type) and issubclass(one, RoundStrategy) and one.name
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
    found = getattr(importlib.import_module(module), client)
    assert issubclass(found, TorchClient)
    assert set(method.roles) <= {"pretraining", "task", "personalised", "head"}
    assert method.server_data in ("", "server", "clients", "both")
    training = declared(AdamTraining if "personalised" in method.roles else LocalTraining)
    assert method.training_defaults.keys() <= training.keys()
    own = declared(method).keys() - OF_A_RUN
    assert method.personal_defaults.keys() <= own
    # Where it does not heed the settings of local training, an own option may have such a name.
    heeded = training.keys() if method.local_training else set()
    assert not own & (heeded | declared(found).keys())
    signature = inspect.signature(found).parameters
    for option in declared(found).values():
        assert signature[option.name].default == option.default


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
    given = inspect.signature(ServerRefined).parameters
    for key in ("server-steps", "server-learning-rate"):
        assert given[refined[key].name].default == refined[key].default


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
    with pytest.raises(SettingsError, match=r"^model = net: fedrep needs its last layer to be the"):
        FedRep.initial(network)


def test_training_that_does_not_fit():
    SCAFFOLD.check_training({"variant": "I"}, 1.0)
    SCAFFOLD.check_training({"variant": "II"}, None)
    FedAvg.check_training({}, 1.0)
    with pytest.raises(SettingsError, match="clip-norm cannot be set"):
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


OPTIONS = {
    "at least 0": [
        (LocalTraining, "local_steps", -1),
        (FedMeta, "inner_learning_rate", -1.0),
        (FedProto, "mu", -1.0),
        (FedProx, "mu", -0.1),
        (MOON, "mu", -0.1),
        (PerFedAvg, "inner_learning_rate", -1.0),
        (QFFL, "q", -1.0),
    ],
    "at least 1": [
        *((FedAvg, name, 0) for name in ("participants", "min_replies", "min_nodes")),
        (LocalTraining, "max_steps", 0),
        (FedMeta, "inner_steps", 0),
        (FedMeta, "local_steps", 0),
        (PFedMe, "inner_steps", 0),
    ],
    "above 0": [
        (LocalTraining, "clip_norm", 0.0),
        (FedAdam, "tau", 0.0),
        (FedDyn, "alpha", 0.0),
        (FedMeta, "meta_learning_rate", 0.0),
        (MOON, "temperature", 0.0),
        *((PFedMe, name, 0.0) for name in ("mu", "meta_learning_rate")),
        *((one, "global_learning_rate", 0.0) for one in (FedAdam, FedAvgM, PFedMe, SCAFFOLD)),
    ],
    "between 0 and": [
        (CoPreFL, "gamma", -0.1),
        (CoPreFL, "gamma", 1.5),
        (FedAdam, "beta2", 1.0),
        (FedAvg, "tolerated_share", 0.5),
        (FedAvgM, "server_momentum", 1.0),
    ],
    "above 0 and at most": [(FedAvg, "fraction_train", 1.5)],
    "a finite number": [
        *((one, "mu", value) for one in (FedProx, MOON) for value in (math.nan, math.inf)),
        (LocalTraining, "learning_rate", math.nan),
        *((QFFL, "q", value) for value in (math.nan, math.inf)),
        *((CoPreFL, "gamma", math.nan), (FedDyn, "alpha", math.inf)),
        *((SCAFFOLD, "global_learning_rate", math.nan), (FedMeta, "meta_learning_rate", math.nan)),
    ],
    "a whole number": [(FedAvg, "participants", 2.5)],
    "known are fo, hf": [(PerFedAvg, "variant", "so")],
    "'maml'": [(FedMeta, "variant", "MAML")],
    "'II'": [(SCAFFOLD, "variant", "III")],
    "'krum'": [(FedAvg, "aggregation", "kurm")],
}
"""By what is allowed, or the nearest name: a method, an option, and a value that is not allowed."""


@pytest.mark.parametrize(
    ("method", "name", "value", "allowed"),
    [(*row, allowed) for allowed, rows in OPTIONS.items() for row in rows],
)
def test_options_are_checked(method, name, value, allowed):
    with pytest.raises(SettingsError) as caught:
        method(**{name: value})
    line = str(caught.value)
    assert line.startswith((f"{name} = {value}: ", f"{name}: unknown value '{value}': ")), line
    assert allowed in line


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"fraction_evaluate": 0.5}, "Flower's fraction_evaluate is here evaluate_every, "),
        ({"min_available_nodes": 2}, "Flower's min_available_nodes is here min_nodes, "),
        ({"min_train_nodes": 2}, "Flower's min_train_nodes is here participants, "),
        ({"participant": 2}, "unknown option 'participant': did you mean 'participants'"),
    ],
)
def test_arguments_that_a_strategy_does_not_have(given, line):
    for one in (FedAvg, HybridCoPreFL, SCAFFOLD):
        with pytest.raises(SettingsError, match=line) as caught:
            one(**given)
        assert str(caught.value).startswith(f"{one.__name__}: ")


def test_what_a_clients_constructor_is_given():
    assert TorchClient.needs == CoPreFLClient.needs == frozenset()
    assert StatefulClient.needs == SCAFFOLDClient.needs == {"state", "initial"}
    assert FedPCLClient.needs == {"state", "initial", "noise"}
    for client in (StatefulClient, FedPCLClient):
        given = inspect.signature(client.__init__).parameters
        assert (client.needs - {"state", "initial"}) <= given.keys()
