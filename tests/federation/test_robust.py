"""Robust rules: computed by hand, and under attacks."""

import numpy as np
import pytest

from coprefl_flwr.errors import RoundFailedError, SettingsError
from coprefl_flwr.federation import (
    Chain,
    Exchange,
    LossMoments,
    Mean,
    MetricsOnly,
    PerClient,
    Replies,
)
from coprefl_flwr.federation.aggregation import parse
from coprefl_flwr.federation.robust import AGGREGATIONS, Robust
from coprefl_flwr.federation.validation import Bounds

RULES = AGGREGATIONS[1:]
SHAPES = {"w": (3, 2), "b": (4,)}
SENT = {
    "w": np.full((3, 2), 0.5),
    "b": np.zeros(4),
    "bn.running_mean": np.zeros(2),
    "bn.num_batches_tracked": np.array(3),
}
IDS = (0, 1, 4, 5, 7, 8, 9, 12, 13, 20)
SAMPLES = np.array([4.0, 9, 2, 7, 5, 3, 8, 6, 4, 7])


def clients(seed=0, n=10):
    """Return the models of n clients, in float64."""
    rng = np.random.default_rng(seed)
    models = []
    for number in range(n):
        model = {name: SENT[name] + rng.normal(size=shape) for name, shape in SHAPES.items()}
        model["bn.running_mean"] = rng.normal(size=2)
        model["bn.num_batches_tracked"] = np.float64(3 + number)
        models.append(model)
    return models


def robust(rule, attackers=0.2, clip_factor=1.0):
    return Robust(rule, attackers, clip_factor)


def mean_of(rule, each, samples=SAMPLES, weight="num-examples", changes=()):
    """Return the robust mean of the clients' models, and its metrics."""
    exchange = Exchange("train", SENT, IDS[: len(each)], Mean(weight), changes=changes)
    sums = {str(client): model for client, model in zip(IDS, each, strict=False)}
    metrics = {"num-examples": samples[: len(each)]}
    replies = Replies(IDS[: len(each)], metrics, sums=sums)
    combined, metrics = rule.mean(exchange, replies)
    return combined.arrays, metrics


def flat(model):
    """Return a client's weights as one vector."""
    return np.concatenate([model[name].ravel() for name in SHAPES])


def best_by_hand(each, f, number):
    """Return the positions of the clients with the lowest Krum scores.

    Blanchard et al. define these scores.
    """
    vectors, scores = [flat(model) for model in each], []
    for vector in vectors:
        squares = sorted(float(((vector - other) ** 2).sum()) for other in vectors)
        scores.append(sum(squares[1 : len(each) - f - 1]))
    return sorted(range(len(each)), key=lambda position: (scores[position], position))[:number]


def by_hand(rule, each, samples, f=2):
    """Return the robust mean of the weights as one vector, for up to f attackers."""
    vectors = np.array([flat(model) for model in each])
    ordered = np.sort(samples)
    weights = np.array([min(max(n, ordered[f]), ordered[-1 - f]) for n in samples])
    if rule == "median":
        return np.array([sorted(column)[4] + sorted(column)[5] for column in vectors.T]) / 2
    if rule == "trimmed-mean":
        return np.array([sum(sorted(column)[f:-f]) / (len(each) - 2 * f) for column in vectors.T])
    if rule == "krum":
        return vectors[best_by_hand(each, f, 1)[0]]
    if rule == "multi-krum":
        best = best_by_hand(each, f, len(each) - f)
        return np.average(vectors[best], axis=0, weights=weights[best])
    updates = vectors - flat(SENT)
    lengths = [float(np.sqrt((vector**2).sum())) for vector in updates]
    middle = sum(sorted(lengths)[4:6]) / 2
    shorter = [vector * min(1, middle / n) for vector, n in zip(updates, lengths, strict=True)]
    return flat(SENT) + np.average(shorter, axis=0, weights=weights)


@pytest.mark.parametrize("rule", RULES)
def test_robust_mean_by_hand(rule):
    each = clients()
    mean, metrics = mean_of(robust(rule), each)
    np.testing.assert_allclose(flat(mean), by_hand(rule, each, SAMPLES), rtol=0, atol=1e-14)
    middle = np.median if rule != "trimmed-mean" else lambda a, axis: np.sort(a, axis)[2:-2].mean(0)
    statistics = np.array([model["bn.running_mean"] for model in each])
    np.testing.assert_allclose(mean["bn.running_mean"], middle(statistics, axis=0), atol=1e-15)
    counter = mean["bn.num_batches_tracked"]
    assert (counter.dtype, int(counter)) == (np.dtype("int64"), 8)  # 7.5, rounded to even.
    assert list(mean) == list(SENT)
    if rule == "krum":
        assert metrics == {"krum-client": IDS[best_by_hand(each, 2, 1)[0]]}
    else:
        assert metrics == ({"clipped": 0.5} if rule == "norm-clipping" else {})


def test_robust_mean_without_attackers_is_the_mean():
    each = clients(1)
    mean = np.average([flat(model) for model in each], axis=0, weights=SAMPLES)
    for rule in (robust("multi-krum", 0.0), robust("norm-clipping", 0.0, 1e9)):
        arrays, _ = mean_of(rule, each)
        np.testing.assert_allclose(flat(arrays), mean, rtol=0, atol=1e-14)
    arrays, _ = mean_of(robust("trimmed-mean", 0.0), each)
    np.testing.assert_allclose(flat(arrays), np.mean([flat(model) for model in each], axis=0))


def test_clipped_updates_start_at_the_arrays_that_were_sent():
    """Two updates have lengths 3 and 1. The median is 2, so clipping leaves lengths 2 and 1."""
    sent = {"w": np.array([10.0, 0.0])}
    sums = {"0": {"w": np.array([13.0, 0.0])}, "1": {"w": np.array([10.0, 1.0])}}
    replies = Replies((0, 1), {}, sums=sums)
    combined, metrics = robust("norm-clipping").mean(Exchange("t", sent, (0, 1), Mean("")), replies)
    np.testing.assert_allclose(combined.arrays["w"], [11.0, 0.5], rtol=1e-15)
    assert metrics == {"clipped": 0.5}
    changes = Exchange("t", sent, (0, 1), Mean(""), changes=["w"])
    replies = Replies((0, 1), {}, sums={"0": {"w": np.array([3.0, 0])}, "1": sums["1"]})
    combined, _ = robust("norm-clipping").mean(changes, replies)
    middle = (3 + np.sqrt(101)) / 2
    np.testing.assert_allclose(
        combined.arrays["w"], (np.array([3.0, 0]) + sums["1"]["w"] * middle / np.sqrt(101)) / 2
    )


ATTACKS = {
    "sign-flip": lambda model: {n: 2 * SENT[n] - 1e6 * (a - SENT[n]) for n, a in model.items()},
    "huge": lambda model: {n: np.full_like(a, 1e200) for n, a in model.items()},
    "statistics alone": lambda model: model | {"bn.running_mean": np.full(2, -1e30)},
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("rule", AGGREGATIONS)
def test_robust_mean_stays_within_the_models_of_good_clients(rule, attack):
    """Each attacker also reports a billion samples."""
    each, samples = clients(2), SAMPLES.copy()
    for position in (2, 7):
        each[position], samples[position] = ATTACKS[attack](each[position]), 1e9
    good = [model for position, model in enumerate(each) if position not in (2, 7)]
    if rule == "mean":
        mean = {n: np.average([model[n] for model in each], 0, samples) for n in SENT}
    else:
        mean, _ = mean_of(robust(rule), each, samples)
    within = {
        name: bool(
            (mean[name] >= np.min([model[name] for model in good], axis=0)).all()
            and (mean[name] <= np.max([model[name] for model in good], axis=0)).all()
        )
        for name in SENT
    }
    if rule == "mean":
        assert not all(within.values())
        return
    if rule == "norm-clipping":  # It bounds the length of the update, not each number.
        farthest = max(np.linalg.norm(flat(model) - flat(SENT)) for model in good)
        assert np.linalg.norm(flat(mean) - flat(SENT)) <= farthest
        within |= dict.fromkeys(SHAPES, True)
    assert all(within.values()), within


def test_extreme_metrics_are_limited_to_those_of_other_clients():
    values = np.array([1e100, 3.0, 1, 2, 5, 4, 6, -1e100, 7, 8])
    assert robust("median", 0.2).winsorise(values).tolist() == [7, 3, 2, 2, 5, 4, 6, 2, 7, 7]
    assert robust("median", 0.0).winsorise(values).tolist() == values.tolist()
    assert robust("median", 0.29).winsorise(np.arange(100.0)).min() == 29


def test_too_few_clients_are_refused_before_and_after_the_exchange():
    rule = robust("krum", 0.4)
    needs = "tolerated-share = 0.4 needs 7; use a smaller share"
    line = f"aggregation = krum: 5 clients are too few: {needs}"
    with pytest.raises(SettingsError, match=f"^{line}$"):
        rule.per_client(Exchange("train", SENT, range(5)))
    with pytest.raises(RoundFailedError, match=f"^{line}$"):
        mean_of(rule, clients(n=5))
    assert robust("trimmed-mean", 0.49).check(1) is None


def test_robust_exchange_asks_for_the_arrays_of_each_client():
    rule = robust("median")
    for combine in (Mean("num-examples"), LossMoments()):
        separate = rule.per_client(Exchange("train", SENT, (0,), combine)).combine
        assert separate == PerClient(combine) == parse(str(separate))
        assert separate.partial == combine.partial
    evaluation = Exchange("evaluate", SENT, (0,), MetricsOnly())
    assert rule.per_client(evaluation) is evaluation
    for combine in (Chain(), PerClient()):
        refused = rf"^aggregation = median: train .* '{combine}', which has no robust form"
        with pytest.raises(SettingsError, match=refused):
            rule.per_client(Exchange("train", SENT, (0,), combine))


def test_replies_to_a_robust_exchange_are_checked_like_those_to_the_mean():
    def check(samples, arrays):
        rule, metrics = PerClient(Mean("num-examples")), {0: {"num-examples": samples}}
        Bounds().check(metrics, {"arrays": arrays}, SENT, rule, alone=True)

    with pytest.raises(ValueError, match="metric 'num-examples' is 0"):
        check(0, SENT)
    with pytest.raises(ValueError, match="array 'b' is missing"):
        check(3, {"w": SENT["w"]})
