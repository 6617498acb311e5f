import numpy as np
import pytest

from coprefl_flwr.data.splits import (
    choose_classes,
    choose_domains,
    split_classes,
    split_in_two,
    task_labels,
)
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.seeds import generator


def split(downstream, pretraining="", overlap=False, seed=0, classes=100):
    return split_classes(
        classes,
        downstream=downstream,
        pretraining=pretraining,
        allow_overlap=overlap,
        seed_key=(seed, "split"),
    )


def test_classes_can_be_lists_and_ranges():
    assert split("list:3, 7,8-9", classes=10) == ((0, 1, 2, 4, 5, 6), (3, 7, 8, 9))
    assert split("list:9,0", "list:5,1-2", classes=10) == ((1, 2, 5), (0, 9))
    assert split("2", "list:0-7", classes=10) == (tuple(range(8)), (8, 9))


def test_drawn_pretraining_and_downstream_classes_are_disjoint():
    pretraining, downstream = split("20", "50")
    assert len(pretraining) == 50
    assert len(downstream) == 20
    assert not set(pretraining) & set(downstream)
    assert list(downstream) == sorted(downstream)
    assert list(pretraining) == sorted(pretraining)
    assert split("20", "50") == (pretraining, downstream)
    assert split("20", "50", seed=1)[1] != downstream


def test_pretraining_classes_default_to_the_rest():
    pretraining, downstream = split("20")
    assert sorted(pretraining + downstream) == list(range(100))


def test_classes_without_a_counterpart_are_all_listed_or_drawn():
    def choose(text, seed=0):
        return choose_classes("downstream-classes", text, 30, seed_key=(seed, "split"))

    assert choose("") == tuple(range(30))
    assert choose("list:7,2-3") == (2, 3, 7)
    assert len(set(choose("12"))) == 12
    assert choose("12") == tuple(sorted(choose("12"))) != choose("12", seed=1)
    with pytest.raises(
        SettingsError, match="downstream-classes = '31': must be a count of 1 to 30, or"
    ):
        choose("31")


def test_domains_are_chosen_by_name_or_number():
    names = ("art", "photo", "sketch", "0")

    def choose(text):
        return choose_domains("pretraining-domains", text, names)

    assert choose("") == (0, 1, 2, 3)
    assert choose(" sketch  art ") == (0, 2)
    assert choose("list:1-2") == (1, 2)
    assert choose("0") == (3,)
    assert choose_domains("pretraining-domains", "", ()) == ()


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        ("skech", ("art", "sketch"), "unknown domain 'skech': did you mean 'sketch'"),
        ("list:1-2", ("art", "sketch"), r"'1-2' is not possible here; .* numbers in 0\.\.1"),
        ("art", (), "the dataset has no domains"),
    ],
)
def test_wrong_domains_are_refused(text, names, message):
    with pytest.raises(SettingsError, match=message) as caught:
        choose_domains("downstream-domains", text, names)
    assert str(caught.value).startswith(f"downstream-domains = '{text}': ")
    assert "\n" not in str(caught.value)


def test_class_overlap_is_refused_unless_allowed():
    with pytest.raises(SettingsError, match=r"shares classes 2, 3 .* set allow-class-overlap"):
        split("list:2-5", "list:0-3")
    assert split("list:2-5", "list:0-3", overlap=True) == ((0, 1, 2, 3), (2, 3, 4, 5))


@pytest.mark.parametrize(
    ("downstream", "pretraining", "message"),
    [
        ("", "", "pretraining-classes = '': downstream-classes takes all"),
        ("0", "", "must be a count of 1 to 10, or"),
        ("10", "", "downstream-classes takes all 10 classes"),
        ("4", "7", "pretraining-classes = '7': must be a count of 1 to 6, or"),
        ("twenty", "", "must be a count of 1 to 10"),
        ("list:1,x", "", "'x' is not possible here"),
        ("list:8-10", "", r"'8-10' is not possible here; .* numbers in 0\.\.9"),
        ("list:3-1", "", "'3-1' is not possible here"),
        ("list:1,1-2", "", "'1-2' is not possible here"),
    ],
)
def test_wrong_classes_are_refused(downstream, pretraining, message):
    with pytest.raises(SettingsError, match=message) as caught:
        split(downstream, pretraining, classes=10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("n", "fraction", "size"), [(10, 0.8, 8), (11, 0.8, 8), (100, 0.29, 29)])
def test_split_in_two_is_disjoint_seeded_and_rounded_down(n, fraction, size):
    first, other = split_in_two(n, fraction, generator("test"))
    assert len(first) == size
    assert sorted([*first, *other]) == list(range(n))
    assert (np.diff(first) > 0).all()
    assert (np.diff(other) > 0).all()
    assert first.dtype == other.dtype == np.int64
    assert split_in_two(n, fraction, generator("test"))[0].tolist() == first.tolist()
    assert split_in_two(n, fraction, generator("other"))[0].tolist() != first.tolist()


@pytest.mark.parametrize(("n", "fraction"), [(1, 0.8), (4, 0.2), (10, 1.0), (10, 0.0), (0, 0.5)])
def test_split_in_two_leaves_neither_part_empty(n, fraction):
    with pytest.raises(SettingsError, match="a part would be empty"):
        split_in_two(n, fraction, generator("test"))


def test_task_labels_number_the_sorted_classes():
    labels = task_labels(np.array([40, 7, 90, 7]), (90, 7, 40))
    assert labels.tolist() == [1, 0, 2, 0]
    assert labels.dtype == np.int64
