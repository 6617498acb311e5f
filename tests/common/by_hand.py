"""Parts of a round computed by hand: plain autograd in float64, without the strategies' code."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.federation import RoundContext
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.grids import LocalGrid
from tests.common.federation import SIZES
from tests.common.networks import double_model
from tests.common.runs import run_of


def record_samples(strategy, choose=lambda drawn: drawn):
    """Return a list that will hold the participants of each round, as `choose` returns them."""
    asked, program = [], strategy.program

    class Watched(RoundContext):
        def sample(self):
            asked.append(choose(super().sample()))
            return asked[-1]

    strategy.program = lambda ctx, arrays: program(Watched(**vars(ctx)), arrays)
    return asked


def run(strategy, app, start, rounds=2, nodes=1):
    """Return the arrays at the end of a run, and the participants of each round.

    If there is one node, it runs all clients of a `Federation`. If there are several nodes, each of
    them is one client.
    """
    strategy.clients = len(SIZES) if nodes == 1 else None
    return run_on(strategy, LocalGrid(app, nodes=nodes), start, rounds)


def run_on(strategy, grid, start, rounds=2):
    """Return the arrays at the end of a run, and the participants of each round."""
    strategy.clients = getattr(grid, "clients", strategy.clients)
    asked = record_samples(strategy)
    result = strategy.start(grid, to_record(start), rounds)
    return from_record(result.arrays), asked


def fails_in_round_2(client_class, written):
    """Return a class whose client 1 fails in round 2, after it added its state to `written`."""

    class Fails(client_class):
        def fit(self, parameters, config):
            outcome = super().fit(parameters, config)
            if (config["client"], config["server-round"]) == (1, 2):
                written.append(self.state.read({**config, "state-version": "2-0"}))
                raise ArithmeticError("boom")
            return outcome

    return Fails


class Leaving(LocalGrid):
    """A grid whose last node disappears after it has answered in round 1."""

    left = False

    def get_node_ids(self):
        nodes = super().get_node_ids()
        return nodes[:-1] if self.left else nodes

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        self.left |= any(m.metadata.message_type == "train" for m in messages)
        return replies


def states_of(strategy, folder):
    """Return {client: committed state} from `folder`; array names are in alphabetical order."""
    found = {}
    for client, version in run_of(strategy).versions.committed.items():
        config = {"run": "run", "population": "train", "client": client, "state-version": version}
        found[client] = dict(sorted(ClientState(folder).read(config).items()))
    return found


def assert_same_states(found, expected):
    """Check that two {client: arrays} are equal."""
    assert found.keys() == expected.keys()
    for client, arrays in expected.items():
        assert_equal(found[client], dict(sorted(arrays.items())))


def loaded(arrays):
    """Return the float64 model with these arrays; it has BatchNorm if the arrays have."""
    model = double_model(norm="3.running_mean" in arrays)
    model.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in arrays.items()})
    return model


def loss_of(model, data):
    """Return the mean cross-entropy of a model on (inputs, targets)."""
    inputs, targets = data
    return functional.cross_entropy(model(inputs), targets)


def descend(model, objective, steps, rate=0.1):
    """Take plain gradient steps on `objective()` in train mode."""
    model.train()
    for _ in range(steps):
        gradients = torch.autograd.grad(objective(), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= rate * gradient


def step_against(model, loss, rate):
    """Take a step against the gradient of a loss; return the arrays of the model."""
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= rate * gradient
    return {name: value.numpy() for name, value in model.state_dict().items()}


def is_statistic(name):
    return "running" in name or "num_batches" in name


def sizes(clients):
    """Return how many samples each of the clients has."""
    return [SIZES[client] for client in clients]


def mean(states, weights, clients, counts=None):
    """Return the mean of parameters by `weights`, and of BatchNorm statistics by sample counts.

    Without `counts`, the sample counts are the clients' numbers of samples.
    """
    counts, result = counts or sizes(clients), {}
    for name in states[0]:
        shares = counts if is_statistic(name) else weights
        value = np.average([np.asarray(state[name]) for state in states], axis=0, weights=shares)
        result[name] = np.rint(value).astype(np.int64) if "num_batches" in name else value
    return result


def assert_equal(found, expected, tolerance=1e-12):
    """Check that names, dtypes and values agree; values may differ by `tolerance`."""
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name] == pytest.approx(array, rel=0, abs=tolerance), name


def means_by_hand(federation, start, clients, rate=0.1):
    """Return the mean, statistics included, after client i has taken i + 1 plain steps (FedAvg)."""
    states = []
    for client in clients:
        model, data = loaded(start), federation.whole(client)
        descend(model, lambda model=model, data=data: loss_of(model, data), client + 1, rate)
        states.append(model.state_dict())
    return mean(states, sizes(clients), clients)
