"""What a table says of the pre-training; the test part of a dataset."""

from dataclasses import replace

import pytest

from coprefl_flwr.client_app import app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.report.pretraining import pretraining_summary, pretraining_table
from coprefl_flwr.studies.populations import PRETRAINING, population, samples_to_test_on
from coprefl_flwr.studies.study import prepare, run_study


def rows(start, accuracies, models=4.0):
    return [
        {
            "phase": "pretraining",
            "start": start,
            "round": number,
            "models-down": models,
            "models-up": models / 2,
            "bytes-down": 2_000_000,
            "bytes-up": 1_000_000,
        }
        | ({} if accuracy is None else {"server-accuracy": accuracy})
        for number, accuracy in enumerate(accuracies, 1)
    ]


ROUNDS = [
    *rows("fedavg", [10.0, None, 40.0, 35.0]),
    *rows("cyclic:rounds=2+fedavg", [20.0, None, 41.0, 50.0], models=8.0),
    *rows("cyclic:rounds=1+fedavg", [20.0, None, 30.0, 39.9], models=8.0),
    {"phase": "downstream", "start": "fedavg", "round": 1},
]


def test_summary_by_hand():
    fedavg, cyclic, slower = pretraining_summary(ROUNDS)
    assert fedavg == {
        "start": "fedavg", "rounds": 4, "models": 24.0, "megabytes": 12.0, "final": 35.0,
        "best": 40.0, "best-round": 3,
    }  # fmt: skip
    # At round 3 it is as good as FedAvg alone ever was; the other never is.
    assert cyclic["catches-up"] == 3
    assert (cyclic["final"], cyclic["best"], cyclic["best-round"]) == (50.0, 50.0, 4)
    assert cyclic["models"] == 48
    assert slower["catches-up"] is None


def test_a_plain_start_is_found_by_its_last_phase():
    def catches_up(*starts):
        found = pretraining_summary([row for start in starts for row in rows(start, [10.0, 20.0])])
        return {entry["start"]: entry.get("catches-up") for entry in found}

    two = ("fedavg:q=1", "fedavg:q=2")
    assert catches_up(*two, "cyclic+fedavg:q=2")["cyclic+fedavg:q=2"] == 2
    # Which of the two would it be?
    assert catches_up(*two, "cyclic+fedavg")["cyclic+fedavg"] is None
    assert catches_up("fedavg:q=1", "cyclic+fedavg")["cyclic+fedavg"] == 2
    assert catches_up("fedavg", "cyclic+scaffold")["cyclic+scaffold"] is None


def test_table():
    table = pretraining_table(pretraining_summary(ROUNDS))
    head, rule, fedavg, cyclic, slower = table.splitlines()
    assert head.startswith("Start  ")
    assert head.endswith("Rounds  Final %  Best %  at round  plain's best by  Models sent  MB sent")
    assert {len(line) for line in table.splitlines()} == {len(rule)}
    assert fedavg.split() == ["fedavg", "4", "35.0", "40.0", "3", "24", "12"]
    assert cyclic.split()[-3:] == ["3", "48", "12"]
    assert slower.split()[-3:] == ["never", "48", "12"]
    untested = pretraining_table(pretraining_summary(rows("fedavg", [None])), markdown=True)
    assert untested.splitlines()[0] == "| Start | Rounds | Models sent | MB sent |"
    assert untested.splitlines()[2] == "| fedavg | 1 | 6 | 3 |"


@pytest.fixture
def cyclic_study(tiny_settings):
    """CyclicFL's experiment on the glyphs: the same classes throughout, tested on the test part."""
    return replace(
        tiny_settings, dataset="glyphs", downstream_classes="list:0-9", model="femnist-cnn",
        pretraining_classes="list:0-9", allow_class_overlap=True, tasks=0, server_reserve=0.0,
        test_every=2, method="cyclic:rounds=2+fedavg:rounds=3",
    )  # fmt: skip


def test_the_clients_hold_the_training_part_and_the_server_tests_on_the_rest(cyclic_study):
    clients = population(cyclic_study, PRETRAINING).clients
    held = [int(i) for client in clients for i in client.train.indices]
    tested = [int(i) for i in samples_to_test_on(cyclic_study).indices]
    source = clients[0].train.dataset
    of_classes = [i for i, label in enumerate(source.labels) if label < 10]
    assert sorted(held + tested) == of_classes
    assert all(source.test[tested])
    assert not any(source.test[held])


def test_tests_are_in_the_rounds_and_in_the_table(cyclic_study):
    folder = run_study(LocalGrid(app, 1, cyclic_study.to_config()), cyclic_study)
    text = (folder / "rounds.jsonl").read_text()
    assert ["server-accuracy" in line for line in text.splitlines()] == [
        False, True, False, True, True,
    ]  # fmt: skip
    assert "| Final % | Best % | at round |" in (folder / "pretraining.md").read_text()
    assert (folder / "learning_curves.png").stat().st_size > 10_000


def test_a_dataset_without_a_test_part_is_refused(cyclic_study, tiny_images):
    settings = replace(
        cyclic_study, dataset=str(tiny_images), downstream_classes="list:0-4",
        pretraining_classes="list:0-4", model="tests.tiny_study:network",
    )  # fmt: skip
    with pytest.raises(SettingsError, match="test-every: the dataset has no test part of its own"):
        prepare(settings)
