"""Datasets of text by several speakers, for the prediction of the next character."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.data.dataset import Dataset, Rows
from coprefl_flwr.transfer import on_device

CHARACTERS = (
    *"\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}",
    "other",
)
"""Names of the classes: LEAF's 80 characters (Caldas et al. 2018), and one class for all others.

The alphabet is fixed, so that a model fits every text.
"""


@dataclass(frozen=True, eq=False)
class TextDataset(Dataset):
    """Dataset of windows of a text; the label of a window is the character after the window.

    `text`, uint8 (T,), holds the index of each character in CHARACTERS. The classes are all of
    CHARACTERS, even if some do not occur. `starts`, int64 (N,), are the positions in the text where
    windows begin, and `length` is the number of characters of a window. Groups are the speakers.
    """

    text: npt.NDArray[np.uint8]
    starts: Rows
    length: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one window, (length,)."""
        return (self.length,)

    def inputs(self, rows: Rows, device: torch.device) -> Tensor:
        """Return the windows `rows` (b,) on `device`: int64 (b, length), indices in CHARACTERS."""
        windows = np.lib.stride_tricks.sliding_window_view(self.text, self.length)
        return on_device(torch.from_numpy(windows[self.starts[rows]]), device).long()
