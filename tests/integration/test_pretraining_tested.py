"""Pre-training with tests of the model at the server, on the test part of a dataset."""

from dataclasses import replace

import pytest

from coprefl_flwr.client_app import app
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study


@pytest.fixture
def cyclic_study(tiny_settings):
    """Settings of CyclicFL's experiment on the glyphs.

    Pre-training and downstream classes are the same, and the server tests on the test part.
    """
    return replace(
        tiny_settings, dataset="glyphs", downstream_classes="list:0-9", model="femnist-cnn",
        pretraining_classes="list:0-9", allow_class_overlap=True, tasks=0, server_reserve=0.0,
        test_every=2, method="cyclic:rounds=2+fedavg:rounds=3",
    )  # fmt: skip


def test_clients_have_the_training_part_and_the_server_the_test_part(cyclic_study):
    of = build(cyclic_study).stages[0].clients
    clients = of.population.clients
    held = [int(i) for client in clients for i in client.train.indices]
    tested = [int(i) for i in of.test_samples().indices]
    source = clients[0].train.dataset
    of_classes = [i for i, label in enumerate(source.labels) if label < 10]
    assert sorted(held + tested) == of_classes
    assert all(source.test[tested])
    assert not any(source.test[held])


def test_server_accuracies_are_in_the_rounds_and_the_table(cyclic_study):
    folder = run_study(LocalGrid(app, 1, cyclic_study.to_config()), build(cyclic_study))
    text = (folder / "rounds.jsonl").read_text()
    assert ["server-accuracy" in line for line in text.splitlines()] == [
        False, True, False, True, True,
    ]  # fmt: skip
    tables = (folder / "report" / "tables" / "table.md").read_text()
    assert "| Method | Final accuracy % | Best accuracy % |" in tables
    assert "| Method | Rounds | Best at round | Models sent | MB sent |" in tables
    assert (folder / "report" / "figures" / "table-curves.png").stat().st_size > 10_000


def test_cost_of_pretraining_is_in_the_table(cyclic_study):
    """Two rounds with three clients in sequence, then three rounds of FedAvg.

    Each client takes 2 steps at learning rate 0.05 in each round.
    """
    study = replace(cyclic_study, method="cyclic:rounds=2+fedavg:rounds=3", test_every=0)
    folder = run_study(LocalGrid(app, 1, study.to_config()), build(study))
    text = (folder / "report" / "tables" / "table.md").read_text()
    assert "| Summed step size | Million gradients |" in text
    # 2 x 0.3 + 3 x 0.1 = 0.9. Five rounds of three clients with two batches of 8: 240 gradients.
    assert "| 0.900 | 0.000 |" in text
