"""A run that was killed and resumed ends with the same bytes as a run that was not killed."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
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


@pytest.mark.parametrize("kill_after", [1, 3, 4, 5])
def test_resumed_run_ends_with_identical_bytes(tmp_path, kill_after):
    whole, _ = run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "part", kill_after=kill_after)
    resumed, evaluated = run(tmp_path / "part", resume=True)
    assert files(tmp_path / "part") == files(tmp_path / "whole")
    checkpointed = (
        (kill_after - 1) // 2 * 2
    )  # The hook of a round runs before its checkpoint is written.
    assert evaluated == ([0] if checkpointed == 0 else []) + list(range(checkpointed + 1, 7))
    for name, array in from_record(whole.arrays).items():
        assert array.tobytes() == from_record(resumed.arrays)[name].tobytes(), name
    assert whole.train_metrics_clientapp == resumed.train_metrics_clientapp
    assert whole.evaluate_metrics_clientapp == resumed.evaluate_metrics_clientapp
    assert whole.evaluate_metrics_serverapp == resumed.evaluate_metrics_serverapp


SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
from coprefl_flwr.arrays import to_record
from coprefl_flwr.grids import LocalGrid
from tests.federation.test_checkpoint import strategy
from tests.common.federation import Federation

def hook(report):
    if report.round == 5:
        os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(int(sys.argv[2]))
federation = Federation.stochastic()
strategy().start(
    LocalGrid(federation.coprefl_app(), nodes=2), to_record(federation.arrays()), 6,
    checkpoint=Path(sys.argv[1]) / "checkpoint.safetensors", checkpoint_every=2, hooks=[hook],
)
"""


def test_a_killed_process_is_resumed_to_identical_bytes(tmp_path):
    """After SIGKILL in round 5, the checkpoint of round 4 is complete.

    The resumed run executes rounds 5 and 6.
    """
    killed = subprocess.run(
        # As many threads as in this process: they determine the order of sums.
        [sys.executable, "-c", SCRIPT, tmp_path, str(torch.get_num_threads())],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=120,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert read_checkpoint(tmp_path / "checkpoint.safetensors").round == 4
    whole, _ = run()
    resumed, evaluated = run(tmp_path, resume=True)
    assert evaluated == [5, 6]
    for name, array in from_record(whole.arrays).items():
        assert array.tobytes() == from_record(resumed.arrays)[name].tobytes(), name


def test_resuming_a_finished_run_returns_its_result(tmp_path):
    whole, _ = run(tmp_path)
    again, evaluated = run(tmp_path, resume=True)
    assert evaluated == []
    assert from_record(again.arrays)["1.weight"].tobytes() == (
        from_record(whole.arrays)["1.weight"].tobytes()
    )
    assert again.train_metrics_clientapp == whole.train_metrics_clientapp


def test_one_run_at_a_time_writes_a_checkpoint(tmp_path):
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
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, f"{path.name}.rounds.jsonl"]


def test_a_checkpoint_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "checkpoint"
    with pytest.raises(SettingsError, match=r"checkpoint = .*file is a file, not a folder"):
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


def test_everything_comes_back(tmp_path):
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


def test_an_interrupted_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "c"
    write_checkpoint(path, checkpoint())
    before = path.read_bytes()

    def stop(descriptor):
        raise Killed

    monkeypatch.setattr("os.fsync", stop)
    with pytest.raises(Killed):
        write_checkpoint(path, checkpoint())
    assert path.read_bytes() == before
    assert read_checkpoint(path).history == checkpoint().history


def test_a_checkpoint_of_another_model_is_refused(tmp_path, federation):
    write_checkpoint(tmp_path / "c", checkpoint())
    grid = LocalGrid(federation.torch_app())
    with pytest.raises(SettingsError, match="is a checkpoint of another model: array 'z'"):
        FedAvg().start(
            grid, to_record(federation.arrays()), 1, checkpoint=tmp_path / "c", resume=True
        )


def test_a_checkpoint_of_other_options_is_refused(tmp_path, federation):
    grid = LocalGrid(federation.torch_app())
    start, path = to_record(federation.arrays()), tmp_path / "c"
    FedAvg(seed=1, clients=4).start(grid, start, 1, checkpoint=path)
    with pytest.raises(SettingsError, match="another run: its seed is 1, not 2"):
        FedAvg(seed=2).start(grid, start, 2, checkpoint=path, resume=True)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "c").write_bytes(b"something else")
    with pytest.raises(SettingsError, match="is not a complete checkpoint of this package"):
        read_checkpoint(tmp_path / "c")


def test_a_checkpoint_is_not_lost_by_oversight(tmp_path, federation):
    start, path = to_record(federation.arrays()), tmp_path / "c"
    grid = LocalGrid(federation.torch_app())
    FedAvg(clients=4).start(grid, start, 2, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="exists already: set resume = True, or another path"):
        FedAvg().start(grid, start, 2, checkpoint=path)
    with pytest.raises(SettingsError, match=r"num_rounds = 1: .* has round 2 already"):
        FedAvg().start(grid, start, 1, checkpoint=path, resume=True)
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
def test_options_are_compared_as_json_gives_them_back(tmp_path, layers):
    """JSON gives back a tuple as a list, and a number that is a key as a text."""
    start_layered(layers, tmp_path, 1)
    start_layered(layers, tmp_path, 2, resume=True)
    assert read_checkpoint(tmp_path / "file").round == 2
    with pytest.raises(SettingsError, match="is a checkpoint of another run: its layers is"):
        start_layered(("other",), tmp_path, 3, resume=True)


@pytest.mark.parametrize("layers", [Path("layers"), (Path("layers"),), {1, 2}])
def test_an_option_that_no_checkpoint_can_hold_is_refused_at_the_start(tmp_path, layers):
    with pytest.raises(SettingsError) as caught:
        start_layered(layers, tmp_path, 1)
    assert str(caught.value) == (
        f"layers = {layers!r}: cannot be written into a checkpoint; allowed are numbers, texts, "
        "and lists and mappings of them"
    )
    assert not (tmp_path / "file").exists()


def test_every_flipped_bit_of_a_checkpoint_is_found(tmp_path):
    """This includes a bit of a weight, which safetensors does not detect. The error is one line."""
    path = tmp_path / "checkpoint.safetensors"
    checkpoint = Checkpoint(2, {"a": np.float32([4, 0])}, {"s": 1.5}, History(), {}, {})
    write_checkpoint(path, checkpoint)
    whole = path.read_bytes()
    weight = whole.index(np.float32([4, 0]).tobytes()) + 3
    places = [weight, len(whole) - 1, whole.index(b"1.5"), whole.index(b"F32"), *range(8, 200, 7)]
    for position in places:
        flip(path, position, 1)
        with pytest.raises(SettingsError) as caught:
            read_checkpoint(path)
        line = str(caught.value)
        assert line.startswith(f"{path} is not a complete checkpoint of this package: "), position
        assert line.endswith("; remove this file and its history to start again")
        assert "\n" not in line
        flip(path, position, 1)
    assert read_checkpoint(path).arrays["a"][0] == 4
    for content in (b"", b"null", whole[:50]):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match="is not a complete checkpoint of this package"):
            read_checkpoint(path)


# ---- the history's file -------------------------------------------------------------------------


NAMES = ("checkpoint.safetensors", "checkpoint.safetensors.rounds.jsonl")


def history_of(rounds):
    """Return a history of this many rounds with about as many metrics as in a study."""
    names = [f"metric-{number}" for number in range(8)]
    metrics = dict.fromkeys(names, 1 / 3)
    return History(*({number: dict(metrics) for number in range(1, rounds + 1)} for _ in range(4)))


def test_a_history_is_read_as_a_table(tmp_path):
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


def test_metrics_that_are_not_finite_come_back(tmp_path):
    history = History(train={1: {"loss": float("nan"), "most": float("inf"), "some": [1.5, 2.0]}})
    write_checkpoint(tmp_path / "c", Checkpoint(1, {}, {}, history, {}))
    assert str(read_checkpoint(tmp_path / "c").history) == str(history)
    assert pd.read_json(tmp_path / "c.rounds.jsonl", lines=True)["train"][0]["some"] == [1.5, 2]


def test_a_checkpoint_writes_down_no_round_twice(tmp_path, monkeypatch):
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


def killed_between_history_and_checkpoint(folder, monkeypatch, number):
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


@pytest.mark.parametrize("number", [1, 2, 3])
def test_killed_between_a_history_and_its_checkpoint(number, tmp_path, monkeypatch):
    """The lines of the history are written before the checkpoint.

    The last checkpoint does not cover the new lines, so the resumed run removes them.
    """
    run(tmp_path / "whole")
    part = tmp_path / "part"
    killed_between_history_and_checkpoint(part, monkeypatch, number)
    lines = (part / NAMES[1]).read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(2 * number + 1))
    with (part / NAMES[1]).open("ab") as file:
        file.write(b"half a li")
    run(part, resume=True)
    assert files(part) == files(tmp_path / "whole")


def test_a_resumed_run_without_further_rounds_cuts_its_history_too(tmp_path, monkeypatch):
    run(tmp_path / "whole", rounds=2)
    killed_between_history_and_checkpoint(tmp_path / "part", monkeypatch, 2)
    run(tmp_path / "part", resume=True, rounds=2)
    assert files(tmp_path / "part") == files(tmp_path / "whole")


def test_a_new_run_begins_its_history_anew(tmp_path):
    run(tmp_path / "whole", rounds=2)
    run(tmp_path / "part", rounds=4)
    (tmp_path / "part" / NAMES[0]).unlink()
    run(tmp_path / "part", rounds=2)
    assert files(tmp_path / "part") == files(tmp_path / "whole")


DAMAGES = {
    "missing": lambda file: file.unlink(),
    "cut": lambda file: os.truncate(file, file.stat().st_size - 1),
    "empty": lambda file: file.write_bytes(b""),
    "other": lambda file: file.write_bytes(file.read_bytes().replace(b"1", b"2", 1)),
    "flipped": lambda file: flip(file, -5),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_history_is_refused_in_one_line(damage, tmp_path):
    run(tmp_path, rounds=2)
    path = tmp_path / NAMES[0]
    DAMAGES[damage](tmp_path / NAMES[1])
    before = files(tmp_path)
    line = refusal(run, tmp_path, resume=True)
    assert line.startswith(f"{path} is not a complete checkpoint of this package: ")
    assert NAMES[1] in line
    assert line.endswith("; remove this file and its history to start again")
    assert files(tmp_path) == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("mine")])
def test_a_history_is_written_to_a_regular_file_alone(put, resume, tmp_path):
    """A link may point to any file of the user, and reading a pipe may never end."""
    (tmp_path / "mine").write_text("mine")
    if resume:
        run(tmp_path, rounds=2)
        (tmp_path / NAMES[1]).unlink()
    put(tmp_path / NAMES[1])
    before = files(tmp_path)
    line = refusal(run, tmp_path, resume=resume)
    assert line == f"{tmp_path / NAMES[1]} is not a regular file: move it away"
    assert files(tmp_path) == before
