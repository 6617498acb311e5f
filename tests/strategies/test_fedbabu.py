"""FedBABU: rounds by hand; the last layer never moves and is not sent, and the start is whole."""

from dataclasses import replace

import pytest

import coprefl_flwr as cp
from coprefl_flwr.client_app import app
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.store import Layout, Store, read_result
from tests.common.checks import refusal
from tests.common.rounds_by_hand import Problem
from tests.common.studies import start_named
from tests.records.fits import BY_HAND, outcome


@pytest.mark.parametrize(("kind", "optimiser"), [("classes", "sgd"), ("labels", "adamw")])
def test_two_rounds_by_hand(kind, optimiser):
    assert outcome("fedbabu", Problem(kind, False, optimiser))[0] == BY_HAND


@pytest.fixture
def both(tiny_settings):
    """A study of fedbabu, its refined form and fedavg."""
    methods = "fedbabu fedbabu-refined fedavg"
    return replace(tiny_settings, method=methods, server_reserve=0.2, tasks=1)


def test_last_layer_is_not_sent_and_the_start_has_it(both):
    folders, study = {}, build(both)
    for nodes in (1, 2):
        settings = replace(both, run_name=f"on-{nodes}")
        folders[nodes] = run_study(LocalGrid(app, nodes, settings.to_config()), build(settings))
    store = Store(folders[1], Layout.PATH)
    first = start_named(study, "fedavg").initial()
    body = {name for name in first if name not in study.stages[0].architecture.head}
    starts = {}
    for name in ("fedbabu", "fedbabu-refined", "fedavg"):
        stage = start_named(study, name)
        starts[name], _ = load_saved_model(store.folder(stage))
        other, _ = load_saved_model(Store(folders[2], Layout.PATH).folder(stage))
        assert list(starts[name]) == list(first)
        for array, value in starts[name].items():
            assert value == pytest.approx(other[array], abs=1e-6)
            if array not in body or array.endswith("weight"):
                kept = (value == first[array]).all()
                assert kept == (name != "fedavg" and array not in body)
    sent = {
        name: read_result(store.folder(start_named(study, name)))["rounds"][0]["client-bytes-up"]
        for name in starts
    }
    size = sum(array.nbytes for name, array in first.items() if name not in body)
    assert sent["fedavg"] - sent["fedbabu"] >= size * both.participants


def test_networks_without_a_layer_to_fix_are_refused():
    problem = Problem("classes", frozen=True)
    line = refusal(cp.pretrain, "fedbabu", problem.network(), problem.clients(), 1, quiet=True)
    assert "no trainable parameters" in line
    problem = Problem("pixels")
    how = {"loss": problem.loss, "quiet": True}
    line = refusal(cp.pretrain, "fedbabu", problem.network(), problem.clients(), 1, **how)
    assert "calls no nn.Linear" in line
    problem = Problem("classes")
    line = refusal(
        cp.pretrain, "fedbabu+fedavg", problem.network(), problem.clients(), 1, quiet=True
    )
    assert "fedbabu+fedavg: one phase trains the last layer, another does not" in line
