import numpy as np
import pytest
import torch

from coprefl_flwr.data import CHARACTERS, TextDataset, load_dataset
from coprefl_flwr.errors import SettingsError
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


def test_the_alphabet_is_leafs_and_one_for_the_rest():
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 81
    assert CHARACTERS[0] == "\n"
    assert CHARACTERS[-1] == "other"
    printable = {chr(point) for point in range(32, 127)}
    assert printable - set(CHARACTERS) == set("#$%*+/<=@\\^_`{|~")


def test_windows_and_the_characters_that_follow():
    data = TextDataset.of("text", "ANN:\nabcd\n\nBOB:\nxyz", length=2)
    assert windows(data) == [("ab", "c", 0), ("bc", "d", 0), ("xy", "z", 1)]
    assert data.shape == (2,)
    assert data.classes == CHARACTERS


def test_what_a_speaker_says_is_joined_in_order():
    text = "ANN:\nNow\nhear  me.\n\nBOB:\nNo, madam.\n\nANN:\nSpeak.\n"
    data = TextDataset.of("text", text, length=4)
    assert read(data.text) == "Now hear me.\nSpeak.No, madam."
    assert np.bincount(data.groups).tolist() == [12, 5]


def test_no_window_runs_from_one_speaker_into_the_next():
    data = TextDataset.of("text", f"A:\n{'a' * 30}\n\nB:\n{'b' * 30}\n\nC:\ncc", length=5)
    assert {(set(window), label) == ({label}, label) for window, label, _ in windows(data)} == {
        True
    }
    assert set(data.groups) == {0, 1}


def test_names_alone_and_empty_lines_are_passed_over():
    text = "\nANN:\n\nBOB:\nabc\n \n\nANN:\nabc\r\n"
    data = TextDataset.of("text", text, length=2)
    assert windows(data) == [("ab", "c", 0), ("ab", "c", 1)]


def test_a_stride_leaves_windows_out():
    every = TextDataset.of("text", "A:\n0123456789", length=3)
    third = TextDataset.of("text", "A:\n0123456789", length=3, stride=3)
    assert [w[:2] for w in windows(third)] == [("012", "3"), ("345", "6"), ("678", "9")]
    assert windows(third)[0] in windows(every)


def test_characters_outside_of_the_alphabet_are_one():
    data = TextDataset.of("text", "A:\na$é€\U0001f600\x7fb", length=6)
    assert data.text.tolist() == [CHARACTERS.index("a"), *[80] * 5, CHARACTERS.index("b")]
    assert data.text.dtype == np.uint8


def test_a_batch_is_int64_in_the_order_asked_for():
    data = TextDataset.of("text", "A:\nabcdef", length=3)
    inputs = data.inputs(np.array([2, 0, 2]), CPU)
    assert inputs.dtype == torch.int64
    assert [read(window) for window in inputs.tolist()] == ["cde", "abc", "cde"]


@pytest.mark.parametrize("stride", [1, 3, 10])
def test_the_test_part_comes_last_and_shares_no_character(stride):
    rng = np.random.default_rng(0)
    speeches = ["".join(rng.choice(list("abc "), n)).strip() for n in (2000, 900, 85)]
    text = "\n\n".join(f"P{number}:\n{speech}" for number, speech in enumerate(speeches))
    data = TextDataset.of("text", text, stride=stride)
    for speaker in range(2):
        own = data.groups == speaker
        _, last_of_train = spans(data, own & ~data.test)
        first_of_test, _ = spans(data, own & data.test)
        assert last_of_train.max() < first_of_test.min()
        # No more windows are left out than needed: one window earlier would share a character.
        assert first_of_test.min() - stride <= last_of_train.max()


def test_the_last_fifth_is_for_testing():
    """The first 80 of 100 windows are for training.

    Of the last 20 windows, windows 80 to 82 share characters with training windows and are left
    out.
    """
    data = TextDataset.of("text", "A:\n" + "x" * 103, length=3)
    assert data.starts[~data.test].tolist() == list(range(80))
    assert data.starts[data.test].tolist() == list(range(83, 100))


def test_few_windows_are_all_to_train_on():
    data = TextDataset.of("text", "A:\nabcdefg", length=3)
    assert data.test.tolist() == [False] * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "block 1 begins with ''; each block must begin with a line NAME:"),
        ("ANN:\nabc\n\nno name\nhere", "block 2 begins with 'no name'"),
        ("ANN:\n\nBOB:\n" + "x" * 80, "no speaker says more than 80 characters"),
    ],
)
def test_a_bad_text_is_one_line(tmp_path, text, message):
    (tmp_path / "text.txt").write_text(text)
    refused(message, tmp_path / "text.txt")


def test_a_file_of_another_encoding_is_refused(tmp_path):
    (tmp_path / "text.txt").write_bytes("ANN:\nCafé".encode("latin-1"))
    refused("not readable as UTF-8", tmp_path / "text.txt")


@pytest.mark.parametrize("settings", [{"length": 0}, {"stride": 0}])
def test_windows_must_have_a_size(settings):
    with pytest.raises(SettingsError, match="both must be at least 1"):
        TextDataset.of("text", "A:\nabc", **settings)


def test_a_file_is_read_with_windows_ten_apart(tmp_path):
    (tmp_path / "play.txt").write_text("ANN:\n" + "x" * 111)
    data = load_dataset(str(tmp_path / "play.txt"))
    assert data.shape == (80,)
    assert data.starts.tolist() == [0, 10, 20, 30]
    assert load_dataset(str(tmp_path / "play.txt")) is data


def test_a_file_says_how_far_apart_windows_are(tmp_path):
    path = tmp_path / "play.txt"
    path.write_text("ANN:\n" + "x" * 90 + "\n\nBEN:\n" + "y" * 83)
    every = load_dataset(f"{path}:1")
    # A speaker with n characters has n - 80 windows. Of 3 windows, none is for testing. Of 10
    # windows, the last two share characters with the training windows and are left out.
    assert every.starts.tolist() == [*range(8), 90, 91, 92]
    assert load_dataset(f"{path}:4").starts.tolist() == [0, 4, 8, 90]
    for wrong in ("0", "every", "-1", ""):
        with pytest.raises(SettingsError, match="from one window to the next must be 1 or"):
            load_dataset(f"{path}:{wrong}")
