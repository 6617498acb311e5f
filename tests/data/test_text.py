"""Windows of a text, of which a model predicts the next character."""

import numpy as np
import pytest
import torch

from coprefl_flwr.data import CHARACTERS, TextDataset, load_dataset
from coprefl_flwr.errors import SettingsError
from tests.common.data import write_npz


def test_alphabet_is_that_of_leaf_and_one_character_for_others():
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 81
    assert CHARACTERS[0] == "\n"
    assert CHARACTERS[-1] == "other"
    printable = {chr(point) for point in range(32, 127)}
    assert printable - set(CHARACTERS) == set("#$%*+/<=@\\^_`{|~")


def test_windows_of_a_file_are_read(tmp_path):
    path = write_npz(
        tmp_path, text=np.arange(9, dtype=np.uint8), starts=[4, 0, 1], length=3, labels=[7, 3, 4],
        groups=[0, 0, 1], test=[False, True, False],
    )  # fmt: skip
    data = load_dataset(path)
    assert isinstance(data, TextDataset)
    windows = data.inputs(np.array([2, 0]), torch.device("cpu"))
    assert windows.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert windows.dtype == torch.int64
    assert data.shape == (3,)
    assert data.classes == CHARACTERS
    assert (data.labels.tolist(), data.groups.tolist()) == ([7, 3, 4], [0, 0, 1])
    assert data.test.tolist() == [False, True, False]
    assert data.domains is None
    with pytest.raises(SettingsError, match="image-size and samples-per-class need images"):
        load_dataset(path, image_size=8)
