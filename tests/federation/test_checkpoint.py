"""A run that was killed and resumed ends with the bytes of one that was not."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import MetricRecord
from safetensors import safe_open
from safetensors.numpy import save

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.checksums import sealed
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.checkpoint import (
    Checkpoint,
    History,
    read_checkpoint,
    write_checkpoint,
)
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL, FedAvg
from tests.common.checks import Killed, flip
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
    whole, _ = run()
    with pytest.raises(Killed):
        run(tmp_path, kill_after=kill_after)
    resumed, evaluated = run(tmp_path, resume=True)
    kept = (kill_after - 1) // 2 * 2  # The hook of a round runs before its checkpoint is written.
    assert evaluated == ([0] if kept == 0 else []) + list(range(kept + 1, 7))
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
    """SIGKILL in round 5: the checkpoint of round 4 is whole, and rounds 5 and 6 are run again."""
    killed = subprocess.run(
        # As many threads as here: the order of a sum is theirs.
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


def checkpoint():
    return Checkpoint(
        round=3,
        arrays={"z": np.float32([1.5]), "a": np.array(7, np.int64)},
        state={"query-loss": 0.1 + 0.2, "variates": {"w": np.float64([1, 2])}},
        history=History(train={1: {"loss": 1 / 3}}, traffic={1: {"models-up": 2.5}}),
        options={"strategy": "FedAvg"},
        versions={11: "3-0", 4: "2-1"},
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
    with pytest.raises(SettingsError, match="another run: its seed is 1, here it is 2"):
        FedAvg(seed=2).start(grid, start, 2, checkpoint=path, resume=True)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "c").write_bytes(b"something else")
    with pytest.raises(SettingsError, match="is not a checkpoint of this package"):
        read_checkpoint(tmp_path / "c")


def test_a_checkpoint_is_not_lost_by_oversight(tmp_path, federation):
    start, path = to_record(federation.arrays()), tmp_path / "c"
    grid = LocalGrid(federation.torch_app())
    FedAvg(clients=4).start(grid, start, 2, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="is there already: resume it, or name another"):
        FedAvg().start(grid, start, 2, checkpoint=path)
    with pytest.raises(SettingsError, match=r"num_rounds = 1: .* is of round 2 already"):
        FedAvg().start(grid, start, 1, checkpoint=path, resume=True)
    with pytest.raises(SettingsError, match="resume = True: needs the checkpoint"):
        FedAvg().start(grid, start, 1, resume=True)
    assert path.read_bytes() == before


@dataclass(kw_only=True, eq=False)
class Layered(FedAvg):
    """A user's method with an option that is no single number or text."""

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
    """A tuple comes back as a list, and a number that is a key as a text."""
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
        f"layers = {layers!r}: cannot be written into a checkpoint, which takes numbers, texts, "
        "lists and mappings of them"
    )
    assert not (tmp_path / "file").exists()


def test_every_flipped_bit_of_a_checkpoint_is_found(tmp_path):
    """Also one of a weight, which the format itself does not notice; there is one line."""
    path = tmp_path / "checkpoint.safetensors"
    kept = Checkpoint(2, {"a": np.float32([4, 0])}, {"s": 1.5}, History(), {}, {})
    write_checkpoint(path, kept)
    whole = path.read_bytes()
    weight = whole.index(np.float32([4, 0]).tobytes()) + 3
    places = [weight, len(whole) - 1, whole.index(b"1.5"), whole.index(b"F32"), *range(8, 200, 7)]
    for position in places:
        flip(path, position, 1)
        with pytest.raises(SettingsError) as caught:
            read_checkpoint(path)
        line = str(caught.value)
        assert line.startswith(f"{path} is not a checkpoint of this package: "), position
        assert line.endswith("; remove it to begin anew")
        assert "\n" not in line
        flip(path, position, 1)
    assert read_checkpoint(path).arrays["a"][0] == 4
    for content in (b"", b"null", whole[:50]):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match="is not a checkpoint of this package"):
            read_checkpoint(path)


def history_of(rounds):
    """Return the history of so many rounds of what a study measures."""
    names = [f"metric-{number}" for number in range(8)]
    one = dict.fromkeys(names, 1 / 3)
    return History(*({number: dict(one) for number in range(1, rounds + 1)} for _ in range(4)))


def test_a_checkpoint_writes_down_no_round_twice(tmp_path, monkeypatch):
    """After a thousand rounds it makes as much JSON as after ten; all of it comes back."""
    made, real = [], json.dumps

    def counted(*arguments, **more):
        text = real(*arguments, **more)
        made.append(len(text))
        return text

    monkeypatch.setattr(json, "dumps", counted)
    sizes, history, path = {}, history_of(1000), tmp_path / "c"
    for number in (9, 10, 999, 1000):
        made.clear()
        write_checkpoint(path, Checkpoint(number, {"a": np.zeros(2)}, {}, history, {}, {}))
        sizes[number] = sum(made)
    assert sizes[1000] <= 1.2 * sizes[10]
    assert read_checkpoint(path).history == history


@pytest.mark.parametrize(("at", "rounds"), [(4, 6), (62, 63), (63, 64), (70, 200)])
def test_a_resumed_run_writes_the_same_history(at, rounds, tmp_path):
    """Whatever blocks of rounds were compressed before and after it was interrupted."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    write_checkpoint(whole, Checkpoint(rounds, {}, {}, history_of(rounds), {}, {}))
    write_checkpoint(part, Checkpoint(at, {}, {}, history_of(rounds), {}, {}))
    resumed = read_checkpoint(part).history
    assert resumed == history_of(at)
    of_all = vars(history_of(rounds)).values()
    for of_rounds, more in zip(vars(resumed).values(), of_all, strict=True):
        if isinstance(more, dict):
            of_rounds |= {number: metrics for number, metrics in more.items() if number > at}
    write_checkpoint(part, Checkpoint(rounds, {}, {}, resumed, {}, {}))
    assert part.read_bytes() == whole.read_bytes()


def test_a_history_grows_by_little_with_the_rounds():
    """So that round 1,000's checkpoint takes no longer than round 10's; no block is lost."""
    history = history_of(1000)
    assert len(history.lines(1000)) < 0.2 * 1000 * len(history_of(1).lines(1))
    assert History.from_lines(history.lines(1000), 1000) == history


def test_a_damaged_block_of_a_history_is_told(tmp_path):
    """Also where the checksum fits it."""
    path = tmp_path / "c"
    write_checkpoint(path, Checkpoint(64, {}, {}, history_of(64), {}, {}))
    with safe_open(path, framework="numpy") as file:
        text = file.metadata()["checkpoint"].partition(" ")[2]
        damaged = file.get_tensor("history").copy()
    damaged[20] ^= 255
    entry = sealed({"history": damaged}, text)
    path.write_bytes(save({"history": damaged}, {"checkpoint": entry}))
    with pytest.raises(SettingsError, match="c is not a checkpoint of this package"):
        read_checkpoint(path)
