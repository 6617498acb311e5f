"""Partitions of samples among clients.

There are named schemes, partitioners of flwr-datasets, and a user's by_function functions.
"""

import subprocess
import sys

import numpy as np
import pytest
from flwr_datasets import partitioner

from coprefl_flwr.data.partition import SCHEMES, partition
from coprefl_flwr.errors import SettingsError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 103))
DEALING = tuple(scheme for scheme in SCHEMES if scheme != "natural")


def share(scheme, clients=8, *, labels=LABELS, seed=0, alpha=0.5, per_client=3, **kwargs):
    return partition(
        labels,
        clients,
        scheme,
        alpha=alpha,
        classes_per_client=per_client,
        seed_key=(seed, "test"),
        **kwargs,
    )


def counts(parts, labels=LABELS):
    return np.array([np.bincount(labels[part], minlength=10) for part in parts])


@pytest.mark.parametrize("scheme", DEALING)
def test_every_scheme_deals_each_sample_to_one_client(scheme):
    # With more clients the smallest exponential part would be empty, which the library refuses.
    clients = 5 if scheme == "exponential" else 12
    parts = share(scheme, clients, min_samples=0)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts)) == list(range(len(LABELS)))
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("scheme", DEALING)
def test_partition_follows_the_seed(scheme):
    parts, again, other = (share(scheme, 5, min_samples=0, seed=seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def test_iid_clients_have_equal_numbers_of_each_class():
    table = counts(share("iid"))
    assert np.ptp(table, axis=0).max() <= 1
    assert np.ptp(table.sum(axis=1)) <= 1


def test_dirichlet_is_more_skewed_than_iid_and_less_for_a_large_alpha():
    def skew(parts):
        return counts(parts).std(axis=0).mean()

    assert skew(share("dirichlet")) > 2 * skew(share("dirichlet", alpha=100.0))
    assert skew(share("dirichlet")) > 10 * skew(share("iid"))


def test_pathological_clients_have_the_given_number_of_classes():
    assert ((counts(share("pathological", 12)) > 0).sum(axis=1) == 3).all()


def test_pathological_partition_of_few_clients_omits_classes():
    assert (counts(share("pathological", 2)).sum(axis=0) > 0).sum() <= 6


def test_linear_and_square_schemes_have_their_sizes():
    linear, square = (np.array([len(p) for p in share(s, 4)]) for s in ("linear", "square"))
    assert np.abs(linear - len(LABELS) * np.array([1, 2, 3, 4]) / 10).max() < 4
    assert np.abs(square - len(LABELS) * np.array([1, 4, 9, 16]) / 30).max() < 4


def test_draw_with_too_small_a_client_is_repeated():
    """Without a minimum, at least one draw leaves a client too few samples; with it, none does."""
    seeds = range(5)
    first = [min(map(len, share("dirichlet", 10, alpha=0.2, seed=s, min_samples=0))) for s in seeds]
    final = [min(map(len, share("dirichlet", 10, alpha=0.2, seed=s))) for s in seeds]
    assert min(first) < 10 <= min(final)


def test_hundred_draws_with_too_small_a_client_are_an_error():
    labels = np.repeat(np.arange(10), 110)
    with pytest.raises(SettingsError, match=r"'dirichlet' .* 100 clients.*each of 100 draws$"):
        share("dirichlet", 100, labels=labels, alpha=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": "dirichlett"}, "unknown partition .*did you mean 'dirichlet'"),
        ({"scheme": "iid", "clients": 0}, "among 0 clients"),
        ({"scheme": "iid", "clients": 104}, "at least 1040 samples are needed"),
        ({"scheme": "dirichlet", "alpha": 0.0}, "(?i)alpha values should be strictly greater"),
        (
            {"scheme": "pathological", "per_client": 11},
            "greater than the number of unique classes",
        ),
    ],
)
def test_wrong_partition_setting_is_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        share(**settings)


# --- a client is a group

# Group 3 k has k + 1 samples, 0 <= k < 20: 210 samples in all.
SIZES = {3 * k: k + 1 for k in range(20)}
GROUPS = np.random.default_rng(1).permutation(np.repeat(list(SIZES), list(SIZES.values())))


def natural(clients, groups=GROUPS, **kwargs):
    labels = np.zeros(len(GROUPS), dtype=np.int64)
    return share("natural", clients, labels=labels, groups=groups, **kwargs)


def group_of(part):
    """Return the group of all samples in a part."""
    (group,) = set(GROUPS[part].tolist())
    return group


def test_natural_client_is_a_whole_group():
    parts = natural(6)
    assert len(parts) == 6
    for part in parts:
        assert part.tolist() == np.flatnonzero(group_of(part) == GROUPS).tolist()
        assert part.dtype == np.int64


def test_natural_groups_follow_the_seed_in_sorted_order():
    drawn = [list(map(group_of, natural(6, seed=seed))) for seed in (0, 0, 1, 2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2] != drawn[3]
    assert all(groups == sorted(groups) for groups in drawn)


def test_natural_partition_skips_small_groups():
    """11 of the 20 groups have 10 samples or more."""
    assert list(map(group_of, natural(11))) == [3 * k for k in range(9, 20)]
    assert list(map(group_of, natural(20, min_samples=1))) == sorted(SIZES)
    message = "among 12 clients: only 11 of 20 groups have 10 samples or more"
    with pytest.raises(SettingsError, match=message):
        natural(12)


def test_data_without_groups_are_refused():
    with pytest.raises(SettingsError, match=r"has no groups .*QMNIST.*npz"):
        natural(2, groups=None)


# --- a user's by_function functions


@pytest.fixture
def partition_file(tmp_path):
    """A file with a function that deals out the samples in turn, and functions that are wrong."""
    file = tmp_path / "partition_file.py"
    file.write_text(
        "def dealt(labels, clients, rng, start=0):\n"
        "    order = rng.permutation(len(labels))[start:]\n"
        "    return [order[client::clients] for client in range(clients)]\n\n"
        "def too_few(labels, clients, rng):\n    return [[0], [1]]\n\n"
        "def twice(labels, clients, rng):\n    return [[0, 1]] * clients\n\n"
        "def outside(labels, clients, rng):\n    return [[len(labels)]] * clients\n\n"
        "def nothing(labels, clients, rng):\n    return None\n\n"
        "def empty(labels, clients, rng):\n    return [[]] * clients\n"
    )
    return file


def by_function(place, seed=0):
    return partition(
        np.arange(12) % 3, 3, place, alpha=1, classes_per_client=1, seed_key=(seed,), min_samples=1
    )


def test_users_partition_function_is_seeded_and_takes_options(partition_file):
    parts = by_function(f"{partition_file}:dealt")
    assert sorted(np.concatenate(parts)) == list(range(12))
    again, other = (
        by_function(f"{partition_file}:dealt"),
        by_function(f"{partition_file}:dealt", seed=1),
    )
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))
    assert any((a != b).any() for a, b in zip(parts, other, strict=True))
    assert len(np.concatenate(by_function(f"{partition_file}:dealt:start=3"))) == 9
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too_few", "it returned 2 clients, but clients = 3"),
        ("twice", r"each sample index must be in 0\.\.11, and occur once"),
        ("outside", r"each sample index must be in 0\.\.11, and occur once"),
        ("nothing", "'NoneType' object is not iterable"),
        ("empty", "client 0 has only 0 samples; 1 are needed"),
        ("dealt:begin=3", "failed: TypeError: .* unexpected keyword argument 'begin'"),
    ],
)
def test_wrong_result_of_a_users_partition_function_is_refused(partition_file, name, message):
    with pytest.raises(SettingsError, match=message):
        by_function(f"{partition_file}:{name}")


# ---- partitioners of flwr-datasets ---------------------------------------------------------------

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
        ("SizePartitioner:partition_sizes=10,20,30,60", [10, 20, 30, 60]),
        ("ShardPartitioner:num_shards_per_partition=2", [30] * 4),
        ("ContinuousPartitioner:strictness=0.5", [30] * 4),
        ("IidPartitioner", [30] * 4),
        ("DirichletPartitioner", None),
        ("PathologicalPartitioner:class_assignment_mode=deterministic", [30] * 4),
        ("NaturalIdPartitioner", [30] * 4),
        ("flwr_datasets.partitioner:IidPartitioner", [30] * 4),
    ],
)
def test_partitioner_of_flwr_datasets_partitions_by_name(text, sizes):
    parts = of_class(text)
    assert [len(part) for part in parts] == (sizes or [len(part) for part in parts])
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    again, other = of_class(text), of_class(text, seed=1)
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))
    fixed = text.startswith("Natural")
    same = all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))
    assert same == fixed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("InnerDirichletPartitoner", "unknown name .*: did you mean 'InnerDirichletPartitioner'"),
        ("ShardPartitioner:shard_sise=3", "unknown option 'shard_sise': did you mean 'shard_size'"),
        ("DirichletPartitioner:seed=4", "unknown option 'seed': known are partition_by, alpha"),
        ("ContinuousPartitioner", "missing 1 required .*: 'strictness'"),
        ("SizePartitioner:partition_sizes=20,30", "it returned 2 clients, but clients = 4"),
        ("SizePartitioner:partition_sizes=2,30,30,30", "client 0 has only 2 samples; 5 are"),
        ("NaturalIdPartitioner:partition_by=lable", "unknown column 'lable': did you mean 'label'"),
    ],
)
def test_wrong_partitioner_is_refused(text, message):
    with pytest.raises(SettingsError, match=message) as raised:
        of_class(text)
    assert "\n" not in str(raised.value)


def test_partitioner_object_is_not_changed():
    labels, ready = np.arange(120) % 4, partitioner.DirichletPartitioner(5, "fine_label", 0.5)
    parts, again = (partition(labels, None, ready, seed_key=(0,)) for _ in range(2))
    assert len(parts) == 5
    assert sorted(np.concatenate(parts)) == list(range(120))
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))
    natural = partitioner.NaturalIdPartitioner("writer_id")
    assert [part[0] for part in partition(labels, None, natural, groups=GROUPED)] == [0, 30, 60, 90]


@pytest.mark.slow
def test_partition_does_not_import_the_plots_of_the_library():
    """The libraries for plots take 1.5 s and 85 MiB in each process that has clients."""
    program = """
import sys
import numpy as np
from coprefl_flwr.data import partition
partition(np.arange(100) % 5, 4, "dirichlet")
assert not {"seaborn", "matplotlib"} & {*sys.modules}
from flwr_datasets.visualization import plot_label_distributions
assert "seaborn" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
