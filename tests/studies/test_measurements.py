"""A user's own measurements of starting models: stored, reported and checked."""

import json
from dataclasses import replace

import pytest

from coprefl_flwr.client_app import app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.measurements import own_measurements
from coprefl_flwr.studies.running import run_study
from tests.common.processes import new_process

WORST = """
from coprefl_flwr.studies.measurements import StartMeasurement


class Worst(StartMeasurement):
    phase = "worst-client"

    def measure(self, store):
        arrays, every = self.model(store), self.pretraining.clients.samples
        losses = [self.pretraining.evaluate(arrays, samples)["loss"] for samples in every]
        return {"worst-loss": max(losses), "clients": len(losses)}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "worst.py"
    path.write_text(WORST)
    return path


def run(settings):
    return run_study(LocalGrid(app, 1, settings.to_config()), build(settings))


def test_measurement_is_stored_and_reported(tiny_settings, file):
    settings = replace(tiny_settings, method="random fedavg", tasks=1, start_loss=True)
    settings = replace(settings, measurements=f"{file}:Worst")
    folder = run(settings)
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    measured = {row["start"]: row for row in rows if row["phase"] == "worst-client"}
    every = {row["start"]: row["start-loss"] for row in rows if row["phase"] == "start-loss"}
    assert set(measured) == {"random", "fedavg"}
    for start, row in measured.items():
        assert row["clients"] == settings.clients
        assert row["worst-loss"] > every[start]  # `every` has the mean over all clients.
    page = (folder / "report" / "report.html").read_text()
    assert "worst-loss" in page
    assert f"{measured['fedavg']['worst-loss']:.3f}" in page


def test_key_of_a_measurement_changes_with_its_code(tiny_settings, file):
    settings = replace(tiny_settings, method="random", tasks=0, measurements=f"{file}:Worst")
    before = build(settings).stages[-1].key
    assert build(replace(settings, run_name="other")).stages[-1].key == before
    file.write_text(WORST.replace("max(losses)", "2 * max(losses)"))
    new_process()
    assert build(settings).stages[-1].key != before


def test_object_that_is_no_measurement_is_refused(file):
    file.write_text('Worst = "a text"')
    with pytest.raises(SettingsError, match=r"is a str; must be a subclass of studies.stage.Stage"):
        own_measurements(f"{file}:Worst")
