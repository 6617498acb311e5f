"""Files: half written, damaged, with names from other people, and locked by another process."""

import os
import subprocess
import sys
import time

import pytest

from coprefl_flwr.errors import SettingsError, excerpt, os_error_line
from coprefl_flwr.files import (
    MARK,
    SUMS,
    alone,
    damaged,
    expanded,
    inside,
    read_json,
    remove_unfinished,
    replace_files,
    write_atomically,
    write_sums,
)
from coprefl_flwr.plugins import check_allowed
from tests.common.checks import flip, refusal


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000], ids=excerpt
)
def test_what_is_no_json_is_one_line_with_the_files_name(tmp_path, content):
    file = tmp_path / "a.json"
    file.write_bytes(content)
    assert refusal(read_json, file).startswith(f"{file} is damaged: ")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SettingsError, match=r"a\.json cannot be read: No such file"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "/", "/etc", "a/../b", "../a", "a//b", "a/", "a\\b", "C:x", "a\0b", "a" * 256],
    ids=excerpt,
)
def test_a_name_of_somebody_elses_stays_in_the_folder(tmp_path, name):
    with pytest.raises(SettingsError, match="cannot name a folder of this node"):
        inside(tmp_path, name)


def test_a_good_name(tmp_path):
    assert inside(tmp_path, "run-1/starts/coprefl=0.5") == tmp_path / "run-1/starts/coprefl=0.5"


def test_what_killed_processes_were_writing_is_removed(tmp_path):
    (tmp_path / "below").mkdir()
    below = tmp_path / "below"
    unfinished = [tmp_path / ".a.json.77.coprefl-part", below / ".b.safetensors.8.coprefl-part"]
    names = ("a.part.json", ".a.part", ".a.7.part", "llama.gguf.partial", "a.7.coprefl-part")
    whole = [below / name for name in names]
    for file in (*unfinished, *whole):
        file.touch()
        os.utime(file, (time.time() - 30, time.time() - 30))
    remove_unfinished(tmp_path, shared=True)
    assert all(file.exists() for file in unfinished)  # A process may be writing them now.
    os.utime(unfinished[1], (time.time() - 100, time.time() - 100))
    remove_unfinished(tmp_path, shared=True)
    assert [file.exists() for file in unfinished] == [True, False]
    remove_unfinished(tmp_path)
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == set(whole)


def test_a_folder_in_a_files_place_is_what_is_named(tmp_path):
    """Earlier, the error named the half-written file, which nobody can look at."""
    (tmp_path / "a.json").mkdir()
    with pytest.raises(OSError, match="directory") as caught:
        write_atomically(tmp_path / "a.json", b"{}")
    assert os_error_line(caught.value) == f"{tmp_path / 'a.json'}: Is a directory"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_file_that_cannot_be_replaced_stays_whole(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(5, "Input/output error")

    write_atomically(tmp_path / "a", b"old")
    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_set_of_files_is_removed_after_the_next_one_is_written(tmp_path):
    """Before, the files of the last call were removed first, and a failed call left less."""
    replace_files(tmp_path, {"old": b"1", "both": b"1"}, "out")
    with pytest.raises(OSError, match="File name too long"):
        replace_files(tmp_path, {"both": b"2", "n" * 300: b"2"}, "out")
    assert (tmp_path / "old").read_bytes() == b"1"
    replace_files(tmp_path, {"both": b"2"}, "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == [MARK, "both"]


def test_a_folder_that_vanished_while_a_file_was_written(tmp_path, monkeypatch):
    """The error is the first error of the system, not a later error."""

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    monkeypatch.setattr("pathlib.Path.unlink", lambda *_, **__: os.unlink(tmp_path / "nowhere"))
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a", b"a")


def test_one_process_at_a_time(tmp_path):
    lock = tmp_path / "locks" / "a"
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom coprefl_flwr.files import alone\n"
        f"with alone(Path({str(lock)!r}), 'x'):\n    print('in', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(SettingsError, match=r"^it is taken$"), alone(lock, "it is taken"):
            pass
        other.kill()  # A user does not have to remove any file.
    with alone(lock, "it is taken"):
        pass


def test_the_folder_of_a_user_that_there_is_not(monkeypatch):
    """Earlier, it ended in a RuntimeError, both in settings and in COPREFL_ALLOW."""
    with pytest.raises(SettingsError, match=r"^~nobody\.here/a: there is no user"):
        expanded("~nobody.here/a")
    monkeypatch.setenv("COPREFL_ALLOW", "~nobody.here/")
    with pytest.raises(SettingsError, match="there is no user"):
        check_allowed("a.py:B")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    write_sums(tmp_path, ["a.json"], {"b.json": b"[1]"})
    (tmp_path / "b.json").write_bytes(b"[1]")
    return tmp_path


def test_whole_files(folder):
    assert damaged(folder) == []
    (folder / "c.json").write_text("not in the list")
    assert damaged(folder) == []


@pytest.mark.parametrize("name", ["a.json", "b.json"])
def test_a_flipped_bit_is_found(folder, name):
    for bit in range(8):
        flip(folder / name, 1, bit)
        assert damaged(folder) == [name]
        assert damaged(folder, name) == [name]
        assert damaged(folder, "c.json") == []
        flip(folder / name, 1, bit)
    assert damaged(folder) == []


def test_checksums_that_cannot_be_read_are_what_is_damaged(folder):
    whole = (folder / SUMS).read_bytes()
    for content in (b"", b"\n", b"null", whole[:-1], whole[:-30]):
        (folder / SUMS).write_bytes(content)
        assert damaged(folder) == [SUMS]
    (folder / SUMS).write_bytes(b"\xff" + whole[1:])
    assert damaged(folder) == ["a.json"]


def test_a_folder_in_the_place_of_checksums_is_damage(folder):
    (folder / SUMS).unlink()
    (folder / SUMS).mkdir()
    assert damaged(folder) == [SUMS]


def test_a_folder_in_the_place_of_a_file_is_damage(folder):
    """Earlier, the folder counted as undamaged, and the missing file was noticed too late."""
    (folder / "a.json").unlink()
    assert damaged(folder) == []  # The code that needs the file reports it.
    (folder / "a.json").mkdir()
    assert damaged(folder) == ["a.json"]


def test_without_checksums_only_a_file_that_needs_one_is_damaged(folder):
    """A folder with a model from another person needs no checksums."""
    (folder / SUMS).unlink()
    (folder / "a.json").write_text("")
    assert damaged(folder) == []
    assert damaged(folder, needed="a.json") == [SUMS]


def test_checksums_of_any_order(folder):
    """Another program may write them in another order."""
    lines = (folder / SUMS).read_text().splitlines(keepends=True)
    (folder / SUMS).write_text("".join(reversed(lines)))
    assert damaged(folder, needed="a.json") == []
    assert damaged(folder, needed="c.json") == [SUMS]
