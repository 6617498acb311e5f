"""Checkpoints: a killed and resumed run ends with the bytes of an uninterrupted run."""

import contextlib
import errno
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import MetricRecord

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.federation.checkpoint import (
    Checkpoint,
    History,
    read_checkpoint,
    write_checkpoint,
)
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL, FedAvg
from tests.common.checks import Killed, files, flip, refusal
from tests.common.federation import Federation


def strategy():
    return CoPreFL(participants=3, meta_learning_rate=0.1, seed=5, evaluate_every=2, clients=4)


def run(folder=None, kill_after=None, resume=False, rounds=6):
    federation = Federation.stochastic()
    grid = LocalGrid(federation.coprefl_app(), nodes=2)

    def hook(report):
        if report.round == kill_after:
            raise Killed

    evaluated = []

    def evaluate(server_round, arrays):
        evaluated.append(server_round)
        return MetricRecord({"norm": float(np.abs(from_record(arrays)["1.weight"]).sum())})

    result = strategy().start(
        grid,
        to_record(federation.arrays()),
        rounds,
        evaluate_fn=evaluate,
        checkpoint=folder / "checkpoint.safetensors" if folder else None,
        checkpoint_every=2,
        resume=resume,
        hooks=[hook],
    )
    return result, evaluated


@pytest.mark.parametrize("kill_after", [1, 3, 4, None])
def test_resumed_run_has_the_bytes_of_an_uninterrupted_run(tmp_path, kill_after):
    """The hook of a round runs before its checkpoint is written; None: the run had ended."""
    whole, _ = run(tmp_path / "whole")
    with pytest.raises(Killed) if kill_after else contextlib.nullcontext():
        run(tmp_path / "part", kill_after=kill_after)
    resumed, evaluated = run(tmp_path / "part", resume=True)
    assert files(tmp_path / "part") == files(tmp_path / "whole")
    first = {1: 0, 3: 3, 4: 3, None: 7}[kill_after]
    assert evaluated == list(range(first, 7))
    for name, array in from_record(whole.arrays).items():
        assert array.tobytes() == from_record(resumed.arrays)[name].tobytes(), name
    assert whole.train_metrics_clientapp == resumed.train_metrics_clientapp
    assert whole.evaluate_metrics_clientapp == resumed.evaluate_metrics_clientapp
    assert whole.evaluate_metrics_serverapp == resumed.evaluate_metrics_serverapp


def test_second_run_with_the_same_checkpoint_is_refused(tmp_path):
    """Before, two runs cut each other's history, and neither could resume."""
    path = tmp_path / "checkpoint.safetensors"
    refused = []

    def hook(report):
        with pytest.raises(SettingsError, match="another run is writing this file") as caught:
            FedAvg(clients=4).start(grid, initial, 3, checkpoint=path, resume=True)
        refused.append(caught.value)

    federation = Federation.stochastic()
    grid, initial = LocalGrid(federation.coprefl_app()), to_record(federation.arrays())
    FedAvg(clients=4).start(grid, initial, 2, checkpoint=path, hooks=[hook])
    assert len(refused) == 2
    names = [path.name, f"{path.name}.lock", f"{path.name}.rounds.jsonl"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_checkpoint_that_does_not_belong_to_the_run_is_refused_and_kept(tmp_path, federation):
    start, path = to_record(federation.arrays()), tmp_path / "c"
    grid = LocalGrid(federation.torch_app())
    FedAvg(clients=4, seed=1).start(grid, start, 2, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="another run: its seed is 1, not 2"):
        FedAvg(seed=2).start(grid, start, 3, checkpoint=path, resume=True)
    other = to_record({"z": np.zeros(1, np.float32)})
    with pytest.raises(SettingsError, match="is a checkpoint of another model: array"):
        FedAvg(seed=1).start(grid, other, 3, checkpoint=path, resume=True)
    with pytest.raises(SettingsError, match="exists already: set resume = True, or another path"):
        FedAvg().start(grid, start, 2, checkpoint=path)
    with pytest.raises(SettingsError, match=r"num_rounds: .* has round 2 already"):
        FedAvg(seed=1).start(grid, start, 1, checkpoint=path, resume=True)
    with pytest.raises(SettingsError, match="resume = True: set checkpoint, the file"):
        FedAvg().start(grid, start, 1, resume=True)
    assert path.read_bytes() == before


# ---- the history's file -------------------------------------------------------------------------


NAMES = ("checkpoint.safetensors", "checkpoint.safetensors.rounds.jsonl")


def test_history_file_is_a_table_of_rounds(tmp_path):
    """Each round is a line; round 0 has only the evaluation on the server."""
    result, _ = run(tmp_path)
    table = pd.read_json(tmp_path / NAMES[1], lines=True)
    assert list(table) == ["round", "server", "train", "traffic", "evaluate"]
    assert list(table["round"]) == [0, 1, 2, 3, 4, 5, 6]
    lines = (tmp_path / NAMES[1]).read_text().splitlines()
    assert json.loads(lines[2]) == {
        "round": 2,
        "train": dict(result.history.train[2]),
        "evaluate": dict(result.history.evaluate[2]),
        "server": dict(result.history.server[2]),
        "traffic": dict(result.history.traffic[2]),
    }


def test_metrics_that_are_not_finite_are_read_back(tmp_path):
    history = History(train={1: {"loss": float("nan"), "most": float("inf"), "some": [1.5, 2.0]}})
    write_checkpoint(tmp_path / "c", Checkpoint(1, {}, {}, history, {}))
    assert str(read_checkpoint(tmp_path / "c").history) == str(history)
    assert pd.read_json(tmp_path / "c.rounds.jsonl", lines=True)["train"][0]["some"] == [1.5, 2]


def kill_between_history_and_checkpoint(folder, monkeypatch, number):
    """Run, and stop just before checkpoint `number` is put at its path, after its history."""
    writes, replace = iter(range(2 * number - 1)), os.replace

    def dying(*arguments):
        if next(writes, None) is None:
            raise Killed
        replace(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(Killed):
            run(folder)


@pytest.mark.parametrize(("number", "rounds"), [(1, 6), (3, 6), (2, 2)])
def test_run_killed_between_history_and_checkpoint_resumes(number, rounds, tmp_path, monkeypatch):
    """The history is written before the checkpoint.

    The last checkpoint does not cover the new lines, so the resumed run removes them. It does
    so even if it has no further rounds.
    """
    run(tmp_path / "whole", rounds=rounds)
    part = tmp_path / "part"
    kill_between_history_and_checkpoint(part, monkeypatch, number)
    lines = (part / NAMES[1]).read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(2 * number + 1))
    with (part / NAMES[1]).open("ab") as file:
        file.write(b"half a li")
    run(part, resume=True, rounds=rounds)
    assert files(part) == files(tmp_path / "whole")


def test_full_disk_ends_a_run_in_one_line_and_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    run(tmp_path / "whole")
    part, replace = tmp_path / "part", os.replace

    def full(source, target):
        if Path(target).name == NAMES[0] and Path(target).exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(RunFailedError) as caught:
            run(part)
    line = f"round 4: {part / NAMES[0]} cannot be written: No space left on device"
    assert str(caught.value) == line
    run(part, resume=True)
    assert files(part) == files(tmp_path / "whole")


def cut(file):
    os.truncate(file, file.stat().st_size - 1)


def flip_a_bit(file):
    flip(file, -5)


@pytest.mark.parametrize(
    ("name", "damage"),
    [*itertools.product(NAMES, [cut, flip_a_bit]), (NAMES[1], Path.unlink)],
)
def test_damaged_checkpoint_or_history_is_refused_in_one_line(name, damage, tmp_path):
    run(tmp_path, rounds=2)
    damage(tmp_path / name)
    before = files(tmp_path)
    line = refusal(run, tmp_path, resume=True)
    assert line.startswith(f"{tmp_path / NAMES[0]} is not a complete checkpoint of this package ")
    assert "(remove it and its history to start again): " in line
    assert files(tmp_path) == before
