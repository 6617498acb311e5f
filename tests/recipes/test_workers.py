"""Runs on Ray: the same files as in this process."""

import pytest
import torch

from coprefl_flwr.recipes.command_line import main
from tests.tiny_recipe import files, tiny_recipe, write_recipe


@pytest.mark.ray
def test_two_workers_make_the_same_files(tiny_images, tmp_path, monkeypatch, capfd):
    """To the last byte, with as many threads as a worker has: rounding depends on them.

    One of the runs fails at first, and is reported; the others are not disturbed.
    """
    ray = pytest.importorskip("ray")
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    content = tiny_recipe(tiny_images, {"timeout": 60}, seeds=[0, 1])
    path = write_recipe(tmp_path / "recipe.yaml", content)
    assert main(["run", str(path), "--out", str(tmp_path / "one" / "out")]) == 0
    # A file where a run wants its folder.
    lost = min(path.name for path in (tmp_path / "one" / "models").glob("fedavg-*"))
    (tmp_path / "two" / "models").mkdir(parents=True)
    (tmp_path / "two" / "models" / lost).touch()
    arguments = ["run", str(path), "--out", str(tmp_path / "two" / "out"), "--workers", "2"]
    try:
        assert main(arguments) == 1
        out, err = capfd.readouterr()
        assert "\x1b" not in out + err  # It is no terminal.
        lines = [line for line in err.splitlines() if line.startswith("copr")]
        assert len(lines) == 1
        assert lines[0].startswith(f"coprefl: {lost} failed: ")
        (tmp_path / "two" / "models" / lost).unlink()
        assert main(arguments) == 0
    finally:
        ray.shutdown()
    for folder in ("models", "out"):
        assert files(tmp_path / "two" / folder) == files(tmp_path / "one" / folder)
