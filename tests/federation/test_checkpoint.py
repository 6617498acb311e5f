"""Checkpoints: a killed and resumed run ends with the bytes of an uninterrupted run."""

import contextlib
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import MetricRecord

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.errors import SettingsError
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


def test_unwritable_checkpoint_path_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "checkpoint"
    with pytest.raises(SettingsError, match=r"/file: File exists"):
        FedAvg(clients=4).start(LocalGrid(None), to_record({}), 2, checkpoint=path)


def checkpoint():
    return Checkpoint(
        round=3,
        arrays={"z": np.float32([1.5]), "a": np.array(7, np.int64)},
        state={"query-loss": 0.1 + 0.2, "variates": {"w": np.float64([1, 2])}},
        history=History(train={1: {"loss": 1 / 3}}, traffic={1: {"models-up": 2.5}}),
        options={"strategy": "FedAvg"},
        versions={11: "3-0", 4: "2-1"},
        bound={11: 2**64 - 5},  # Flower draws ids of nodes below 2^64.
        most_clients=7,
    )


def test_checkpoint_is_read_as_it_was_written(tmp_path):
    write_checkpoint(tmp_path / "c", checkpoint())
    back = read_checkpoint(tmp_path / "c")
    assert list(back.arrays) == ["z", "a"]
    assert back.arrays["a"].shape == ()
    assert back.arrays["a"].dtype == np.int64
    assert back.state["query-loss"] == 0.1 + 0.2
    np.testing.assert_array_equal(back.state["variates"]["w"], [1.0, 2.0])
    assert back.history.train == {1: {"loss": 1 / 3}}
    assert back.history.traffic == {1: {"models-up": 2.5}}
    assert back.versions == {11: "3-0", 4: "2-1"}
    assert back.bound == {11: 2**64 - 5}
    assert back.most_clients == 7
    assert back.round == 3


def test_history_by_round():
    history = History(
        train={2: {"loss": 0.5}, 1: {"loss": 0.7}},
        evaluate={2: {"accuracy": 0.4}},
        server={0: {"accuracy": 0.1}, 2: {"accuracy": 0.3}},
        traffic={2: {"models-up": 4.0}},
    )
    assert list(history.rounds()) == [1, 2]
    assert history.of_round(1) == {"loss": 0.7}
    assert history.rounds()[2] == {
        "loss": 0.5,
        "models-up": 4.0,
        "evaluate-accuracy": 0.4,
        "server-accuracy": 0.3,
    }
    assert history.train[2] == {"loss": 0.5}


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
    with pytest.raises(SettingsError, match=r"num_rounds = 1: .* has round 2 already"):
        FedAvg(seed=1).start(grid, start, 1, checkpoint=path, resume=True)
    with pytest.raises(SettingsError, match="resume = True: set checkpoint, the file"):
        FedAvg().start(grid, start, 1, resume=True)
    assert path.read_bytes() == before


@dataclass(kw_only=True, eq=False)
class Layered(FedAvg):
    """A user's method with an option that is neither a number nor a text."""

    layers: Any = ()

    def round(self, ctx, arrays):
        return arrays, {}
        yield


def start_layered(layers, folder, rounds, resume=False):
    arrays = to_record({"w": np.zeros(2, np.float32)})
    return Layered(layers=layers, evaluate_every=0).start(
        LocalGrid(None), arrays, rounds, checkpoint=folder / "file", resume=resume
    )


@pytest.mark.parametrize("layers", [("a", "b"), {"first": (1, 2)}, {1: 0.5}])
def test_options_are_compared_as_json_returns_them(tmp_path, layers):
    """JSON gives back a tuple as a list, and a number that is a key as a text."""
    start_layered(layers, tmp_path, 1)
    start_layered(layers, tmp_path, 2, resume=True)
    assert read_checkpoint(tmp_path / "file").round == 2
    with pytest.raises(SettingsError, match="is a checkpoint of another run: its layers is"):
        start_layered(("other",), tmp_path, 3, resume=True)


def test_option_that_no_checkpoint_can_hold_is_refused_at_the_start(tmp_path):
    with pytest.raises(SettingsError, match="cannot be written into a checkpoint"):
        start_layered((Path("layers"),), tmp_path, 1)
    assert not (tmp_path / "file").exists()


# ---- the history's file -------------------------------------------------------------------------


NAMES = ("checkpoint.safetensors", "checkpoint.safetensors.rounds.jsonl")


def history_of(rounds):
    """Return a history of this many rounds with about as many metrics as in a study."""
    names = [f"metric-{number}" for number in range(8)]
    metrics = dict.fromkeys(names, 1 / 3)
    return History(*({number: dict(metrics) for number in range(1, rounds + 1)} for _ in range(4)))


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


def test_checkpoint_writes_each_round_once(tmp_path, monkeypatch):
    """After 1000 rounds a checkpoint writes as much JSON as after 10; all rounds are read back."""
    lengths, real = [], json.dumps

    def counted(*arguments, **more):
        text = real(*arguments, **more)
        lengths.append(len(text))
        return text

    monkeypatch.setattr(json, "dumps", counted)
    sizes, history, path = {}, history_of(1000), tmp_path / "c"
    checkpoint = Checkpoint(9, {"a": np.zeros(2)}, {}, history, {})
    for checkpoint.round in (9, 10, 999, 1000):
        lengths.clear()
        write_checkpoint(path, checkpoint)
        sizes[checkpoint.round] = sum(lengths)
    assert sizes[1000] <= 1.2 * sizes[10]
    assert read_checkpoint(path).history == history


def kill_between_history_and_checkpoint(folder, monkeypatch, number):
    """Run, and stop just before checkpoint `number` is put at its path."""
    writes, replace = iter(range(number - 1)), os.replace

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
    """The lines of the history are written before the checkpoint.

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


def test_new_run_replaces_an_old_history(tmp_path):
    run(tmp_path / "whole", rounds=2)
    run(tmp_path / "part", rounds=4)
    (tmp_path / "part" / NAMES[0]).unlink()
    run(tmp_path / "part", rounds=2)
    assert files(tmp_path / "part") == files(tmp_path / "whole")


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
    assert line.startswith(f"{tmp_path / NAMES[0]} is not a complete checkpoint of this package: ")
    assert line.endswith("; remove this file and its history to start again")
    assert files(tmp_path) == before
