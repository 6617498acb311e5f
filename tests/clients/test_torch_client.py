"""The PyTorch client: the results depend on the message only.

Other clients that share the model and the process have no influence.
"""

import importlib
import inspect
import pkgutil
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import data

from coprefl_flwr import clients
from coprefl_flwr.clients import CoPreFLClient, TorchClient
from coprefl_flwr.data import Samples
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.options import option
from tests.common.federation import SIZES
from tests.common.networks import CLASSES

CPU = torch.device("cpu")
CONFIG = {"seed": 3, "population": "p", "server-round": 2, "client": 1}


@pytest.fixture
def dropout_client(stochastic_federation):
    """A client with dropout, so that the training uses torch's random generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, CLASSES))
    samples = stochastic_federation.samples[3]
    return TorchClient(model, samples, training=stochastic_federation.training, device=CPU)


CHANGES = [{"seed": 4}, {"population": "q"}, {"server-round": 3}, {"client": 0}]


def fit(torch_client, **changes):
    parameters = [np.full((CLASSES, 16), 0.1, np.float32), np.zeros(CLASSES, np.float32)]
    return torch_client.fit(parameters, {**CONFIG, **changes})


def test_training_follows_seed_population_round_and_client(dropout_client):
    first, n, metrics = fit(dropout_client)
    torch.rand(7)
    again, *_ = fit(dropout_client)
    assert n == 31
    assert metrics.keys() == {"loss"}
    assert [a.tobytes() for a in first] == [a.tobytes() for a in again]
    for change in CHANGES:
        other, *_ = fit(dropout_client, **change)
        assert first[0].tobytes() != other[0].tobytes(), change


def test_training_does_not_change_the_global_random_state(dropout_client):
    state = torch.get_rng_state()
    np_state = np.random.get_state()[1].tolist()  # noqa: NPY002
    fit(dropout_client)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.random.get_state()[1].tolist() == np_state  # noqa: NPY002


def test_returned_weights_do_not_change_later(stochastic_federation):
    start = list(stochastic_federation.arrays().values())
    client = stochastic_federation.client(TorchClient, 2)
    weights, *_ = client.fit(start, CONFIG)
    before = [array.copy() for array in weights]
    client.fit(start, {**CONFIG, "server-round": 9})
    np.testing.assert_equal(weights, before)


def test_evaluation_is_that_of_plain_torch(federation):
    start = list(federation.arrays().values())
    client = federation.client(TorchClient, 2)
    loss, n, metrics = client.evaluate(start, CONFIG)
    client.load(start)
    inputs, targets = federation.samples[2].batch(slice(None), CPU)
    outputs = client.model.eval()(inputs)
    assert n == SIZES[2]
    assert metrics == {"correct": int((outputs.argmax(1) == targets).sum())}
    assert loss == pytest.approx(functional.cross_entropy(outputs, targets).item(), rel=1e-6)


def test_evaluation_without_test_samples_is_refused(federation):
    samples = federation.samples[0]
    empty = Samples(samples.dataset, samples.indices[:0], samples.labels[:0])
    for test in (None, empty):
        client = TorchClient(federation.model, samples, test=test, device=CPU)
        with pytest.raises(SettingsError, match="this client has no test samples"):
            client.evaluate(list(federation.arrays().values()), CONFIG)


def test_wrong_number_of_arrays_is_refused(federation):
    client = federation.client(TorchClient, 0)
    with pytest.raises(SettingsError, match="got 1 arrays for a model of which 9 travel"):
        client.fit([np.zeros(1)], CONFIG)


@pytest.mark.parametrize("change", [{"seed": 9}, {"population": "q"}, {"client": 0}])
def test_fixed_split_depends_on_everything_except_the_round(federation, change):
    client = CoPreFLClient(federation.model, federation.samples[3], resplit=False, device=CPU)
    fixed = list(client.split(CONFIG)[1].indices)
    assert list(client.split({**CONFIG, "server-round": 9})[1].indices) == fixed
    assert list(client.split({**CONFIG, **change})[1].indices) != fixed


FILES = pkgutil.walk_packages(clients.__path__, "coprefl_flwr.clients.")
CLIENTS = {member for file in FILES for member in vars(importlib.import_module(file.name)).values()
         if isinstance(member, type) and issubclass(member, TorchClient)}  # fmt: skip
EVERY_CLIENT = sorted(CLIENTS, key=lambda client: client.__name__)


@pytest.mark.parametrize("client_class", EVERY_CLIENT, ids=lambda client: client.__name__)
def test_client_arguments_after_the_samples_are_keyword_only(federation, client_class):
    """All arguments after the model and the samples are keyword arguments.

    An earlier version took a LocalTraining in third place as test samples, and trained with the
    default settings.
    """
    assert len(EVERY_CLIENT) == 18
    with pytest.raises(TypeError, match="positional arguments"):
        client_class(federation.model, federation.samples[0], LocalTraining())
    model, train, *others = inspect.signature(client_class).parameters.values()
    assert (model.name, train.name) == ("model", "train")
    named = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}
    assert {parameter.kind for parameter in others} <= named


@pytest.mark.parametrize("kind", ["dataset", "subset", "loader", "dicts"])
def test_client_takes_any_torch_dataset(kind):
    """An earlier version failed on a Subset in the first round: "no attribute 'take'"."""
    values, labels = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), [0, 2] * 6
    whole = data.TensorDataset(values, torch.tensor(labels))
    dataset = {
        "dataset": whole,
        "subset": data.Subset(whole, range(12)),
        "loader": data.DataLoader(whole, 5, shuffle=True),
        "dicts": [{"x": value, "y": label} for value, label in whole],
    }[kind]
    client = TorchClient(
        nn.Linear(4, 3), dataset, test=dataset, training=LocalTraining(local_steps=1), device=CPU
    )
    parameters = [np.zeros((3, 4), np.float32), np.zeros(3, np.float32)]
    _, n, metrics = client.fit(parameters, CONFIG)
    assert (n, metrics["loss"]) == (12, pytest.approx(np.log(3)))
    assert client.evaluate(parameters, CONFIG)[1:] == (12, {"correct": 6})


def test_declared_options_are_arguments_and_attributes():
    """This includes options of a base class, except options that a subclass removed."""

    class Mine(CoPreFLClient):
        options: ClassVar = {"shrink": option(0.5, "a factor", maximum=1), "resplit": None}

    model, samples = torch.nn.Linear(2, 2), [(torch.zeros(2), 0), (torch.zeros(2), 1)]
    client = Mine(model, samples, support_fraction=0.6, device=CPU)
    assert (client.shrink, client.support_fraction, client.query_clip) == (0.5, 0.6, 0.0)
    with pytest.raises(SettingsError, match=r"shrink = 2: must be at most 1"):
        Mine(model, samples, shrink=2, device=CPU)
    with pytest.raises(SettingsError, match="unknown option 'resplit': known are "):
        Mine(model, samples, resplit=2, device=CPU)
