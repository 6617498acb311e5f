"""Methods in a study: their clients, the files that they leave, and the effect of their options.

That every method runs in each of its roles is shown by `test_recorded.py`.
"""

from dataclasses import replace

from coprefl_flwr.client_app import app
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.report.frames import read_rows
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study


def run(settings, nodes=1):
    return run_study(LocalGrid(app, nodes, settings.to_config()), build(settings))


def test_finished_task_leaves_a_row_per_client_and_no_states(tiny_settings):
    settings = replace(tiny_settings, method="random", tasks=1, task_method="scaffold")
    folder = run(settings)
    assert len(read_rows(folder / "rows.jsonl")) == settings.task_clients
    files = {str(path.relative_to(folder / "tasks")) for path in (folder / "tasks").rglob("*.json")}
    assert files == {"0/random/result.json", "0/random/made-of.json"}
    assert not list((folder / "tasks").rglob("client-state"))
