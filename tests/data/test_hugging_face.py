"""Hugging Face datasets: in a folder on disk, on the Hub, or as objects of a program."""

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from coprefl_flwr.data import DataSettings, as_dataset, load_dataset
from coprefl_flwr.data.reduction import Reduction
from coprefl_flwr.studies.build import populations
from coprefl_flwr.studies.hashes import content_hashes
from coprefl_flwr.studies.settings import TaskDataSettings
from tests.common.data import pixels, refused

FINE, COARSE = ["ant", "bee", "cow", "dog"], ["insect", "mammal"]


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()


def random_images(rng, n):
    """Return n encoded images as on the Hub; each has two kinds of labels and a writer."""
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
    """The name of a dataset with 24 training images and 8 test images."""
    datasets.DatasetDict(train=random_images(rng, 24), test=random_images(rng, 8)).save_to_disk(
        tmp_path / "saved"
    )
    return f"hf:{tmp_path / 'saved'}"


def test_hugging_face_dataset_on_disk_is_loaded(on_disk):
    data = load_dataset(on_disk)
    assert data.shape == (3, 4, 5)
    assert data.classes == tuple(FINE)
    assert data.labels.tolist() == list(range(4)) * 8
    assert data.test.tolist() == [False] * 24 + [True] * 8
    assert load_dataset(on_disk) is data
    other = load_dataset(f"{on_disk}:label=coarse_label,image=img,groups=writer")
    assert other.classes == tuple(COARSE)
    assert np.bincount(other.groups).tolist() == [11, 11, 10]


def test_wrong_option_of_a_hugging_face_name_is_refused(on_disk):
    refused("unknown option 'lable': did you mean 'label'", f"{on_disk}:lable=fine_label")
    refused("unknown column 'fin_label': did you mean 'fine_label'", f"{on_disk}:label=fin_label")
    refused("is no folder and not found on the Hub", f"{on_disk}-of-another")


def test_unreachable_hub_dataset_is_refused_in_one_line(monkeypatch):
    def offline(*_):
        raise ConnectionError("Couldn't reach 'cifar1' on the Hub\n(offline)")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    refused("'hf:cifar1' is no folder and not found on the Hub", "hf:cifar1")


def test_content_hash_depends_on_content_and_label_column(on_disk, rng):
    before = content_hashes([on_disk, f"{on_disk}:label=coarse_label"])
    assert len(before) == 2
    whole = random_images(np.random.default_rng(0), 24)
    datasets.DatasetDict(train=whole, test=random_images(rng, 8)).save_to_disk(
        f"{on_disk.removeprefix('hf:')}-again"
    )
    assert set(content_hashes([f"{on_disk}-again"]).values()) != set(before.values())
    assert content_hashes(["hf:cifar100"]) == {}


def test_hugging_face_formats_and_transforms_are_applied(rng):
    whole = random_images(rng, 8)
    plain = as_dataset("own", whole)
    for kind in ("torch", "numpy"):
        assert torch.equal(as_dataset("own", whole.with_format(kind)).images, plain.images)

    def halved(batch):
        images = [torch.from_numpy(np.array(image)).float() / 2 for image in batch["img"]]
        return {"pixel_values": images, "labels": batch["fine_label"]}

    changed = as_dataset("own", whole.with_transform(halved))
    assert changed.shape == (4, 5, 3)
    assert torch.equal(changed.values.movedim(-1, 1) * 2, plain.images.float())


def test_second_input_column_is_a_second_input_unless_one_is_named(tmp_path):
    rows = {"input_ids": [[1, 2], [3, 4]], "attention_mask": [[1, 1], [1, 0]], "label": [0, 1]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved")
    name = f"hf:{tmp_path / 'saved'}"
    values = load_dataset(name).values
    assert {key: rows.tolist() for key, rows in values.items()} == {
        "input_ids": [[1, 2], [3, 4]],
        "attention_mask": [[1, 1], [1, 0]],
    }
    assert load_dataset(f"{name}:image=input_ids,label=label").values.tolist() == [[1, 2], [3, 4]]


def test_natural_id_partitioner_makes_one_client_per_writer(on_disk):
    settings = DataSettings(
        dataset=f"{on_disk}:groups=writer", downstream_classes="1", clients=3, min_samples=2,
        partition="NaturalIdPartitioner", server_reserve=0, test_every=1,
    )  # fmt: skip
    clients = populations(settings, TaskDataSettings(), 0)[0].population.clients
    writers = [set(client.train.dataset.groups[client.train.indices]) for client in clients]
    assert writers == [{0}, {1}, {2}]


def test_images_in_domains_are_drawn_and_resized_while_they_are_read(tmp_path, rng, monkeypatch):
    """A folder may be larger than the memory: only the images that are drawn are decoded."""
    names, shapes = ("sketch", "art"), [(8, 6), (9, 12), (4, 4)]
    columns = {
        "image": [Image.fromarray(pixels(rng, *shapes[row % 3], 3)) for row in range(24)],
        "label": [row % 2 for row in range(24)],
        "domain": [names[row // 12] for row in range(24)],
    }
    parts = {part: datasets.Dataset.from_dict(columns) for part in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    name = f"hf:{tmp_path / 'saved'}:domains=domain"
    whole = load_dataset(name, image_size=4)
    assert whole.domain_names == ("art", "sketch")
    assert whole.domains.tolist() == [*[1] * 12, *[0] * 12] * 2
    rows = Reduction(samples_per_class=3, seed=5).rows(whole.labels)
    opened, decode = [], datasets.Image.decode_example

    def counted(*given, **options):
        opened.append(1)
        return decode(*given, **options)

    monkeypatch.setattr(datasets.Image, "decode_example", counted)
    drawn = load_dataset(name, image_size=4, samples_per_class=3, seed=5)
    assert len(opened) == len(rows) == 6
    assert torch.equal(drawn.images, whole.images[rows])
    for column in ("labels", "domains", "test"):
        assert getattr(drawn, column).tolist() == getattr(whole, column)[rows].tolist()
    refused("inputs have several shapes", name)
