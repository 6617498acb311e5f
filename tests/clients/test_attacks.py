"""What attackers answer, from what an honest client answers; who they are."""

import numpy as np
import pytest

from coprefl_flwr import seeds
from coprefl_flwr.arrays import behind, is_buffer, to_record, weights_of, zeros_like
from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients import (
    CoPreFLClient,
    FedMetaClient,
    SCAFFOLDClient,
    TorchClient,
    client_app,
)
from coprefl_flwr.clients.attacks import NOISE, SCALE, SIGN_FLIP, attackers, turned_around
from coprefl_flwr.clients.hosting import run
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import Cyclic
from tests.tiny import CLASSES, CPU, Federation

CONFIG = {"run": "r", "seed": 3, "population": "pretrain", "server-round": 2, "client": 1}
META = {"meta-variant": "fomaml", "inner-learning-rate": 0.1, "inner-steps": 1}


@pytest.fixture
def federation():
    return Federation.stochastic()


def replies(federation, client_class, method, sent, attack, config=CONFIG, **more):
    """Return what an honest client answers, and an attacker in its place: (arrays, metrics)."""
    found = []
    for one in ("", attack):
        client = client_class(
            federation.model,
            federation.samples[1],
            training=federation.training,
            device=CPU,
            test=federation.samples[1],
            **more,
        )
        client.attack = one
        found.append(run(client, method, sent, config))
    return found


def expected(attack, update, purpose):
    """Return the update of an attacker, by hand."""
    if attack == SIGN_FLIP:
        return -update
    if attack == SCALE:
        return 10 * update
    noise = seeds.generator(3, "pretrain", 2, 1, purpose).standard_normal(update.shape, np.float32)
    return update + 10 * np.linalg.norm(update) / np.linalg.norm(noise) * noise


@pytest.mark.parametrize("attack", [SIGN_FLIP, SCALE, NOISE])
def test_a_trained_model(federation, attack):
    sent = federation.arrays()
    honest, attacked = replies(federation, TorchClient, "fit", sent, attack)
    assert attacked[1] == honest[1]  # Loss and samples stay as they were computed.
    assert attacked[0].keys() == honest[0].keys() == sent.keys()
    buffers = [name for name in sent if is_buffer(name, sent[name])]
    assert len(buffers) == 3
    for name, before in sent.items():
        found, update = attacked[0][name], honest[0][name] - before
        assert found.dtype == before.dtype
        if name in buffers:
            np.testing.assert_array_equal(found, honest[0][name])
        else:
            wanted = before + expected(attack, update, f"attack-fit-{name}")
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    moved = {name: np.abs(attacked[0][name] - honest[0][name]).max() for name in weights_of(sent)}
    assert moved["1.weight"] > 1e-3 < moved["4.weight"]


@pytest.mark.parametrize("attack", [SIGN_FLIP, SCALE, NOISE])
def test_a_gradient(federation, attack):
    """Not turned around at what was sent, as a model is: a gradient is an update itself."""
    honest, attacked = replies(federation, CoPreFLClient, "query", federation.arrays(), attack)
    assert attacked[1] == honest[1]
    assert attacked[0].keys() == honest[0].keys()
    for name, gradient in honest[0].items():
        wanted = expected(attack, gradient, f"attack-query-{name}")
        np.testing.assert_allclose(attacked[0][name], wanted, rtol=1e-5, atol=1e-7)
        assert attacked[0][name].dtype == np.float32


def test_noise_is_ten_times_as_long_and_another_every_round_and_client(federation):
    sent, found = federation.arrays(), []
    for change in ({}, {"server-round": 3}, {"client": 2}, {"seed": 4}):
        config = CONFIG | change
        honest, attacked = replies(federation, TorchClient, "fit", sent, NOISE, config)
        weights = weights_of(sent)
        update = np.concatenate([(honest[0][n] - sent[n]).ravel() for n in weights])
        noise = np.concatenate([(attacked[0][n] - honest[0][n]).ravel() for n in weights])
        assert np.linalg.norm(noise) == pytest.approx(10 * np.linalg.norm(update), rel=1e-4)
        found.append(noise / np.linalg.norm(noise))
    assert max(abs(found[0] @ other) for other in found[1:]) < 0.5


def test_the_change_of_a_control_variate_is_turned_around_as_such(federation, tmp_path):
    """SCAFFOLD's c is 1 here: an answer that was turned around at it would be 2 - (c^+ - c)."""
    model = federation.arrays()
    control = {name: array + 1 for name, array in zeros_like(weights_of(model)).items()}
    sent = behind(model, "control", control)
    honest, attacked = replies(
        federation,
        SCAFFOLDClient,
        "fit",
        sent,
        SIGN_FLIP,
        CONFIG | {"scaffold-variant": "II"},
        state=ClientState(tmp_path),
    )
    for name in control:
        np.testing.assert_array_equal(attacked[0][f"control/{name}"], -honest[0][f"control/{name}"])
        wanted = model[name] - (honest[0][name] - model[name])
        np.testing.assert_array_equal(attacked[0][name], wanted)


@pytest.mark.parametrize("steps", [1, 2])
def test_fedmeta_answers_gradients_or_models(federation, steps):
    sent, more = federation.arrays(), {}
    if steps > 1:
        more = {"local-steps": steps, "meta-learning-rate": 0.1}
    config = CONFIG | META | more
    honest, attacked = replies(federation, FedMetaClient, "query", sent, SIGN_FLIP, config)
    for name, before in weights_of(sent).items():
        around = 0 if steps == 1 else before
        np.testing.assert_array_equal(attacked[0][name], around - (honest[0][name] - around))


def test_evaluations_are_honest(federation):
    honest, attacked = replies(federation, TorchClient, "evaluate", federation.arrays(), SCALE)
    assert attacked == honest


def test_a_link_of_a_chain_sends_on_what_it_made_of_the_model(federation):
    """Client 2 is the attacker; the chain by hand, link by link."""

    def client(context, client_id):
        made = TorchClient(
            federation.model, federation.samples[client_id], training=federation.training
        )
        made.attack = SIGN_FLIP if client_id == 2 else ""
        return made

    strategy = Cyclic(participants=4, seed=1)
    grid = LocalGrid(client_app(client, clients=4), nodes=1)
    result = strategy.start(grid, to_record(federation.arrays()), 1)
    arrays = federation.arrays()
    for link in strategy.chain(1):
        config = {"seed": 1, "population": strategy.population, "server-round": 1, "client": link}
        trained, _ = run(client(None, link), "fit", arrays, config)
        honest = client(None, link)
        honest.attack = ""
        plain, _ = run(honest, "fit", arrays, config)
        for name, before in weights_of(arrays).items():
            update = plain[name] - before
            wanted = before - update if link == 2 else plain[name]
            np.testing.assert_array_equal(trained[name], wanted)
        arrays = trained
    for name, array in arrays.items():
        np.testing.assert_allclose(result.arrays[name].numpy(), array, rtol=1e-6)


def test_who_attacks_is_a_function_of_the_seed_and_the_share():
    assert attackers(0, 100, 0.0) == frozenset()
    found = {(seed, share): attackers(seed, 100, share) for seed in (0, 1) for share in (0.1, 0.3)}
    assert [len(one) for one in found.values()] == [10, 30, 10, 30]
    assert found[0, 0.1] < found[0, 0.3] < frozenset(range(100))
    assert found[0, 0.3] != found[1, 0.3]
    attackers.cache_clear()
    assert attackers(0, 100, 0.3) == found[0, 0.3]


def test_labels_turned_around(federation):
    samples = federation.samples[1]
    before = samples.labels.copy()
    found = turned_around(samples, CLASSES)
    np.testing.assert_array_equal(found.labels, 2 - before)
    np.testing.assert_array_equal(found.indices, samples.indices)
    np.testing.assert_array_equal(samples.labels, before)
