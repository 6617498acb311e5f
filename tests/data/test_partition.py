import numpy as np
import pytest

from coprefl_flwr.data import SCHEMES, partition
from coprefl_flwr.errors import SettingsError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 103))


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


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_partitions(scheme):
    # With more clients the smallest exponential part would be empty, which the library refuses.
    clients = 5 if scheme == "exponential" else 12
    parts = share(scheme, clients, min_samples=0)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts)) == list(range(len(LABELS)))
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_seed_decides(scheme):
    one, again, other = (share(scheme, 5, min_samples=0, seed=seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_iid_spreads_each_class_and_the_total_evenly():
    found = counts(share("iid"))
    assert np.ptp(found, axis=0).max() <= 1
    assert np.ptp(found.sum(axis=1)) <= 1


def test_iid_draws_which_samples_of_a_class_go_where():
    labels = np.zeros(40, dtype=np.int64)
    part = share("iid", 2, labels=labels)[0]
    assert part.tolist() != list(range(0, 40, 2))


def test_dirichlet_is_more_skewed_than_iid_and_less_for_a_large_alpha():
    def skew(parts):
        return counts(parts).std(axis=0).mean()

    assert skew(share("dirichlet")) > 2 * skew(share("dirichlet", alpha=100.0))
    assert skew(share("dirichlet")) > 10 * skew(share("iid"))


def test_pathological_clients_hold_as_many_classes_as_asked():
    assert ((counts(share("pathological", 12)) > 0).sum(axis=1) == 3).all()


def test_pathological_leaves_classes_out_where_clients_are_few():
    assert (counts(share("pathological", 2)).sum(axis=0) > 0).sum() <= 6


def test_sizes_grow_as_the_scheme_says():
    linear, square = (np.array([len(p) for p in share(s, 4)]) for s in ("linear", "square"))
    assert np.abs(linear - len(LABELS) * np.array([1, 2, 3, 4]) / 10).max() < 4
    assert np.abs(square - len(LABELS) * np.array([1, 4, 9, 16]) / 30).max() < 4


def test_a_draw_that_leaves_a_client_short_is_drawn_again():
    """Of the first draws (no minimum) at least one is short, and none of the final ones is."""
    seeds = range(5)
    first = [min(map(len, share("dirichlet", 10, alpha=0.2, seed=s, min_samples=0))) for s in seeds]
    final = [min(map(len, share("dirichlet", 10, alpha=0.2, seed=s))) for s in seeds]
    assert min(first) < 10 <= min(final)


def test_a_hundred_short_draws_are_an_error_that_says_what_was_asked():
    labels = np.repeat(np.arange(10), 110)
    with pytest.raises(
        SettingsError, match=r"'dirichlet' with alpha 0\.1 .* 100 clients"
    ) as caught:
        share("dirichlet", 100, labels=labels, alpha=0.1)
    assert "\n" not in str(caught.value)
    assert "samples" in str(caught.value.__cause__)


def test_sizes_that_no_draw_can_change_are_an_error():
    with pytest.raises(SettingsError, match="'exponential' of 1030 samples among 20 clients"):
        share("exponential", 20)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": "dirichlett"}, "nearest: dirichlet"),
        ({"scheme": "iid", "clients": 0}, "among 0 clients"),
        ({"scheme": "iid", "clients": 104}, "at least 1040 samples are needed"),
        ({"scheme": "dirichlet", "alpha": 0.0}, "alpha must be above 0"),
        ({"scheme": "dirichlet", "alpha": float("nan")}, "alpha must be above 0"),
        ({"scheme": "pathological", "per_client": 11}, "1 to 10 are possible"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(SettingsError, match=message):
        share(**settings)
