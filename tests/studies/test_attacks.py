"""Attackers in studies: the same for any hosting, in the pre-training alone, and stored apart."""

from dataclasses import replace

import numpy as np
import pytest

import coprefl_flwr as cp
from coprefl_flwr import client_app
from coprefl_flwr.clients.attacks import attackers
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.methods import METHODS, PERSONALISED, PRETRAINING
from coprefl_flwr.models import model_arrays
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.studies.build import build, run_study
from coprefl_flwr.studies.phases import ATTACK_KEYS, training_keys
from coprefl_flwr.studies.settings import Settings
from tests.front.made_up import Perceptron, images
from tests.tiny_study import tiny_study

ATTACKED = "attack=noise,attack-share=0.4"


def refusal(**values):
    with pytest.raises(SettingsError) as caught:
        build(Settings.of(**values)).check()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def client(study, name, client_id, population="pretrain", server_round=1):
    """Return a client as a message asks for it."""
    config = {"population": population, "method": name, "server-round": server_round}
    return study.client(client_id, config | {"folder": "f"})


@pytest.mark.parametrize("method", ["coprefl", "cyclic"])
def test_the_same_bytes_on_one_two_and_four_nodes(tiny_images, tmp_path, method):
    models, plain = [], None
    for nodes, entry in ((1, f"{method}:{ATTACKED}"), (2, ""), (4, ""), (1, method)):
        name = entry or f"{method}:{ATTACKED}"
        tiny = tiny_study(tiny_images, tmp_path / f"{nodes}{entry == method}")
        settings = replace(tiny, method=name, tasks=0, rounds=2, participants=4)
        grid = LocalGrid(client_app.app, nodes, settings.to_config())
        (file,) = (run_study(grid, settings) / "starts").glob("*/model.safetensors")
        if entry == method:
            plain = file.read_bytes()
        else:
            models.append(file.read_bytes())
    assert models[0] == models[1] == models[2] != plain


def test_who_attacks_in_a_study(tiny_images, tmp_path):
    """Only clients of the pre-training, of the phase that says so; evaluation data are clean."""
    name = "fedavg:attack=label-flip,attack-share=0.4+fedprox"
    study = build(replace(tiny_study(tiny_images, tmp_path), method=name, seed=3))
    wanted = attackers(3, 6, 0.4)
    assert len(wanted) == 2
    held = study.populations.population("pretrain").clients
    for client_id in range(6):
        one, later = (client(study, name, client_id, server_round=r) for r in (1, 4))
        assert (one.attack, later.attack) == ("label-flip" if client_id in wanted else "", "")
        true = held[client_id].train.labels
        labels = 4 - true if client_id in wanted else true
        np.testing.assert_array_equal(one.train.labels, labels)
        np.testing.assert_array_equal(later.train.labels, true)
    of_task = [client(study, "fedavg", i, "task-0") for i in range(3)]
    assert {one.attack for one in of_task} == {""}
    clean = build(replace(tiny_study(tiny_images, tmp_path), method="fedavg", seed=3))
    for number, one in enumerate(of_task):
        other = client(clean, "fedavg", number, "task-0")
        np.testing.assert_array_equal(one.train.labels, other.train.labels)
        np.testing.assert_array_equal(one.test.labels, other.test.labels)
    # What is measured over all clients' data (`start-loss`) has the true labels.
    both = [one.populations.samples_of("clients").labels for one in (study, clean)]
    np.testing.assert_array_equal(*both)


def test_support_and_query_are_both_turned_around(tiny_images, tmp_path):
    name = "coprefl:attack=label-flip,attack-share=0.9"
    study = build(replace(tiny_study(tiny_images, tmp_path), method=name))
    attacker = min(attackers(0, 6, 0.9))
    one = client(study, name, attacker)
    true = study.populations.population("pretrain").clients[attacker].train
    labels = dict(zip(true.indices, true.labels, strict=True))
    for part in one.split({"server-round": 1, "client": attacker}):
        assert [labels[index] for index in part.indices] == [4 - y for y in part.labels]


def test_results_are_stored_under_the_attack():
    config = {"dataset": "glyphs", "task-method": "fedprox"}
    settings = {"attack": "scale", "attack-share": 0.3}
    both = [Run.of(config, "fedavg:attack=scale,attack-share=0.3", 1)]
    both.append(Run.of(config | settings, "fedavg", 1))
    assert both[0].key == both[1].key != Run.of(config, "fedavg", 1).key
    other = [
        Run.of(config | settings | change, "fedavg", 1).key
        for change in ({"attack": "noise"}, {"attack-share": 0.2})
    ]
    assert len({both[0].key, *other}) == 3
    # No client is asked: an attack changes nothing.
    for name in ("random", "centralised"):
        assert Run.of(config | settings, name, 1).key == Run.of(config, name, 1).key


def test_every_pretraining_whose_clients_answer_can_be_attacked_and_nothing_else():
    for name, method in METHODS.items():
        for role in method.roles:
            heeds = set(ATTACK_KEYS) <= set(training_keys(method, role))
            asks = method.strategy_class.samples_clients and role == PRETRAINING
            assert heeds == asks, (name, role)
            assert heeds or not set(ATTACK_KEYS) & set(training_keys(method, role))
    assert "attack" not in training_keys(METHODS["fedavg"], PERSONALISED)


ATTACK_NAMES = "sign-flip, scale, label-flip, noise"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"attack": "zzz"}, f"attack: unknown value 'zzz': known are none, {ATTACK_NAMES}"),
        ({"attack": "scal"}, "attack: unknown value 'scal': did you mean 'scale'?"),
        (
            {"attack_share": 0.3},
            f"attack-share = 0.3: needs an attack, one of {ATTACK_NAMES}",
        ),
        (
            {"attack": "scale"},
            "attack = scale: needs an attack-share above 0, a part of the clients",
        ),
        (
            {"attack": "scale", "attack_share": 1.0},
            "attack-share = 1.0: must be between 0 and 0.99",
        ),
        (
            {"attack": "scale", "attack_share": 0.004, "method": "random fedavg"},
            "method, fedavg: attack-share = 0.004: gives 0 attackers of clients = 100; there must "
            "be at least 1, and at most 99",
        ),
        (
            {"method": "fedavg:attack=scale,attack-share=0.9", "clients": 2, "participants": 1},
            "method, fedavg:attack=scale,attack-share=0.9: attack-share = 0.9: gives 2 attackers "
            "of clients = 2; there must be at least 1, and at most 1",
        ),
        (
            {"method": "fedavg:attack=scale"},
            "method, fedavg:attack=scale: attack = scale: needs an attack-share above 0, a part "
            "of the clients",
        ),
        (
            {"method": "centralised:attack=scale"},
            "method, centralised:attack=scale: centralised has no 'attack' here; it has ",
        ),
        (
            {"task_method": "fedavg:attack=scale"},
            "task-method, fedavg:attack=scale: fedavg has no 'attack' here; it has "
            "aggregation, tolerated-share, clip-factor",
        ),
        (
            {"study": "personalised", "method": "fedpcl", "attack": "scale", "attack_share": 0.3},
            "attack = scale: attackers are of a pre-training; there are none in a personalised "
            "study",
        ),
    ],
)
def test_what_cannot_be_is_one_line(values, line):
    assert refusal(**values).startswith(line)


def test_from_python():
    clients, models = cp.partition(images(), clients=4, scheme="iid"), []
    attack = {"attack": "sign-flip", "attack_share": 0.5}
    for more in ({}, attack):
        method = cp.FedAvg(participants=4, seed=2)
        start = cp.pretrain(method, Perceptron(), clients, 1, local_steps=1, quiet=True, **more)
        models.append(model_arrays(start))
    honest, attacked = models
    assert any((honest[name] != attacked[name]).any() for name in honest)
    with pytest.raises(SettingsError, match=r"^attack_share = 0\.5: needs an attack"):
        cp.pretrain(cp.FedAvg(), Perceptron(), clients, 1, quiet=True, attack_share=0.5)
