"""Hugging Face datasets on disk: columns, formats, parts, and what is wrong with a name."""

import datasets
import numpy as np
import pytest
import torch

from coprefl_flwr.data import load_dataset
from coprefl_flwr.data.division import DataSettings
from coprefl_flwr.data.of_torch import as_dataset
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.studies.build import populations
from coprefl_flwr.studies.identity import contents
from coprefl_flwr.studies.task_settings import TaskSettings
from tests.common.data import pixels, refused

FINE, COARSE = ["ant", "bee", "cow", "dog"], ["insect", "mammal"]


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()


def made(rng, n):
    """Return n images as on the Hub: encoded, with two kinds of labels and a writer each."""
    features = {
        "img": datasets.Image(),
        "fine_label": datasets.ClassLabel(names=FINE),
        "coarse_label": datasets.ClassLabel(names=COARSE),
        "writer": datasets.Value("string"),
    }
    columns = {
        "img": list(pixels(rng, n, 4, 5, 3)),
        "fine_label": [row % 4 for row in range(n)],
        "coarse_label": [row % 4 // 2 for row in range(n)],
        "writer": [f"writer {row * 3 // n}" for row in range(n)],
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.fixture
def on_disk(tmp_path, rng):
    """The name of a dataset of 24 images to train on and 8 to test on."""
    datasets.DatasetDict(train=made(rng, 24), test=made(rng, 8)).save_to_disk(tmp_path / "saved")
    return f"hf:{tmp_path / 'saved'}"


def test_a_dataset_on_disk(on_disk):
    data = load_dataset(on_disk)
    assert data.shape == (3, 4, 5)
    assert data.classes == tuple(FINE)
    assert data.labels.tolist() == list(range(4)) * 8
    assert data.test.tolist() == [False] * 24 + [True] * 8
    assert load_dataset(on_disk) is data
    other = load_dataset(f"{on_disk}:label=coarse_label,image=img,groups=writer")
    assert other.classes == tuple(COARSE)
    assert np.bincount(other.groups).tolist() == [11, 11, 10]


def test_what_is_wrong_is_one_line(on_disk):
    refused("unknown option 'lable': did you mean 'label'", f"{on_disk}:lable=fine_label")
    refused("unknown column 'fin_label': did you mean 'fine_label'", f"{on_disk}:label=fin_label")
    refused("label writer 0; whole numbers only", f"{on_disk}:label=writer")
    refused("has no column wrtier of groups; its columns: img, ", f"{on_disk}:groups=wrtier")
    refused("the folder does not exist", f"{on_disk}-of-another")


def test_a_name_that_is_not_on_the_hub_is_one_line(monkeypatch):
    def offline(*_):
        raise ConnectionError("Couldn't reach 'cifar1' on the Hub\n(offline)")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    refused("'hf:cifar1' is no folder, nor found on the Hub .*offline.*: hf:FOLDER", "hf:cifar1")


def test_another_content_is_another_result(on_disk, rng):
    before = contents([on_disk, f"{on_disk}:label=coarse_label"])
    assert len(before) == 2
    folder = on_disk.removeprefix("hf:")
    whole = made(np.random.default_rng(0), 24)
    datasets.DatasetDict(train=whole, test=made(rng, 8)).save_to_disk(f"{folder}-again")
    assert contents([f"{folder}-again"]) == {}
    assert set(contents([f"hf:{folder}-again"]).values()) != set(before.values())
    assert contents(["hf:cifar100"]) == {}


def test_formats_and_transforms_are_heeded(rng):
    whole = made(rng, 8)
    plain = as_dataset("own", whole)
    for kind in ("torch", "numpy"):
        assert torch.equal(as_dataset("own", whole.with_format(kind)).images, plain.images)

    def halved(batch):
        found = [torch.from_numpy(np.array(image)).float() / 2 for image in batch["img"]]
        return {"pixel_values": found, "labels": batch["fine_label"]}

    changed = as_dataset("own", whole.with_transform(halved))
    assert changed.shape == (4, 5, 3)
    assert torch.equal(changed.values.movedim(-1, 1) * 2, plain.images.float())


def test_columns_of_arrays_and_lists():
    features = datasets.Features(
        {"a": datasets.Array2D((2, 3), "uint8"), "label": datasets.Value("int8")}
    )
    rows = {"a": [[[1, 2, 3], [4, 5, 6]]] * 2, "label": [0, 1]}
    assert as_dataset("own", datasets.Dataset.from_dict(rows, features)).shape == (1, 2, 3)
    words = as_dataset("own", datasets.Dataset.from_dict({"a": [[1, 2], [3, 4]], "label": [0, 1]}))
    assert words.values.dtype == torch.int64


def test_a_second_column_of_inputs_is_refused_unless_one_is_named(tmp_path):
    rows = {"input_ids": [[1, 2], [3, 4]], "attention_mask": [[1, 1], [1, 0]], "label": [0, 1]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved")
    name = f"hf:{tmp_path / 'saved'}"
    refused("of input_ids and attention_mask only the first would be used", name)
    assert load_dataset(f"{name}:image=input_ids,label=label").values.tolist() == [[1, 2], [3, 4]]


def test_gaps_and_a_selection(rng):
    some = made(rng, 12).select([0, 3, 4, 7])
    with pytest.raises(SettingsError, match=r"no sample is of class 1, 2; .* are 0, 3 \(2 of them"):
        as_dataset("own", some)
    assert as_dataset("own", some, relabel=True).classes == ("ant", "dog")


def test_the_clients_of_a_study_are_its_writers(on_disk):
    settings = DataSettings(
        dataset=f"{on_disk}:groups=writer", downstream_classes="1", clients=3, min_samples=2,
        partition="NaturalIdPartitioner", server_reserve=0, test_every=1,
    )  # fmt: skip
    clients = populations(settings, TaskSettings(), 0)[0].population.clients
    writers = [set(one.train.dataset.groups[one.train.indices]) for one in clients]
    assert writers == [{0}, {1}, {2}]
