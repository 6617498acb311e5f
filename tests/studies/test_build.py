"""A study is held once per process, and is another one elsewhere."""

from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.settings import Settings


def test_a_relative_folder_counts_from_where_the_process_is(tmp_path, monkeypatch):
    """The clients of the second study kept their states in the folder of the first."""
    settings = Settings.of(method="random", run_name="a", output_dir="outputs")
    roots = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        roots.append(build(settings).root)
        assert build(settings) is build(settings)
    assert roots == [tmp_path / "one" / "outputs", tmp_path / "two" / "outputs"]
