"""The programs in examples/data/ convert datasets as they are published, and recipes run on them.

The folders here are tiny, and have the layouts of the published ones.
"""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from coprefl_flwr.data import CHARACTERS, load_dataset, partition
from coprefl_flwr.recipes.execute import attempt
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.search import table_rows
from coprefl_flwr.studies.store import Store
from tests.common.data import pixels, write_image
from tests.common.simulation import ROOT

ONE_ROUND = ("rounds=1", "seeds=[0]", "reference=fedavg", "methods=[fedavg]", "paper=null")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def program(name):
    """Return a program of examples/data/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / "data" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def convert(folder, out, domains=False, image_size=0):
    program("image_folder").convert(folder, out, domains, image_size)


def run(name, tmp_path, **changes):
    """Run one round of FedAvg as in a recipe, with some settings changed."""
    texts = tuple(f"{key.replace('_', '-')}={value}" for key, value in changes.items())
    recipe = read_recipe(ROOT / "examples" / "recipes" / name, (*ONE_ROUND, *texts))
    row = table_rows(recipe)[0]
    one, store = row.reported(row.trials()[0])[0], Store(tmp_path / "models")
    assert attempt(one, store) == ""
    assert store.done(one.study.stages)


# ---- folders of images ---------------------------------------------------------------------------

PACS = ("art_painting", "cartoon", "photo", "sketch")
OFFICE = ("amazon", "caltech", "dslr", "webcam")
DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def write_domains(root, rng, domains, classes, images, side):
    """Write images of DOMAIN/CLASS/FILE; those of Office-10 and DomainNet have several sizes."""
    for domain in domains:
        for number in range(classes):
            for image in range(images):
                width = side + image % 2
                write_image(
                    root / domain / f"c{number}" / f"{image}.jpg", pixels(rng, side, width, 3)
                )


def test_recipe_on_pacs_runs(tmp_path, rng):
    write_domains(tmp_path / "PACS", rng, PACS, 7, 4, 10)
    arguments = [tmp_path / "PACS", tmp_path / "pacs", "--domains", "--image-size", "8"]
    command = [sys.executable, "examples/data/image_folder.py", *map(str, arguments)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    name = f"hf:{tmp_path / 'pacs'}:domains=domain"
    data = load_dataset(name)
    assert data.shape == (3, 8, 8)
    assert data.domain_names == PACS
    assert data.domains.tolist() == np.repeat(range(4), 28).tolist()
    assert data.labels.tolist() == np.tile(np.repeat(range(7), 4), 4).tolist()
    assert data.classes == tuple(f"c{number}" for number in range(7))
    few = {"clients": 4, "participants": 2, "min_samples": 2, "partition": "iid"}
    tasks = {"tasks": 1, "task_clients": 2, "task_rounds": 1, "task_partition": "iid"}
    model = {"model": "femnist-cnn", "image_size": 8}
    run("coprefl-table-24-sketch.yaml", tmp_path, dataset=name, **few, **tasks, **model)


@pytest.mark.parametrize(
    ("name", "domains", "chosen"),
    [
        ("fedpcl-figure-3-office-10.yaml", OFFICE, "*"),
        ("fedpcl-table-11-domainnet-label.yaml", DOMAINNET, "real"),
    ],
)
def test_recipe_on_domains_of_several_sizes_runs(tmp_path, rng, name, domains, chosen):
    write_domains(tmp_path / "images", rng, domains, 10, 8, 9)
    convert(tmp_path / "images", tmp_path / "out", domains=True)
    dataset = f"hf:{tmp_path / 'out'}:domains=domain@{chosen}"
    few = {"train_per_class": 2, "test_per_class": 1, "backbones": "pixels", "image_size": 8}
    if chosen != "*":
        few["personal_clients"] = 2
    run(name, tmp_path, personal_datasets=dataset, **few)


@pytest.fixture
def imagenet(tmp_path, rng):
    """Images of several sizes and colours, of which a split lacks a class, as in ImageNet."""
    root = tmp_path / "imagenet"
    write_image(root / "train" / "n01" / "a.JPEG", pixels(rng, 9, 12, 3))
    write_image(root / "train" / "n02" / "b.JPEG", pixels(rng, 20, 8))
    Image.new("CMYK", (8, 8)).save(root / "train" / "n02" / "c.JPEG")
    write_image(root / "val" / "n02" / "d.JPEG", pixels(rng, 8, 8, 3))
    write_image(root / "test" / "n03" / "e.png", np.full((8, 8, 3), 77, np.uint8))
    (root / "train" / ".thumbnails").mkdir()
    return root


def test_splits_share_their_classes_and_are_resized(tmp_path, imagenet):
    convert(imagenet, tmp_path / "out", image_size=4)
    data = load_dataset(f"hf:{tmp_path / 'out'}")
    assert data.images.shape == (5, 3, 4, 4)
    assert data.classes == ("n01", "n02", "n03")
    assert data.labels.tolist() == [0, 1, 1, 1, 2]
    assert data.test.tolist() == [False] * 4 + [True]
    assert (data.images[4] == 77).all()
    convert(imagenet, tmp_path / "whole")
    resized = load_dataset(f"hf:{tmp_path / 'whole'}", image_size=4)
    assert torch.equal(resized.images, data.images)


def test_tiny_imagenet_is_read_as_it_is_unpacked(tmp_path, rng):
    root, wnids = tmp_path / "tiny-imagenet-200", ("n02", "n01", "n03")
    for wnid in wnids:
        for number in range(2):
            image = root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG"
            write_image(image, pixels(rng, 8, 8, 3))
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t7\t7\n")
    for number in range(3):
        for part in ("val", "test"):
            write_image(root / part / "images" / f"{part}_{number}.JPEG", pixels(rng, 8, 8, 3))
    (root / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\tbee\n")
    (root / "val" / "val_annotations.txt").write_text(
        "".join(f"val_{n}.JPEG\t{w}\t0\t0\t7\t7\n" for n, w in enumerate(("n03", "n01", "n02")))
    )
    convert(root, tmp_path / "out")
    data = load_dataset(f"hf:{tmp_path / 'out'}")
    assert data.classes == ("goldfish, Carassius auratus", "bee", "n03")
    assert data.labels.tolist() == [0, 0, 1, 1, 2, 2, 2, 0, 1]
    assert data.test.tolist() == [False] * 6 + [True] * 3
    for row, file in {2: "train/n02/images/n02_0.JPEG", 6: "val/images/val_0.JPEG"}.items():
        assert np.array_equal(
            data.images[row], np.asarray(Image.open(root / file)).transpose(2, 0, 1)
        )


# ---- LEAF ----------------------------------------------------------------------------------------


def write_leaf(path, **writers):
    """Write images (n, 28, 28) and labels (n,) of each writer as LEAF does, with four decimals."""
    path.parent.mkdir(parents=True, exist_ok=True)
    user_data = {
        name: {"x": (images.reshape(-1, 784) / 255).round(4).tolist(), "y": list(labels)}
        for name, (images, labels) in writers.items()
    }
    path.write_text(json.dumps({"users": list(user_data), "user_data": user_data}))


def test_recipe_on_femnist_runs_with_writers_as_clients(tmp_path, rng):
    """Three writers, in two training files and one test file; writer f01 has no test samples."""
    images, root = pixels(rng, 9, 28, 28), tmp_path / "FEMNIST"
    write_leaf(root / "train" / "a.json", f02=(images[:2], [0, 10]), f01=(images[2:3], [36]))
    write_leaf(root / "train" / "b.json", f00=(images[3:6], [9, 35, 61]))
    of_test = {"f02": (images[6:7], [10]), "f01": (images[:0], []), "f00": (images[7:], [9, 9])}
    write_leaf(root / "test" / "a.json", **of_test)
    program("leaf").convert(root, tmp_path / "femnist.npz")
    data = load_dataset(str(tmp_path / "femnist.npz"))
    assert np.array_equal(data.images[:, 0], images)
    assert [data.classes[label] for label in data.labels] == list("0Aa9ZzA99")
    assert len(data.classes) == 62
    assert data.groups.tolist() == [2, 2, 1, 0, 0, 0, 2, 0, 0]
    assert data.test.tolist() == [False] * 6 + [True] * 3
    key = {"seed_key": ("test",), "min_samples": 2, "groups": data.groups}
    parts = partition(data.labels, 2, "natural", **key)
    assert [part.tolist() for part in parts] == [[3, 4, 5, 7, 8], [0, 1, 6]]
    few = {"clients": 2, "participants": 2, "min_samples": 2, "local_epochs": 1}
    dataset = tmp_path / "femnist.npz"
    run("cyclic-table-1-femnist.yaml", tmp_path, dataset=dataset, **few)


# ---- speeches ------------------------------------------------------------------------------------


def speeches(tmp_path, text, *stride):
    """Return the dataset of a text of speeches."""
    (tmp_path / "play.txt").write_text(text)
    program("speeches").convert(tmp_path / "play.txt", tmp_path / "play.npz", *stride)
    return load_dataset(str(tmp_path / "play.npz"))


def read(codes):
    return "".join(CHARACTERS[code] for code in codes)


def test_window_of_a_speech_predicts_the_next_character(tmp_path):
    a, b = "Now\nhear  me. " + "a$é" * 27, "x" * 80 + "yz"
    data = speeches(tmp_path, f"ANN:\n{a}\n\nBOB:\n{b}\n\nANN:\nSpeak.\n\nC:\nno\n", 1)
    joined = ("Now hear me. " + "a$é" * 27 + "\nSpeak.").replace("$", "~").replace("é", "~")
    assert read(data.text).replace("other", "~") == f"{joined}{b}no"
    assert data.classes == CHARACTERS
    assert np.bincount(data.groups).tolist() == [17, 2]  # of 21 windows, the last fifth

    inputs = data.inputs(np.array([-2, -1]), torch.device("cpu"))
    assert [read(window) for window in inputs] == ["x" * 80, "x" * 79 + "y"]
    assert [CHARACTERS[label] for label in data.labels[-2:]] == ["y", "z"]
    assert inputs.dtype == torch.int64
    assert data.shape == (80,)


def test_test_windows_share_no_character_with_training_windows(tmp_path):
    """Of 600 windows, the last 120 are for testing, without the first 80 of these."""
    data = speeches(tmp_path, "A:\n" + "x" * 680, 1)
    assert data.starts[~data.test].tolist() == list(range(480))
    assert data.starts[data.test].tolist() == list(range(560, 600))
    tenth = speeches(tmp_path, "A:\n" + "x" * 680)
    assert tenth.starts.tolist() == [*range(0, 480, 10), *range(560, 600, 10)]


def test_recipe_on_shakespeare_runs(tmp_path, rng):
    letters = list("abcdefg ,.")
    texts = (f"SPEAKER {n}:\n{''.join(rng.choice(letters, 700))}" for n in range(4))
    speeches(tmp_path, "\n\n".join(texts))
    few = {"clients": 3, "participants": 2, "local_epochs": 1}
    run("cyclic-table-1-shakespeare.yaml", tmp_path, dataset=tmp_path / "play.npz", **few)
