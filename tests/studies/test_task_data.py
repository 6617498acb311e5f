"""Tasks of groups and domains, and joined tasks."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.errors import SettingsError
from tests.common.data import images
from tests.common.networks import Perceptron

SMALL = {"clients": 2, "scheme": "iid", "min_samples": 2}


def alphabets():
    """Return 4 alphabets of 30 samples each: alphabet a has the classes 3 a, ..., 3 a + 2.

    The last one has two classes only.
    """
    groups, labels = np.divmod(np.arange(120), 30)
    labels = 3 * groups + labels % np.where(groups == 3, 2, 3)
    inputs = torch.arange(120.0)[:, None].repeat(1, 4)
    return TensorDataset(inputs, torch.from_numpy(labels)), groups


def test_a_task_has_the_classes_and_the_samples_of_one_group():
    """Without a number, all groups with enough classes are tasks."""
    data, groups = alphabets()
    tasks = cp.tasks(data, classes=3, by="group", groups=groups, **SMALL)
    assert [task.classes for task in tasks] == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    for number, task in enumerate(tasks):
        every = [part for client in task.clients for part in (client.train, client.test)]
        indices = np.concatenate([part.indices for part in every])
        assert sorted(indices) == list(range(30 * number, 30 * number + 30))
        assert {*np.concatenate([part.labels for part in every])} == {0, 1, 2}


def test_groups_and_their_classes_are_drawn_by_the_seed():
    data, groups = alphabets()
    several = [
        cp.tasks(data, number=2, classes=2, by="group", groups=groups, seed=seed, **SMALL)
        for seed in range(5)
    ]
    drawn = [tuple(task.classes for task in tasks) for tasks in several]
    assert len(set(drawn)) > 1
    assert all(a // 3 == b // 3 for tasks in drawn for a, b in tasks)
    again = cp.tasks(data, number=2, classes=2, by="group", groups=groups, seed=3, **SMALL)
    assert tuple(task.classes for task in again) == drawn[3]


def test_a_task_for_each_domain():
    data = cp.load_dataset("glyphs:domains")
    tasks = cp.tasks(data, classes=3, by="domain", **SMALL)
    assert len(tasks) == len(data.domain_names)
    domains = [{*data.domains[c.train.indices]} for task in tasks for c in task.clients]
    assert domains == [{domain} for domain in range(len(tasks)) for _ in range(2)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"by": "group"}, "by = 'group': the dataset has no groups; name them with groups="),
        ({"by": "domain"}, "by = 'domain': the dataset has no domains"),
        ({"by": "writer"}, "by: unknown value 'writer'"),
        ({"by": "group", "grouped": 1, "number": 4}, "number = 4: only 3 of 4 groups have 3 cl"),
        ({"by": "group", "grouped": 1, "classes": 4}, "only 0 of 4 groups have 4 classes"),
    ],
)
def test_impossible_tasks_of_groups_are_refused(options, problem):
    data, groups = alphabets()
    given = {"groups": groups} if options.pop("grouped", None) else {}
    with pytest.raises(SettingsError, match=problem):
        cp.tasks(data, **{"classes": 3, **SMALL, **given, **options})


def test_joined_tasks_are_the_tasks_of_both():
    """They may differ in the numbers of classes and clients, but not in their inputs."""
    first = cp.tasks(images(), number=2, classes=2, clients=3, scheme="iid")
    second = cp.tasks(images(), number=1, classes=4, clients=2, scheme="iid", seed=1)
    both = first + second + second
    assert len(both) == 4
    parts = [first[0], first[1], second[0], second[0]]
    assert [task.classes for task in both] == [part.classes for part in parts]
    for task, part in zip(both, parts, strict=True):
        assert [c.train.indices.tolist() for c in task.clients] == [
            c.train.indices.tolist() for c in part.clients
        ]
    assert both.identity(2) == second.identity(0)
    assert repr(both) == " + ".join(map(repr, (first, second, second)))
    with pytest.raises(IndexError):
        both[4]
    data, groups = alphabets()
    with pytest.raises(SettingsError, match=r"inputs \(1, 6, 6\) with .* and \(4,\) with .* must"):
        _ = first + cp.tasks(data, classes=3, by="group", groups=groups, **SMALL)


def test_starts_are_compared_on_joined_tasks():
    first = cp.tasks(images(), number=1, classes=2, clients=2, scheme="iid")
    second = cp.tasks(images(), number=1, classes=4, clients=3, scheme="iid")
    starts = {"a": Perceptron(), "b": Perceptron(seed=1)}
    options = {"rounds": 1, "local_steps": 1, "quiet": True}
    both = cp.evaluate_starts(starts, first + second, **options)
    assert both.rows.groupby("task")["client"].nunique().tolist() == [2, 3]
    assert both.about["settings"]["task-classes"] == [2, 4]
    alone = cp.evaluate_starts(starts, first, **options)
    same = both.rows[both.rows["task"] == 0].reset_index(drop=True)
    assert same.equals(alone.rows.sort_values(["start", "client"]).reset_index(drop=True))
