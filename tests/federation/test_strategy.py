"""The base class of all strategies, tested with toy clients that count or misbehave."""

import logging
import math
import re

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from coprefl_flwr import strategies
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.federation.aggregation import Mean
from coprefl_flwr.federation.wrapped import is_one_mean
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import (
    SCAFFOLD,
    CoPreFL,
    Cyclic,
    Exchange,
    FedAvg,
    FedMeta,
    FedProx,
    PerFedAvg,
    RoundStrategy,
    Schedule,
)
from tests.common.by_hand import record_samples
from tests.common.federation import pair, renamed
from tests.common.runs import run_of

START = {"w": np.float32([0.0, 0.0]), "count": np.array(10, np.int64)}


class Counter(NumPyClient):
    """A client with id + 1 samples that adds id + 1 to `w` and 2 * id + 1 to `count`."""

    def __init__(self, client_id, seen=None, fault=None):
        self.client_id, self.seen, self.fault = client_id, seen, fault

    def fit(self, parameters, config):
        if self.seen is not None:
            self.seen.append((self.client_id, dict(config)))
        w, count = parameters
        returned = [w + self.client_id + 1, count + 2 * self.client_id + 1]
        if self.fault:
            return self.fault(self.client_id, config, returned)
        return returned, self.client_id + 1, {"loss": float(self.client_id)}

    def query(self, parameters, config):
        gradient = {"w": np.float32([self.client_id, 1.0])}
        return gradient, 2, {"loss": float(self.client_id)}

    def evaluate(self, parameters, config):
        return 0.5, 4, {"correct": self.client_id % 4}


def counting_grid(nodes=2, **options):
    return LocalGrid(client_app(lambda _, i: Counter(i, **options)), nodes=nodes)


def test_weighted_mean_of_int64_is_rounded_once():
    """Clients 0 and 1 (weights 1 and 2) return counters 11 and 13: 37/3 = 12.33 rounds to 12."""
    result = FedAvg(clients=2).start(counting_grid(), to_record(START), 1)
    arrays = from_record(result.arrays)
    assert arrays["count"] == 12
    assert arrays["count"].dtype == np.int64
    np.testing.assert_allclose(arrays["w"], np.float32([5 / 3, 5 / 3]))


def test_sampling_is_a_function_of_seed_and_round_not_of_nodes():
    drawn = {}
    for seed, nodes in ((0, 1), (0, 3), (1, 1)):
        seen = []
        grid = counting_grid(nodes=nodes, seen=seen)
        FedAvg(participants=5, seed=seed, clients=20).start(grid, to_record(START), 3)
        drawn[seed, nodes] = [
            sorted(client for client, config in seen if config["server-round"] == r)
            for r in (1, 2, 3)
        ]
    assert drawn[0, 1] == drawn[0, 3]
    assert drawn[0, 1] != drawn[1, 1]
    assert drawn[0, 1][0] != drawn[0, 1][1]
    assert all(len(set(clients)) == 5 for clients in drawn[0, 1])


def test_every_message_names_run_population_round_and_the_apps_settings():
    seen = []
    FedAvg(run_name="r", population="pretrain", seed=4, clients=2).start(
        counting_grid(seen=seen),
        to_record(START),
        1,
        train_config=ConfigRecord({"x": 3}),
    )
    client, config = sorted(seen, key=lambda entry: entry[0])[1]
    assert client == 1
    assert config == {
        "x": 3,
        "run": "r",
        "population": "pretrain",
        "server-round": 1,
        "seed": 4,
        "attempt": 0,
        "client": 1,
    }


def for_2(bad):
    """Return a fault: client 2 returns `bad(arrays)`; all other clients return good results."""
    good = (1, {"loss": 0.0})
    return lambda client, _, arrays: bad(arrays) if client == 2 else (arrays, *good)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (for_2(lambda arrays: {}["boom"]), "KeyError: 'boom'"),
        (for_2(lambda arrays: ([arrays[0] * np.nan, arrays[1]], 1, {})), "array 'w' holds a NaN"),
        (for_2(lambda arrays: ([np.zeros(3, "f4"), arrays[1]], 1, {})), r"'w' .*\(3,\).*\(2,\)"),
        (for_2(lambda arrays: (arrays, 1, {"loss": "low"})), "metric 'loss' is a str"),
    ],
)
@pytest.mark.parametrize("nodes", [1, 4])
def test_a_bad_client_is_left_out_and_named_in_one_line(fault, reason, nodes, caplog):
    """Clients 0, 1 and 3 have equal weights: w = (1 + 2 + 4) / 3."""
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        grid = counting_grid(nodes=nodes, fault=fault)
        result = FedAvg(clients=4).start(grid, to_record(START), 1)
    np.testing.assert_allclose(from_record(result.arrays)["w"], np.float32([7 / 3, 7 / 3]))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith("client 2 on node ")
    assert re.search(reason, lines[0])


def test_a_round_with_too_few_replies_is_repeated_with_others(caplog):
    """All clients fail in the first attempt. The second attempt draws others and succeeds."""
    seen = []

    def first_attempt_fails(client, config, returned):
        if config["attempt"] == 0:
            raise ArithmeticError("not yet")
        return returned, 1, {"loss": 0.0}

    grid = counting_grid(seen=seen, fault=first_attempt_fails)
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        result = FedAvg(participants=3, min_replies=2, clients=30).start(grid, to_record(START), 1)
    attempts = [{c for c, config in seen if config["attempt"] == a} for a in (0, 1)]
    assert [len(clients) for clients in attempts] == [3, 3]
    assert attempts[0] != attempts[1]
    assert "train: 0 good replies of 3, needed: 2" in caplog.text
    assert from_record(result.arrays)["w"][0] == pytest.approx(np.mean([*attempts[1]]) + 1)


def test_one_reply_too_few_repeats_the_round():
    """Two of three clients return good replies, but three good replies are needed."""
    seen = []

    def first_client_fails_once(client, config, returned):
        if config["attempt"] == 0 and client == min(c for c, _ in seen):
            raise ArithmeticError("not yet")
        return returned, 1, {"loss": 0.0}

    grid = counting_grid(seen=seen, fault=first_client_fails_once)
    FedAvg(min_replies=3, clients=3).start(grid, to_record(START), 1)
    assert {config["attempt"] for _, config in seen} == {0, 1}


def test_a_run_fails_after_max_failed_rounds():
    seen = []
    grid = counting_grid(seen=seen, fault=lambda *_: ([], 0, {}))
    strategy = FedAvg(participants=2, max_failed_rounds=4, clients=6)
    with pytest.raises(RunFailedError, match="round 1 failed 4 times in a row"):
        strategy.start(grid, to_record(START), 2)
    assert {config["attempt"] for _, config in seen} == {0, 1, 2, 3}


def test_state_of_a_failed_attempt_does_not_count():
    """If a program changes its state and then fails, the next attempt starts from the old state."""

    class Forgetful(FedAvg):
        def round(self, ctx, arrays):
            ctx.state["tries"] = ctx.state.get("tries", 0.0) + 1
            return (yield from super().round(ctx, arrays))

    def fails_once(client, config, returned):
        if config["attempt"] == 0:
            raise ArithmeticError("no")
        return returned, 1, {"loss": 0.0}

    strategy = Forgetful()
    strategy.start(counting_grid(fault=fails_once), to_record(START), 2)
    assert run_of(strategy).state == {"tries": 2.0}


def test_a_program_that_ends_before_its_first_exchange_sends_nothing():
    class Idle(FedAvg):
        def round(self, ctx, arrays):
            return {**arrays, "w": arrays["w"] + 1}, {}
            yield

    seen = []
    result = Idle(clients=6).start(counting_grid(seen=seen), to_record(START), 3)
    assert seen == []
    np.testing.assert_array_equal(from_record(result.arrays)["w"], np.float32([3, 3]))


def test_evaluation_keeps_a_row_per_client():
    strategy = FedAvg(evaluate_every=2, clients=3)
    result = strategy.start(counting_grid(), to_record(START), 3)
    assert sorted(result.evaluate_metrics_clientapp) == [2, 3]
    assert run_of(strategy).evaluation.clients == (0, 1, 2)
    np.testing.assert_array_equal(run_of(strategy).evaluation.metrics["correct"], [0, 1, 2])
    np.testing.assert_array_equal(run_of(strategy).evaluation.metrics["num-examples"], [4, 4, 4])


def test_more_participants_than_clients_is_refused_before_any_work():
    seen = []
    with pytest.raises(SettingsError, match="participants = 9: there are only 6 clients"):
        FedAvg(participants=9, clients=6).start(counting_grid(seen=seen), to_record(START), 1)
    assert seen == []


@pytest.mark.parametrize("options", [{"min_replies": 4}, {}])
def test_an_evaluation_needs_one_good_reply(options, caplog):
    """This holds for every `min_replies`.

    Without a good reply, the run continues, and the round has no evaluation.
    """

    class Rarely(Counter):
        def evaluate(self, parameters, config):
            if self.client_id != 2 or config["server-round"] == 2:
                raise ArithmeticError("boom")
            return super().evaluate(parameters, config)

    strategy = FedAvg(evaluate_every=1, **options, clients=4)
    grid = LocalGrid(client_app(lambda _, i: Rarely(i)), nodes=2)
    result = strategy.start(grid, to_record(START), 3)
    assert sorted(result.evaluate_metrics_clientapp) == [1, 3]
    assert run_of(strategy).evaluation.clients == (2,)
    line = "round 2, evaluation failed: evaluate: 0 good replies of 4, needed: 1; 4 failed: Ari"
    assert any(record.getMessage().startswith(line) for record in caplog.records)


INFINITE, LOSS = np.float32(np.inf), {"loss": 1.0}


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (lambda c, _, arrays: (arrays, 1, {"loss": np.nan}), "3 .* 'loss' is nan; .* rate"),
        (lambda c, _, arrays: ([arrays[0] + INFINITE, arrays[1]], 1, LOSS), "3 .*'w' .* rate"),
        (lambda c, _, arrays: ([arrays[0][c < 2 :], arrays[1]], 1, LOSS), r"2 .*\(1,\).*\(2,\)"),
    ],
)
def test_the_last_line_says_why_no_reply_was_good(fault, why):
    """Before, the error said only "0 good replies of 3"; warnings far above gave the reason."""
    grid = counting_grid(fault=fault)
    with pytest.raises(RunFailedError, match=f", needed: 2; {why}"):
        FedAvg(min_replies=2, max_failed_rounds=1, clients=3).start(grid, to_record(START), 1)


WRAPPED = [
    CoPreFL(),
    Cyclic(),
    FedMeta(),
    SCAFFOLD(),
    Schedule([(Cyclic(), 1), (FedAvg(), 1)]),
]


@pytest.mark.parametrize("strategy", WRAPPED, ids=lambda strategy: type(strategy).__name__)
def test_a_wrapper_that_would_see_half_a_round_is_refused(strategy):
    """A wrapper that would treat other arrays, such as gradients, as models is refused too."""
    seen = []
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.1, 1.0, 2)
    line = f"^{type(strategy).__name__} cannot run inside a wrapper .*: FedAvg, FedProx, PerFedAvg"
    with pytest.raises(SettingsError, match=line):
        wrapped.start(counting_grid(seen=seen), to_record(START), 1)
    assert seen == []


def test_what_may_be_wrapped():
    """A strategy may be wrapped if its round has one exchange, whose mean is the new model."""
    ours = [cls for cls in vars(strategies).values() if isinstance(cls, type)]
    plain = [cls for cls in ours if issubclass(cls, RoundStrategy) and cls.name]
    instances = [cls() for cls in plain if not {"server", "head"} & cls.__dataclass_fields__.keys()]
    allowed = [type(cls) for cls in instances if is_one_mean(cls, START)]
    assert allowed == [FedAvg, FedProx, PerFedAvg]


def test_a_wrapper_around_nodes_that_add_up_is_refused():
    hosted = DifferentialPrivacyServerSideFixedClipping(FedAvg(clients=6), 0.1, 1.0, 2)
    with pytest.raises(SettingsError, match="every node must be one client"):
        hosted.start(counting_grid(), to_record(START), 1)


@pytest.mark.parametrize("strategy", [FedAvg(), FedProx()], ids=["FedAvg", "FedProx"])
def test_a_wrapper_around_one_exchange_works_where_a_node_is_a_client(strategy):
    """With noise 0 and a clipping norm that clips nothing, the wrapped mean is the plain mean."""
    start = {"w": np.float32([1.0, 2.0])}

    class Single(NumPyClient):
        def fit(self, parameters, config):
            return [parameters[0] + config["client"] + 1], 1, {}

    app = client_app(lambda _: Single())
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1e6, 3)
    result = wrapped.start(LocalGrid(app, nodes=3), to_record(start), 1)
    np.testing.assert_allclose(from_record(result.arrays)["w"], [3.0, 4.0], rtol=1e-6)


def test_a_failed_round_inside_a_wrapper_is_not_repeated():
    """Replies to a second attempt would not go through the wrapper, which clips them."""
    fits = []

    class Single(NumPyClient):
        def fit(self, parameters, config):
            fits.append(config["client"])
            return [parameters[0] + 1], 1, {"loss": math.nan if config["client"] == 2 else 1.0}

    grid = LocalGrid(client_app(lambda _: Single()), nodes=3)
    strategy = FedAvg(min_replies=3, min_available_nodes=3)
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1e6, 3)
    with pytest.raises(RunFailedError, match="round 1: train: 2 good replies of 3, needed: 3"):
        wrapped.start(grid, to_record({"w": np.float32([1.0, 2.0])}), 2)
    assert sorted(fits) == [0, 1, 2]


NO_FOLDERS = ["", ".", "..", ".x", "-x", "a/b", "a\\b", "../a", "/a", "a b", "a\n"]


@pytest.mark.parametrize("option", ["run_name", "population"])
def test_names_that_cannot_name_a_folder_are_refused(option):
    for value in NO_FOLDERS:
        with pytest.raises(SettingsError, match=re.escape(f"{option} = {value!r}: ")):
            FedAvg(**{option: value})
    for value in ("r", "7", "_", "task-3", "2024-05.a_B"):
        assert getattr(FedAvg(**{option: value}), option) == value


def test_server_evaluation_sees_absolute_rounds():
    rounds = []

    def evaluate(server_round, arrays):
        rounds.append(server_round)
        return MetricRecord({"accuracy": float(server_round)})

    result = FedAvg(clients=6).start(counting_grid(), to_record(START), 2, evaluate_fn=evaluate)
    assert rounds == [0, 1, 2]
    assert result.evaluate_metrics_serverapp[2]["accuracy"] == 2.0


def test_nodes_that_name_their_own_clients():
    """In a deployment, node i is client i: its id, and so the sampling, comes from partition-id."""
    seen = []
    app = client_app(lambda _, i: Counter(i, seen=seen))
    FedAvg(participants=2, seed=1).start(LocalGrid(app, nodes=5), to_record(START), 2)
    hosted = []
    grid = counting_grid(nodes=1, seen=hosted)
    FedAvg(participants=2, seed=1, clients=5).start(grid, to_record(START), 2)
    assert [client for client, _ in seen] == [client for client, _ in hosted]


def test_a_client_that_has_its_nodes_id():
    """Node 3 hosts clients 2 and 3; if asked for client 3, it must not run its partition-id, 1."""
    seen = []
    app = client_app(lambda _, i: Counter(i, seen=seen), clients=pair)
    strategy = FedAvg(participants=1, min_available_nodes=2)
    record_samples(strategy, lambda drawn: [drawn, 3][1:])
    strategy.start(LocalGrid(app, nodes=2), to_record(START), 1)
    assert [client for client, _ in seen] == [3]


def test_a_run_whose_nodes_have_one_partition_id_says_so_when_it_ends(caplog):
    """The server waits for more nodes, and then the error message names the reason."""
    app = client_app(lambda _, i: Counter(i), clients=[3])
    line = r"client 3 is reported by 2 nodes \(2, 3\): .* give each node its own partition-id"
    with pytest.raises(RunFailedError, match=f"waited 0.01 s; {line}$"):
        FedAvg().start(LocalGrid(app, nodes=2), to_record(START), 1, timeout=0.01)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert re.fullmatch(line, warning)


class Deaf(LocalGrid):
    """A grid on which one node never answers a train message."""

    nodes_asked: tuple = ()

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.nodes_asked += tuple(
            m.metadata.dst_node_id for m in messages if m.metadata.message_type == "train"
        )
        heard = [
            m for m in messages if m.metadata.dst_node_id != 3 or m.metadata.message_type != "train"
        ]
        return super().send_and_receive(heard, timeout=timeout)


def test_a_silent_node_is_not_asked_again(caplog):
    grid = Deaf(client_app(lambda _, i: Counter(i)), nodes=2)
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        FedAvg(min_available_nodes=2, clients=6).start(grid, to_record(START), 3, timeout=9)
    assert grid.nodes_asked == (2, 3, 2, 2)
    assert "node 3 did not answer within 300 s and is not asked again" in caplog.text


def test_an_error_from_the_superlink_is_blamed_on_the_node_asked(caplog):
    class Unavailable(LocalGrid):
        def _handle(self, message):
            reply = super()._handle(message)
            if message.metadata.dst_node_id == 3 and message.metadata.message_type == "train":
                from flwr.app import Error

                reply = Message(Error(5, "Node Unavailable"), reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = 1
            return reply

    grid = Unavailable(client_app(lambda _, i: Counter(i)), nodes=2)
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        FedAvg(clients=2).start(grid, to_record(START), 1)
    assert "client 1 on node 3 is left out: Node Unavailable" in caplog.text


def test_hand_written_reply_without_metrics_is_named(caplog):
    app = ClientApp()

    @app.train()
    def train(message, context):
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    with (
        caplog.at_level(logging.WARNING, "flwr.coprefl"),
        pytest.raises(RunFailedError, match="0 good replies"),
    ):
        FedAvg().start(LocalGrid(app, nodes=1), to_record(START), 1)
    assert "0 MetricRecords in the reply, not one" in caplog.text


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"loss": 1.0}, "no metric 'num-examples' in the reply"),
        ({"num-examples": 0}, "metric 'num-examples' is 0; a weight must be above 0"),
    ],
)
def test_a_mean_needs_samples_for_its_buffers(metrics, reason, caplog):
    """This holds for equal weights too. The client on node 2 is left out, and the run continues."""
    app = ClientApp()

    class Unweighted(FedAvg):
        def round(self, ctx, arrays):
            replies = yield Exchange("train", arrays, ctx.sample(), combine=Mean(""))
            return replies.arrays, {}

    @app.train()
    def train(message, context):
        node = context.node_config["partition-id"]
        arrays = {name: a + node for name, a in from_record(message.content["arrays"]).items()}
        own_metrics = metrics if node == 0 else {"num-examples": node}
        content = {"arrays": to_record(arrays), "metrics": MetricRecord(own_metrics)}
        return Message(RecordDict(content), reply_to=message)

    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        strategy = Unweighted(min_available_nodes=3)
        arrays = from_record(strategy.start(LocalGrid(app, nodes=3), to_record(START), 1).arrays)
    np.testing.assert_array_equal(arrays["w"], np.float32([1.5, 1.5]))
    assert arrays["count"] == 12  # 11 once and 12 twice: 35/3 = 11.67.
    assert f"client 2 on node 2 is left out: {reason}" in caplog.text


def test_a_run_goes_on_with_fewer_clients_than_it_wanted(caplog):
    """All five nodes, with one client each, take part. Node 3 stops answering in round 1."""
    seen = []
    grid = Deaf(client_app(lambda _, i: Counter(i, seen=seen)), nodes=5)
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        FedAvg(participants=5, min_available_nodes=5).start(grid, to_record(START), 2, timeout=9)
    assert [c for c, config in seen if config["server-round"] == 2] == [0, 2, 3, 4]


def test_a_node_that_cannot_tell_its_clients_is_left_out_and_named(caplog):
    """Node 2 has no partition-id. Its app fails, unlike an app that does not know rosters."""
    grid = LocalGrid(renamed(client_app(lambda _, i: Counter(i)), {2: None}), nodes=3)
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        result = FedAvg().start(grid, to_record(START), 1)
    assert "node 2 is left out: " in caplog.text
    assert "node-config has no partition-id" in caplog.text
    # Clients 1 and 2 have 2 and 3 samples, and add 2 and 3.
    np.testing.assert_allclose(from_record(result.arrays)["w"][0], 13 / 5, rtol=1e-6)


def test_more_replies_wanted_than_participants():
    with pytest.raises(SettingsError, match="min_replies = 3: must be at most participants = 2"):
        FedAvg(participants=2, min_replies=3)


class Returning(FedAvg):
    """A method that changes the global model with a given function."""

    def __init__(self, change):
        super().__init__(clients=6)
        self.change = change

    def round(self, ctx, arrays):
        return self.change(arrays), {}
        yield


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda arrays: {**arrays, "w": np.zeros(2)}, "'w' has dtype float64; expected is float32"),
        (
            lambda arrays: {**arrays, "count": np.int32(1)},
            "'count' has dtype int32; expected is int64",
        ),
        (lambda arrays: {"w": arrays["w"]}, "'count' is missing"),
    ],
)
def test_the_new_global_model_must_be_like_the_old_one(change, line):
    with pytest.raises(RunFailedError, match=f"the new global model is invalid: .*{line}"):
        Returning(change).start(counting_grid(), to_record(START), 1)


def test_the_new_global_model_keeps_the_order_of_the_old_one():
    """Clients tell the arrays of a model apart by their order."""
    strategy = Returning(lambda arrays: dict(reversed(arrays.items())))
    result = strategy.start(counting_grid(), to_record(START), 1)
    assert list(from_record(result.arrays)) == ["w", "count"]


def test_a_round_can_only_read_the_old_one():
    """Hooks may keep the old model, and another attempt starts from it.

    The initial model belongs to the caller.
    """
    initial, seen = to_record(START), []

    def added_to(arrays):
        arrays["count"] += 1
        return arrays

    with pytest.raises(ValueError, match="output array is read-only"):
        Returning(added_to).start(counting_grid(), initial, 1)
    result = Returning(lambda arrays: {n: a + a.dtype.type(1) for n, a in arrays.items()}).start(
        counting_grid(), initial, 2, hooks=[lambda report: seen.append(report.arrays["count"])]
    )
    assert [int(count) for count in seen] == [11, 12]
    assert int(from_record(result.arrays)["count"]) == 12
    assert int(from_record(initial)["count"]) == 10


OURS = [
    "server-round",
    "run",
    "population",
    "seed",
    "attempt",
    "client",
    "clients",
    "combine",
    "bounds",
    "state-version",
    "state-kept",
]


@pytest.mark.parametrize("what", ["train_config", "evaluate_config"])
@pytest.mark.parametrize("key", OURS)
def test_settings_under_our_own_names_are_refused_before_any_work(what, key):
    """Before, these settings were dropped without an error message."""
    seen = []
    line = f"^{what}: '{key}' is set by the strategy itself; choose another name$"
    with pytest.raises(SettingsError, match=line):
        FedAvg(clients=6).start(
            counting_grid(seen=seen), to_record(START), 1, **{what: ConfigRecord({key: 1})}
        )
    assert seen == []
