"""Compare FedMeta with finite differences, and with the network written out by hand."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from coprefl_flwr import seeds
from coprefl_flwr.clients import FedMetaClient
from coprefl_flwr.data import split_in_two
from coprefl_flwr.strategies import FedMeta
from tests.common.by_hand import assert_equal, is_statistic, mean, run, run_on
from tests.common.federation import SIZES, Federation
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


@pytest.mark.parametrize("variant", ["maml", "fomaml", "meta-sgd"])
def test_one_local_step_equals_the_gradient_form(exact_federation, variant):
    """If each model took one step, their mean is one step against the mean gradient."""
    ends = []
    for form in ({}, {"local-steps": 1, "meta-learning-rate": 0.4}):

        class Answers(FedMetaClient):
            def query(self, parameters, config, form=form):
                return super().query(parameters, {**config, **form})

        strategy = FedMeta(
            variant=variant, inner_learning_rate=0.7, meta_learning_rate=0.4, participants=3
        )
        if form:  # The strategy then takes replies as models.
            strategy.local_steps = 2
        ends.append(run(strategy, exact_federation.app(Answers), exact_federation.arrays()))
    (gradients, clients), (models, same) = ends
    assert clients == same
    assert_equal(models, gradients)


def objective(federation, theta, template, clients):
    """Return the whole meta-objective 1/|m| sum_u L_Q(theta - a grad L_S(theta)) in round 1."""
    names, total = list(template), 0.0
    parts = torch.split(theta, [template[name].size for name in names])
    w = {
        name: part.reshape(template[name].shape).clone().requires_grad_()
        for name, part in zip(names, parts, strict=True)
    }
    rates = dict.fromkeys(names, 0.7)
    for client in clients:
        data = sets(federation, client, 1)
        total += adapted_loss(w, rates, None, data, second_order=False)[0].item()
    return total / len(clients)


def measured_gradient(federation, **options):
    """Return (theta^0 - theta^1) / beta of one round as one vector, and its participants."""
    start = federation.arrays()
    strategy = FedMeta(inner_learning_rate=0.7, meta_learning_rate=0.5, participants=3, **options)
    arrays, (clients,) = run(strategy, federation.app(FedMetaClient), start, rounds=1)
    return np.concatenate([((start[n] - arrays[n]) / 0.5).ravel() for n in start]), clients


def test_maml_gradient_by_finite_differences():
    """Compare the gradient with central differences in all 163 coordinates.

    The first-order gradient is different.
    """
    federation = Federation.exact(norm=False)
    gradient, clients = measured_gradient(federation, variant="maml")
    template = federation.arrays()
    theta = torch.from_numpy(np.concatenate([array.ravel() for array in template.values()]))
    differences = []
    for unit in torch.eye(len(theta), dtype=torch.float64) * 1e-5:
        ahead, behind = (
            objective(federation, theta + sign * unit, template, clients) for sign in (1, -1)
        )
        differences.append((ahead - behind) / 2e-5)
    np.testing.assert_allclose(gradient, differences, rtol=0, atol=1e-9)
    first_order, same = measured_gradient(federation, variant="fomaml")
    assert same == clients
    assert abs(first_order - gradient).max() > 0.01


@pytest.mark.parametrize("variant", ["maml", "fomaml"])
def test_inner_rate_zero_is_one_gradient_step_on_the_query_sets(variant):
    federation = Federation.exact(norm=False)
    start = federation.arrays()
    strategy = FedMeta(variant=variant, inner_learning_rate=0.0, meta_learning_rate=0.5)
    arrays, (clients,) = run(strategy, federation.app(FedMetaClient), start, rounds=1)
    w = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    queries = [sets(federation, client, 1)[1] for client in clients]
    loss = sum(loss_by_hand(w, query)[0] for query in queries) / 4
    slopes = torch.autograd.grad(loss, list(w.values()))
    expected = {
        name: start[name] - 0.5 * slope.numpy() for name, slope in zip(w, slopes, strict=True)
    }
    assert_equal(arrays, expected)
