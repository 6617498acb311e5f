"""A builder makes a study once, and makes another one for another folder or other data."""

import os
from dataclasses import replace

import numpy as np

from coprefl_flwr.studies.build import Builder
from coprefl_flwr.studies.method import Methods, folder_of
from coprefl_flwr.studies.settings import Settings


def test_relative_folder_is_in_the_current_folder(tmp_path, monkeypatch):
    """An earlier version stored the clients' states of the second study in the first folder."""
    settings = Settings.of(method="random", run_name="a", output_dir="outputs")
    roots, builder = [], Builder()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        roots.append(builder.study(settings).root)
        assert builder.study(settings) is builder.study(settings)
    assert roots == [tmp_path / "one" / "outputs", tmp_path / "two" / "outputs"]


def test_changed_data_file_makes_another_study(tiny_settings, tmp_path):
    """Before, a result of the first data was stored as that of the second."""
    path, builder, keys, images = tmp_path / "data.npz", Builder(), [], []
    settings = replace(tiny_settings, dataset=str(path), method=Methods.read("fedavg"))
    with np.load(tiny_settings.dataset) as stored:
        arrays = dict(stored)
    for number in (0, 1):
        np.savez(path, **{**arrays, "images": np.roll(arrays["images"], number, axis=1)})
        os.utime(path, (number, number))
        start = builder.study(settings).stages[0]
        keys.append(start.key)
        images.append(start.clients.source.dataset.images)
    assert keys[0] != keys[1]
    assert images[0].ne(images[1]).any()


def test_folder_names_stay_in_their_folder():
    assert [folder_of(name) for name in ("a b", ".", "..", "v1.5")] == ["a-b", "-", "-", "v1.5"]
