"""Pre-training with tests of the model at the server, on the test part of a dataset."""

from dataclasses import replace

from coprefl_flwr.client_app import app
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study


def test_server_accuracies_and_cost_are_in_the_rounds_and_the_table(tiny_settings):
    """CyclicFL's experiment on the glyphs, whose pre-training and downstream classes are the same.

    There are two rounds with three clients in sequence, then three rounds of FedAvg. Each client
    takes 2 steps at learning rate 0.05 in each round, and the server tests every second round.
    """
    settings = replace(
        tiny_settings, dataset="glyphs", downstream_classes="list:0-9", model="femnist-cnn",
        pretraining_classes="list:0-9", allow_class_overlap=True, tasks=0, server_reserve=0.0,
        test_every=2, method="cyclic:rounds=2+fedavg:rounds=3",
    )  # fmt: skip
    folder = run_study(LocalGrid(app, 1, settings.to_config()), build(settings))
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    tested = [number for number, line in enumerate(lines, 1) if "server-accuracy" in line]
    assert tested == [2, 4, 5]
    tables = (folder / "report" / "tables" / "table.md").read_text()
    assert "| Method | Final accuracy % | Best accuracy % |" in tables
    assert "| Method | Rounds | Best at round | Models sent | MB sent |" in tables
    # 2 x 0.3 + 3 x 0.1 = 0.9. Five rounds of three clients with two batches of 8: 240 gradients.
    assert "| 0.900 | 0.000 |" in tables
    assert (folder / "report" / "figures" / "table-curves.png").stat().st_size > 10_000
