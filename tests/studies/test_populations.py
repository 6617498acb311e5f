"""The samples of every client: each sample of a population is used exactly once.

The samples are the same for every start.
"""

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from coprefl_flwr.data import DataSettings
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.studies.build import build, populations
from coprefl_flwr.studies.populations import PRETRAIN
from coprefl_flwr.studies.settings import Settings, TaskDataSettings
from coprefl_flwr.studies.tasks import task_name


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
    return group.name, group.classes, [
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


def test_pretraining_uses_every_sample_of_its_classes_once(tiny_settings):
    group = population(tiny_settings, PRETRAIN)
    assert len(group.clients) == 6
    indices = [index for client in group.clients for index in indices_of(client.train)]
    indices += indices_of(server_samples(tiny_settings))
    assert sorted(indices) == of_classes(tiny_settings, group.classes)
    assert all(client.test is None for client in group.clients)


def test_a_smaller_server_share_leaves_the_clients_what_they_hold(tiny_settings):
    """Of 150 samples, 8 are in reserve: a server share of 2 % is the first 3 of them."""
    small = replace(tiny_settings, server_share=0.02)
    before, after = (population(tiny_settings, PRETRAIN), population(small, PRETRAIN))
    for client, other in zip(before.clients, after.clients, strict=True):
        assert list(indices_of(client.train)) == list(indices_of(other.train))
    assert len(server_samples(tiny_settings)) == 8
    assert (
        list(indices_of(server_samples(small)))
        == list(indices_of(server_samples(tiny_settings)))[:3]
    )


def test_the_clients_can_be_given_everything(tiny_settings):
    """As in Table 41, the server has no data, and the clients have all data."""
    settings = replace(tiny_settings, server_reserve=0.0, server_share=0.0)
    group = population(settings, PRETRAIN)
    indices = [index for client in group.clients for index in indices_of(client.train)]
    assert sorted(indices) == of_classes(settings, group.classes)
    assert len(server_samples(settings)) == 0


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_a_task_uses_every_sample_of_its_classes_once(tiny_settings, scheme):
    settings = replace(tiny_settings, task_partition=scheme)
    for number in range(4):
        group = population(settings, task_name(number))
        assert len(group.clients) == 3
        parts = [indices_of(part) for c in group.clients for part in (c.train, c.test)]
        assert sorted(index for part in parts for index in part) == of_classes(
            settings, group.classes
        )
        for client in group.clients:
            n = len(client.train) + len(client.test)
            assert len(client.train) == n * 4 // 5


def test_labels_are_positions_of_the_classes(tiny_settings):
    labels = dataset(tiny_settings).labels
    for name in (PRETRAIN, task_name(0), task_name(1)):
        group = population(tiny_settings, name)
        for client in group.clients:
            for part in filter(None, (client.train, client.test)):
                classes = [group.classes[label] for label in part.labels]
                assert classes == labels[part.indices].tolist()


def test_tasks_are_paired(tiny_settings):
    """No setting of the pre-training changes a task, so that starts can be compared."""
    start = replace(
        tiny_settings,
        run_name="other",
        method="fedavg",
        clients=9,
        participants=2,
        partition="dirichlet",
        alpha=5.0,
        rounds=7,
        local_steps=None,
        local_epochs=1,
        batch_size=4,
        learning_rate=0.2,
        short=(("gamma", 0.9), ("resplit", False), ("support-fraction", 0.5)),
        model="femnist-cnn",
        task_rounds=9,
        tasks=5,
    )
    for number in range(3):
        name = task_name(number)
        assert contents(population(start, name)) == contents(population(tiny_settings, name))


def test_tasks_differ_from_one_another_and_between_seeds(tiny_settings):
    tasks = [contents(population(tiny_settings, task_name(n)))[1:] for n in range(6)]
    assert all(tasks[a] != tasks[b] for a in range(6) for b in range(a))
    assert len({classes for classes, _ in tasks}) > 1
    other = replace(tiny_settings, seed=1)
    assert contents(population(other, "task-0"))[1:] not in tasks


def test_input_shape(tiny_settings):
    assert (
        dataset(tiny_settings).shape
        == build(tiny_settings).stages[0].architecture.input_shape
        == (1, 6, 6)
    )


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


def test_a_domain_is_held_out():
    settings = in_domains()
    pretraining = used(settings, PRETRAIN) + indices_of(server_samples(settings))
    assert domains_of(settings, pretraining) == {"plain", "inverted", "outlined"}
    assert sorted(pretraining) == list(range(2520))
    assert used(settings, "task-0") == list(range(2520, 3360))
    assert population(settings, "task-0").classes == population(settings, PRETRAIN).classes


def test_without_lists_of_domains_all_are_used():
    settings = in_domains(
        pretraining_domains="", downstream_domains="", pretraining_classes="",
        downstream_classes="list:0-2", task_classes=3,
    )  # fmt: skip
    assert set(used(settings, "task-0")) == set(of_classes(settings, (0, 1, 2)))
    pretraining = used(settings, PRETRAIN) + indices_of(server_samples(settings))
    assert sorted(pretraining) == of_classes(settings, (3, 4, 5, 6))


def test_a_held_out_domain_has_no_part_in_the_normalisation():
    settings = in_domains()
    seen = dataset(settings).images[:2520].float() / 255
    assert dataset(settings).mean.item() == pytest.approx(seen.mean().item(), rel=1e-5)
    assert task_dataset(settings) is dataset(settings)
    everything = in_domains(pretraining_domains="", allow_class_overlap=True)
    whole = dataset(everything).images.float() / 255
    assert dataset(everything).mean.item() == pytest.approx(whole.mean().item(), rel=1e-5)


def test_the_pretrained_model_is_tested_on_the_domains_it_saw():
    settings = in_domains(test_every=1)
    tested = indices_of(of(settings)[0].test_samples())
    assert len(tested) == 3 * 7 * 20
    assert domains_of(settings, tested) == {"plain", "inverted", "outlined"}


# --- classes that are in both phases


MIXED = {
    "allow_class_overlap": True,
    "pretraining_classes": "list:0-4",
    "downstream_classes": "list:3-6",
}


def test_seen_and_unseen_classes_are_mixed_as_in_the_paper(tiny_settings):
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
def test_tasks_and_pretraining_share_no_sample_where_some_are_reserved(tiny_settings, reserve):
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


def test_a_reserve_without_shared_samples_changes_nothing(tiny_settings):
    for settings in (tiny_settings, in_domains()):
        reserved = replace(settings, task_reserve=0.5)
        for name in (PRETRAIN, "task-0"):
            assert used(reserved, name) == used(settings, name)


def test_of_domains_in_both_phases_only_the_shared_one_is_split():
    settings = in_domains(
        downstream_domains="outlined turned", allow_class_overlap=True, task_reserve=0.25
    )
    pretraining = used(settings, PRETRAIN) + indices_of(server_samples(settings))
    of_task = used(settings, "task-0")
    assert sorted(pretraining + of_task) == list(range(3360))
    domains = dataset(settings).domains[of_task]
    assert np.bincount(domains).tolist() == [0, 0, 7 * 30, 840]


# --- classes without samples


def test_no_task_draws_a_class_without_samples(tiny_settings, tmp_path):
    """A dataset may have names of classes without samples.

    In an earlier version, a task with these classes trained on no samples.
    """
    images = np.zeros((80, 6, 6), np.uint8)
    names = [f"class {number}" for number in range(9)]
    np.savez(tmp_path / "few.npz", images=images, labels=2 * (np.arange(80) % 4), classes=names)
    settings = replace(
        tiny_settings, dataset=str(tmp_path / "few.npz"), downstream_classes="list:3-6"
    )
    with pytest.raises(
        SettingsError, match=r"there are no samples of class 3, class 5; .*relabel = true"
    ):
        population(settings, "task-0")
    settings = replace(settings, relabel=True, downstream_classes="3")
    assert dataset(settings).classes == ("class 0", "class 2", "class 4", "class 6")
    assert contents(population(settings, "task-0"))


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


def test_tasks_are_of_their_own_dataset(two_datasets):
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
    assert (
        source.shape
        == other.shape
        == build(two_datasets).stages[0].architecture.input_shape
        == (3, 6, 6)
    )
    assert other.mean.tolist() == source.mean.tolist()
    assert other.std.tolist() == source.std.tolist()
    measured = (other.images.float() / 255).mean().item()
    assert abs(measured - source.mean.mean().item()) > 0.05
    grey = dataset(replace(two_datasets, task_dataset=""))
    assert grey.shape == (1, 6, 6)


def test_colour_to_pretrain_with_makes_the_tasks_colour(two_datasets):
    swapped = replace(
        two_datasets, dataset=two_datasets.task_dataset, task_dataset=two_datasets.dataset
    )
    assert task_dataset(swapped).shape == (3, 6, 6)
    assert len(population(swapped, PRETRAIN).classes) == 4


def test_few_samples_of_a_class_are_the_pretrainings_only(two_datasets):
    settings = replace(two_datasets, samples_per_class=10)
    assert np.bincount(dataset(settings).labels).tolist() == [10] * 8
    assert used(settings, "task-0") == used(two_datasets, "task-0")
    alone = replace(settings, task_dataset="")
    assert len(used(alone, "task-0")) == 20


def test_naming_the_same_dataset_twice_is_naming_it_once(tiny_settings):
    twice = replace(tiny_settings, task_dataset=tiny_settings.dataset)
    assert contents(population(twice, "task-0")) == contents(population(tiny_settings, "task-0"))
    assert class_split(twice) == class_split(tiny_settings)


def test_datasets_that_do_not_fit_are_refused(two_datasets, tmp_path):
    with pytest.raises(SettingsError, match=r"inputs are 3x9x7 of .* and 3x6x6 .* set image-size"):
        population(replace(two_datasets, image_size=0), "task-0")
    (tmp_path / "a.txt").write_text("A:\n" + "word " * 40)
    with pytest.raises(
        SettingsError, match=r"both must be images of bytes .*; texts have no tasks"
    ):
        population(
            replace(two_datasets, task_dataset=str(tmp_path / "a.txt"), image_size=0), "task-0"
        )


FLOATS = """
import torch
from torch.utils.data import TensorDataset

def made(folder, classes=6, side=6, seed=0):
    images = torch.rand(20 * classes, 3, side, side, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(images, torch.arange(20 * classes) % classes)
"""


def test_images_of_floats_can_be_the_tasks_too(tiny_settings, tmp_path):
    """An earlier version refused both datasets as "texts"."""
    (tmp_path / "floats.py").write_text(FLOATS)
    here = f"{tmp_path / 'floats.py'}:made"
    both = replace(
        tiny_settings,
        dataset=here,
        task_dataset=f"{here}:classes=4,seed=1",
        downstream_classes="4",
        pretraining_classes="",
    )
    samples = population(both, "task-0").clients[0].train
    first = dataset(both)
    assert first.shape == samples.dataset.shape == (3, 6, 6)
    assert (len(first.classes), len(samples.dataset.classes)) == (6, 4)
    images = torch.rand(80, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    inputs, _ = samples.batch(slice(None), torch.device("cpu"))
    assert torch.equal(inputs, images[samples.indices])
    with pytest.raises(SettingsError, match=r"inputs are 3x7x7 of torch.float32 and 3x6x6 of tor"):
        population(replace(both, task_dataset=f"{here}:side=7"), "task-0")
    with pytest.raises(SettingsError, match=r"both must be images of bytes .*, or tensors"):
        population(replace(both, task_dataset=tiny_settings.dataset), "task-0")


# --- the head


def test_a_head_is_kept_where_the_classes_are_the_same():
    assert population(in_domains(head="keep"), "task-0").classes == tuple(range(7))


def test_a_head_is_not_kept_for_classes_of_another_name(two_datasets):
    settings = replace(
        two_datasets, head="keep", pretraining_classes="list:4-7", downstream_classes="list:0-3",
        task_classes=4,
    )  # fmt: skip
    with pytest.raises(SettingsError, match=r"\(0, 1, 2, 3\), and the pre-training 4 \(4, 5, 6, 7"):
        build(settings).stages[-1].check()
    same = replace(settings, pretraining_classes="list:0-3")
    build(same).stages[-1].check()
    assert population(same, "task-0").classes == (0, 1, 2, 3)
