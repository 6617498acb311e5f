"""A FedMeta client's answers, in addition to the gradient, and other kinds of networks."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coprefl_flwr.arrays import weights_of
from coprefl_flwr.clients import FedMetaClient
from coprefl_flwr.models import model_arrays
from tests.common.federation import CPU
from tests.common.networks import CLASSES, ToDouble, double_model

CONFIG = {
    "seed": 3,
    "population": "p",
    "server-round": 2,
    "client": 2,
    "inner-learning-rate": 0.5,
    "inner-steps": 1,
}


def query(model, samples, parameters=None, **changes):
    """Return a client and the client's answer to `parameters`.

    `parameters` has the arrays of the model, followed by the inner rates if there are any.
    """
    client = FedMetaClient(model, samples, device=CPU)
    sent = list(model_arrays(model).values()) if parameters is None else parameters
    number = len(model_arrays(model))
    config = {**CONFIG, "meta-variant": "maml", **changes}
    if rates := sent[number:]:
        names = weights_of(model_arrays(model))
        config["extra"] = {"rates": dict(zip(names, rates, strict=True))}
    return client, *client.query(sent[:number], config)


def partly_frozen():
    """Return a model with one frozen weight, its arrays, the names of weights, a rate for each.

    The frozen weight is not among the arrays.
    """
    model = double_model()
    model[2].weight.requires_grad_(False)
    before = model_arrays(model)
    names = [name for name in before if "running" not in name and "num_batches" not in name]
    return model, before, names, [np.full_like(before[name], 0.5) for name in names]


def test_answer_has_an_array_for_every_array_sent(federation):
    """The answer has an array for every array that was sent.

    A frozen parameter has none. The statistics are those after the support set. The client's model
    is not changed.
    """
    model, before, names, rates = partly_frozen()
    client, answer, n, metrics = query(
        model, federation.samples[2], [*before.values(), *rates], **{"meta-variant": "meta-sgd"}
    )
    assert list(answer) == [*before, *(f".rates/{name}" for name in names)]
    assert "2.weight" not in answer
    for name in ("2.bias", ".rates/5.weight", "3.weight"):
        assert answer[name].any()
    support, query_set = client.split(CONFIG)
    inputs, _ = support.batch(slice(None), CPU)
    expected = 0.1 * model[:3](inputs).mean(0).detach()
    np.testing.assert_allclose(answer["3.running_mean"], expected, rtol=0, atol=1e-14)
    assert answer["3.num_batches_tracked"] == 1
    assert (n, metrics.keys()) == (len(query_set), {"loss"})
    for name, array in model_arrays(model).items():
        assert array.tobytes() == before[name].tobytes(), name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_follows_seed_population_round_and_client(federation):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, CLASSES))
    seeds, state = [], torch.get_rng_state()
    model[1].register_forward_pre_hook(lambda *_: seeds.append(torch.initial_seed()))
    changes = [{}, {}, {"seed": 4}, {"population": "q"}, {"server-round": 3}, {"client": 0}]
    answers = [query(model, federation.samples[2], **change)[1] for change in changes]
    first, again, *_ = (answer["2.weight"].tobytes() for answer in answers)
    assert first == again
    assert seeds[0] == seeds[1] == seeds[2] == seeds[3]  # The support set, then the query set.
    assert len(set(seeds)) == 5
    assert torch.equal(torch.get_rng_state(), state)


class Reader(nn.Module):
    """A network that reads the rows of an image one after the other.

    The LSTM keeps lists of parameters, as some networks do.
    """

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.fc = nn.Linear(5, CLASSES)

    def forward(self, images):
        return self.fc(self.lstm(images.flatten(1, 2))[0][:, -1])


def test_meta_gradient_of_a_recurrent_network_by_finite_differences(federation):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(ToDouble(), Reader()).double()
    start = model_arrays(model)
    client, answer, *_ = query(model, federation.samples[2], **{"inner-learning-rate": 2.0})
    (inputs, targets), query_batch = (part.batch(slice(None), CPU) for part in client.split(CONFIG))

    def adapted_loss(arrays):
        client.load(list(arrays.values()))
        model.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 2.0 * parameter.grad
            return float(functional.cross_entropy(model(query_batch[0]), query_batch[1]))

    draws = np.random.default_rng(0)
    for _ in range(5):
        direction = {name: draws.normal(size=array.shape) for name, array in start.items()}
        ahead, behind = (
            adapted_loss({name: a + d * direction[name] for name, a in start.items()})
            for d in (1e-5, -1e-5)
        )
        along = sum((answer[name] * direction[name]).sum() for name in start)
        assert along == pytest.approx((ahead - behind) / 2e-5, rel=1e-6, abs=1e-9)
