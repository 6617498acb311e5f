"""MOON's client: the contrastive term and the models it compares with."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from coprefl_flwr.clients import MOONClient
from coprefl_flwr.models import model_arrays, outputs_and_representation
from tests.common.clients import CONFIG, later, make
from tests.common.networks import CLASSES, ToDouble, double_model

REQUEST = {**CONFIG, "moon-mu": 2.0, "moon-temperature": 0.5}


class HeadFirst(nn.Module):
    """A network whose classifier is registered first, called last, and named `answer`."""

    def __init__(self):
        super().__init__()
        self.answer = nn.Linear(8, CLASSES)
        self.body = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))

    def forward(self, images):
        return self.answer(torch.tanh(self.body(images.flatten(1))))


def head_first():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(ToDouble(), HeadFirst()).double()


def other(model, seed=5):
    """Return arrays with the model's shapes; all weights and statistics have other values."""
    rng = np.random.default_rng(seed)
    return {
        name: array + 1 if array.dtype == np.int64 else array + rng.uniform(0.1, 0.5, array.shape)
        for name, array in model_arrays(model).items()
    }


def term_by_hand(z, z_glob, z_prev, tau):
    """Return the mean contrastive loss of the samples, calculated one by one in numpy."""

    def cosine(a, b):
        return a @ b / np.sqrt((a @ a) * (b @ b))

    terms = []
    for mine, received, last in zip(z, z_glob, z_prev, strict=True):
        near, far = np.exp(cosine(mine, received) / tau), np.exp(cosine(mine, last) / tau)
        terms.append(-np.log(near / (near + far)))
    return np.mean(terms)


def representation(model, arrays, inputs, train):
    model.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    body = model[1]
    with torch.no_grad():
        return torch.tanh(body.train(train).body(inputs.double().flatten(1))).numpy()


def test_contrastive_term_by_hand(exact_federation, tmp_path):
    """z is computed in train mode, and both references in eval mode; dropout is off here."""
    model = head_first()
    model[1].body[2].p = 0.0
    client, _ = make(MOONClient, model, exact_federation, tmp_path)
    received, previous = model_arrays(model), other(model)
    inputs, targets = exact_federation.whole(1)
    objective = client.objective(previous, REQUEST)
    value = objective(inputs, targets).item()
    twin = head_first()
    twin[1].body[2].p = 0.0
    plain = cross_entropy(twin.train()(inputs), targets).item()
    z_glob = representation(twin, received, inputs, train=False)
    z_prev = representation(twin, previous, inputs, train=False)
    z = representation(twin, received, inputs, train=True)
    assert value - plain == pytest.approx(2 * term_by_hand(z, z_glob, z_prev, 0.5), abs=1e-12)
    # The loss would be different with z in eval mode or with other references.
    wrong = [(z_glob, z_glob, z_prev), (z, z_prev, z_glob), (z, z, z_prev)]
    for triple in wrong:
        assert abs(value - plain - 2 * term_by_hand(*triple, 0.5)) > 1e-6


def test_reference_models_do_not_change_while_training(exact_federation, tmp_path):
    """Training changes the model, but not the references and their statistics.

    The model also remains in train mode.
    """
    model = head_first()
    client, _ = make(MOONClient, model, exact_federation, tmp_path)
    previous = other(model)
    inputs, targets = exact_federation.whole(1)
    objective = client.objective(previous, REQUEST)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    drawn, values = torch.get_rng_state(), []
    for _ in range(3):
        torch.set_rng_state(drawn)
        optimiser.zero_grad()
        loss = objective(inputs, targets)
        loss.backward()
        values.append((loss.item(), [p.grad.clone() for p in model.parameters()]))
    # No weight changed: with fixed references, the same dropout gives the same loss.
    assert values[0][0] == values[1][0] == values[2][0]
    optimiser.step()
    assert objective(inputs, targets).item() != values[0][0]
    assert model.training


def test_first_participation_has_no_contrastive_term(exact_federation, tmp_path):
    """This holds for every mu.

    In the client's second participation, the client's last model is the reference.
    """
    ends = {}
    for mu in (0.0, 50.0):
        client, start = make(MOONClient, double_model(), exact_federation, tmp_path / str(mu))
        first = {**REQUEST, "moon-mu": mu}
        first_end, n, _ = client.fit(start, first)
        second_end, _, metrics = client.fit(start, later(first))
        ends[mu] = first_end, second_end, metrics["loss"]
        state = client.state.read(later(first))
        names = list(model_arrays(client.model))
        assert n == 14
        assert all(np.array_equal(state[name], a) for name, a in zip(names, first_end, strict=True))
    pairs = zip(ends[0.0][0], ends[50.0][0], strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert not np.array_equal(ends[0.0][1][0], ends[50.0][1][0])
    assert ends[50.0][2] > ends[0.0][2] + 1


def test_representation_is_the_input_of_the_last_linear_layer():
    inputs = torch.rand(5, 1, 4, 4)
    model = head_first().eval()
    outputs, z = outputs_and_representation(model, inputs)
    assert torch.equal(outputs, model[1].answer(z))
    assert z.shape == (5, 8)
    model = double_model().eval()
    outputs, z = outputs_and_representation(model, inputs)
    assert torch.equal(outputs, model[-1](z))
    assert not model[-1]._forward_pre_hooks
