r"""Write a text of several speakers as an .npz file of windows, which `dataset: OUT.npz` reads.

python examples/data/speeches.py TEXT.txt OUT.npz [STRIDE]

The text consists of blocks that are separated by empty lines. The first line of a block is `NAME:`,
the name of the speaker. The lines of a block are joined by a space, and the blocks of a speaker by
"\n", in their order. A sample is a window of 80 characters; its label is the next character. The
windows of a speaker begin STRIDE characters apart: 10 if it is not given; 1 as in LEAF. The groups
are the speakers, in the order of their first words.

The last fifth of a speaker's windows is for testing. Test windows that share a character with the
last training window or with its label are left out, so a speaker with few windows has no test
windows, and a speaker with too little text for a window has no samples.
"""

import re
import sys
from pathlib import Path

import numpy as np

from coprefl_flwr.data import CHARACTERS

LENGTH = 80
CODES = {character: code for code, character in enumerate(CHARACTERS)}


def convert(text: Path, out: Path, stride: int = 10) -> None:
    """Write the windows of all speakers of a text file."""
    speeches = [np.array(codes(speech), np.uint8) for speech in speeches_in(text)]
    offsets = np.cumsum([0, *map(len, speeches)])
    windows = [windows_of(len(speech), stride) for speech in speeches]
    joined = np.concatenate(speeches)
    starts = np.concatenate([w[0] + offset for w, offset in zip(windows, offsets, strict=False)])
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        out,
        text=joined,
        starts=starts,
        length=LENGTH,
        labels=joined[starts + LENGTH].astype(np.int64),
        groups=np.repeat(np.arange(len(speeches)), [len(starts) for starts, _ in windows]),
        test=np.concatenate([is_test for _, is_test in windows]),
    )


def speeches_in(text: Path) -> list[str]:
    """Return the whole speech of each speaker, in the order of the speakers' first words."""
    blocks_of_speaker: dict[str, list[str]] = {}
    for block in re.split(r"\n\s*\n", text.read_text(encoding="utf-8").strip()):
        name, _, speech = block.partition("\n")
        if not re.fullmatch(r"\S.*:\s*", name):
            sys.exit(f"{text}: a block begins with {name!r}, but must begin with a line NAME:")
        if speech:
            blocks_of_speaker.setdefault(name.strip(), []).append(" ".join(speech.split()))
    return ["\n".join(blocks) for blocks in blocks_of_speaker.values()]


def codes(speech: str) -> list[int]:
    """Return the index in CHARACTERS of each character."""
    return [CODES.get(character, CODES["other"]) for character in speech]


def windows_of(n: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (first positions of windows in `n` characters, whether each window is for testing)."""
    starts = np.arange(0, n - LENGTH, stride)
    train = starts[: len(starts) - len(starts) // 5]
    later = starts[len(train) :]
    test = later[later > train[-1] + LENGTH] if len(train) else later
    return np.concatenate([train, test]), np.repeat([False, True], [len(train), len(test)])


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    convert(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
