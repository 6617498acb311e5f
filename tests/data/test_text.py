import numpy as np
import pytest
import torch

from coprefl_flwr.data import CHARACTERS, TextDataset, load_dataset
from tests.common.data import refused

CPU = torch.device("cpu")


def read(codes):
    return "".join(CHARACTERS[code] for code in codes)


def windows(data):
    """Return (window, next character, speaker) of each sample as text."""
    inputs = data.inputs(np.arange(len(data.labels)), CPU).tolist()
    return [
        (read(window), CHARACTERS[label], group)
        for window, label, group in zip(inputs, data.labels, data.groups.tolist(), strict=True)
    ]


def spans(data, chosen):
    """Return the first and the last position of the chosen samples in the text, with the label."""
    starts = data.starts[chosen]
    return starts, starts + data.length


def test_alphabet_is_that_of_leaf_and_one_character_for_others():
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 81
    assert CHARACTERS[0] == "\n"
    assert CHARACTERS[-1] == "other"
    printable = {chr(point) for point in range(32, 127)}
    assert printable - set(CHARACTERS) == set("#$%*+/<=@\\^_`{|~")


def test_label_is_the_character_after_the_window():
    data = TextDataset.of("text", "ANN:\nabcd\n\nBOB:\nxyz", length=2)
    assert windows(data) == [("ab", "c", 0), ("bc", "d", 0), ("xy", "z", 1)]
    assert data.inputs(np.array([2, 0]), CPU).dtype == torch.int64
    assert data.shape == (2,)
    assert data.classes == CHARACTERS


def test_speeches_of_a_speaker_are_joined_in_order():
    text = "ANN:\nNow\nhear  me.\n\nBOB:\nNo, madam.\n\nANN:\nSpeak.\n"
    data = TextDataset.of("text", text, length=4)
    assert read(data.text) == "Now hear me.\nSpeak.No, madam."
    assert np.bincount(data.groups).tolist() == [12, 5]


def test_no_window_has_text_of_two_speakers():
    data = TextDataset.of("text", f"A:\n{'a' * 30}\n\nB:\n{'b' * 30}\n\nC:\ncc", length=5)
    assert {(set(window), label) == ({label}, label) for window, label, _ in windows(data)} == {
        True
    }
    assert set(data.groups) == {0, 1}


def test_stride_is_the_distance_between_windows():
    every = TextDataset.of("text", "A:\n0123456789", length=3)
    third = TextDataset.of("text", "A:\n0123456789", length=3, stride=3)
    assert [w[:2] for w in windows(third)] == [("012", "3"), ("345", "6"), ("678", "9")]
    assert windows(third)[0] in windows(every)


def test_characters_outside_of_the_alphabet_have_one_code():
    data = TextDataset.of("text", "A:\na$é€\U0001f600\x7fb", length=6)
    assert data.text.tolist() == [CHARACTERS.index("a"), *[80] * 5, CHARACTERS.index("b")]
    assert data.text.dtype == np.uint8


@pytest.mark.parametrize("stride", [1, 3, 10])
def test_test_windows_share_no_character_with_training_windows(stride):
    rng = np.random.default_rng(0)
    speeches = ["".join(rng.choice(list("abc "), n)).strip() for n in (2000, 900, 85)]
    text = "\n\n".join(f"P{number}:\n{speech}" for number, speech in enumerate(speeches))
    data = TextDataset.of("text", text, stride=stride)
    for speaker in range(2):
        of_speaker = data.groups == speaker
        _, last_of_train = spans(data, of_speaker & ~data.test)
        first_of_test, _ = spans(data, of_speaker & data.test)
        assert last_of_train.max() < first_of_test.min()
        # No more windows are left out than needed: one window earlier would share a character.
        assert first_of_test.min() - stride <= last_of_train.max()


def test_last_fifth_of_the_windows_is_the_test_part():
    """The first 80 of 100 windows are for training.

    Of the last 20 windows, windows 80 to 82 share characters with training windows and are left
    out.
    """
    data = TextDataset.of("text", "A:\n" + "x" * 103, length=3)
    assert data.starts[~data.test].tolist() == list(range(80))
    assert data.starts[data.test].tolist() == list(range(83, 100))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "block 1 begins with ''; each block must begin with a line NAME:"),
        ("ANN:\nabc\n\nno name\nhere", "block 2 begins with 'no name'"),
        ("ANN:\n\nBOB:\n" + "x" * 80, "no speaker says more than 80 characters"),
    ],
)
def test_unusable_text_is_refused(tmp_path, text, message):
    (tmp_path / "text.txt").write_text(text)
    refused(message, tmp_path / "text.txt")


def test_name_of_a_text_sets_the_stride(tmp_path):
    path = tmp_path / "play.txt"
    path.write_text("ANN:\n" + "x" * 90 + "\n\nBEN:\n" + "y" * 83)
    every = load_dataset(f"{path}:1")
    # A speaker with n characters has n - 80 windows. Of 3 windows, none is for testing. Of 10
    # windows, the last two share characters with the training windows and are left out.
    assert every.starts.tolist() == [*range(8), 90, 91, 92]
    assert load_dataset(f"{path}:4").starts.tolist() == [0, 4, 8, 90]
    assert load_dataset(str(path)).starts.tolist() == [0, 90]
    for wrong in ("0", "every"):
        refused("from one window to the next must be 1 or", f"{path}:{wrong}")
