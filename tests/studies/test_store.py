"""Results that are damaged on disk: named, renamed and made again, but never reported."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from coprefl_flwr.client_app import app, client_fn
from coprefl_flwr.errors import SettingsError, excerpt
from coprefl_flwr.federation.progress import Progress
from coprefl_flwr.files import LOCK, SUMS
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.running import run_stage, run_study
from coprefl_flwr.studies.store import (
    CHECKPOINT,
    RESULT,
    Layout,
    Store,
    is_done,
    put_aside_damaged,
    read_about,
    read_result,
    write_result,
)
from tests.common.checks import Killed, flip, refusal

ROWS = [{"start": "a", "client": 0, "loss": 0.5, "n": 4, "correct": 1}]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.json").write_text("{}")
    write_result(tmp_path, ROWS, [])
    return tmp_path


def damage(file, how):
    if how == "flip":
        position = file.read_bytes().index(b"0.5") + 2
        flip(file, position)  # 0.5 becomes 0.4: only the checksum shows it.
        assert b"0.4" in file.read_bytes()
    else:
        file.write_bytes(how)


@pytest.mark.parametrize(
    "how",
    ["flip", b"", b"null", b"[]", b"{}", b'{"rows": 1, "rounds": []}', b"[" * 99999, b"\0"],
    ids=excerpt,
)
def test_a_damaged_result_is_named_and_put_aside(folder, how, caplog):
    damage(folder / RESULT, how)
    assert refusal(read_result, folder).startswith(f"{folder / RESULT} is damaged: ")
    with caplog.at_level(logging.WARNING):
        assert not is_done(folder)
        assert not is_done(folder)
        put_aside_damaged(folder)
    lines = [line for line in caplog.messages if str(folder) in line]
    assert lines[0].endswith("the result is ignored until the same command is run again")
    assert (
        lines[1]
        == f"{folder}: damaged: result.json; renamed to NAME.damaged, and the stage runs again"
    )
    assert len(lines) == 2
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"{SUMS}.damaged", "model.json", "result.json.damaged"]


@pytest.mark.parametrize("content", [b"[]", b"null", b"{}", b'{"num-classes": "5"}', b"\xff", b"["])
def test_how_a_model_was_made_is_read_or_named(folder, content):
    """In an earlier version, a list instead of keys raised a traceback at the end of a study."""
    (folder / "model.json").write_bytes(content)
    with pytest.raises(SettingsError, match=r"model\.json is damaged: "):
        read_about(folder, num_classes=int)


@pytest.mark.parametrize("cut", [-1, -20, 77])
def test_checksums_that_are_cut_short_are_damage(folder, cut):
    """A file that is cut at the end of a line is damaged, too.

    An earlier version took it for the checksums of a folder without a result.
    """
    (folder / "a.safetensors").write_bytes(b"1")
    write_result(folder, ROWS, [])
    whole = (folder / SUMS).read_text()
    (folder / SUMS).write_text(whole[: whole.index("\n") + 1] if cut > 0 else whole[:cut])
    put_aside_damaged(folder)
    assert not is_done(folder)
    assert (folder / f"{SUMS}.damaged").exists()


def test_a_whole_result_stays(folder):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    put_aside_damaged(folder)
    assert is_done(folder)
    assert read_result(folder) == {"rows": ROWS, "rounds": []}
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_result_without_its_checksum_is_damaged(folder):
    (folder / SUMS).unlink()
    with pytest.raises(SettingsError, match="its checksum is not the one in SHA256SUMS"):
        read_result(folder)
    put_aside_damaged(folder)
    assert not (folder / RESULT).exists()
    assert (folder / f"{RESULT}.damaged").exists()


def test_a_process_that_died_before_the_result_leaves_a_stage_to_be_made(folder):
    (folder / RESULT).unlink()
    put_aside_damaged(folder)
    assert not is_done(folder)
    write_result(folder, ROWS, [])
    assert read_result(folder)["rows"] == ROWS


def test_what_was_damaged_is_made_again_with_the_same_bytes(tiny_settings, caplog):
    """The test damages a task's result and the weights of a start.

    A single changed bit in these files would change the report.
    """
    settings = replace(tiny_settings, method="fedavg", tasks=1, rounds=1, task_rounds=1)
    grid = LocalGrid(app, 1, settings.to_config())
    folder = run_study(grid, build(settings))
    study, store = build(settings), Store(folder, Layout.PATH)
    files = [folder / "tasks/0/fedavg" / RESULT, folder / "starts/fedavg/model.safetensors"]
    before = [file.read_bytes() for file in files]
    for file in files:
        flip(file, -3)
    for stage in study.stages:
        run_stage(stage, grid, store, Progress(2))
    assert [file.read_bytes() for file in files] == before
    assert all(file.with_name(f"{file.name}.damaged").exists() for file in files)
    lines = [line for line in caplog.messages if "renamed to NAME.damaged" in line]
    assert [line.rpartition("; renamed")[0] for line in lines] == [
        f"{folder}/starts/fedavg: damaged: model.safetensors",
        f"{folder}/tasks/0/fedavg: damaged: result.json",
    ]


def test_a_damaged_result_beside_its_last_checkpoint_is_made_again(tiny_settings, monkeypatch):
    """In an earlier version the damaged result was renamed, but never made again.

    After the last checkpoint there was no round left that writes the result.
    """
    settings = replace(tiny_settings, method="fedavg", rounds=2, tasks=0)

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Pretraining, "problem", kill)  # Called after the last checkpoint.
        with pytest.raises(Killed):
            run_study(LocalGrid(app, 1, settings.to_config()), build(settings))
    start = Path(settings.output_dir) / "tiny" / "starts" / "fedavg"
    before = (start / RESULT).read_bytes()
    assert (start / CHECKPOINT).exists()
    flip(start / RESULT, -3)
    run_study(LocalGrid(app, 1, settings.to_config()), build(settings))
    assert (start / RESULT).read_bytes() == before
    assert not list(start.glob(f"{CHECKPOINT}*"))


@pytest.mark.parametrize("place", ["tiny", f"tiny/{LOCK}", "tiny/starts", "tiny/starts/random"])
def test_a_study_writes_through_no_link(place, tiny_settings, tmp_path):
    settings = replace(tiny_settings, method="random", tasks=0)
    grid = LocalGrid(app, 1, settings.to_config())
    outputs = run_study(grid, build(settings)).parent
    (written,) = outputs.glob(place)
    written.rename(tmp_path / "elsewhere")
    written.symlink_to(tmp_path / "elsewhere")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}
    with pytest.raises(
        SettingsError, match=f"{written.name} is a symbolic link, through which coprefl"
    ):
        run_study(grid, build(settings))
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files} == before


def test_a_study_does_not_run_in_a_folder_of_other_files(tiny_settings, tmp_path):
    settings = replace(tiny_settings, method="random", tasks=0)
    folder = tmp_path / "outputs" / "tiny"
    names = ["summary.md", "rows.jsonl", "features/0-train.npy", "llama.partial", ".a.part"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"mine")
    with pytest.raises(SettingsError, match=r"run-name = tiny: .* coprefl did not write"):
        run_study(LocalGrid(app, 1, settings.to_config()), build(settings))
    files = [file for file in tmp_path.rglob("*") if file.is_file() and "outputs" in file.parts]
    assert {str(file.relative_to(folder)) for file in files} == set(names)
    assert {file.read_bytes() for file in files} == {b"mine"}


def test_two_studies_of_one_name_and_what_a_killed_one_left(tiny_settings):
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


def test_a_folder_that_may_not_be_written_to(tiny_settings, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(SettingsError, match=r"^output-dir: /.* is not writable$"):
        run_study(LocalGrid(app, 1, tiny_settings.to_config()), build(tiny_settings))


def test_no_message_says_where_a_client_keeps_files(tiny_settings, tmp_path):
    """The client's run-config or the node's config sets the folder.

    A path in a message that leads out of this folder is refused.
    """
    settings = replace(tiny_settings, method="scaffold", rounds=2, tasks=0, participants=6)
    seen, states = [], []

    class Watching(LocalGrid):
        def _handle(self, message):
            seen.append(dict(message.content.config_records.get("config", {})))
            reply = super()._handle(message)
            states.extend(tmp_path.rglob("*/client-state/**/*.safetensors"))
            return reply

    grid = Watching(app, 1, settings.to_config())
    folder = run_study(grid, build(settings))
    named = [config["folder"] for config in seen if "folder" in config]
    assert set(named) == {"tiny/starts/scaffold"}
    assert not any(str(tmp_path) in str(value) for config in seen for value in config.values())
    assert {path.relative_to(folder).parts[:3] for path in states} == {
        ("starts", "scaffold", "client-state")
    }
    study = build(settings)
    config = {"population": "pretrain", "stage": "starts/scaffold", "server-round": 1}
    for wrong in ("/tmp/x", "../x", "tiny/../../x", ""):
        with pytest.raises(SettingsError, match="cannot name a folder of this node"):
            study.client(None, 0, config | {"folder": wrong})


def test_a_node_says_itself_where_its_clients_keep_files(tiny_settings, tmp_path):
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
