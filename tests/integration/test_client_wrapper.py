"""Client wrappers in studies: the wrapped clients, results for any hosting, and stored results."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import coprefl_flwr as cp
from coprefl_flwr import client_app
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.models import model_arrays
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.training_options import TrainingOptions
from tests.common.data import images
from tests.common.networks import Perceptron
from tests.common.processes import new_process
from tests.common.simulation import ROOT
from tests.common.studies import tiny_study

FILE = ROOT / "examples" / "attacks" / "attackers.py"
FLIP, SCALE, NOISE = f"{FILE}:SignFlip", f"{FILE}:Scale", f"{FILE}:Noise"
ATTACKED = f"client-wrapper={NOISE},client-wrapper-share=0.4"


def client(study, name, client_id, population="pretrain", server_round=1):
    """Return the client that the study creates for a message with these values."""
    config = {"population": population, "server-round": server_round}
    paths = (one.path for one in study.stages if one.start == name and one.rounds)
    config["stage"] = next(
        one for one in paths if one.startswith("tasks") == (population != "pretrain")
    )
    return study.client(None, client_id, config | {"folder": "f"})


def wrapped(share, seed=0, clients=100):
    """Return the ids of the wrapped clients."""
    settings = TrainingOptions(client_wrapper=FLIP if share else None, client_wrapper_share=share)
    return settings.wrapped_clients(seed, clients)


@pytest.mark.parametrize("method", ["coprefl", "cyclic"])
def test_wrapped_clients_give_the_same_bytes_on_one_two_and_four_nodes(
    method, tiny_images, tmp_path
):
    models, attacked = [], f"{method}:{ATTACKED}"
    for nodes, name in ((1, attacked), (2, attacked), (4, attacked), (1, method)):
        tiny = tiny_study(tiny_images, tmp_path / str(len(models)))
        settings = replace(tiny, method=name, tasks=0, rounds=2, participants=4)
        grid = LocalGrid(client_app.app, nodes, settings.to_config())
        (file,) = (run_study(grid, build(settings)) / "starts").glob("*/model.safetensors")
        assert str(ROOT).replace("/", "-") not in file.parent.name
        models.append(file.read_bytes())
    assert models[0] == models[1] == models[2] != models[3]


def test_wrapped_clients_depend_on_the_seed_and_the_share():
    assert wrapped(0.0) == frozenset()
    found = {(seed, share): wrapped(share, seed) for seed in (0, 1) for share in (0.1, 0.3)}
    assert [len(one) for one in found.values()] == [10, 30, 10, 30]
    assert found[0, 0.1] < found[0, 0.3] < frozenset(range(100))
    assert found[0, 0.3] != found[1, 0.3]
    assert wrapped(0.5, 0, 8) == {0, 2, 5, 7}  # The same as before client wrappers existed.
    assert wrapped(1.0, 0, 3) == {0, 1, 2}


def test_only_pretraining_clients_of_the_phase_are_wrapped(tiny_images, tmp_path):
    """Only pre-training clients are wrapped, in the phase with the setting.

    The data for evaluations are not changed.
    """
    name = f"fedavg:client-wrapper={FILE}:label_flip,client-wrapper-share=0.4+fedprox"
    study = build(replace(tiny_study(tiny_images, tmp_path), method=name, seed=3))
    drawn = wrapped(0.4, 3, 6)
    assert len(drawn) == 2
    held = study.stages[0].population.clients
    for client_id in range(6):
        one, later = (client(study, name, client_id, server_round=r) for r in (1, 4))
        true = held[client_id].train.labels
        labels = 4 - true if client_id in drawn else true
        np.testing.assert_array_equal(one.train.labels, labels)
        np.testing.assert_array_equal(later.train.labels, true)
    clean = build(replace(tiny_study(tiny_images, tmp_path), method="fedavg", seed=3))
    for number in range(3):
        starts = ((study, name), (clean, "fedavg"))
        one, other = (client(each, of, number, "task-0") for each, of in starts)
        np.testing.assert_array_equal(one.train.labels, other.train.labels)
        np.testing.assert_array_equal(one.test.labels, other.test.labels)
    # `start-loss`, which is measured on the data of all clients, uses the true labels.
    both = [one.stages[0].samples_of("clients").labels for one in (study, clean)]
    np.testing.assert_array_equal(*both)


def test_key_of_a_run_depends_on_the_wrapper_and_the_text_of_its_file(tmp_path):
    config = {"dataset": "glyphs", "task-method": "fedprox"}
    settings = {"client-wrapper": SCALE, "client-wrapper-share": 0.3}

    def key(method="fedavg", **changes):
        return Run.of(config | changes, method, 1).key

    wrapped_key = key(**settings)
    assert key(f"fedavg:client-wrapper={SCALE},client-wrapper-share=0.3") == wrapped_key != key()
    changes = ({"client-wrapper": NOISE}, {"client-wrapper-share": 0.2})
    assert wrapped_key not in {key(**settings | change) for change in changes}
    # These methods send no messages to clients, so a wrapper changes nothing.
    for name in ("random", "centralised"):
        assert key(name, **settings) == key(name)
    # A copy of the file in another folder is the same wrapper; a changed file is another wrapper.
    moved = shutil.copy(FILE, tmp_path / FILE.name)
    elsewhere = settings | {"client-wrapper": f"{moved}:Scale"}
    assert key(**elsewhere) == wrapped_key
    moved.write_text(moved.read_text() + "# Another text.\n")
    new_process()
    assert key(**elsewhere) != wrapped_key


def no_client(client):
    return [client]


def failing(client):
    raise ZeroDivisionError("no luck")


def strong(client: TorchClient, much: float = 1.0):
    return client


def test_pretrain_wraps_clients():
    clients, models = cp.partition(images(), clients=4, scheme="iid"), []
    wrapper = {"client_wrapper": FLIP, "client_wrapper_share": 0.5}
    for more in ({}, wrapper):
        method = cp.FedAvg(participants=4, seed=2)
        start = cp.pretrain(method, Perceptron(), clients, 1, local_steps=1, quiet=True, **more)
        models.append(model_arrays(start))
    honest, attacked = models
    assert any((honest[name] != attacked[name]).any() for name in honest)
