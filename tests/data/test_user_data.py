"""A user's own data from torch or Hugging Face: read into a dataset, or refused in one line."""

import random
from dataclasses import replace

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils import data

from coprefl_flwr.data import (
    ImageDataset,
    TensorDataset,
    as_dataset,
    as_samples,
    load_dataset,
)
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
    dataset = as_dataset("own", Items([(value, 0), (value, 1)]))
    assert isinstance(dataset, ImageDataset)
    assert dataset.shape == shape


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(6, 3, 4, 4),
        torch.randn(6, 7),
        torch.randint(0, 9, (6, 5)),
    ],
)
def test_tensors_other_than_bytes_are_unchanged(values):
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    dataset = as_dataset("own", data.Subset(data.TensorDataset(values, labels), range(5)))
    assert isinstance(dataset, TensorDataset)
    rows = np.array([4, 1])
    assert torch.equal(dataset.inputs(rows, CPU), values[[4, 1]])
    assert dataset.shape == tuple(values.shape[1:])
    assert dataset.labels.tolist() == [0, 1, 2, 0, 1]
    assert dataset.classes == ("0", "1", "2")


ROW = torch.zeros(2)


@pytest.mark.parametrize(
    ("user_data", "message"),
    [
        (iter([]), "got the type list_iterator; pass a map-style Dataset"),
        (Items([]), "got the type Items; pass .* that is not empty"),
        (Items([(ROW, 0), (torch.zeros(3), 1)]), r"several shapes .*\(2,\) and \(3,\)"),
        (Items([torch.zeros(1)]), "item 0 must be .input, label."),
        (Items([(ROW, "cat")]), r"labels are <U3 of shape \(1,\); 1 integers are needed"),
        (Items([(ROW, [0.5, 1]), (ROW, 0.5)]), "targets have several shapes; one is allowed"),
        (
            Items([(ROW, 0.5), (ROW, float("nan"))]),
            "the target of item 1 has a NaN",
        ),
        (Items([("text", 0)]), r"item 0 must be .input, label.: TypeError: .*numpy.str_"),
        (Items([(ROW, 0), (ROW, 5)]), "no sample is of class 1, 2; .*relabel=True"),
        (
            Items([{"a": 0, "b": 1, "label": 0}]),
            "a, b, .*not clear which is the input: pass batch=",
        ),
        (Items([{"x": ROW, "u": 0, "v": 1}]), "not clear which is the label"),
        (data.DataLoader(Items([(grey(1), 0)])), "batch 0 .*batch must contain tensors"),
        (Items([(ROW, 0), (ROW, -1)]), "labels run from -1 to 0; they must be 0 or more"),
    ],
)
def test_unusable_dataset_is_refused(user_data, message):
    with pytest.raises(SettingsError, match=message) as raised:
        as_dataset("dataset 'own'", user_data)
    assert str(raised.value).startswith("dataset 'own': ")


# --- labels with gaps, and names


def test_subset_has_the_class_names_of_its_dataset():
    """A subset has the class names of its dataset, also if it is a subset of a subset.

    In an earlier version the names were "0", "1", ..., also for a split of a split.
    """
    whole = Items([(grey(i), i % 3) for i in range(9)], ["ant", "bee", "cat"])
    first, _ = data.random_split(whole, [8, 1], torch.Generator().manual_seed(0))
    assert as_dataset("own", data.Subset(first, range(8))).classes == ("ant", "bee", "cat")
    assert as_dataset("own", data.Subset(whole, [0, 1, 3, 4])).classes == ("ant", "bee")
    dataset = as_dataset("own", data.Subset(whole, [0, 2, 3, 5]), relabel=True)
    assert (dataset.classes, dataset.labels.tolist()) == (("ant", "cat"), [0, 1, 0, 1])


@pytest.mark.parametrize("mark", [-1, -100])
def test_mark_of_a_missing_label_is_no_class(mark):
    """-1 marks samples without a label in Hugging Face and scikit-learn, -100 in PyTorch."""
    items = Items([(ROW, 0), (ROW, 1), (ROW, mark)])
    with pytest.raises(SettingsError, match=f"{mark} marks samples without a label: leave these"):
        as_dataset("own", items, relabel=True)


NORTH, SOUTH = (([(ROW, 0), (ROW, 1)], names) for names in (["ant", "bee"], ["bee", "cat"]))


def labelled(names):
    features = datasets.Features(
        x=datasets.Sequence(datasets.Value("float32")), label=datasets.ClassLabel(names=names)
    )
    return datasets.Dataset.from_dict({"x": [[0.0]] * 2, "label": [0, 1]}, features=features)


@pytest.mark.parametrize(
    "joined",
    [
        data.ConcatDataset([Items(*NORTH), Items(*SOUTH)]),
        data.DataLoader(data.ConcatDataset([Items(*NORTH), data.Subset(Items(*SOUTH), [0])])),
        {"train": Items(*NORTH), "test": Items(*SOUTH)},
        datasets.DatasetDict(train=labelled(["ant", "bee"]), test=labelled(["bee", "ant"])),
    ],
)
def test_parts_that_number_classes_differently_are_refused(joined):
    with pytest.raises(SettingsError, match=r"name their classes differently: ant, bee and"):
        as_dataset("own", joined)


def test_labels_of_a_transform_have_no_names():
    """`classes` names the labels before `target_transform`."""
    items = Items([(ROW, 0), (ROW, 1)], ["ant", "bee", "cat", "dog"])
    assert as_dataset("own", items).classes == ("ant", "bee")
    items.target_transform = lambda label: label // 2
    assert as_dataset("own", items).classes == ("0", "1")


@pytest.mark.parametrize("number", [int, np.int32, torch.tensor, lambda n: torch.tensor([n])])
def test_labels_with_gaps_are_renumbered_on_request(number):
    items = Items([(np.ones(2), number(n)) for n in (55, 0, 5, 0)])
    dataset = as_dataset("own", items, relabel=True)
    assert dataset.labels.tolist() == [2, 0, 1, 0]
    assert dataset.classes == ("0", "5", "55")
    assert dataset.values.dtype == torch.float32


def test_dataset_of_the_package_is_renumbered_only_if_asked():
    glyphs = load_dataset("glyphs")
    assert as_dataset("own", glyphs) is glyphs
    few = replace(glyphs, labels=np.repeat([3, 7], len(glyphs.labels) // 2))
    dataset = as_dataset("own", few, relabel=True)
    assert dataset.classes == (few.classes[3], few.classes[7])
    assert np.unique(dataset.labels).tolist() == [0, 1]


# --- dicts, loaders, parts


@pytest.mark.parametrize(
    "keys", [("img", "label"), ("image", "labels"), ("x", "y"), ("pixels", "fine_label")]
)
def test_dict_items_are_read_by_their_usual_keys(keys):
    image, label = keys
    dataset = as_dataset("own", Items([{label: n, image: grey(n)} for n in (0, 1)]))
    assert dataset.images[:, 0, 0, 0].tolist() == [0, 1]
    assert dataset.labels.tolist() == [0, 1]


TOKENS = [{"input_ids": [n, n], "attention_mask": [1, 0], "length": 2, "labels": n} for n in (0, 1)]
LOADER = data.DataLoader(
    Items([{k: np.array(value) for k, value in item.items()} for item in TOKENS]), batch_size=2
)


@pytest.mark.parametrize("items", [Items(TOKENS), LOADER], ids=["lists", "loader of arrays"])
def test_several_inputs_are_a_dict_unless_one_is_chosen(items):
    both = {"input_ids": [[0, 0], [1, 1]], "attention_mask": [[1, 0], [1, 0]]}
    for dataset in (as_dataset("own", items), as_samples("train", items).dataset):
        assert {name: rows.tolist() for name, rows in dataset.values.items()} == both
        assert dataset.shape == (2,)
    for chosen in (
        {"batch": lambda item: (item["input_ids"], item["labels"])},
        {"columns": "input_ids"},
    ):
        assert as_dataset("own", items, **chosen).values.tolist() == both["input_ids"]
    named = as_dataset("own", items, columns=["attention_mask", "labels"])
    assert list(named.values) == ["attention_mask"]


@pytest.mark.parametrize("loads", [False, True])
def test_inputs_in_tuples_stay_tuples(loads):
    items = Items([((torch.tensor([n, n]), torch.ones(3)), n) for n in (0, 1, 2)])
    values = as_dataset("own", data.DataLoader(items, 2) if loads else items).values
    assert [rows.tolist() for rows in values] == [[[0, 0], [1, 1], [2, 2]], [[1] * 3] * 3]


def padded(items):
    """Pad as the collators of transformers do: "label" becomes "labels", a mask is added."""
    ids = [torch.tensor(item["input_ids"]) for item in items]
    rows = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    labels = torch.tensor([item["label"] for item in items])
    return {"input_ids": rows, "attention_mask": (rows > 0).long(), "labels": labels}


RAGGED = [
    {"text": "a", "site": "x", "input_ids": [5], "label": 0},
    {"text": "b", "site": "y", "input_ids": [6, 7], "label": 1},
]


def test_collate_pads_all_samples_to_one_length():
    def only_what_it_needs(items):
        assert items[0].keys() == {"input_ids", "label"}
        return padded(items)

    columns = ["input_ids", "attention_mask"]
    given = {"columns": columns, "collate": only_what_it_needs, "groups": "site"}
    loader = data.DataLoader(Items(RAGGED), 1, collate_fn=padded)
    for dataset in (as_dataset("own", Items(RAGGED), **given), as_dataset("own", loader)):
        assert dataset.values["input_ids"].tolist() == [[5, 0], [6, 7]]
        assert dataset.values["attention_mask"].tolist() == [[1, 0], [1, 1]]
        assert dataset.labels.tolist() == [0, 1]
    assert as_dataset("own", Items(RAGGED), **given).groups.tolist() == [0, 1]


def test_ragged_inputs_and_targets_are_refused_without_collate():
    with pytest.raises(SettingsError, match=r"own: inputs have several shapes .* pad .* collate="):
        as_dataset("own", Items(RAGGED), columns=["input_ids"])
    ragged = [{"input_ids": [1, 1], "labels": [n] * n} for n in (2, 3)]
    with pytest.raises(SettingsError, match=r"own: targets have several shapes; .* collate="):
        as_dataset("own", Items(ragged))


def test_metadata_is_ignored():
    metadata = {"name": "a", "words": ["a", "b"], "coarse_label": 3, "weight": torch.tensor(0.5)}
    dataset = as_dataset("own", Items([{"image": grey(n), "label": n, **metadata} for n in (0, 1)]))
    assert dataset.images[:, 0, 0, 0].tolist() == [0, 1]


@pytest.mark.parametrize("options", [{"batch_size": 2, "drop_last": True}, {"batch_size": None}])
def test_loader_is_read_in_dataset_order_and_draws_no_random_number(options):
    values, labels = torch.arange(15).reshape(5, 3), torch.tensor([0, 1, 0, 1, 2])
    shuffled = {"shuffle": True} if options["batch_size"] else {}
    state = torch.get_rng_state()
    loader = data.DataLoader(data.TensorDataset(values, labels), **options, **shuffled)
    dataset = as_dataset("own", loader)
    assert torch.equal(dataset.values, values)
    assert dataset.labels.tolist() == labels.tolist()
    assert torch.equal(torch.get_rng_state(), state)


FOUR = data.TensorDataset(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": data.SubsetRandomSampler([0, 1])},
        {"sampler": data.WeightedRandomSampler([1.0] * 4, 4)},
    ],
    ids=lambda options: type(next(iter(options.values()))).__name__,
)
def test_loader_whose_sampler_omits_samples_is_refused(options):
    """Before, all samples were read, so two loaders of one dataset shared all of their samples."""
    with pytest.raises(SettingsError, match=r"own: .* leave out samples; pass .*Subset\(data"):
        as_dataset("own", data.DataLoader(FOUR, **options))


def test_collate_fn_of_a_loader_is_applied():
    def collate(items):
        images = torch.stack([torch.from_numpy(np.array(image)) for image, _ in items])
        return {"img": images / 255, "label": torch.tensor([n for _, n in items])}

    whole = Items([(grey(n), n) for n in range(3)], ["ant", "bee", "cat"])
    dataset = as_dataset("own", data.DataLoader(whole, 2, collate_fn=collate))
    assert dataset.shape == (4, 5)
    assert dataset.values[2, 0, 0] == pytest.approx(2 / 255)
    assert dataset.classes == ("ant", "bee", "cat")


def test_random_transforms_give_the_same_samples_at_each_reading():
    """Otherwise a second call with a checkpoint would find other clients, and begin again."""

    class Augmented(Items):
        def __getitem__(self, position):
            noise = random.random() + np.random.rand()  # noqa: NPY002
            return torch.rand(3) + noise, position % 2

    state = torch.get_rng_state()
    first, second = (as_dataset("a", Augmented(range(8))).values for _ in range(2))
    assert first.eq(second).all()
    assert len(first.unique()) == first.numel()
    assert torch.get_rng_state().eq(state).all()


def test_inputs_are_detached_from_their_graph():
    inputs = nn.Linear(3, 2)(torch.ones(4, 3))
    assert not as_dataset("a", data.TensorDataset(inputs, torch.arange(4) % 2)).values.requires_grad


def test_test_part_of_a_dict_becomes_the_test_samples():
    train, test = ([(grey(n), n % 2) for n in numbers] for numbers in ((1, 2, 3), (8, 9)))
    dataset = as_dataset("own", {"test": Items(test), "train": Items(train, ["ant", "bee"])})
    assert dataset.images[:, 0, 0, 0].tolist() == [1, 2, 3, 8, 9]
    assert dataset.test.tolist() == [False] * 3 + [True] * 2
    assert dataset.classes == ("ant", "bee")


def test_grey_and_palette_images_become_rgb_next_to_colour_images():
    red = Image.new("RGB", (5, 4), (200, 0, 0))
    dataset = as_dataset("own", Items([(grey(7), 0), (red, 1), (red.quantize(2), 0)]))
    assert dataset.images[:, :, 0, 0].tolist() == [[7, 7, 7], [200, 0, 0], [200, 0, 0]]


# --- a client's data


def test_client_data_may_lack_classes_and_is_read_once():
    subset = data.Subset(Items([(grey(255), 7), (grey(51), 2), (grey(0), 7)]), [0, 1])
    samples = as_samples("train", subset)
    inputs, labels = samples.batch(slice(None), CPU)
    assert labels.tolist() == [7, 2]
    assert inputs[:, 0, 0, 0].tolist() == pytest.approx([1, 0.2])
    assert as_samples("train", subset) is samples
    assert as_samples("train", samples) is samples


def test_dataset_function_gets_the_folder_and_its_options(tmp_path):
    file = tmp_path / "own_data.py"
    file.write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n\n"
        "def made(folder, size=4):\n"
        "    n = int((folder / 'n.txt').read_text())\n"
        "    return TensorDataset(torch.zeros(n, size), torch.arange(n) % 2)\n"
    )
    (tmp_path / "n.txt").write_text("6")
    dataset = load_dataset(f"{file}:made:size=9", tmp_path)
    assert dataset.shape == (9,)
    assert len(dataset.labels) == 6
    assert load_dataset(f"{file}:made:size=9", tmp_path) is dataset


# ---- groups --------------------------------------------------------------------------------------

WRITERS = ["bo", "al", "bo", "cy", "al", "bo"]


def with_writers(kind):
    """Return data of six samples and `groups` that name their writers, in several forms."""
    dicts = [{"x": torch.ones(3) * n, "y": n % 2, "who": who} for n, who in enumerate(WRITERS)]
    pairs = Items([(item["x"], item["y"]) for item in dicts])
    forms = {
        "list": (pairs, WRITERS),
        "column": (pairs, pd.Series(WRITERS, dtype=object)),
        "tensor": (pairs, torch.tensor([[1], [0], [1], [2], [0], [1]])),
        "key": (Items(dicts), "who"),
        "loader": (data.DataLoader(Items(dicts), batch_size=4), "who"),
        "hugging face": (datasets.Dataset.from_list([d | {"x": [1.0, 2.0]} for d in dicts]), "who"),
        "dataset": (as_dataset("own", pairs), WRITERS),
    }
    return forms[kind]


@pytest.mark.parametrize(
    "kind",
    ["list", "column", "tensor", "key", "loader", "hugging face", "dataset"],
)
def test_groups_of_any_data(kind):
    """Groups are numbered in the order of their names: al, bo, cy."""
    own, groups = with_writers(kind)
    assert as_dataset("own", own, groups=groups).groups.tolist() == [1, 0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("kind", "groups", "problem"),
    [
        ("list", WRITERS[:5], r"own: groups are an array of <U2, of shape \(5,\); needed are 6"),
        ("list", [*WRITERS[:5], None], "groups are an array of object, .*of one type"),
        ("list", [1.0, 2.0, np.nan, 1.0, 1.0, 2.0], "groups are an array of float64"),
        ("list", "who", "unknown column 'who': no column exists"),
        ("key", "writer", "own: unknown column 'writer': known are x, y, who"),
    ],
)
def test_groups_that_do_not_name_each_samples_group_are_refused(kind, groups, problem):
    with pytest.raises(SettingsError, match=problem):
        as_dataset("own", with_writers(kind)[0], groups=groups)
