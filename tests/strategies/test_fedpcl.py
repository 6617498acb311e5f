"""Compare FedPCL with a calculation by hand in float64.

Clients also take part in some rounds only, and leave during a run.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from coprefl_flwr import seeds
from coprefl_flwr.clients import FedPCLClient
from coprefl_flwr.learning.prototypes import no_prototypes
from coprefl_flwr.models import model_arrays
from coprefl_flwr.options import declared
from coprefl_flwr.strategies import FedPCL
from tests.common.by_hand import Leaving, assert_equal, descend, run_on, states_of
from tests.common.federation import HOSTINGS
from tests.common.networks import CLASSES, ToDouble
from tests.common.runs import run_of

SIZE, TAU = 6, 0.5


def head(norm=False):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        layers = [ToDouble(), nn.Flatten(), nn.Linear(16, SIZE), nn.ReLU()]
        return nn.Sequential(*layers, *([nn.BatchNorm1d(SIZE)] if norm else [])).double()


@pytest.fixture
def federation(exact_federation):
    """The exact federation with a head as the model.

    Client 0 has class 1 only, client 2 has class 0 only, and no client has class 2.
    """
    exact_federation.model = head()
    return exact_federation.keep([(1,), (0, 1), (0,), (0, 1)])


def options(folder, norm=False):
    return {"states": folder, "initial": model_arrays(head(norm))}


def start():
    return {name: array.astype(np.float64) for name, array in no_prototypes(CLASSES, SIZE).items()}


def unit(row):
    return row / np.linalg.norm(row)


def own_prototypes(model, samples):
    """Return {class: (unit prototype, count)} of one client."""
    inputs, targets = samples.batch(slice(None), torch.device("cpu"))
    z = normalize(model.eval()(inputs)).detach().numpy()
    labels = targets.numpy()
    return {j: (unit(z[labels == j].mean(axis=0)), (labels == j).sum()) for j in set(labels)}


def loss_by_hand(model, samples, sets):
    """Return L_g + L_p.

    L_g is the mean loss of the samples with `sets[0]`, the global prototypes. L_p is the mean of
    this loss over all other sets.
    """
    inputs, targets = samples.batch(slice(None), torch.device("cpu"))
    z = normalize(model(inputs))
    terms = []
    for prototypes in sets:
        scores = {j: z @ torch.from_numpy(row) / TAU for j, row in prototypes.items()}
        total = 0.0
        for i, y in enumerate(targets.tolist()):
            others = sum(torch.exp(score[i]) for j, score in scores.items() if j != y)
            total = total - (scores[y][i] - torch.log(others))
        terms.append(total / len(targets))
    return terms[0] + sum(terms[1:]) / len(terms[1:])


def by_hand(federation, rounds, norm=False):
    """Return the global prototypes and the head of every client.

    `rounds` has the participants of each round.
    """
    heads = {client: head(norm) for client in range(4)}
    shared, local = {}, []
    for clients in rounds:
        if local:
            for i in clients:
                descend(
                    heads[i],
                    lambda i=i, sets=(shared, *local): loss_by_hand(
                        heads[i], federation.samples[i], sets
                    ),
                    i + 1,
                )
        of_client = {i: own_prototypes(heads[i], federation.samples[i]) for i in clients}
        classes = sorted({j for prototypes in of_client.values() for j in prototypes})
        counts = {
            j: sum(prototypes[j][1] for prototypes in of_client.values() if j in prototypes)
            for j in classes
        }
        shared = {
            j: unit(
                sum(
                    prototypes[j][1] / counts[j] * prototypes[j][0]
                    for prototypes in of_client.values()
                    if j in prototypes
                )
            )
            for j in classes
        }
        local = [
            {j: prototypes[j][0] if j in prototypes else shared[j] for j in classes}
            for prototypes in of_client.values()
        ]
    rows = np.zeros((CLASSES, SIZE))
    for j, row in shared.items():
        rows[j] = row
    return {"prototypes": rows, "counts": np.array([counts.get(j, 0.0) for j in range(3)])}, heads


@pytest.mark.parametrize("hosting", HOSTINGS)
def test_three_rounds_by_hand(federation, tmp_path, hosting):
    """All four clients take part, with every hosting.

    No client has class 2, so class 2 keeps a row of zeros.
    """
    grid = federation.grid(hosting, FedPCLClient, **options(tmp_path))
    strategy = FedPCL(temperature=TAU, min_available_nodes=len(list(grid.get_node_ids())))
    arrays, _ = run_on(strategy, grid, start(), 3)
    expected, heads = by_hand(federation, [range(4)] * 3)
    assert_equal(arrays, expected, 1e-11)
    states = {} if hosting == "plain" else states_of(strategy, tmp_path)
    for client, state in states.items():
        weights = {name: t.numpy() for name, t in heads[client].state_dict().items()}
        assert_equal(state, dict(sorted(weights.items())), 1e-11)


def test_three_rounds_with_batch_norm_in_the_head_by_hand(federation, tmp_path):
    """Training uses the statistics of a batch, and prototypes use the running statistics.

    The running statistics begin with mean 0 and variance 1. So the prototypes of round 1, which
    come from untrained heads, are equal to the prototypes of a head without BatchNorm.
    """
    federation.model, ends = head(norm=True), {}
    for rounds in (1, 3):
        grid = federation.grid("2", FedPCLClient, **options(tmp_path / str(rounds), norm=True))
        strategy = FedPCL(temperature=TAU)
        ends[rounds], _ = run_on(strategy, grid, start(), rounds)
    expected, heads = by_hand(federation, [range(4)] * 3, norm=True)
    assert_equal(ends[3], expected, 1e-11)
    for client, state in states_of(strategy, tmp_path / "3").items():
        weights = {name: t.numpy() for name, t in heads[client].state_dict().items()}
        assert_equal(state, dict(sorted(weights.items())), 1e-11)
        assert state["4.num_batches_tracked"] == 2 * (client + 1)
    assert_equal(ends[1], by_hand(federation, [range(4)])[0], 1e-5)
    assert (
        abs(ends[3]["prototypes"] - by_hand(federation, [range(4)] * 3)[0]["prototypes"]).max()
        > 0.1
    )


def test_heads_stay_with_clients_that_take_part_in_some_rounds(federation, tmp_path):
    grid = federation.grid("2", FedPCLClient, **options(tmp_path))
    strategy = FedPCL(temperature=TAU, participants=3, seed=2)
    arrays, rounds = run_on(strategy, grid, start(), 4)
    assert len({tuple(clients) for clients in rounds}) > 1
    expected, _ = by_hand(federation, rounds)
    assert_equal(arrays, expected, 1e-11)


@pytest.mark.parametrize("variant", declared(FedPCL)["variant"].choices)
def test_each_variant_of_the_loss_gives_another_result(federation, tmp_path, variant):
    ends = {}
    for name in ("both", variant):
        grid = federation.grid("1", FedPCLClient, **options(tmp_path / name))
        strategy = FedPCL(temperature=TAU, variant=name)
        ends[name], _ = run_on(strategy, grid, start(), 2)
    same = np.array_equal(ends["both"]["prototypes"], ends[variant]["prototypes"])
    assert same == (variant == "both")


def test_prototypes_of_a_client_that_left_are_removed(federation, tmp_path):
    """The last node hosts client 3 and leaves in round 1; afterwards only clients 0 to 2 count."""
    nodes = Leaving(federation.app(FedPCLClient, **options(tmp_path)), nodes=4)
    strategy = FedPCL(temperature=TAU, min_available_nodes=4)
    arrays, rounds = run_on(strategy, nodes, start(), 3)
    assert [list(clients) for clients in rounds] == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]]
    assert list(run_of(strategy).state["local"]) == ["0", "1", "2"]
    assert_equal(arrays, by_hand(federation, rounds)[0], 1e-11)


def drawn(strategy, attempt, clients=4):
    """Return the participants that an attempt at round 1 draws."""
    rng = seeds.generator(strategy.seed, "train", 1, "participants", attempt)
    return sorted(rng.choice(clients, strategy.participants, replace=False).tolist())


def test_participants_with_a_single_class_are_drawn_again(federation, tmp_path, caplog):
    """Clients 0 and 2 have class 1 only, so a round cannot have these two participants."""
    only = federation.samples[2]
    object.__setattr__(only, "labels", np.ones_like(only.labels))
    strategy = next(
        strategy
        for strategy in (FedPCL(temperature=TAU, participants=2, seed=seed) for seed in range(100))
        if drawn(strategy, 0) == [0, 2] != drawn(strategy, 1)
    )
    grid = federation.grid("2", FedPCLClient, **options(tmp_path))
    arrays, rounds = run_on(strategy, grid, start(), 2)
    assert "round 1, attempt 1 failed: the participants have fewer than two classes" in caplog.text
    assert rounds[:2] == [[0, 2], drawn(strategy, 1)]
    assert_equal(
        arrays, by_hand(federation, [clients for clients in rounds if clients != [0, 2]])[0], 1e-11
    )
