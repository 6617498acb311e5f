"""A builder makes a study once, and makes another one for another folder or other data."""

import os
from dataclasses import replace

import numpy as np
import pytest

from coprefl_flwr.data.splits import SERVER_RESERVE
from coprefl_flwr.named import folder_of
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.known_methods import Methods
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.settings import Settings
from tests.common.processes import new_process


def test_relative_folder_is_in_the_current_folder(tmp_path, monkeypatch):
    """An earlier version stored the clients' states of the second study in the first folder."""
    settings = Settings(method="random", run_name="a", output_dir="outputs")
    roots = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        roots.append(build(settings).root)
        assert build(settings) is build(settings)
    assert roots == [tmp_path / "one" / "outputs", tmp_path / "two" / "outputs"]


def test_changed_data_file_makes_another_study(tiny_settings, tmp_path):
    """Before, a result of the first data was stored as that of the second."""
    path, keys, images = tmp_path / "data.npz", [], []
    settings = replace(tiny_settings, dataset=str(path), method=Methods.read("fedavg"))
    with np.load(tiny_settings.dataset) as stored:
        arrays = dict(stored)
    for number in (0, 1):
        np.savez(path, **{**arrays, "images": np.roll(arrays["images"], number, axis=1)})
        os.utime(path, (number, number))
        new_process()
        start = build(settings).stages[0]
        keys.append(start.key)
        images.append(start.clients.source.dataset.images)
    assert keys[0] != keys[1]
    assert images[0].ne(images[1]).any()


def test_folder_names_stay_in_their_folder():
    assert [folder_of(name) for name in ("a b", "a/b", "v1.5")] == ["a-b", "a-b", "v1.5"]


@pytest.mark.parametrize(
    ("methods", "given", "reserve"),
    [
        ("fedavg coprefl", None, 0.0),
        ("random centralised", None, 0.0),  # The pooled data of the clients.
        ("fedavg coprefl-sgd", None, SERVER_RESERVE),
        ("centralised-hybrid fedavg", None, SERVER_RESERVE),
        ("random cyclic:rounds=1+coprefl-hybrid", None, SERVER_RESERVE),
        ("fedavg", 0.1, 0.1),
        ("fedavg coprefl-hybrid", 0.2, 0.2),
    ],
)
def test_samples_are_reserved_if_a_method_uses_the_servers_data(
    methods, given, reserve, tiny_settings
):
    """All starts of a study have the same clients."""
    settings = replace(tiny_settings, method=Methods.read(methods), server_reserve=given)
    stages = [s for s in build(settings).stages if isinstance(s, Pretraining)]
    assert {stage.clients.server_reserve for stage in stages} == {reserve}
    assert folder_of("我们的:gamma=0.5") == "我们的-gamma-0.5"
