"""The aggregation rules and the accumulator: coefficients by hand, and sums of merged parts."""

import itertools

import numpy as np
import pytest

from coprefl_flwr.federation import aggregation
from coprefl_flwr.federation.aggregation import (
    Accumulator,
    Chain,
    LossMoments,
    Mean,
    MetricsOnly,
    PerClient,
    Total,
    parse,
)

LAYOUTS = ("C", "F", "channels last", "with gaps")
RULES = [
    *(Mean(), Mean(""), Mean("weight"), Mean("eval:n")),
    *(Total(), LossMoments(), PerClient(), Chain(), MetricsOnly()),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rule_is_parsed_from_its_text(rule):
    assert parse(str(rule)) == rule


@pytest.mark.parametrize("text", ["", "mean", "maen:x", "loss-moments:low", "chain:"])
def test_unknown_rule_is_refused(text):
    with pytest.raises(ValueError, match="unknown rule"):
        parse(text)


def test_weights_of_a_client_and_of_its_buffers():
    """Every mean weighs buffers by samples; the other rules use the coefficients of the weights."""
    metrics = {"num-examples": 8, "loss": 2.5}
    assert Mean().weights(7, metrics) == {"sum": (8, 8)}
    assert Mean("").weights(7, metrics) == {"sum": (1, 8)}
    assert Mean("loss").weights(7, metrics) == {"sum": (2.5, 8)}
    assert Total().weights(7, {}) == {"sum": (1, 1)}
    assert LossMoments().weights(7, metrics) == {"gradient": (1, 1), "loss-gradient": (2.5, 2.5)}
    assert PerClient().weights(7, metrics) == {"7": (1, 1)}
    assert Chain().weights(7, metrics) == {"last": (1, 1)}
    assert MetricsOnly().weights(7, metrics) == {}
    with pytest.raises(ValueError, match="no metric 'num-examples'"):
        Mean("").weights(7, {})


@pytest.mark.parametrize(
    ("rule", "metrics", "message"),
    [
        (Mean(), {"loss": 1.0}, "no metric 'num-examples'"),
        (Mean("w"), {"w": -0.5}, "metric 'w' is -0.5; a weight must be above 0"),
        (Mean(), {"num-examples": np.nan}, "metric 'num-examples' is nan"),
        (Chain(), {"num-examples": 0}, "metric 'num-examples' is 0"),
        (MetricsOnly(), {"num-examples": -1}, "metric 'num-examples' is -1"),
        (LossMoments(), {"num-examples": 1}, "no metric 'loss'"),
        (LossMoments(), {"loss": np.inf}, "metric 'loss' is inf"),
    ],
)
def test_unusable_metric_is_named(rule, metrics, message):
    with pytest.raises(ValueError, match=message):
        rule.weights(0, metrics)


def clients(count):
    """Return (arrays, metrics) of clients with float32 arrays and an int64 counter."""
    rng = np.random.default_rng(1)
    return [
        (
            {
                "w": rng.normal(size=(3, 2)).astype(np.float32),
                "n": np.array(rng.integers(99)),
                "bn.running_mean": rng.normal(size=2).astype(np.float32),
            },
            {"num-examples": int(rng.integers(1, 50)), "loss": float(rng.uniform(1, 5))},
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("rule", [Mean(), Mean(""), Total(), LossMoments(), PerClient()], ids=str)
@pytest.mark.parametrize("cuts", [(0, 12), (0, 4, 8, 12), (0, 1, 2, 11, 12)])
def test_merged_partial_sums_equal_the_sum_of_all(rule, cuts):
    """The merged sums and the sums of the whole agree to 1e-15 of the sum of absolute terms.

    The order of additions changes the last bits; hosting changes nothing else.
    """
    everyone = clients(12)
    whole, size, merged = Accumulator(rule), Accumulator(rule), Accumulator(rule)
    for client, (arrays, metrics) in enumerate(everyone):
        whole.add(client, arrays, metrics)
        size.add(client, {name: np.abs(array) for name, array in arrays.items()}, metrics)
    for first, last in itertools.pairwise(cuts):
        part = Accumulator(rule)
        for client in range(first, last):
            part.add(client, *everyone[client])
        merged.merge(part.sums)
    assert merged.sums.keys() == whole.sums.keys()
    for name, arrays in whole.sums.items():
        assert merged.sums[name].keys() == arrays.keys()
        for key, array in arrays.items():
            assert array.dtype == merged.sums[name][key].dtype == np.float64
            assert array.shape == merged.sums[name][key].shape
            error = np.abs(merged.sums[name][key] - array)
            assert (error <= 1e-15 * size.sums[name][key]).all()


def test_sum_is_float64_from_its_first_term():
    """Neither 2^24 + 1 nor 3 times float32(0.1) is a float32; both sums must be exact."""
    accumulator = Accumulator(Total())
    accumulator.add(0, {"w": np.float32([2.0**24])}, {})
    accumulator.add(1, {"w": np.float32([1.0])}, {})
    assert accumulator.sums["sum"]["w"] == 2.0**24 + 1
    weighted = Accumulator(Mean())
    weighted.add(0, {"w": np.float32([0.1])}, {"num-examples": 3})
    assert weighted.sums["sum"]["w"] == 3 * np.float64(np.float32(0.1))


def test_accumulator_does_not_change_the_clients_arrays():
    mine, theirs = {"w": np.float64([1.0])}, np.float64([5.0])
    accumulator = Accumulator(Total())
    accumulator.merge({"sum": {"w": theirs}})
    accumulator.add(0, mine, {})
    accumulator.add(1, mine, {})
    assert accumulator.sums["sum"]["w"] == 7
    assert mine["w"] == 1
    assert theirs == 5


def test_buffers_are_weighted_by_samples():
    """Two clients have 1 and 3 samples, weights 10 and 20: 10 * 1 + 20 * 2 and 1 * 1 + 3 * 2."""
    accumulator = Accumulator(Mean("loss"))
    for client, (n, loss) in enumerate([(1, 10.0), (3, 20.0)], start=1):
        value = np.float32(client)
        arrays = {"w": value, "bn.running_var": value, "count": np.array(client)}
        accumulator.add(client, arrays, {"num-examples": n, "loss": loss})
    sums = accumulator.sums["sum"]
    assert [float(sums[name]) for name in ("w", "bn.running_var", "count")] == [50, 7, 7]


def test_dtype_that_was_sent_decides_what_is_a_buffer():
    """A client may return floats for a counter, and whole numbers for weights."""
    accumulator = Accumulator(Mean(""), {"w": np.float32(0), "count": np.array(0)})
    accumulator.add(1, {"w": np.array(5), "count": np.float64(2.0)}, {"num-examples": 4})
    assert (accumulator.sums["sum"]["w"], accumulator.sums["sum"]["count"]) == (5, 8)


def test_per_client_rule_keeps_every_digit_of_an_id():
    """A node that is one client has the id of the node, a random number of 64 bits."""
    accumulator = Accumulator(PerClient(Mean()))
    for client in (2**63 + 1, 2**63 + 2):
        accumulator.add(client, {"w": np.float64(client)}, {"num-examples": 3})
    assert {name: arrays["w"] for name, arrays in accumulator.sums.items()} == {
        "9223372036854775809": np.float64(2**63 + 1),
        "9223372036854775810": np.float64(2**63 + 2),
    }


def laid_out(array, kind):
    """Return the same numbers in another order in memory."""
    if kind == "C":
        return np.ascontiguousarray(array)
    if kind == "F":
        return np.asfortranarray(array)
    if kind == "channels last":
        return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return np.repeat(array, 2, axis=1)[:, ::2]


@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, repeat=2)), ids=" then ".join)
def test_sums_have_the_same_bits_for_every_memory_layout(layouts):
    rng = np.random.default_rng(3)
    everyone = [rng.normal(size=(3, 4, 1, 5)).astype(np.float32) for _ in range(3)]
    accumulator = Accumulator(Mean())
    for client, (array, kind) in enumerate(zip(everyone, (*layouts, layouts[1]), strict=True)):
        added = laid_out(array, kind)
        accumulator.add(client, {"w": added}, {"num-examples": client + 3})
        np.testing.assert_array_equal(added, array)
    first, second, third = np.float64(everyone)
    total = accumulator.sums["sum"]["w"]
    assert total.tobytes() == (3 * first + 4 * second + 5 * third).tobytes()


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (25,), (1, 30), (7, 4), (2, 30), (5, 2, 3, 1)])
def test_parts_of_a_large_array_have_the_bits_of_the_whole(monkeypatch, shape):
    monkeypatch.setattr(aggregation, "PART", 10)
    rng = np.random.default_rng(5)
    everyone = [np.float32(rng.normal(size=shape)) for _ in range(3)]
    accumulator = Accumulator(LossMoments())
    for client, array in enumerate(everyone):
        accumulator.add(client, {"w": array}, {"loss": client + 0.1})
    first, second, third = np.float64(everyone)
    assert accumulator.sums["gradient"]["w"].tobytes() == (first + second + third).tobytes()
    moment = 0.1 * first + 1.1 * second + 2.1 * third
    assert accumulator.sums["loss-gradient"]["w"].tobytes() == moment.tobytes()
    assert accumulator.sums["gradient"]["w"].shape == shape
