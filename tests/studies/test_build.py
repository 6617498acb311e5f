"""A builder makes a study once, and makes another study for another folder."""

from coprefl_flwr.studies.build import Builder
from coprefl_flwr.studies.settings import Settings


def test_a_relative_folder_counts_from_where_the_process_is(tmp_path, monkeypatch):
    """An earlier version stored the clients' states of the second study in the first folder."""
    settings = Settings.of(method="random", run_name="a", output_dir="outputs")
    roots, builder = [], Builder()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        roots.append(builder.study(settings).root)
        assert builder.study(settings) is builder.study(settings)
    assert roots == [tmp_path / "one" / "outputs", tmp_path / "two" / "outputs"]
