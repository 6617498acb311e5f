"""The keys of results depend on a user's own files, which a new process reads again."""

import shutil

import pytest

from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.settings import Settings
from tests.common.processes import new_process
from tests.common.simulation import ROOT


@pytest.fixture
def parts(tmp_path):
    return shutil.copytree(ROOT / "examples" / "own_parts", tmp_path / "parts")


def settings(parts, **changes):
    config = {
        "method": f"{parts / 'method.py'}:PartWay",
        "dataset": f"{parts / 'data.py'}:stripes",
        "model": f"{parts / 'model.py'}:perceptron",
        "partition": f"{parts / 'partition.py'}:slices",
        "downstream-classes": "3",
        "clients": 6,
        "participants": 3,
        "min-samples": 4,
        "tasks": 1,
        "task-classes": 2,
        "task-clients": 3,
        "output-dir": str(parts.parent / "out"),
        "run-name": "own",
    }
    return Settings.from_config(config | {k.replace("_", "-"): v for k, v in changes.items()})


def change(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    new_process()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("method.py", "self.step * (", "self.step * 2 * ("),
        ("data.py", "noise * torch", "2 * noise * torch"),
        ("model.py", "nn.ReLU()", "nn.Tanh()"),
        ("partition.py", 'kind="stable"', 'kind="quicksort"'),
    ],
)
def test_changed_file_changes_the_keys(parts, file, old, new):
    def keys():
        return [stage.key for stage in build(settings(parts)).stages]

    before = keys()
    assert keys() == before
    change(parts / file, old, new)
    assert not set(before) & set(keys())


def test_changed_metric_changes_the_key_of_personalised_results(tmp_path):
    file = tmp_path / "own_metric.py"
    file.write_text("def one(logits, labels):\n    return 1.0\n")
    config = {"study": "personalised", "method": "solo", "personal-clients": 3}

    def key(**more):
        return build(Settings.from_config(config | more)).stages[0].key

    plain, first = key(), key(**{"client-metrics": f"{file}:one"})
    file.write_text("def one(logits, labels):\n    return 2.0\n")
    new_process()
    assert len({plain, first, key(**{"client-metrics": f"{file}:one"})}) == 3
