"""Texts of several speakers, as a task of predicting the next character."""

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

# LEAF's alphabet (Caldas et al. 2018). It is fixed, so that a model fits every text.
_LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
CHARACTERS = (*_LETTERS, "other")
"""The classes of characters: LEAF's 80, and one for all others."""

_LENGTH = 80
# With a window at every tenth character Tiny Shakespeare has about 100,000 samples; at each one, a
# million that hardly differ from their neighbours.
_STRIDE = 10
_PARTS = 5  # The last one is for testing.


@dataclass(frozen=True, eq=False)
class TextDataset(Dataset):
    """Windows on a text; the label of a window is the character that follows it.

    The text is uint8 (T,), as positions in CHARACTERS, which are the classes whichever of them
    occur. Windows begin at `starts`, int64 (N,). Groups are the speakers, numbered as they first
    speak; the last fifth of each speaker's windows is the test part.
    """

    text: npt.NDArray[np.uint8]
    starts: Rows
    length: int

    @classmethod
    def of(cls, source: str, text: str, *, length: int = _LENGTH, stride: int = 1) -> "TextDataset":
        r"""Cut windows of `length` characters out of what each speaker of `text` says.

        The text is blocks separated by an empty line, the first line of each `NAME:`. The lines of
        a block are joined by a space, the blocks of a speaker by "\n", in their order. A speaker's
        windows begin `stride` characters apart; LEAF has 1.

        The last fifth of a speaker's windows are for testing. Those among them that share a
        character with the last training window or its label are left out, so a speaker with few
        windows has none for testing. One with too little text for a window has no samples. Raises a
        SettingsError if a block has no name, or no speaker says more than `length` characters.
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
        """Return the windows of `rows`, int64 (b, length) positions in CHARACTERS, on `device`."""
        windows = np.lib.stride_tricks.sliding_window_view(self.text, self.length)
        return on_device(torch.from_numpy(windows[self.starts[rows]]), device).long()


def read_text(path: Path, stride: str | None = None) -> TextDataset:
    """Read a text of several speakers, with windows of 80 characters, `stride` characters apart.

    Raises a SettingsError if it is not UTF-8, or not laid out as `TextDataset.of` says.
    """
    if stride is not None and not (stride.isdecimal() and int(stride)):
        line = "the number after the colon is how many characters apart windows begin, 1 or more"
        raise SettingsError(f"{path}:{stride}: {line}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not readable as UTF-8 text ({error})") from error
    return TextDataset.of(str(path), text, stride=int(stride or _STRIDE))


def _speeches(source: str, text: str) -> list[str]:
    """Return everything that each speaker says, in the order of their first words."""
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
    """Return the position in CHARACTERS of each character."""
    table: npt.NDArray[np.uint8] = np.full(128, len(_LETTERS), dtype=np.uint8)
    table[[ord(letter) for letter in _LETTERS]] = np.arange(len(_LETTERS))
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    # 127 is no letter, so it can stand for whatever lies above.
    codes: npt.NDArray[np.uint8] = table[np.minimum(points, 127)]
    return codes


def _windows(n: int, length: int, stride: int) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Return where windows on `n` characters begin, and which of them are for testing."""
    starts = np.arange(0, n - length, stride)
    train = starts[: len(starts) - len(starts) // _PARTS]
    later = starts[len(train) :]
    test = later[later > train[-1] + length] if len(train) else later
    return np.concatenate([train, test]), np.repeat([False, True], [len(train), len(test)])
