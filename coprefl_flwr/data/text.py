"""Datasets of text by several speakers, for the prediction of the next character."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.data.dataset import Dataset, Rows
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.transfer import on_device

# LEAF's alphabet (Caldas et al. 2018). The alphabet is fixed, so that a model fits every text.
_LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
CHARACTERS = (*_LETTERS, "other")
"""Names of the classes: LEAF's 80 characters, and one class for all other characters."""

_LENGTH = 80
# With a window at every tenth character, Tiny Shakespeare has about 100,000 samples. With a window
# at every character it would have a million, and neighbours would hardly differ.
_STRIDE = 10
_PARTS = 5  # The last fifth of a speaker's windows is for testing.


@dataclass(frozen=True, eq=False)
class TextDataset(Dataset):
    """Dataset of windows of a text; the label of a window is the character after the window.

    `text`, uint8 (T,), holds the index of each character in CHARACTERS. The classes are all of
    CHARACTERS, even if some do not occur. `starts`, int64 (N,), are the positions in the text where
    windows begin, and `length` is the number of characters of a window. Groups are the speakers,
    numbered in the order of their first words. The last fifth of each speaker's windows is the test
    split.
    """

    text: npt.NDArray[np.uint8]
    starts: Rows
    length: int

    @classmethod
    def of(cls, source: str, text: str, *, length: int = _LENGTH, stride: int = 1) -> "TextDataset":
        r"""Split the speech of each speaker in `text` into windows of `length` characters.

        The text consists of blocks that are separated by empty lines. The first line of a block is
        `NAME:`, the name of the speaker. The lines of a block are joined by a space, and the blocks
        of a speaker by "\n", in their order. The windows of a speaker begin `stride` characters
        apart; LEAF uses a stride of 1.

        The last fifth of a speaker's windows is for testing. Test windows that share a character
        with the last training window or with its label are left out, so a speaker with few windows
        has no test windows. A speaker with too little text for a window has no samples. Raises a
        SettingsError if a block has no name, or if no speaker has more than `length` characters.
        `source` is the name of the text in the error message.
        """
        if min(length, stride) < 1:
            line = f"{source}: windows of {length} characters, {stride} apart"
            raise SettingsError(f"{line}; both must be at least 1")
        speeches = [_codes(speech) for speech in _speeches(source, text)]
        windows = [_windows(len(speech), length, stride) for speech in speeches]
        counts = [len(starts) for starts, _ in windows]
        if not any(counts):
            raise SettingsError(f"{source}: no speaker says more than {length} characters")
        offsets = np.cumsum([0, *map(len, speeches[:-1])])
        joined = np.concatenate(speeches)
        starts = np.concatenate([w[0] + offset for w, offset in zip(windows, offsets, strict=True)])
        return cls(
            joined,
            starts,
            length,
            labels=joined[starts + length].astype(np.int64),
            classes=CHARACTERS,
            groups=np.repeat(np.arange(len(speeches)), counts),
            test=np.concatenate([is_test for _, is_test in windows]),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one window, (length,)."""
        return (self.length,)

    def inputs(self, rows: Rows, device: torch.device) -> Tensor:
        """Return the windows `rows` (b,) on `device`: int64 (b, length), indices in CHARACTERS."""
        windows = np.lib.stride_tricks.sliding_window_view(self.text, self.length)
        return on_device(torch.from_numpy(windows[self.starts[rows]]), device).long()


def read_text(path: Path, stride: str | None = None) -> TextDataset:
    """Read a text file of several speakers as windows of 80 characters.

    Windows begin `stride` characters apart, by default 10. Raises a SettingsError if `stride` is no
    whole number above 0, or if the file is not UTF-8 or has another form than `TextDataset.of`
    describes.
    """
    if stride is not None and not (stride.isdecimal() and int(stride)):
        line = "the number of characters from one window to the next must be 1 or more"
        raise SettingsError(f"{path}:{stride}: {line}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not readable as UTF-8 text ({error})") from error
    return TextDataset.of(str(path), text, stride=int(stride or _STRIDE))


def _speeches(source: str, text: str) -> list[str]:
    """Return the whole speech of each speaker, in the order of the speakers' first words."""
    blocks_of_speaker: dict[str, list[str]] = {}
    for number, block in enumerate(re.split(r"\n\s*\n", text.strip()), start=1):
        name, _, speech = block.partition("\n")
        if not re.fullmatch(r"\S.*:\s*", name):
            line = f"{source}: block {number} begins with '{name[:40]}'"
            raise SettingsError(f"{line}; each block must begin with a line NAME:")
        if speech:
            blocks_of_speaker.setdefault(name.strip(), []).append(" ".join(speech.split()))
    return ["\n".join(speeches) for speeches in blocks_of_speaker.values()]


def _codes(text: str) -> npt.NDArray[np.uint8]:
    """Return the index in CHARACTERS of each character, uint8 (len(text),)."""
    table: npt.NDArray[np.uint8] = np.full(128, len(_LETTERS), dtype=np.uint8)
    table[[ord(letter) for letter in _LETTERS]] = np.arange(len(_LETTERS))
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    # 127 is not in the alphabet, so it also represents all code points above 127.
    codes: npt.NDArray[np.uint8] = table[np.minimum(points, 127)]
    return codes


def _windows(n: int, length: int, stride: int) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Return (first positions of windows in `n` characters, whether each window is for testing)."""
    starts = np.arange(0, n - length, stride)
    train = starts[: len(starts) - len(starts) // _PARTS]
    later = starts[len(train) :]
    test = later[later > train[-1] + length] if len(train) else later
    return np.concatenate([train, test]), np.repeat([False, True], [len(train), len(test)])
