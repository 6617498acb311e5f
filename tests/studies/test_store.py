"""Results that are damaged on disk: refused in one line, and never reported."""

import shutil
from dataclasses import replace

import pytest
from flwr.app import Context, RecordDict

from coprefl_flwr.client_app import app, client_fn
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import LOCK, SUMS
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_stage, run_study
from coprefl_flwr.studies.store import (
    RESULT,
    Layout,
    Store,
    finalise,
    is_done,
    read_result,
    write_result,
)
from tests.common.checks import flip, refusal

ROWS = [{"start": "a", "client": 0, "loss": 0.5, "n": 4, "correct": 1}]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.json").write_text("{}")
    write_result(tmp_path, ROWS, [])
    return tmp_path


def test_damaged_result_is_refused_in_one_line(folder, tiny_settings):
    """0.5 becomes 0.4: only the checksum shows it."""
    content = (folder / RESULT).read_bytes().replace(b"0.5", b"0.4")
    (folder / RESULT).write_bytes(content)
    line = f"{folder / RESULT} is damaged: its checksum is not the one in SHA256SUMS"
    line += f"; remove the folder {folder}, and run the same command again"
    assert refusal(read_result, folder) == line
    assert refusal(finalise, build(tiny_settings).stages[0], folder) == line
    assert (folder / RESULT).read_bytes() == content


def test_result_with_its_checksum_is_kept(folder):
    assert is_done(folder)
    assert read_result(folder) == {"rows": ROWS, "rounds": []}
    (folder / SUMS).unlink()
    with pytest.raises(SettingsError, match="SHA256SUMS is damaged: it has no checksum of result"):
        read_result(folder)


def test_removed_files_are_made_again_with_the_same_bytes(tiny_settings):
    """A single changed bit in a task's result or a start's weights would change the report."""
    settings = replace(tiny_settings, method="fedavg", tasks=1, rounds=1, task_rounds=1)
    grid = LocalGrid(app, 1, settings.to_config())
    folder = run_study(grid, build(settings))
    files = [folder / "tasks/0/fedavg" / RESULT, folder / "starts/fedavg/model.safetensors"]
    before = [file.read_bytes() for file in files]
    stages = build(settings).stages
    for file, stage in zip(files, reversed(stages), strict=True):
        flip(file, -3)
        line = refusal(run_stage, stage, grid, Store(folder, Layout.PATH))
        assert line.startswith(f"{file} is damaged: ")
        assert line.endswith(f"; remove the folder {file.parent}, and run the same command again")
        shutil.rmtree(file.parent)
    for stage in stages:
        run_stage(stage, grid, Store(folder, Layout.PATH))
    assert [file.read_bytes() for file in files] == before


def test_study_that_another_process_writes_is_refused(tiny_settings):
    settings = replace(tiny_settings, method="random", tasks=0)
    grid = LocalGrid(app, 1, settings.to_config())
    folder = run_study(grid, build(settings))
    before = {path.name for path in folder.iterdir()}
    (folder / ".x.json.7.coprefl-part").touch()
    line = f"run-name = tiny: {folder} is being written by another process"
    with Store(folder, Layout.PATH).owned("checkpoint"):
        assert {path.name for path in folder.iterdir()} - {LOCK} == before - {LOCK}
        with pytest.raises(SettingsError, match=line):
            run_study(grid, build(settings))


def test_messages_name_folders_relative_to_the_clients_folder(tiny_settings, tmp_path):
    """The client's run-config or the node's config sets the folder.

    A path in a message that leads out of this folder is refused.
    """
    settings = replace(tiny_settings, method="scaffold", rounds=2, tasks=0, participants=6)
    seen = []

    class Watching(LocalGrid):
        def _handle(self, message):
            seen.append(dict(message.content.config_records.get("config", {})))
            return super()._handle(message)

    run_study(Watching(app, 1, settings.to_config()), build(settings))
    named = [config["folder"] for config in seen if "folder" in config]
    assert set(named) == {"tiny/starts/scaffold"}
    assert not any(str(tmp_path) in str(value) for config in seen for value in config.values())
    study = build(settings)
    config = {"population": "pretrain", "stage": "starts/scaffold", "server-round": 1}
    for wrong in ("/tmp/x", "../x", "tiny/../../x", ""):
        with pytest.raises(SettingsError, match="cannot name a folder of this node"):
            study.client(None, 0, config | {"folder": wrong})


def test_node_config_sets_the_folder_of_client_states(tiny_settings, tmp_path):
    """In a deployment, the folder is in the node-config.

    The run-config of the server is then not used.
    """
    config = replace(tiny_settings, method="scaffold").to_config()
    message = {"population": "pretrain", "stage": "starts/scaffold", "server-round": 1}
    message["folder"] = "tiny/starts/scaffold"
    folders = {}
    for node in ({}, {"state-dir": str(tmp_path / "mine")}):
        context = Context(1, 1, node, RecordDict(), config)
        folders[len(node)] = client_fn(context, 0, message).state.folder
    below = "tiny/starts/scaffold/client-state"
    assert folders == {0: tmp_path / "outputs" / below, 1: tmp_path / "mine" / below}
