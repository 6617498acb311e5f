"""Declarations of every method, if no other test would notice that they are wrong."""

import importlib
from dataclasses import dataclass

import numpy as np
import pytest

from coprefl_flwr.clients import (
    CoPreFLClient,
    TorchClient,
)
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.methods import CLASSES
from coprefl_flwr.options import declared
from coprefl_flwr.strategies import (
    SCAFFOLD,
    FedAvg,
    FedPCL,
    FedProto,
    FedRep,
    HybridCoPreFL,
    RoundStrategy,
    Solo,
)
from coprefl_flwr.studies.known_methods import METHODS

OF_A_RUN = declared(RoundStrategy).keys()


@pytest.mark.parametrize("name", CLASSES)
def test_method_has_a_client_and_options_of_distinct_names(name):
    method = CLASSES[name]
    module, _, client = method.client.partition(":")
    client_class = getattr(importlib.import_module(module), client)
    assert issubclass(client_class, TorchClient)
    assert set(method.roles) <= {"pretraining", "task", "personalised", "head"}
    assert method.server_data in ("", "server", "clients", "both")
    training = declared(LocalTraining)
    assert method.training_defaults.keys() <= training.keys()
    options = declared(method).keys() - OF_A_RUN
    # A method that ignores the settings of local training may have an option with their names.
    heeded = training.keys() if METHODS[name].trains_locally else set()
    assert not options & (heeded | declared(client_class).keys())


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


def test_initial_arrays_of_a_method():
    network = Network()
    assert FedAvg.initial(network) is network.arrays
    assert Solo.initial(network) == {}
    shapes = {name: array.shape for name, array in FedPCL.initial(network).items()}
    assert shapes == {"prototypes": (3, 5), "counts": (3,)}
    assert FedProto.initial(network)["prototypes"].shape == (3, 4)
    assert list(FedRep.initial(network)) == ["body.weight", "body.bias"]
    network.head = frozenset({"body.weight", "body.bias"})
    with pytest.raises(SettingsError, match=r"^model = net: fedrep needs a trained body, and"):
        FedRep.initial(network)


def test_clip_norm_with_scaffold_variant_II_is_refused():
    SCAFFOLD.check_training({"variant": "I"}, LocalTraining(clip_norm=1.0))
    SCAFFOLD.check_training({"variant": "II"}, LocalTraining())
    FedAvg.check_training({}, LocalTraining(clip_norm=1.0))
    with pytest.raises(SettingsError, match=r"^clip-norm = 1: scaffold:variant=II computes"):
        SCAFFOLD.check_training({"variant": "II"}, LocalTraining(clip_norm=1.0))


def test_too_few_samples_for_a_split_are_refused():
    TorchClient.check_samples(1)
    CoPreFLClient.check_samples(2, support_fraction=0.5, resplit=False)
    for samples, fraction in ((1, 0.8), (4, 0.1)):
        with pytest.raises(SettingsError, match=f"{samples} samples cannot be split at {fraction}"):
            CoPreFLClient.check_samples(samples, support_fraction=fraction)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"min_train_nodes": 2}, r"\(arguments of Flower's strategies: docs/how-to/flower-app"),
        ({"participant": 2}, "unknown option 'participant': did you mean 'participants'"),
    ],
)
def test_unknown_argument_of_a_strategy_is_refused(arguments, line):
    for kind in (FedAvg, HybridCoPreFL, SCAFFOLD):
        with pytest.raises(SettingsError, match=line) as caught:
            kind(**arguments)
        assert str(caught.value).startswith(f"{kind.__name__}: ")
