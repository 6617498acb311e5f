"""The example attackers, compared with an honest client; and the recipes that use them."""

import numpy as np
import pytest

from coprefl_flwr import plugins, seeds
from coprefl_flwr.arrays import is_buffer, to_record, weights_of, zeros_like
from coprefl_flwr.clients import (
    CoPreFLClient,
    FedMetaClient,
    SCAFFOLDClient,
    TorchClient,
    client_app,
)
from coprefl_flwr.federation import Listed, RoundContext
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.federation.hosting import call_client
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.search import check_runs
from coprefl_flwr.strategies import Cyclic, FedAvg
from tests.common.federation import CPU, SIZES, Federation
from tests.common.networks import CLASSES
from tests.common.simulation import ROOT

FOLDER = ROOT / "examples"
FILE = FOLDER / "attacks" / "attackers.py"
RECIPES = ("attacks", "attacks_by_length")
ATTACKS = SIGN_FLIP, SCALE, NOISE = "SignFlip", "Scale", "Noise"
CONFIG = {"run": "r", "seed": 3, "population": "pretrain", "server-round": 2, "client": 1}
META = {"meta-variant": "fomaml", "inner-learning-rate": 0.1, "inner-steps": 1}


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


def replies(federation, client_class, method, sent, attack, config=CONFIG, **more):
    """Return the answers of an honest client and of an attacker instead: (arrays, metrics)."""
    made = [honest(federation, 1, client_class, **more) for _ in range(2)]
    return [call_client(one, method, sent, config) for one in (made[0], attacker(attack, made[1]))]


def expected(attack, update, *key):
    """Return the update of an attacker, computed by hand."""
    if attack == SIGN_FLIP:
        return -update
    if attack == SCALE:
        return 10 * update
    noise = seeds.generator(*key).standard_normal(update.shape, np.float32)
    return update + 10 * np.linalg.norm(update) / np.linalg.norm(noise) * noise


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_trained_model(federation, attack):
    sent = federation.arrays()
    plain, attacked = replies(federation, TorchClient, "fit", sent, attack)
    assert attacked[1] == plain[1]  # Loss and samples stay as they were computed.
    assert attacked[0].keys() == plain[0].keys() == sent.keys()
    buffers = [name for name in sent if is_buffer(name, sent[name])]
    assert len(buffers) == 3
    for name, before in sent.items():
        found, update = attacked[0][name], plain[0][name] - before
        assert found.dtype == before.dtype
        if name in buffers:
            np.testing.assert_array_equal(found, plain[0][name])
        else:
            key = (3, "pretrain", 2, 1, f"attack-fit-{name}")
            wanted = before + expected(attack, update, *key)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    moved = {name: np.abs(attacked[0][name] - plain[0][name]).max() for name in weights_of(sent)}
    assert moved["1.weight"] > 1e-3 < moved["4.weight"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_gradient(federation, attack):
    """The attack changes the gradient itself; of a model, it changes the update."""
    plain, attacked = replies(federation, CoPreFLClient, "query", federation.arrays(), attack)
    assert attacked[1] == plain[1]
    assert attacked[0].keys() == plain[0].keys()
    for name, gradient in plain[0].items():
        wanted = expected(attack, gradient, 3, "pretrain", 2, 1, f"attack-query-{name}")
        np.testing.assert_allclose(attacked[0][name], wanted, rtol=1e-5, atol=1e-7)
        assert attacked[0][name].dtype == np.float32


def test_noise_is_ten_times_as_long_and_another_every_round_and_client(federation):
    sent, found = federation.arrays(), []
    for change in ({}, {"server-round": 3}, {"client": 2}, {"seed": 4}):
        plain, attacked = replies(federation, TorchClient, "fit", sent, NOISE, CONFIG | change)
        weights = weights_of(sent)
        update = np.concatenate([(plain[0][n] - sent[n]).ravel() for n in weights])
        noise = np.concatenate([(attacked[0][n] - plain[0][n]).ravel() for n in weights])
        assert np.linalg.norm(noise) == pytest.approx(10 * np.linalg.norm(update), rel=1e-4)
        found.append(noise / np.linalg.norm(noise))
    assert max(abs(found[0] @ other) for other in found[1:]) < 0.5


def test_the_change_of_a_control_variate_is_turned_around_as_such(federation, tmp_path):
    """SCAFFOLD's c is 1 here: if the whole answer were attacked, it would be 2 - (c^+ - c)."""
    model = federation.arrays()
    control = {name: array + 1 for name, array in zeros_like(weights_of(model)).items()}
    sent, config = model, CONFIG | {"scaffold-variant": "II", "extra": {"control": control}}
    states = ClientState(tmp_path / "honest"), ClientState(tmp_path / "attacker")
    made = [honest(federation, 1, SCAFFOLDClient, state=state) for state in states]
    plain, _ = call_client(made[0], "fit", sent, config)
    attacked, _ = call_client(attacker(SIGN_FLIP, made[1]), "fit", sent, config)
    for name in control:
        np.testing.assert_array_equal(attacked[f"control/{name}"], -plain[f"control/{name}"])
        np.testing.assert_array_equal(attacked[name], model[name] - (plain[name] - model[name]))


@pytest.mark.parametrize("steps", [1, 2])
def test_fedmeta_answers_gradients_or_models(federation, steps):
    sent, more = federation.arrays(), {}
    if steps > 1:
        more = {"local-steps": steps, "meta-learning-rate": 0.1}
    config = CONFIG | META | more
    plain, attacked = replies(federation, FedMetaClient, "query", sent, SIGN_FLIP, config)
    for name, before in weights_of(sent).items():
        around = 0 if steps == 1 else before
        np.testing.assert_array_equal(attacked[0][name], around - (plain[0][name] - around))


def test_evaluations_are_honest(federation):
    plain, attacked = replies(federation, TorchClient, "evaluate", federation.arrays(), SCALE)
    assert attacked == plain


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
def test_a_round_of_fedavg_by_hand(federation, attack):
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


def test_a_link_of_a_chain_sends_on_what_it_made_of_the_model(federation):
    """Client 2 is the attacker; the chain is computed by hand, client by client."""
    strategy, arrays = Cyclic(participants=4, seed=1), federation.arrays()
    found = started(federation, strategy, SIGN_FLIP)
    drawn = RoundContext(strategy, Listed(range(4)))
    for link in drawn.random("order").permutation(4):
        after = trained(federation, strategy, link, arrays)
        if link == 2:
            after |= {n: before - (after[n] - before) for n, before in weights_of(arrays).items()}
        arrays = after
    for name, array in arrays.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)


def test_labels_turned_around(federation):
    samples = federation.samples[1]
    before = samples.labels.copy()
    found = attacker("label_flip", honest(federation)).train
    np.testing.assert_array_equal(found.labels, 2 - before)
    np.testing.assert_array_equal(found.indices, samples.indices)
    np.testing.assert_array_equal(samples.labels, before)


def test_support_and_query_are_both_turned_around(federation):
    made = attacker("label_flip", honest(federation, 1, CoPreFLClient))
    true = federation.samples[1]
    labels = dict(zip(true.indices, true.labels, strict=True))
    for part in made.split(CONFIG):
        assert [labels[index] for index in part.indices] == [2 - y for y in part.labels]


# ---- the recipes --------------------------------------------------------------------------------


def test_it_can_be_read_and_would_run():
    file = FOLDER / "attacks.yaml"
    recipe = read_recipe(file)
    assert len(recipe.seeds) == 3
    shares = {}
    for row in recipe.rows:
        (share,) = row.options.get("client-wrapper-share", (0.0,))
        label, _, more = row.label.partition(", ")
        assert more == (f"{100 * share:g} % attackers" if share else "")
        assert row.options.get("client-wrapper", ()) == ((f"{FILE}:SignFlip",) if share else ())
        shares.setdefault(label, []).append(share)
    assert {"fedavg", "coprefl"} <= shares.keys()
    assert all(found == [0.0, 0.1, 0.3] for found in shares.values())
    runs = check_runs(read_recipe(file, (), "small"))
    assert len({run.key for run in runs}) == len(recipe.rows)


def test_updates_ten_times_as_long_are_compared_with_the_same_runs_without_attackers():
    plain, *attacked = read_recipe(FOLDER / "attacks_by_length.yaml").rows
    assert (plain.label, plain.options) == ("coprefl", {})
    assert all(row.options["client-wrapper"] == (f"{FILE}:Scale",) for row in attacked)
    small = [check_runs(read_recipe(FOLDER / f"{name}.yaml", (), "small")) for name in RECIPES]
    first, second = ({run.key for run in runs if run.name == "coprefl"} for runs in small)
    assert first == second
