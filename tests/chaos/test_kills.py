"""A run killed at random file operations and resumed ends with the same bytes."""

from tests.chaos.draws import draws
from tests.chaos.forked import Kill
from tests.chaos.works import check_whole


@draws("kills", 1)
def test_run_that_is_killed_twice_has_the_bytes_of_an_uninterrupted_run(rng, wholes, tmp_path):
    """The second kill comes sooner, because a resumed run has less to do."""
    whole = rng.choice(wholes)
    for part in (rng.random(), rng.random() / 2):
        kill = Kill(operation=1 + int(part * whole.ended.operations))
        ended = whole.forked(tmp_path / "run", kill)
        assert ended.killed or ended.status == 0, f"{kill}: {ended.output[-300:]}"
    ended = whole.forked(tmp_path / "run")
    assert ended.status == 0, ended.output[-300:]
    check_whole(tmp_path / "run", whole.left)
