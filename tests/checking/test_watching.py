"""What is seen of clients and rounds, without any run."""

import numpy as np
import pytest

from coprefl_flwr.checking.watching import Call, Fault, Watch
from coprefl_flwr.rounds import Chain, Exchange, Mean, PerClient, Replies, Total
from coprefl_flwr.strategies import FedAvg

SENT = {"w": np.zeros(2, np.float32), "running_mean": np.float32([1, 2])}
CONFIG = {"client": 3, "server-round": 2, "attempt": 0}


class Client:
    """Answers with what a test gives it."""

    def __init__(self, fit):
        self.fit = fit


def returned(arrays, n=1):
    return lambda parameters, config: (arrays, n, {})


class Asks(FedAvg):
    """Asks once by a rule and returns what a test says."""

    def round(self, server_round, arrays):
        yield Exchange("train", arrays, [3, 4], self.rule, extra={"more": {"v": np.ones(2)}})
        return self.ends(arrays), {}


def seen_of(fits, ends=dict, rule=None, good=(3, 4), **options):
    """Return what is seen of a round in which clients 3, 4, ... answer by `fits`."""
    watch, strategy = Watch(), Asks(**options)
    strategy.rule, strategy.ends = rule or Mean(), ends
    arrays = {name: array.copy() for name, array in SENT.items()}
    program = watch.strategy(strategy).round(2, arrays)
    extra = next(program).extra
    for client, fit in enumerate(fits, start=3):
        config = CONFIG | {"client": client, "extra": extra}
        watch.client(Client(fit)).fit([array.copy() for array in arrays.values()], config)
    with pytest.raises(StopIteration):
        program.send(Replies(good, {}))
    return watch.seen


def good(mean=(1, 2), n=1):
    return returned([SENT["w"], np.float32(mean)], n)


def test_a_round_without_faults():
    seen = seen_of([good(), good()])
    assert (seen.changed, seen.other, seen.buffers, seen.has_buffers) == ([], [], {}, True)
    assert seen.calls == [Call(2, "fit", 3), Call(2, "fit", 4)]
    cost = seen.cost
    assert (cost.exchanges, cost.arrays_down, cost.bytes_down) == (1, 3, 16 + 16)
    assert (cost.arrays_up, cost.bytes_up, cost.chained) == (2, 16, False)


def test_further_arrays_must_not_change_either():
    def fit(parameters, config):
        config["extra"]["more"]["v"] += 1
        return good()(parameters, config)

    assert seen_of([fit]).changed == ["the client's fit changes the arrays it is sent"]


def test_a_round_must_not_change_its_arrays():
    def ends(arrays):
        arrays["w"] += 1
        return arrays

    assert seen_of([good()], ends).changed == [
        "the strategy's round changes the arrays it is given"
    ]


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ([SENT["w"].astype(float), SENT["running_mean"]], "array 'w' is float64, sent was float32"),
        ([SENT["w"][:1], SENT["running_mean"]], r"array 'w' has shape (1,), sent was (2,)"),
        ({"w": SENT["w"]}, "array 'running_mean' is missing"),
        ({**SENT, "v": SENT["w"]}, "array 'v' is not one of the 2 that were sent"),
    ],
)
def test_what_comes_back_is_as_what_was_sent(arrays, problem):
    assert seen_of([returned(arrays)]).other == [f"what the client's fit returns: {problem}"]


@pytest.mark.parametrize(
    ("rule", "clients", "expected"),
    [(Mean(), (3, 4), 4.0), (Mean(""), (3, 4), 4.0), (Chain(), (3, 4), 5.0), (Mean(), (3,), 1.0)],
)
def test_statistics_are_means_by_samples_and_of_a_chain_the_last(rule, clients, expected):
    """Clients of 1 and 3 samples answer 1 and 5; only of those that count."""
    fits = [good((1, 1), 1), good((5, 5), 3)]

    def right(arrays):
        return arrays | {"running_mean": np.full(2, expected, np.float32)}

    assert seen_of(fits, right, rule, clients).buffers == {}
    found = seen_of(
        fits, lambda arrays: arrays | {"running_mean": np.float32([3, 3])}, rule, clients
    )
    assert found.buffers == {"running_mean": pytest.approx(abs(3 - expected))}


@pytest.mark.parametrize("late", [False, True])
def test_a_client_fails_in_the_first_attempt_alone(late):
    worked, watch, strategy = [], Watch((Fault(3, 2, "fit", late),)), Asks()
    strategy.rule = Mean()
    next(watch.strategy(strategy).round(2, SENT))

    def fit(parameters, config):
        worked.append(config["attempt"])
        return good()(parameters, config)

    client, sent = watch.client(Client(fit)), list(SENT.values())
    with pytest.raises(ArithmeticError, match="this client fails"):
        client.fit(sent, CONFIG)
    client.fit(sent, CONFIG | {"attempt": 1})
    assert worked == ([0, 1] if late else [1])


def test_a_method_that_says_it_needs_only_sums_and_asks_for_more():
    seen = seen_of([good(), good()], rule=PerClient())
    assert seen.other == [
        "needs_only_sums is true, but an exchange asks for arrays by 'per-client'"
    ]
    assert seen_of([good(), good()], rule=Total()).other == []


def test_statistics_under_a_robust_aggregation_are_no_means():
    ends = {"w": SENT["w"], "running_mean": np.float32([9, 9])}
    assert seen_of([good(), good()], lambda _: ends).buffers == {"running_mean": 8.0}
    assert seen_of([good(), good()], lambda _: ends, aggregation="median").buffers == {}
