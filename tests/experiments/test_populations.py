"""Who holds what: everything used once, nothing seen twice, and the same for every start."""

from dataclasses import replace

import numpy as np
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.experiments.populations import (
    PRETRAINING,
    class_split,
    dataset,
    input_shape,
    number_of_clients,
    population,
    server_samples,
    task_name,
)


def held(samples):
    return [int(index) for index in samples.indices]


def of_classes(settings, classes):
    return [int(i) for i in np.flatnonzero(np.isin(dataset(settings).labels, classes))]


def contents(group):
    """Return everything that makes two populations the same."""
    return group.name, group.classes, [
        (held(c.train), c.train.labels.tolist(), held(c.test), c.test.labels.tolist())
        for c in group.clients
    ]  # fmt: skip


def test_classes_of_pretraining_and_tasks_are_disjoint(tiny_settings):
    pretraining, downstream = class_split(tiny_settings)
    assert (len(pretraining), len(downstream)) == (5, 3)
    assert sorted(pretraining + downstream) == list(range(8))
    assert population(tiny_settings, PRETRAINING).classes == pretraining
    for number in range(20):
        assert set(population(tiny_settings, task_name(number)).classes) <= set(downstream)


def test_pretraining_uses_every_sample_of_its_classes_once(tiny_settings):
    group = population(tiny_settings, PRETRAINING)
    assert len(group.clients) == number_of_clients(tiny_settings, PRETRAINING) == 6
    indices = [index for client in group.clients for index in held(client.train)]
    indices += held(server_samples(tiny_settings))
    assert sorted(indices) == of_classes(tiny_settings, group.classes)
    assert all(client.test is None for client in group.clients)


def test_a_smaller_server_share_leaves_the_clients_what_they_hold(tiny_settings):
    """150 samples, 8 in reserve: a share of 2 % is the first 3 of them."""
    small = replace(tiny_settings, server_share=0.02)
    before, after = population(tiny_settings, PRETRAINING), population(small, PRETRAINING)
    for one, other in zip(before.clients, after.clients, strict=True):
        assert list(held(one.train)) == list(held(other.train))
    assert len(server_samples(tiny_settings)) == 8
    assert list(held(server_samples(small))) == list(held(server_samples(tiny_settings)))[:3]


def test_the_clients_can_be_given_everything(tiny_settings):
    """Table 41: no data at the server, all of it at the clients."""
    settings = replace(tiny_settings, server_reserve=0.0, server_share=0.0)
    group = population(settings, PRETRAINING)
    indices = [index for client in group.clients for index in held(client.train)]
    assert sorted(indices) == of_classes(settings, group.classes)
    assert len(server_samples(settings)) == 0


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_a_task_uses_every_sample_of_its_classes_once(tiny_settings, scheme):
    settings = replace(tiny_settings, task_partition=scheme)
    for number in range(4):
        group = population(settings, task_name(number))
        assert len(group.clients) == number_of_clients(settings, group.name) == 3
        parts = [held(part) for c in group.clients for part in (c.train, c.test)]
        assert sorted(index for part in parts for index in part) == of_classes(
            settings, group.classes
        )
        for client in group.clients:
            n = len(client.train) + len(client.test)
            assert len(client.train) == n * 4 // 5


def test_labels_are_positions_of_the_classes(tiny_settings):
    labels = dataset(tiny_settings).labels
    for name in (PRETRAINING, task_name(0), task_name(1)):
        group = population(tiny_settings, name)
        for client in group.clients:
            for part in filter(None, (client.train, client.test)):
                classes = [group.classes[label] for label in part.labels]
                assert classes == labels[part.indices].tolist()


def test_tasks_are_paired(tiny_settings):
    """Nothing of how a start was pre-trained changes a task; otherwise starts could not compete."""
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
        gamma=0.9,
        support_fraction=0.5,
        resplit=False,
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
    assert input_shape(tiny_settings) == (1, 6, 6)


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({"task_classes": 4}, "task-0", "task-classes = 4: there are only 3 downstream classes"),
        ({"min_samples": 21}, "task-0", "of 60 samples among 3 clients"),
        ({"min_samples": 26}, PRETRAINING, "of 142 samples among 6 clients"),
        ({"downstream_classes": "9"}, PRETRAINING, "downstream-classes = '9': 1 to 8"),
    ],
)
def test_what_cannot_be_had_is_named(tiny_settings, changes, name, message):
    with pytest.raises(SettingsError, match=message):
        population(replace(tiny_settings, **changes), name)
