"""Compare FedMeta with the network written out by hand."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from coprefl_flwr import seeds
from coprefl_flwr.clients import FedMetaClient
from coprefl_flwr.data import split_in_two
from coprefl_flwr.strategies import FedMeta
from tests.common.by_hand import assert_equal, is_statistic, mean, run, run_on
from tests.common.federation import SIZES
from tests.common.runs import run_of


def sets(federation, client, server_round):
    """Return the support and the query set of a client, each (inputs, targets)."""
    inputs, targets = federation.whole(client)
    key = (0, "train", server_round, client, "support")
    support, query = split_in_two(SIZES[client], 0.8, seeds.generator(*key))
    return (inputs.double()[support], targets[support]), (inputs.double()[query], targets[query])


def loss_by_hand(w, data, statistics=None):
    """Return the loss of the double model, and the mean and variance that BatchNorm used.

    Without `statistics`, BatchNorm uses the statistics of the batch, as in train mode.
    """
    inputs, targets = data
    hidden = inputs.flatten(1) @ w["2.weight"].T + w["2.bias"]
    if "3.weight" in w:
        if statistics is None:
            statistics = hidden.mean(0), hidden.var(0, correction=0)
        hidden = (hidden - statistics[0]) / (statistics[1] + 1e-5).sqrt()
        hidden = hidden * w["3.weight"] + w["3.bias"]
    last = "5" if "5.weight" in w else "4"
    outputs = torch.tanh(hidden) @ w[f"{last}.weight"].T + w[f"{last}.bias"]
    return functional.cross_entropy(outputs, targets), statistics


def adapted_loss(w, rates, running, data, inner_steps=1, second_order=True):
    """Return L_Q(theta') in eval mode, and the running statistics after the support set."""
    support, query = data
    n = len(support[1])
    for _ in range(inner_steps):
        loss, statistics = loss_by_hand(w, support)
        slopes = torch.autograd.grad(loss, list(w.values()), create_graph=second_order)
        w = {name: p - rates[name] * g for (name, p), g in zip(w.items(), slopes, strict=True)}
        if running:
            mean, spread = (value.detach() for value in statistics)
            running = (
                0.9 * running[0] + 0.1 * mean,
                0.9 * running[1] + 0.1 * spread * n / (n - 1),
            )
    return loss_by_hand(w, query, running)[0], running


def round_by_hand(federation, start, rates, clients, server_round, beta, **adaptation):
    """Return the new arrays and inner rates, after one step against the mean gradient of both."""
    names = [name for name in start if not is_statistic(name)]
    gradients, states = [], []
    for client in clients:
        w = {name: torch.tensor(start[name], requires_grad=True) for name in names}
        a = {name: torch.tensor(rates[name], requires_grad=True) for name in names}
        running = tuple(torch.tensor(start[f"3.running_{n}"]) for n in ("mean", "var"))
        data = sets(federation, client, server_round)
        loss, running = adapted_loss(w, a, running, data, **adaptation)
        gradients.append(torch.autograd.grad(loss, [*w.values(), *a.values()]))
        count = start["3.num_batches_tracked"] + adaptation.get("inner_steps", 1)
        statistics = dict(zip(("3.running_mean", "3.running_var"), running, strict=True))
        states.append({**start, **statistics, "3.num_batches_tracked": count})
    queries = [len(sets(federation, client, server_round)[1][1]) for client in clients]
    moved = mean(states, [1] * len(clients), clients, queries)
    step = [
        beta * np.mean([part.numpy() for part in parts], 0)
        for parts in zip(*gradients, strict=True)
    ]
    before = [*(start[n] for n in names), *(rates[n] for n in names)]
    after = [value - part for value, part in zip(before, step, strict=True)]
    arrays = moved | dict(zip(names, after[: len(names)], strict=True))
    return arrays, dict(zip(names, after[len(names) :], strict=True))


def local_steps_by_hand(federation, start, rates, learn_rates, clients, server_round, **adaptation):
    """Return the mean model and the mean inner rates after three rounds of each client alone."""
    ends = []
    for client in clients:
        arrays, own = start, rates
        for _ in range(3):
            arrays, moved = round_by_hand(
                federation, arrays, own, [client], server_round, 0.4, **adaptation
            )
            own = moved if learn_rates else own
        ends.append((arrays, own))
    queries = [len(sets(federation, client, server_round)[1][1]) for client in clients]
    model = mean([arrays for arrays, _ in ends], [1] * len(clients), clients, queries)
    return model, {name: np.mean([own[name] for _, own in ends], 0) for name in rates}


def rates_of(arrays, rate):
    return {name: np.full_like(a, rate) for name, a in arrays.items() if not is_statistic(name)}


VARIANTS = {
    "maml": {},
    "maml, two steps": {"inner_steps": 2},
    "fomaml": {"second_order": False},
    "fomaml, two steps": {"inner_steps": 2, "second_order": False},
}


def fedmeta(name, **more):
    """Return the strategy of a name in `VARIANTS`, or of "meta-sgd", with three participants."""
    return FedMeta(
        variant=name.partition(",")[0],
        inner_learning_rate=0.7,
        inner_steps=VARIANTS.get(name, {}).get("inner_steps", 1),
        meta_learning_rate=0.4,
        participants=3,
        **more,
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_two_rounds_by_hand(exact_federation, name):
    """The model has BatchNorm; no gradient flows through the running statistics.

    The inner learning rate is 0.7, and beta is 0.4.
    """
    start, adaptation = exact_federation.arrays(), VARIANTS[name]
    arrays, rounds = run(fedmeta(name), exact_federation.app(FedMetaClient), start)
    expected, rates = start, rates_of(start, 0.7)
    for number, clients in enumerate(rounds, start=1):
        expected, _ = round_by_hand(
            exact_federation, expected, rates, clients, number, 0.4, **adaptation
        )
    assert rounds[0] != rounds[1]
    assert_equal(arrays, expected)


def test_meta_sgd_rates_by_hand(exact_federation):
    """Each of the three rounds has different clients; the rates are in the strategy's state."""
    start = exact_federation.arrays()
    strategy = FedMeta(
        variant="meta-sgd", inner_learning_rate=0.7, meta_learning_rate=0.4, participants=2
    )
    arrays, rounds = run(strategy, exact_federation.app(FedMetaClient), start, rounds=3)
    expected, rates = start, rates_of(start, 0.7)
    for number, clients in enumerate(rounds, start=1):
        expected, rates = round_by_hand(exact_federation, expected, rates, clients, number, 0.4)
    assert len({tuple(clients) for clients in rounds}) == 3
    assert_equal(arrays, expected)
    assert_equal(run_of(strategy).state["rates"], rates)
    assert abs(rates["5.weight"] - 0.7).max() > 0.01


@pytest.mark.parametrize("name", [*VARIANTS, "meta-sgd"])
@pytest.mark.parametrize("hosting", ["1", "2"])
def test_three_local_steps_by_hand(exact_federation, name, hosting):
    """Clients take three meta steps per round, all on the same sets.

    The server then takes the plain mean of the models. There are two rounds.
    """
    start, adaptation = exact_federation.arrays(), VARIANTS.get(name, {})
    grid = exact_federation.grid(hosting, FedMetaClient)
    strategy = fedmeta(name, local_steps=3)
    arrays, rounds = run_on(strategy, grid, start)
    expected, rates = start, rates_of(start, 0.7)
    for number, clients in enumerate(rounds, start=1):
        expected, rates = local_steps_by_hand(
            exact_federation, expected, rates, name == "meta-sgd", clients, number, **adaptation
        )
    assert_equal(arrays, expected)
    if name == "meta-sgd":
        assert_equal(run_of(strategy).state["rates"], rates)
