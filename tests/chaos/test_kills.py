"""A run killed at random moments or file operations and resumed ends with the same bytes."""

import os

from tests.chaos.forked import Kill, forked
from tests.chaos.length import LENGTHS, counted, draws
from tests.chaos.works import check_whole


@draws("kills", 1)
@counted("kills")
def test_killed_twice_a_run_ends_with_the_same_bytes(rng, wholes, tmp_path):
    """The second kill comes sooner, because a resumed run has less to do."""
    whole = rng.choice(wholes)
    for part in (rng.random(), rng.random() / 2):
        kill = Kill(operation=1 + int(part * whole.ended.operations))
        if LENGTHS and rng.random() < 0.5:
            kill = Kill(seconds=0.001 + part * whole.ended.seconds)
        ended = whole.forked(tmp_path / "run", kill)
        assert ended.killed or ended.status == 0, f"{kill}: {ended.output[-300:]}"
    ended = whole.forked(tmp_path / "run")
    assert ended.status == 0, ended.output[-300:]
    check_whole(tmp_path / "run", whole.left)


def test_a_kill_comes_before_a_file_operation_or_within_a_write(tmp_path):
    def program():
        (tmp_path / "a").write_text("whole")
        os.replace(tmp_path / "a", tmp_path / "b")

    ended = forked(program, Kill(), tmp_path / "told")
    assert (ended.killed, ended.status, ended.operations) == (False, 0, 2)
    (tmp_path / "b").unlink()
    assert forked(program, Kill(operation=1), tmp_path / "told").killed
    assert (tmp_path / "a").read_text() == "wh"
    assert forked(program, Kill(operation=2), tmp_path / "told").killed
    assert [file.name for file in tmp_path.glob("?")] == ["a"]
