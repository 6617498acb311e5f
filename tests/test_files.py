"""Files: half written, damaged, with names from other people, and locked by another process."""

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import (
    MARK,
    SUMS,
    alone,
    check_sums,
    inside,
    read_json,
    remove_unfinished,
    replace_files,
    write_atomically,
    write_sums,
)
from tests.common.checks import flip, refusal


def test_unreadable_json_is_refused_with_its_name(tmp_path):
    file = tmp_path / "a.json"
    assert "a.json cannot be read: No such file" in refusal(read_json, file)
    for content in (b"", b"{", b"\xff\xfe"):
        file.write_bytes(content)
        assert refusal(read_json, file).startswith(f"{file} is damaged: ")


@pytest.mark.parametrize("name", ["", "/etc", "a/../b", "C:x"])
def test_name_in_a_message_cannot_lead_out_of_the_folder(tmp_path, name):
    with pytest.raises(SettingsError, match="cannot name a folder of this node"):
        inside(tmp_path, name)
    assert inside(tmp_path, "run-1/starts/a=0.5") == tmp_path / "run-1/starts/a=0.5"


def test_files_that_a_killed_process_was_writing_are_removed(tmp_path):
    below = tmp_path / "below"
    below.mkdir()
    unfinished = [tmp_path / ".a.json.77.coprefl-part", below / ".b.safetensors.8.coprefl-part"]
    whole = [below / name for name in (".a.7.part", "llama.gguf.partial", "a.7.coprefl-part")]
    for file in (*unfinished, *whole):
        file.touch()
    remove_unfinished(tmp_path, below=False)
    assert [file.exists() for file in unfinished] == [False, True]
    remove_unfinished(tmp_path)
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == set(whole)


def test_file_that_cannot_be_replaced_stays_whole(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(5, "Input/output error")

    write_atomically(tmp_path / "a", b"old")
    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_earlier_files_are_removed_after_the_next_are_written(tmp_path):
    """Before, the files of the last call were removed first, and a failed call left less."""
    replace_files(tmp_path, {"old": b"1", "both": b"1"}, "out")
    with pytest.raises(OSError, match="File name too long"):
        replace_files(tmp_path, {"both": b"2", "n" * 300: b"2"}, "out")
    assert (tmp_path / "old").read_bytes() == b"1"
    replace_files(tmp_path, {"both": b"2"}, "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == [MARK, "both"]


def test_lock_is_held_once(tmp_path):
    lock, line = tmp_path / "locks" / "a", "it is taken"
    with alone(lock, "x"), pytest.raises(SettingsError, match=line), alone(lock, line):
        pass
    with alone(lock, line):
        pass


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    write_sums(tmp_path, ["a.json"], {"b.json": b"[1]"})
    (tmp_path / "b.json").write_bytes(b"[1]")
    return tmp_path


def test_files_with_their_checksums_are_not_damaged(folder):
    (folder / "c.json").write_text("not in the list")
    check_sums(folder)
    # Another program may write the checksums in another order.
    lines = (folder / SUMS).read_text().splitlines(keepends=True)
    (folder / SUMS).write_text("".join(reversed(lines)))
    check_sums(folder, needed="a.json")
    line = f"{folder / SUMS} is damaged: it has no checksum of c.json; remove the folder {folder}"
    assert refusal(check_sums, folder, needed="c.json").startswith(line)


@pytest.mark.parametrize("name", ["a.json", "b.json"])
def test_file_with_a_flipped_bit_is_damaged(folder, name):
    flip(folder / name, 1)
    line = refusal(check_sums, folder)
    assert line.startswith(f"{folder / name} is damaged: its checksum is not the one in SHA256SUMS")
    assert refusal(check_sums, folder, name) == line
    check_sums(folder, "c.json")


def test_missing_checksums_are_damage_where_a_file_needs_one(folder):
    """A folder with a model from another person needs no checksums."""
    (folder / SUMS).unlink()
    (folder / "a.json").write_text("")
    check_sums(folder)
    assert "no checksum of a.json" in refusal(check_sums, folder, needed="a.json")
