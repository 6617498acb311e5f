"""A torch Dataset of a user's own, read into one of ours, or refused in one line."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data

from coprefl_flwr.data import ImageDataset, load_dataset
from coprefl_flwr.data.of_torch import TensorDataset, as_dataset
from coprefl_flwr.errors import SettingsError

CPU = torch.device("cpu")


class Items(data.Dataset):
    """A map-style dataset of given items."""

    def __init__(self, items, classes=None):
        self.items = items
        if classes:
            self.classes = classes

    def __len__(self):
        return len(self.items)

    def __getitem__(self, position):
        return self.items[position]


def grey(value):
    return Image.fromarray(np.full((4, 5), value, dtype=np.uint8))


def test_pil_images_become_bytes_with_names():
    found = as_dataset("own", Items([(grey(7), 0), (grey(9), 1)], ["cat", "dog"]))
    assert isinstance(found, ImageDataset)
    assert found.shape == (1, 4, 5)
    assert found.classes == ("cat", "dog")
    assert found.images[:, 0, 0, 0].tolist() == [7, 9]


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (torch.zeros(3, 4, 5, dtype=torch.uint8), (3, 4, 5)),
        (torch.zeros(4, 5, dtype=torch.uint8), (1, 4, 5)),
        (np.zeros((4, 5, 3), dtype=np.uint8), (3, 4, 5)),
        (Image.new("RGB", (5, 4)), (3, 4, 5)),
    ],
)
def test_images_of_bytes_are_channels_first(value, shape):
    found = as_dataset("own", Items([(value, 0), (value, 1)]))
    assert isinstance(found, ImageDataset)
    assert found.shape == shape


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(6, 3, 4, 4),
        torch.randn(6, 7),
        torch.randint(0, 9, (6, 5)),
    ],
)
def test_other_values_are_given_as_they_are(values):
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    found = as_dataset("own", data.Subset(data.TensorDataset(values, labels), range(5)))
    assert isinstance(found, TensorDataset)
    rows = np.array([4, 1])
    assert torch.equal(found.inputs(rows, CPU), values[[4, 1]])
    assert found.shape == tuple(values.shape[1:])
    assert found.labels.tolist() == [0, 1, 2, 0, 1]
    assert found.classes == ("0", "1", "2")


def test_one_of_ours_is_returned_as_it_is():
    ours = load_dataset("glyphs")
    assert as_dataset("own", ours) is ours


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (iter([]), "a map-style torch Dataset is needed, not list_iterator"),
        (Items([]), "the dataset is empty"),
        (
            Items([(torch.zeros(2), 0), (torch.zeros(3), 1)]),
            r"several shapes \(\(2,\) and \(3,\)\)",
        ),
        (Items([torch.zeros(1)]), "item 0 must be .input, label."),
        (Items([(torch.zeros(2), 0.5)]), "item 0 has label 0.5; whole numbers only"),
        (Items([("text", 0)]), "inputs are str; allowed are PIL images, tensors and NumPy arrays"),
        (
            Items([(torch.zeros(2), 0), (torch.zeros(2), 5)]),
            "no sample is of class 1, 2; labels must be",
        ),
        (Items([(torch.zeros(2), 0), (torch.zeros(2), -1)]), "labels must lie in 0..0"),
    ],
)
def test_what_is_no_dataset_is_told(given, message):
    with pytest.raises(SettingsError, match=message) as raised:
        as_dataset("dataset 'own'", given)
    assert str(raised.value).startswith("dataset 'own': ")


def test_a_function_is_called_with_the_folder_and_its_options(tmp_path):
    file = tmp_path / "own_data.py"
    file.write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n\n"
        "def made(folder, size=4):\n"
        "    n = int((folder / 'n.txt').read_text())\n"
        "    return TensorDataset(torch.zeros(n, size), torch.arange(n) % 2)\n"
    )
    (tmp_path / "n.txt").write_text("6")
    found = load_dataset(f"{file}:made:size=9", tmp_path)
    assert found.shape == (9,)
    assert len(found.labels) == 6
    assert load_dataset(f"{file}:made:size=9", tmp_path) is found
    file.write_text(file.read_text().replace("% 2", "% 3"))
    assert len(load_dataset(f"{file}:made:size=9", tmp_path).classes) == 3
