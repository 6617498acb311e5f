"""What every round measured, as a checkpoint holds it."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from coprefl_flwr.checksums import sealed
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.rounds.checkpoint import Checkpoint, History, read_checkpoint, write_checkpoint


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
