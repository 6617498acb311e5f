"""The samples of every client: each sample of a population is used exactly once.

The samples are the same for every start.
"""

import copy
import functools
from dataclasses import replace

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.arrays import checksum_of
from coprefl_flwr.data import DataSettings
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models import model_arrays
from coprefl_flwr.studies.build import build, populations
from coprefl_flwr.studies.populations import PRETRAIN, Clients, hash_of_samples
from coprefl_flwr.studies.settings import Settings, TaskDataSettings
from coprefl_flwr.studies.task_data import task_name


@functools.lru_cache(maxsize=64)
def of(settings):
    """Return the clients of the pre-training and the tasks of a study with these settings."""
    return populations(settings.part(DataSettings), settings.part(TaskDataSettings), settings.seed)


def population(settings, name):
    clients, tasks = of(settings)
    if name == PRETRAIN:
        return clients.population
    tasks = copy.copy(tasks)
    tasks.number = 100  # More tasks than the study has.
    return tasks[int(name.removeprefix("task-"))]


def server_samples(settings):
    return of(settings)[0].server


def dataset(settings):
    return of(settings)[0].source.dataset


def task_dataset(settings):
    return of(settings)[1].source.dataset


def class_split(settings):
    return tuple(clients.source.classes for clients in of(settings))


def indices_of(samples):
    return [int(index) for index in samples.indices]


def of_classes(settings, classes):
    return [int(i) for i in np.flatnonzero(np.isin(dataset(settings).labels, classes))]


def contents(group):
    """Return everything that makes two populations the same."""
    return group.classes, [
        (indices_of(c.train), c.train.labels.tolist(), indices_of(c.test), c.test.labels.tolist())
        for c in group.clients
    ]  # fmt: skip


def test_classes_of_pretraining_and_tasks_are_disjoint(tiny_settings):
    pretraining, downstream = class_split(tiny_settings)
    assert (len(pretraining), len(downstream)) == (5, 3)
    assert sorted(pretraining + downstream) == list(range(8))
    assert population(tiny_settings, PRETRAIN).classes == pretraining
    for number in range(20):
        assert set(population(tiny_settings, task_name(number)).classes) <= set(downstream)


@pytest.mark.parametrize("server", [(0.05, 0.05, 8), (0.05, 0.02, 3), (0.0, 0.0, 0)])
def test_pretraining_uses_every_sample_of_its_classes_once(tiny_settings, server):
    """A smaller server share is the first of the samples in reserve; clients hold the same."""
    reserve, share, number = server
    settings = replace(tiny_settings, server_reserve=reserve, server_share=share)
    group = population(settings, PRETRAIN)
    assert len(group.clients) == 6
    assert all(client.test is None for client in group.clients)
    indices = [index for client in group.clients for index in indices_of(client.train)]
    whole = replace(tiny_settings, server_reserve=reserve)
    in_reserve = indices_of(server_samples(whole))
    samples = indices_of(server_samples(settings))
    assert len(samples) == number
    assert samples == in_reserve[:number]
    assert sorted(indices + in_reserve) == of_classes(settings, group.classes)


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_task_uses_every_sample_of_its_classes_once(tiny_settings, scheme):
    settings = replace(tiny_settings, task_partition=scheme)
    for number in range(4):
        name = task_name(number)
        group = population(settings, name)
        assert len(group.clients) == 3
        assert used(settings, name) == of_classes(settings, group.classes)
        for client in group.clients:
            n = len(client.train) + len(client.test)
            assert len(client.train) == n * 4 // 5


def test_tasks_do_not_change_with_settings_of_the_pretraining(tiny_settings):
    """So starts can be compared on the same tasks."""
    other = {
        "clients": 9,
        "participants": 2,
        "partition": "dirichlet",
        "alpha": 5.0,
        "local_steps": None,
        "local_epochs": 1,
        "model": "femnist-cnn",
        "tasks": 5,
    }
    start = replace(
        tiny_settings, run_name="other", method="coprefl:gamma=0.9,resplit=false", **other
    )
    for number in range(3):
        name = task_name(number)
        assert contents(population(start, name)) == contents(population(tiny_settings, name))


def test_tasks_differ_by_number_and_seed(tiny_settings):
    tasks = [contents(population(tiny_settings, task_name(n))) for n in range(6)]
    assert all(tasks[a] != tasks[b] for a in range(6) for b in range(a))
    assert len({classes for classes, _ in tasks}) > 1
    other = replace(tiny_settings, seed=1)
    assert contents(population(other, "task-0")) not in tasks


# --- domains


def in_domains(**changes):
    """Return settings of the glyphs in domains; both phases have all 7 classes."""
    every = {"pretraining_classes": "list:0-6", "downstream_classes": "list:0-6"}
    split = {"pretraining_domains": "plain inverted outlined", "downstream_domains": "turned"}
    sizes = {"clients": 6, "participants": 3, "task_clients": 4, "task_classes": 7}
    return Settings(**{"dataset": "glyphs:domains", **every, **split, **sizes, **changes})


def used(settings, name):
    """Return the rows of all samples of a population's clients, ascending."""
    group = population(settings, name)
    parts = [part for c in group.clients for part in (c.train, c.test) if part is not None]
    return sorted(index for part in parts for index in indices_of(part))


def domains_of(settings, rows):
    return {dataset(settings).domain_names[n] for n in dataset(settings).domains[rows]}


def test_held_out_domain_is_used_in_tasks_alone():
    settings = in_domains()
    pretraining = used(settings, PRETRAIN) + indices_of(server_samples(settings))
    assert domains_of(settings, pretraining) == {"plain", "inverted", "outlined"}
    assert sorted(pretraining) == list(range(2520))
    assert used(settings, "task-0") == list(range(2520, 3360))
    assert population(settings, "task-0").classes == population(settings, PRETRAIN).classes


def test_pretrained_model_is_tested_on_its_domains():
    settings = in_domains(test_every=1)
    tested = indices_of(of(settings)[0].test_samples())
    assert len(tested) == 3 * 7 * 20
    assert not {*tested} & {*used(settings, PRETRAIN), *indices_of(server_samples(settings))}
    assert domains_of(settings, tested) == {"plain", "inverted", "outlined"}


# --- classes that are in both phases


MIXED = {
    "allow_class_overlap": True,
    "pretraining_classes": "list:0-4",
    "downstream_classes": "list:3-6",
}


def test_tasks_draw_seen_and_unseen_classes_as_in_the_paper(tiny_settings):
    """As in Table 4, the pre-training has its usual classes.

    Tasks draw from some of these classes and from other classes.
    """
    settings = replace(tiny_settings, **MIXED)
    assert class_split(settings) == ((0, 1, 2, 3, 4), (3, 4, 5, 6))
    apart = replace(tiny_settings, pretraining_classes="list:0-4", downstream_classes="list:5-7")
    assert used(settings, PRETRAIN) == used(apart, PRETRAIN)
    drawn = [set(population(settings, task_name(number)).classes) for number in range(30)]
    assert {frozenset(classes & {3, 4}) for classes in drawn} > {frozenset(), frozenset({3})}
    number = next(number for number, classes in enumerate(drawn) if 3 in classes)
    assert set(used(settings, task_name(number))) & set(used(settings, PRETRAIN))


@pytest.mark.parametrize("reserve", [0.3, 0.5])
def test_reserved_samples_of_tasks_are_not_used_in_pretraining(tiny_settings, reserve):
    settings = replace(
        tiny_settings, **MIXED, task_reserve=reserve, task_classes=4, server_reserve=0.1
    )
    pretraining = used(settings, PRETRAIN) + indices_of(server_samples(settings))
    of_task = used(settings, "task-0")
    assert not set(pretraining) & set(of_task)
    assert sorted(pretraining + of_task) == of_classes(settings, range(7))
    labels = dataset(settings).labels
    seen, unseen = round(30 * reserve), 30
    assert np.bincount(labels[of_task], minlength=8).tolist() == [
        *(0, 0, 0, seen, seen, unseen, unseen, 0)
    ]
    other = replace(settings, seed=1)
    assert used(other, "task-0") != of_task


# --- classes without samples


def test_tasks_have_no_class_without_samples(tiny_settings, tmp_path):
    """In an earlier version, a task with such a class trained on no samples."""
    images = np.zeros((80, 6, 6), np.uint8)
    names = [f"class {number}" for number in range(9)]
    file = tmp_path / "few.npz"
    np.savez(file, images=images, labels=2 * (np.arange(80) % 4), classes=names)
    settings = replace(tiny_settings, dataset=str(file), downstream_classes="list:3-6")
    assert population(settings, "task-0").classes == (4, 6)
    with pytest.raises(SettingsError, match=r"needs 3 classes, but there are only 2"):
        population(replace(settings, task_classes=3), "task-0")


# --- another dataset for the tasks


@pytest.fixture
def two_datasets(tiny_settings, tmp_path):
    """Grey images for the pre-training, and colour images for the tasks.

    The colour images have 4 other classes and another size.
    """
    rng = np.random.default_rng(5)
    images = rng.integers(90, 256, (80, 9, 7, 3), dtype=np.uint8)
    np.savez(tmp_path / "colour.npz", images=images, labels=np.arange(80) % 4)
    return replace(
        tiny_settings,
        task_dataset=str(tmp_path / "colour.npz"),
        downstream_classes="3",
        image_size=6,
    )


def test_tasks_use_the_task_dataset(two_datasets):
    pretraining, downstream = class_split(two_datasets)
    assert pretraining == tuple(range(8))
    assert len(downstream) == 3
    assert set(downstream) <= set(range(4))
    group = population(two_datasets, "task-0")
    rows = used(two_datasets, "task-0")
    expected = np.flatnonzero(np.isin(task_dataset(two_datasets).labels, group.classes))
    assert rows == expected.tolist()
    assert all(c.train.dataset is task_dataset(two_datasets) for c in group.clients)
    pretraining = used(two_datasets, PRETRAIN) + indices_of(server_samples(two_datasets))
    assert sorted(pretraining) == list(range(240))


def test_both_datasets_have_one_shape_and_one_normalisation(two_datasets):
    source, other = dataset(two_datasets), task_dataset(two_datasets)
    shape = build(two_datasets).stages[0].architecture.input_shape
    assert source.shape == other.shape == shape == (3, 6, 6)
    assert other.mean.tolist() == source.mean.tolist()
    assert other.std.tolist() == source.std.tolist()
    measured = (other.images.float() / 255).mean().item()
    assert abs(measured - source.mean.mean().item()) > 0.05
    with pytest.raises(SettingsError, match=r"samples are 3x9x7 of .* and 3x6x6 .* set image-size"):
        population(replace(two_datasets, image_size=0), "task-0")


# --- the head


def test_head_is_not_kept_for_classes_of_other_names(two_datasets):
    settings = replace(
        two_datasets, head="keep", pretraining_classes="list:4-7", downstream_classes="list:0-3",
        task_classes=4,
    )  # fmt: skip
    with pytest.raises(
        SettingsError, match=r"\(0, 1, 2, 3\), must be those of the pre-training, 4"
    ):
        build(settings).stages[-1].check()
    same = replace(settings, pretraining_classes="list:0-3")
    build(same).stages[-1].check()
    assert population(same, "task-0").classes == (0, 1, 2, 3)


# ---- datasets of a program -----------------------------------------------------------------------


class Site(TensorDataset):
    """A client's data: samples whose input is the number of their name, and names of classes."""

    def __init__(self, *names, classes=None):
        self.classes = list(classes or dict.fromkeys(names))
        values = torch.tensor([[float(ord(name[0]))] for name in names])
        super().__init__(values, torch.tensor([self.classes.index(name) for name in names]))


def names_of(clients):
    """Return the name that each client's labels give each of its samples."""
    return [
        [clients.classes[label] for label in samples.batch(slice(None), torch.device("cpu"))[1]]
        for samples in clients.samples
    ]


@pytest.mark.parametrize(
    ("sites", "classes"),
    [
        ([Site("ant", "bee"), Site("bee", "cat")], ("ant", "bee", "cat")),
        ([Site("bee", "cat"), Site("ant", "bee")], ("ant", "bee", "cat")),
        ([Site("cat", "bee"), Site("bee", "ant")], ("cat", "bee", "ant")),  # Not sorted.
        ([Site("ant", "cat", classes=["ant", "bee", "cat"]), Site("bee", "dog")], None),
        ([Subset(Site("ant", "bee", "cat"), [0, 1]), Site("bee", "cat")], ("ant", "bee", "cat")),
    ],
)
def test_classes_of_clients_are_numbered_by_name(sites, classes):
    """Earlier, label 1 was a bee at one client and a cat at the other."""
    clients = Clients.of_datasets(sites)
    assert clients.classes == (classes or ("ant", "bee", "cat", "dog"))
    for site, names, samples in zip(sites, names_of(clients), clients.samples, strict=True):
        inputs = [chr(int(value)) for value, _ in site]
        assert [name[0] for name in names] == inputs
        assert clients.source.class_names == list(clients.classes)
        assert samples.dataset.classes == clients.classes


def test_numbered_classes_keep_their_numbers():
    sites = [TensorDataset(torch.zeros(2, 1), torch.tensor(labels)) for labels in ([0, 1], [1, 2])]
    clients = Clients.of_datasets(sites)
    assert [own.labels.tolist() for own in clients.samples] == [[0, 1], [1, 2]]
    with pytest.raises(
        SettingsError, match=r"clients\[0\] only numbers its classes, but others name"
    ):
        Clients.of_datasets([sites[0], Site("ant", "bee")])


TRAIN, TEST = Site(*["ant", "bee"] * 10), Site(*["ox", "yak"] * 5)


@pytest.mark.parametrize(
    "splits",
    [
        {"train": TRAIN, "test": TEST},
        {"train": TRAIN, "validation": TEST},
        datasets.DatasetDict(
            train=datasets.Dataset.from_dict({"x": [[97.0]] * 20, "label": [0, 1] * 10}),
            test=datasets.Dataset.from_dict({"x": [[111.0]] * 10, "label": [0, 1] * 5}),
        ),
    ],
)
def test_only_the_training_split_is_trained_on(splits, caplog):
    caplog.set_level("INFO", "flwr.coprefl")
    cut = cp.partition(splits, clients=2, scheme="iid", min_samples=2)
    of_sites = Clients.of_datasets([splits, splits])
    tasks = cp.tasks(splits, number=1, classes=2, clients=2, scheme="iid", min_samples=2)
    parts = [*cut.samples, *of_sites.samples, *(client.train for client in tasks[0].clients)]
    values = {int(v) for own in parts for v in own.batch(slice(None), torch.device("cpu"))[0]}
    assert values <= {ord("a"), ord("b")}
    assert caplog.text.count("only the split train is used, without") == 4


def test_data_seed_draws_clients_and_tasks_and_seed_draws_the_rest(tiny_settings):
    """Not set, `seed` draws all: the same samples and keys as `data-seed` = `seed`."""
    plain = replace(tiny_settings, seed=3)
    same, other, redrawn = (
        replace(tiny_settings, seed=seed, data_seed=draw) for seed, draw in ((3, 3), (4, 3), (3, 4))
    )
    made = {one: build(one).stages for one in (plain, same, other, redrawn)}
    keys = {one: [stage.key for stage in stages] for one, stages in made.items()}
    assert keys[same] == keys[plain]
    assert not {*keys[other]} & {*keys[plain]}
    assert not {*keys[redrawn]} & {*keys[plain], *keys[other]}

    def drawn(settings):
        start, task = made[settings][0], made[settings][-1]
        groups = [start.clients.population, task.tasks[0], task.tasks[1]]
        samples = [part for one in groups for of in one.clients for part in (of.train, of.test)]
        classes = [one.classes for one in groups]
        return classes, hash_of_samples([*filter(None, samples), start.clients.server])

    def first(settings):
        start, task = made[settings][0], made[settings][-1]
        head = task.architecture.make(2, task.population_name, "model")
        return checksum_of(start.initial()), checksum_of(model_arrays(head))

    assert drawn(plain) == drawn(same) == drawn(other) != drawn(redrawn)
    assert first(plain) == first(same) == first(redrawn)
    assert all(a != b for a, b in zip(first(plain), first(other), strict=True))
    strategies = [made[one][-1].strategy() for one in (plain, other)]
    assert [strategy.seed for strategy in strategies] == [3, 4]


def test_samples_per_class_are_drawn_by_the_data_seed(tiny_settings):
    few = replace(tiny_settings, samples_per_class=12, min_samples=2)
    draws = [replace(few, seed=seed, data_seed=draw) for seed, draw in ((0, 5), (1, 5), (0, 6))]
    inputs = [build(one).stages[0].clients.source.identity() for one in draws]
    assert inputs[0] == inputs[1] != inputs[2]
    batches = [hash_of_samples(build(one).stages[0].clients.samples) for one in draws]
    assert batches[0] == batches[1] != batches[2]
