"""The inputs on which the key of a stored result depends."""

import importlib
from dataclasses import replace

import pytest

from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.hashes import content_hashes
from coprefl_flwr.studies.settings import Settings
from tests.common.processes import new_process

NETWORK = """
from torch import nn

def network(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear({inputs}, 4), nn.{activation}(),
                         nn.Linear(4, num_classes))
"""


@pytest.mark.parametrize("study", ["starts", "personalised"])
def test_changed_module_of_a_user_is_another_model(study, tiny_settings, tmp_path, monkeypatch):
    """`model` has the same function of the same module, but the text of the module changed.

    So the results have other keys.
    """
    settings = tiny_settings
    if study == "personalised":
        settings = Settings(
            study=study, personal_datasets=tiny_settings.dataset, method="fedavg solo",
            backbones="scratch", train_per_class=2,
        )  # fmt: skip
    module = f"network_of_{study}"
    settings = replace(settings, model=f"{module}:network")
    monkeypatch.syspath_prepend(tmp_path)

    def keys(activation):
        (tmp_path / f"{module}.py").write_text(NETWORK.format(inputs=36, activation=activation))
        importlib.invalidate_caches()
        new_process()
        return [stage.key for stage in build(settings).stages]

    first, other = keys("ReLU"), keys("Tanh")
    assert len(set(first)) == len(first)
    assert not set(first) & set(other)
    assert [key.partition("-")[0] for key in first] == [key.partition("-")[0] for key in other]
    assert keys("ReLU") == first


def test_file_in_the_home_folder_is_hashed(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data.npz").write_bytes(b"content")
    whole = content_hashes([str(tmp_path / "data.npz")])
    assert list(content_hashes(["~/data.npz"]).values()) == list(whole.values()) != []
