"""Partitioners of flwr-datasets, named by their class or ready-made."""

import numpy as np
import pytest
from flwr_datasets import partitioner

from coprefl_flwr.data import partition, partition_with
from coprefl_flwr.errors import SettingsError

GROUPED = np.repeat(np.arange(4), 30)


def of_class(text, clients=4, seed=0, groups=GROUPED, min_samples=5):
    return partition(
        np.arange(120) % 4, clients, text, alpha=0.5, classes_per_client=2, seed_key=(seed,),
        min_samples=min_samples, groups=groups,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("InnerDirichletPartitioner:partition_sizes=20,30,40,25,alpha=0.3", [20, 30, 40, 25]),
        ("InnerDirichletPartitioner:partition-sizes=30", [30] * 4),
        ("SizePartitioner:partition_sizes=10,20,30,60", [10, 20, 30, 60]),
        ("ShardPartitioner:num_shards_per_partition=2", [30] * 4),
        ("ContinuousPartitioner:strictness=0.5", [30] * 4),
        ("IidPartitioner", [30] * 4),
        ("LinearPartitioner", [12, 24, 36, 48]),
        ("DirichletPartitioner", None),
        ("PathologicalPartitioner:class_assignment_mode=deterministic", [30] * 4),
        ("NaturalIdPartitioner", [30] * 4),
        ("NaturalIdPartitioner:partition_by=label", [30] * 4),
        ("GroupedNaturalIdPartitioner:group_size=1", [30] * 4),
        ("flwr_datasets.partitioner:IidPartitioner", [30] * 4),
    ],
)
def test_a_partitioner_by_its_class(text, sizes):
    parts = of_class(text)
    assert [len(part) for part in parts] == (sizes or [len(part) for part in parts])
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    again, other = of_class(text), of_class(text, seed=1)
    assert all((one == two).all() for one, two in zip(parts, again, strict=True))
    fixed = text.startswith("Natural")
    same = all(np.array_equal(one, two) for one, two in zip(parts, other, strict=True))
    assert same == fixed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("InnerDirichletPartitoner", "unknown name .*: did you mean 'InnerDirichletPartitioner'"),
        ("ShardPartitioner:shard_sise=3", "unknown option 'shard_sise': did you mean 'shard_size'"),
        ("IidPartitioner:num_partitions=4", "num_partitions is the number of clients"),
        ("DirichletPartitioner:seed=4", "seed is the seed of the study"),
        ("ContinuousPartitioner", "needs strictness: write ContinuousPartitioner:strictness=VALUE"),
        ("ContinuousPartitioner:strictness=3", "must be between 0 and 1"),
        ("SizePartitioner:partition_sizes=20,30", "it makes 2 clients; set that many"),
        ("SizePartitioner:partition_sizes=2,30,30,30", "client 0 is left with 2 samples; 5 are"),
        ("NaturalIdPartitioner:partition_by=lable", "unknown column 'lable': did you mean 'label'"),
        ("VerticalEvenPartitioner", "it divides columns"),
        ("IdToSizeFncPartitioner", "partition_id_to_size_fn cannot be written in a setting"),
        ("DirichletPartitioner:alpha=0", "(?i)alpha values should be strictly greater than zero"),
    ],
)
def test_a_partitioner_that_cannot_be_is_told(text, message):
    with pytest.raises(SettingsError, match=message) as raised:
        of_class(text)
    assert "\n" not in str(raised.value)


def test_a_partitioner_of_groups_needs_them():
    with pytest.raises(SettingsError, match="the dataset does not name groups"):
        of_class("NaturalIdPartitioner", groups=None)


def test_a_ready_made_partitioner_stays_as_it_is():
    labels, made = np.arange(120) % 4, partitioner.DirichletPartitioner(5, "fine_label", 0.5)
    parts, again = (partition_with(made, labels, seed_key=(0,)) for _ in range(2))
    assert len(parts) == 5
    assert sorted(np.concatenate(parts)) == list(range(120))
    assert all((one == two).all() for one, two in zip(parts, again, strict=True))
    natural = partitioner.NaturalIdPartitioner("writer_id")
    assert [part[0] for part in partition_with(natural, labels, groups=GROUPED)] == [0, 30, 60, 90]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (3, "int of 120 samples: it is no partitioner of flwr-datasets"),
        (partitioner.NaturalIdPartitioner("writer"), "the dataset does not name groups"),
        (partitioner.VerticalEvenPartitioner(2), "it divides columns"),
        (partitioner.SizePartitioner([200]), "SizePartitioner of 120 samples: "),
        (partitioner.IidPartitioner(50), "client 0 is left with 3 samples; 5 are needed"),
    ],
)
def test_a_ready_made_partitioner_that_cannot_be_is_told(made, message):
    with pytest.raises(SettingsError, match=message):
        partition_with(made, np.arange(120) % 4, min_samples=5)
