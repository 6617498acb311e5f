"""A client's state files: which file is read, which files are removed, and their folders."""

import os
import re

import numpy as np
import pytest
from safetensors.numpy import save

from coprefl_flwr.errors import SettingsError, printable
from coprefl_flwr.federation.client_state import ClientState
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


def test_what_is_written_later_does_not_change_what_was_read(tmp_path):
    state = ClientState(tmp_path)
    write(state, 1)
    arrays = state.read(request(2, version="1-0"))
    arrays["a"] += 5
    np.testing.assert_array_equal(state.read(request(2, version="1-0"))["a"], [1, 0])


def test_old_files_are_dropped_but_not_those_that_may_be_asked_for(tmp_path):
    """The checkpoint is of round 2; the run may go back to the state of round 2 only."""
    state = ClientState(tmp_path)
    write(state, 1)
    write(state, 2, version="1-0")
    assert versions(tmp_path) == ["1-0", "2-0"]
    write(state, 3, version="2-0", at_checkpoint="2-0")
    assert versions(tmp_path) == ["2-0", "3-0"]
    write(state, 10, version="3-0", at_checkpoint="2-0")
    assert versions(tmp_path) == ["10-0", "2-0", "3-0"]
    write(state, 10, attempt=1, version="3-0", at_checkpoint="2-0")
    write(state, 11, version="10-1", at_checkpoint="2-0")
    assert versions(tmp_path) == ["10-1", "11-0", "2-0"]
    write(state, 12, version="11-0", at_checkpoint="11-0")
    assert versions(tmp_path) == ["11-0", "12-0"]


def test_a_late_writer_deletes_nothing_newer(tmp_path):
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


def test_what_a_killed_client_was_writing_is_removed(tmp_path):
    state = ClientState(tmp_path)
    write(state, 1)
    unfinished = tmp_path / "r" / "p" / "0" / ".2-0.safetensors.77.coprefl-part"
    unfinished.touch()
    os.utime(unfinished, (0, 0))
    write(state, 2)
    assert not unfinished.exists()


def test_files_of_others_stay(tmp_path):
    state = ClientState(tmp_path)
    write(state, 1)
    for name in ("model.safetensors", "notes"):
        (tmp_path / "r" / "p" / "0" / name).write_bytes(b"mine")
    write(state, 2)
    assert versions(tmp_path) == ["2-0", "model", "notes"]


def test_runs_populations_and_clients_do_not_mix(tmp_path):
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


@pytest.mark.parametrize("damage", ["lost", "cut", "other", "empty", "flipped", "unsealed"])
def test_a_lost_or_damaged_state_is_one_clear_line(tmp_path, damage):
    state = ClientState(tmp_path)
    write(state, 4)
    file = tmp_path / "r" / "p" / "0" / "4-0.safetensors"
    if damage == "lost":
        file.unlink()
    elif damage == "flipped":  # A bit of the first number, which the format does not notice.
        flip(file, file.read_bytes().index(np.float32([4, 0]).tobytes()) + 3, 1)
    elif damage == "unsealed":
        file.write_bytes(save({"a": np.float32([1, 2])}))
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        file.write_bytes(file.read_bytes()[:30] if damage == "cut" else b"something else entirely")
    with pytest.raises(SettingsError) as caught:
        state.read(request(5, version="4-0"))
    assert str(caught.value) == f"this client's state of round 4 is lost or damaged: {file}"


@pytest.mark.parametrize("name", ["run", "population", "client", "state-version"])
@pytest.mark.parametrize("value", ["..", ".", "../x", "/etc/x", "a/b", "a\\b", "a\0b"])
def test_names_from_the_server_cannot_leave_the_folder(tmp_path, name, value):
    state = ClientState(tmp_path / "mine")
    config = {**request(2, version="1-0"), name: value}
    shown = re.escape(printable(value))
    line = f"^'{shown}' cannot name a folder of a client's state$"
    with pytest.raises(SettingsError, match=line):
        state.read(config)
    if name != "state-version":
        with pytest.raises(SettingsError, match=line):
            state.write(config, {"a": np.zeros(1)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["../../1", "x/../../y"])
def test_neither_round_nor_attempt_can(tmp_path, value):
    for name in ("server-round", "attempt"):
        with pytest.raises(SettingsError, match="cannot name a folder"):
            ClientState(tmp_path / "mine").write({**request(2), name: value}, {"a": np.zeros(1)})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_name_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"^'' cannot name a folder of a client's state$"):
        ClientState(tmp_path).write({"server-round": 1, "population": "p"}, {"a": np.zeros(1)})


@pytest.mark.parametrize(
    "array", [np.float32(2.5), np.arange(6.0).reshape(2, 3).T, np.zeros((0, 3)), np.array(True)]
)
def test_arrays_of_any_kind_come_back(tmp_path, array):
    state = ClientState(tmp_path)
    state.write(request(1), {"a": array})
    read = state.read(request(2, version="1-0"))["a"]
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(read, array)


def test_an_interrupted_write_leaves_the_old_state(tmp_path, monkeypatch):
    def stop(descriptor):
        raise KeyboardInterrupt

    state = ClientState(tmp_path)
    write(state, 1)
    monkeypatch.setattr("os.fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write(state, 2, version="1-0")
    assert versions(tmp_path) == ["1-0"]


def test_a_state_of_another_client_or_round_is_damage(tmp_path):
    """Before, an intact file at the path of another state was read as that state."""
    state = ClientState(tmp_path)
    write(state, 1)
    write(state, 2, version="1-0")
    first, second = (next(tmp_path.rglob(f"{name}.safetensors")) for name in ("1-0", "2-0"))
    second.write_bytes(first.read_bytes())
    assert state.read(request(2, version="1-0")) is not None
    with pytest.raises(SettingsError, match="this client's state of round 2 is lost or damaged"):
        state.read(request(3, version="2-0"))
