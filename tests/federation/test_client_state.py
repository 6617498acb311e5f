"""A client's state files: which file is read, which files are removed, and their folders."""

import os

import numpy as np
import pytest

from coprefl_flwr.arrays import write_sealed
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.client_state import ClientState, Versions
from tests.common.checks import flip


def request(server_round, attempt=0, version="", at_checkpoint="", **more):
    names = {"run": "r", "population": "p", "server-round": server_round, "attempt": attempt}
    return {**names, "state-version": version, "state-kept": at_checkpoint, **more}


def write(state, server_round, attempt=0, **more):
    config = request(server_round, attempt, **more)
    state.write(config, {"a": np.float32([server_round, attempt]), "b": np.array(7)})


def versions(folder, below="r/p/0"):
    return sorted(path.name.removesuffix(".safetensors") for path in (folder / below).iterdir())


def test_only_the_committed_state_is_read(tmp_path):
    state = ClientState(tmp_path)
    assert state.read(request(1)) is None
    assert state.read({"server-round": 1}) is None  # A server that does not know states.
    write(state, 1)
    write(state, 2, attempt=1, version="1-0")
    write(state, 2, attempt=0, version="1-0")
    for version, expected in (("1-0", [1, 0]), ("2-0", [2, 0]), ("2-1", [2, 1])):
        arrays = state.read(request(3, version=version))
        assert arrays["a"].dtype == np.float32
        np.testing.assert_array_equal(arrays["a"], expected)
        assert arrays["b"].shape == ()
        assert arrays["b"] == 7
    assert state.read(request(3)) is None


def test_states_that_no_run_can_need_are_removed(tmp_path):
    """The checkpoint is of round 2; the run may go back to the state of round 2 only."""
    state = ClientState(tmp_path)
    write(state, 1)
    write(state, 2, version="1-0")
    assert versions(tmp_path) == ["1-0", "2-0"]
    write(state, 3, version="2-0", at_checkpoint="2-0")
    assert versions(tmp_path) == ["2-0", "3-0"]
    write(state, 10, version="3-0", at_checkpoint="2-0")
    write(state, 10, attempt=1, version="3-0", at_checkpoint="2-0")
    write(state, 11, version="10-1", at_checkpoint="2-0")
    assert versions(tmp_path) == ["10-1", "11-0", "2-0"]
    write(state, 12, version="11-0", at_checkpoint="11-0")
    assert versions(tmp_path) == ["11-0", "12-0"]


def test_late_attempt_removes_no_newer_state(tmp_path):
    """The first attempt of round 3 writes its state after round 5 is over."""
    state = ClientState(tmp_path)
    write(state, 2)
    write(state, 3, attempt=1, version="2-0")
    write(state, 5, version="3-1", at_checkpoint="2-0")
    before = versions(tmp_path)
    write(state, 3, attempt=0, version="2-0")
    assert versions(tmp_path) == sorted([*before, "3-0"])
    np.testing.assert_array_equal(state.read(request(6, version="5-0"))["a"], [5, 0])
    write(state, 6, version="5-0", at_checkpoint="5-0")
    assert versions(tmp_path) == ["5-0", "6-0"]


def test_half_written_states_are_removed_and_files_of_others_are_kept(tmp_path):
    state = ClientState(tmp_path)
    write(state, 1)
    unfinished = tmp_path / "r" / "p" / "0" / ".2-0.safetensors.77.coprefl-part"
    for name in (unfinished.name, "model.safetensors", "notes"):
        unfinished.with_name(name).touch()
    os.utime(unfinished, (0, 0))
    write(state, 2)
    assert versions(tmp_path) == ["2-0", "model", "notes"]


def test_states_of_other_runs_populations_and_clients_are_not_read(tmp_path):
    """All states share a folder; a client without an id is client 0."""
    state, requests = ClientState(tmp_path), {}
    keys = [("r", "p", 0), ("r", "p", 12), ("r", "q", 0), ("s", "p", 0)]
    for number, (run, population, client) in enumerate(keys):
        names = {"run": run, "population": population, "client": client}
        state.write(request(1, **names), {"a": np.array(-1)})
        state.write(request(2, **names), {"a": np.array(number)})
        assert versions(tmp_path, f"{run}/{population}/{client}") == ["2-0"]
        requests[number] = request(3, version="2-0", **names)
    assert [state.read(config)["a"] for config in requests.values()] == [0, 1, 2, 3]
    assert state.read(request(3, version="2-0"))["a"] == 0
    for unknown in ({"run": "s", "population": "q"}, {"client": 1}):
        with pytest.raises(SettingsError, match="lost"):
            state.read(request(3, version="2-0", **unknown))


def test_states_of_a_run_with_checkpoints_survive_a_power_failure(tmp_path, monkeypatch):
    """Other runs cannot be resumed, so their clients do not wait for the disk."""
    synced, state = [], ClientState(tmp_path)
    monkeypatch.setattr("os.fsync", synced.append)
    write(state, 1)
    assert len(synced) == 1
    config = Versions({0: "1-0"}).of(0) | {"run": "r", "population": "p", "server-round": 2}
    state.write(config, state.read(config))
    assert len(synced) == 1
    assert versions(tmp_path) == ["1-0", "2-0"]


def test_state_that_an_earlier_release_wrote_is_read(tmp_path):
    write_sealed(tmp_path / "r" / "p" / "0" / "1-0.safetensors", {"a": np.arange(3)}, "")
    assert ClientState(tmp_path).read(request(2, version="1-0"))["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("damage", ["lost", "cut", "flipped"])
def test_lost_or_damaged_state_is_refused_in_one_line(tmp_path, damage):
    state = ClientState(tmp_path)
    write(state, 4)
    file = tmp_path / "r" / "p" / "0" / "4-0.safetensors"
    if damage == "lost":
        file.unlink()
    elif damage == "flipped":  # A bit of the first number, which the format does not notice.
        flip(file, file.read_bytes().index(np.float32([4, 0]).tobytes()) + 3, 1)
    else:
        file.write_bytes(file.read_bytes()[:30])
    with pytest.raises(SettingsError) as caught:
        state.read(request(5, version="4-0"))
    assert f"this client's state of round 4 is lost or damaged: {file}: " in str(caught.value)


@pytest.mark.parametrize("value", ["../x", "/etc/x"])
def test_names_from_the_server_cannot_leave_the_folder(tmp_path, value):
    state, line = ClientState(tmp_path / "mine"), "cannot name a folder of this node"
    for name in ("run", "population", "client", "state-version"):
        with pytest.raises(SettingsError, match=line):
            state.read({**request(2, version="1-0"), name: value})
    for name in ("run", "server-round", "attempt"):
        with pytest.raises(SettingsError, match=line):
            state.write({**request(2), name: value}, {"a": np.zeros(1)})
    assert list(tmp_path.iterdir()) == []
