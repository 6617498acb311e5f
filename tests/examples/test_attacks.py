"""The example attackers, compared with an honest client."""

import numpy as np
import pytest

from coprefl_flwr import plugins, seeds
from coprefl_flwr.arrays import to_record, weights_of
from coprefl_flwr.clients import (
    CoPreFLClient,
    TorchClient,
    client_app,
)
from coprefl_flwr.federation.hosting import call_client
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import FedAvg
from tests.common.federation import CPU, SIZES, Federation
from tests.common.networks import CLASSES
from tests.common.simulation import ROOT

FOLDER = ROOT / "examples"
FILE = FOLDER / "attacks" / "attackers.py"
ATTACKS = SIGN_FLIP, SCALE, NOISE = "SignFlip", "Scale", "Noise"
CONFIG = {"run": "r", "seed": 3, "population": "pretrain", "server-round": 2, "client": 1}


@pytest.fixture
def federation():
    return Federation.stochastic()


def attacker(name, client):
    return plugins.find("client-wrapper", f"{FILE}:{name}")(client)


def honest(federation, client_id=1, client_class=TorchClient, **more):
    samples = federation.samples[client_id]
    return client_class(
        federation.model, samples, training=federation.training, device=CPU, test=samples, **more
    )


def expected(attack, update, *key):
    """Return the update of an attacker, computed by hand."""
    if attack == SIGN_FLIP:
        return -update
    if attack == SCALE:
        return 10 * update
    noise = seeds.generator(*key).standard_normal(update.shape, np.float32)
    return update + 10 * np.linalg.norm(update) / np.linalg.norm(noise) * noise


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_on_a_gradient_by_hand(federation, attack):
    """The attack changes the gradient itself; of a model, it changes the update."""
    client, other = (honest(federation, 1, CoPreFLClient) for _ in range(2))
    plain = call_client(client, "query", federation.arrays(), CONFIG)
    attacked = call_client(attacker(attack, other), "query", federation.arrays(), CONFIG)
    assert attacked[1] == plain[1]
    assert attacked[0].keys() == plain[0].keys()
    for name, gradient in plain[0].items():
        wanted = expected(attack, gradient, 3, "pretrain", 2, 1, f"attack-query-{name}")
        np.testing.assert_allclose(attacked[0][name], wanted, rtol=1e-5, atol=1e-7)
        assert attacked[0][name].dtype == np.float32


def started(federation, strategy, attack):
    """Return the model after a round in which client 2 is an attacker."""

    def client(context, client_id):
        made = honest(federation, client_id)
        return attacker(attack, made) if client_id == 2 else made

    grid = LocalGrid(client_app(client), nodes=1)
    strategy.clients = 4
    result = strategy.start(grid, to_record(federation.arrays()), 1)
    return {name: array.numpy() for name, array in result.arrays.items()}


def trained(federation, strategy, client_id, arrays):
    """Return the arrays that an honest client makes of these arrays in the first round."""
    config = {"seed": 1, "population": strategy.population, "server-round": 1, "client": client_id}
    return call_client(honest(federation, client_id), "fit", arrays, config)[0]


@pytest.mark.parametrize("attack", [*ATTACKS, "label_flip"])
def test_fedavg_round_with_an_attacker_by_hand(federation, attack):
    strategy, sent = FedAvg(participants=4, seed=1), federation.arrays()
    found = started(federation, strategy, attack)
    if attack == "label_flip":
        labels = federation.samples[2].labels
        labels[:] = CLASSES - 1 - labels
    updates = []
    for client_id in range(4):
        after = trained(federation, strategy, client_id, sent)
        update = {name: after[name] - sent[name] for name in weights_of(sent)}
        if client_id == 2 and attack != "label_flip":
            key = (1, strategy.population, 1, 2)
            update = {n: expected(attack, u, *key, f"attack-fit-{n}") for n, u in update.items()}
        updates.append(update)
    for name, before in weights_of(sent).items():
        mean = np.average([one[name] for one in updates], axis=0, weights=SIZES)
        np.testing.assert_allclose(found[name], before + mean, rtol=1e-4, atol=1e-5)


def test_label_flip_changes_support_and_query_labels_of_a_copy(federation):
    true = federation.samples[1]
    before = true.labels.copy()
    np.testing.assert_array_equal(
        attacker("label_flip", honest(federation)).train.labels, 2 - before
    )
    np.testing.assert_array_equal(true.labels, before)
    made = attacker("label_flip", honest(federation, 1, CoPreFLClient))
    labels = dict(zip(true.indices, true.labels, strict=True))
    for part in made.split(CONFIG):
        assert [labels[index] for index in part.indices] == [2 - y for y in part.labels]
