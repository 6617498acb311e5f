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

WORST = """
from coprefl_flwr.studies.measurements import StartMeasurement


class Worst(StartMeasurement):
    phase = "worst-client"

    def measure(self, store):
        arrays, every = self.model(store), self.pretraining.clients.samples
        losses = [self.pretraining.evaluate(arrays, own)["loss"] for own in every]
        return {"worst-loss": max(losses), "clients": len(losses)}
"""


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "worst.py"
    file.write_text(WORST)
    return file


def run(settings):
    return run_study(LocalGrid(app, 1, settings.to_config()), build(settings))


def test_its_numbers_are_stored_and_reported(tiny_settings, own):
    settings = replace(
        tiny_settings, method="random fedavg", tasks=1, measurements=f"{own}:Worst", start_loss=True
    )
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


def test_it_is_made_again_when_its_file_changes(tiny_settings, own):
    settings = replace(tiny_settings, method="random", tasks=0, measurements=f"{own}:Worst")
    before = build(settings).stages[-1].key
    assert build(replace(settings, run_name="other")).stages[-1].key == before
    own.write_text(WORST + "\nA_CONSTANT_OF_THE_FILE = 1\n")
    assert build(settings).stages[-1].key != before


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ('Worst = "a text"', "is a str; must be a subclass of studies.stage.Stage"),
        (WORST.replace('"worst-client"', '"tasks"'), "phase = 'tasks': must be a new name"),
        (WORST.replace('phase = "worst-client"', "pass"), "phase = None: must be a new name"),
    ],
)
def test_what_is_no_measurement_is_refused(own, code, problem):
    own.write_text(code)
    with pytest.raises(SettingsError, match=problem):
        own_measurements(f"{own}:Worst")


@pytest.mark.parametrize("returned", ['{"worst-loss": [1.0]}', '{"round": 7}'])
def test_what_it_returns_must_be_numbers_of_free_names(tiny_settings, own, returned):
    own.write_text(WORST.replace('{"worst-loss": max(losses), "clients": len(losses)}', returned))
    settings = replace(tiny_settings, method="random", tasks=0, measurements=f"{own}:Worst")
    with pytest.raises(SettingsError, match=r"Worst.measure returned .*; allowed: a number"):
        run(settings)


WITH_ROWS = """
from coprefl_flwr.studies.measurements import StartMeasurement
from coprefl_flwr.studies.store import write_result


class Each(StartMeasurement):
    phase = "each-client"

    def measure(self, store):
        return {}

    def make(self, making):
        rows = [{"task": 0, "client": number, "accuracy": 0.0} for number in range(3)]
        about = {"phase": self.phase, "start": self.start, "task": None, "round": 0}
        write_result(making.folder, rows, [about])
"""


def test_rows_of_its_result_are_not_those_of_a_task(tiny_settings, own):
    own.write_text(WITH_ROWS)
    without = run(replace(tiny_settings, method="random", tasks=1, run_name="without"))
    settings = replace(tiny_settings, method="random", tasks=1, measurements=f"{own}:Each")
    folder = run(settings)
    assert (folder / "rows.jsonl").read_bytes() == (without / "rows.jsonl").read_bytes()
    (result,) = folder.glob("each-client/*/result.json")
    assert len(json.loads(result.read_text())["rows"]) == 3


def test_paths_of_stages_are_apart_from_each_other(tiny_settings):
    study = build(replace(tiny_settings, method="random fedavg", tasks=0))
    study.check()
    first, second, *_ = study.stages
    second.path = f"{first.path}/below"
    with pytest.raises(SettingsError, match=f"two stages have the paths {first.path}/ and "):
        study.check()
