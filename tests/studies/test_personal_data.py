"""The samples of every client in a personalised study: Tables 8 to 10.

Datasets that do not fit are refused.
"""

from dataclasses import replace

import numpy as np
import pytest

from coprefl_flwr.data import ImageDataset
from coprefl_flwr.data.partition import dirichlet_counts
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.settings import Settings

CLASSES = 3


def data(settings):
    """Return the samples of a personalised study with these settings."""
    return build(settings).stages[0].data


def of(**changes):
    """Return the settings of a personalised study."""
    return Settings(**{"study": "personalised", "method": "fedpcl", **changes})


def write(path, per_class=40, side=4, **more):
    rng = np.random.default_rng(7)
    labels = np.repeat(np.arange(CLASSES), per_class)
    pixels = rng.integers(0, 256, (len(labels), side, side), dtype=np.uint8)
    np.savez(path, images=pixels, labels=labels, **more)
    return str(path)


@pytest.fixture
def two(tmp_path):
    names = [write(tmp_path / "a.npz"), write(tmp_path / "b.npz", per_class=25, side=6)]
    return of(
        personal_datasets=" ".join(names), train_per_class=5, test_per_class=10, alpha=1.0,
        min_samples=2,
    )  # fmt: skip


def labels_of(samples):
    return np.bincount(samples.labels, minlength=CLASSES).tolist()


def test_feature_shift_gives_every_client_the_same_samples_per_class(two):
    """As in Table 8, there is one client per dataset."""
    assert (data(two).num_clients, data(two).shift) == (2, "feature")
    for client, samples in enumerate(data(two).images):
        assert labels_of(samples.train) == [5] * CLASSES
        assert labels_of(samples.test) == [10] * CLASSES
        assert samples.train.dataset is data(two).domains[client].samples.dataset


def test_clients_of_one_dataset_share_no_sample(two):
    """Clients 1 and 3 share dataset b, which has 25 samples per class.

    Each trains on 5 samples per class, so 15 are left. Each should be tested on 10 samples per
    class, but gets 7.
    """
    settings = replace(two, personal_clients=4)
    clients = data(settings).images
    assert [data(settings).domain_of(client).name for client in range(4)] == ["a", "b", "a", "b"]
    assert [labels_of(client.test) for client in clients] == [[10] * 3, [7] * 3] * 2
    for dataset in (clients[:4:2], clients[1:4:2]):
        rows = np.concatenate([part.indices for d in dataset for part in (d.train, d.test)])
        assert len(set(rows.tolist())) == len(rows)
    for client in clients:
        for part in (client.train, client.test):
            assert part.labels.tolist() == part.dataset.labels[part.indices].tolist()


@pytest.mark.parametrize("kind", ["label", "both"])
def test_label_shift_distributes_the_same_number_unevenly(two, kind):
    """As in Tables 9 and 10, the clients' sizes differ; their sum is equal to feature shift's."""
    datasets = two.personal_datasets.split()[0] if kind == "label" else two.personal_datasets
    settings = replace(two, personal_datasets=datasets, shift=kind, personal_clients=2, seed=3)
    even, key = np.full((2, CLASSES), 5), (3, "personal")
    counts = dirichlet_counts(data(settings).domains, even, key, alpha=1.0, min_samples=2)
    assert counts.sum(axis=0).tolist() == [10] * CLASSES
    assert counts[0].tolist() != counts[1].tolist()
    for client, samples in enumerate(data(settings).images):
        assert labels_of(samples.train) == counts[client].tolist()
        tested = np.array(labels_of(samples.test))
        assert (tested <= 2 * counts[client]).all()
        assert ((tested > 0) <= (counts[client] > 0)).all()


def test_samples_change_with_the_seed_alone(two):
    first, other = data(two).images[0], data(replace(two, seed=1)).images[0]
    assert first.train.indices.tolist() != other.train.indices.tolist()
    again = data(replace(two, method="solo", run_name="x")).images[0]
    assert first.train.indices.tolist() == again.train.indices.tolist()


def test_domains_of_one_file_are_separate_datasets(tmp_path):
    numbers = np.tile([1, 0], CLASSES * 20)
    path = write(tmp_path / "p.npz", domains=numbers, domain_names=["photo", "sketch"])
    domains = data(of(personal_datasets=f"{path}@*")).domains
    assert [domain.name for domain in domains] == ["photo", "sketch"]
    for number, domain in enumerate(domains):
        assert domain.samples.indices.tolist() == np.flatnonzero(numbers == number).tolist()
    (sketch,) = data(of(personal_datasets=f"{path}@sketch")).domains
    assert sketch.samples.indices.tolist() == domains[1].samples.indices.tolist()
    with pytest.raises(SettingsError, match="unknown domain 'sketsh': did you mean 'sketch'"):
        build(of(personal_datasets=f"{path}@sketsh")).check()


def test_datasets_with_classes_in_another_order_are_refused(tmp_path):
    """Otherwise, the same label would mean different classes for different clients."""
    first = write(tmp_path / "a.npz", classes=["cat", "dog", "elk"])
    other = write(tmp_path / "b.npz", classes=["dog", "cat", "elk"])
    with pytest.raises(SettingsError, match="b has the classes dog, cat, elk; they must be, in"):
        build(of(personal_datasets=f"{first} {other}")).check()


def test_images_are_resized_to_the_first_dataset(two, tmp_path):
    assert data(two).input_shape == (16,)
    assert data(replace(two, method="solo", backbones="scratch")).input_shape == (1, 4, 4)
    for client in range(2):
        assert data(two).features_of(client, tmp_path).train.dataset.values.shape == (15, 16)
    source = data(two).domains[0].samples.dataset
    assert isinstance(source, ImageDataset)
    train = data(two).images[0].train
    expected = source.inputs(train.indices, source.mean.device).flatten(1).numpy()
    values = data(two).features_of(0, tmp_path).train.dataset.values
    assert values.numpy() == pytest.approx(expected, abs=1e-5)


def test_noise_on_images_changes_training_images_alone(two, tmp_path):
    def features(name, **changes):
        return data(replace(two, **changes)).features_of(0, tmp_path / name)

    plain = features("plain")
    noisy, again = (features(name, noise_on="images") for name in ("noisy", "again"))
    assert np.array_equal(plain.test.dataset.values, noisy.test.dataset.values)
    assert not np.isclose(plain.train.dataset.values, noisy.train.dataset.values).any(axis=1).all()
    assert np.array_equal(again.train.dataset.values, noisy.train.dataset.values)
