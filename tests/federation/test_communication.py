"""Traffic: the bytes that a deployment sends and, separately, the bytes of a run's messages.

Models are counted as in CyclicFL's Table IV.
"""

from io import BytesIO

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import (
    CoPreFLClient,
    FedPCLClient,
    MOONClient,
    SCAFFOLDClient,
    TorchClient,
)
from coprefl_flwr.federation import MetricsOnly
from coprefl_flwr.federation.communication import Traffic
from coprefl_flwr.federation.messages import NodeReply
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.prototypes import no_prototypes
from coprefl_flwr.strategies import (
    MOON,
    SCAFFOLD,
    CoPreFL,
    Cyclic,
    Exchange,
    FedAvg,
    FedPCL,
    Schedule,
)
from tests.common.federation import HOSTINGS, Federation, hosted
from tests.common.networks import CLASSES
from tests.common.runs import run_of
from tests.strategies.test_schedule import two_phase_grid

K_P1, K_P2, T_CYC, T_RES = 3, 2, 2, 4
T_TOT = T_CYC + T_RES


def totals(strategy, grid, start, rounds):
    """Return the counts summed over all rounds."""
    strategy.clients = getattr(grid, "clients", None)
    strategy.start(grid, to_record(start), rounds)
    traffic = run_of(strategy).history.traffic
    assert sorted(traffic) == list(range(1, rounds + 1))
    return {name: sum(counts[name] for counts in traffic.values()) for name in traffic[1]}


def models(counts):
    assert counts["models-down"] == counts["models-up"]
    return counts["models-down"] + counts["models-up"]


@pytest.mark.parametrize("hosting", HOSTINGS)
def test_table_4(tmp_path, hosting):
    """Traffic is counted in units of X, the size of a model; the model has no buffers."""
    federation = Federation.exact(norm=False)
    start, run = (
        federation.arrays(),
        {"participants": K_P2, "min_available_nodes": HOSTINGS[hosting][0]},
    )

    def sent(strategy, switch=T_TOT):
        grid = two_phase_grid(federation, tmp_path, switch, hosting)
        return models(totals(strategy, grid, start, T_TOT))

    cyclic = Cyclic(participants=K_P1, min_available_nodes=run["min_available_nodes"])
    assert sent(FedAvg(**run)) == 2 * K_P2 * T_TOT
    assert sent(SCAFFOLD(**run), switch=0) == 4 * K_P2 * T_TOT
    schedule = Schedule([(cyclic, T_CYC), (FedAvg(**run), T_RES)])
    assert sent(schedule) == 2 * (K_P1 * T_CYC + K_P2 * T_RES)
    schedule = Schedule([(cyclic, T_CYC), (SCAFFOLD(**run), T_RES)])
    assert sent(schedule, switch=T_CYC) == 2 * (K_P1 * T_CYC + 2 * K_P2 * T_RES)


def test_moon_sends_what_fedavg_sends(tmp_path):
    federation = Federation.exact(norm=False)
    grid = federation.grid("2", MOONClient, states=tmp_path)
    counts = totals(MOON(participants=K_P2), grid, federation.arrays(), T_TOT)
    assert models(counts) == 2 * K_P2 * T_TOT


@pytest.mark.parametrize("hosting", ["1", "2", "own", "plain"])
@pytest.mark.parametrize("norm", [False, True])
def test_coprefls_second_exchange(hosting, norm):
    """Model down, model up, model down, gradient up: the gradient has no buffers."""
    federation = Federation.exact(norm=norm)
    start, grid = federation.arrays(), federation.grid(hosting, CoPreFLClient)
    strategy = CoPreFL(participants=3, min_available_nodes=HOSTINGS[hosting][0])
    counts = totals(strategy, grid, start, 2)
    x = sum(array.nbytes for array in start.values())
    # Without the mean and the variance, each 8 float64, and without the counter, an int64.
    gradient = (x - 2 * 8 * 8 - 8) / x if norm else 1.0
    assert counts["models-down"] == 2 * 3 * 2
    assert counts["models-up"] == pytest.approx(2 * 3 * (1 + gradient), rel=1e-12)


def saved(*arrays):
    """Return the bytes of arrays as Flower sends them: each array as a NumPy file."""
    files = [BytesIO() for _ in arrays]
    for file, array in zip(files, arrays, strict=True):
        np.save(file, array)
    return sum(len(file.getvalue()) for file in files)


def assert_bytes(counts, down, up, hosting):
    assert (counts["client-bytes-down"], counts["client-bytes-up"]) == (down, up)
    if hosting in ("own", "plain"):  # As in a deployment, these are the bytes of the messages.
        assert (counts["wire-bytes-down"], counts["wire-bytes-up"]) == (down, up)
    if hosting in ("1", "2", "pairs"):
        assert counts["wire-bytes-down"] < down


@pytest.mark.parametrize("hosting", HOSTINGS)
@pytest.mark.parametrize("norm", [False, True])
def test_bytes_by_hand(tmp_path, hosting, norm):
    """Two rounds of three clients count as in a deployment, however the clients are hosted."""
    federation = Federation.stochastic() if norm else Federation.exact(norm=False)
    start, run = federation.start, {"participants": 3, "min_available_nodes": HOSTINGS[hosting][0]}
    weights = [array for name, array in start.items() if "running" not in name]
    weights = [array for array in weights if array.dtype.kind == "f"]
    model, gradient = saved(*start.values()), saved(*weights)

    def sent(strategy, client):
        keeps = {"states": tmp_path} if client is SCAFFOLDClient else {}
        return totals(strategy, federation.grid(hosting, client, **keeps), start, 2)

    each = 2 * 3
    assert_bytes(sent(FedAvg(**run), TorchClient), each * model, each * model, hosting)
    counts = sent(CoPreFL(**run), CoPreFLClient)
    assert_bytes(counts, each * 2 * model, each * (model + gradient), hosting)
    both = each * (model + gradient)  # The control variates are as large as the gradient.
    assert_bytes(sent(SCAFFOLD(**run), SCAFFOLDClient), both, both, hosting)
    assert_bytes(sent(Cyclic(**run), TorchClient), each * model, each * model, hosting)


def test_coprefl_sends_twice_what_fedavg_sends():
    """The factor is 2 even if a simulation sends one float64 sum instead of several models."""
    federation = Federation.exact(norm=False)

    def megabytes(strategy, client, hosting):
        counts = totals(strategy, federation.grid(hosting, client), federation.start, 3)
        return counts["client-bytes-down"] + counts["client-bytes-up"]

    for hosting in ("1", "2"):
        fedavg = megabytes(FedAvg(participants=3), TorchClient, hosting)
        assert megabytes(CoPreFL(participants=3), CoPreFLClient, hosting) == 2 * fedavg


@pytest.mark.parametrize("hosting", HOSTINGS)
def test_bytes_of_prototypes_by_hand(tmp_path, hosting):
    """The server sends all four clients the global set and, from round 2 on, four local sets."""
    federation = Federation.stochastic()
    rows, counts = no_prototypes(CLASSES, CLASSES).values()
    grid = federation.grid(hosting, FedPCLClient, states=tmp_path, initial=federation.start)
    strategy = FedPCL(min_available_nodes=HOSTINGS[hosting][0])
    traffic = totals(strategy, grid, no_prototypes(CLASSES, CLASSES), 3)
    down = 4 * (3 * saved(rows, counts) + 2 * 4 * saved(rows))
    assert_bytes(traffic, down, 4 * 3 * saved(rows, counts), hosting)


def test_a_resumed_run_counts_as_one_that_was_not_interrupted(tmp_path):
    """Other nodes may host the clients of the resumed run."""
    federation = Federation.stochastic()

    def rounds(hostings):
        for number, hosting in enumerate(hostings, 1):
            strategy = CoPreFL(participants=3, clients=4)
            strategy.start(
                federation.grid(hosting, CoPreFLClient),
                to_record(federation.start),
                number * 4 // len(hostings),
                checkpoint=tmp_path / f"{len(hostings)}.safetensors",
                resume=True,
            )
        traffic = run_of(strategy).history.traffic
        assert sorted(traffic) == [1, 2, 3, 4]
        return [(row["client-bytes-down"], row["client-bytes-up"]) for row in traffic.values()]

    assert rounds(["1", "2"]) == rounds(["4"])


class Adds(NumPyClient):
    """A client whose model is one array of 100 numbers."""

    def __init__(self, fault=None):
        self.fault = fault

    def fit(self, parameters, config):
        if self.fault:
            self.fault(config)
        return [parameters[0] + 1], 1, {}

    def evaluate(self, parameters, config):
        return 0.5, 1, {}


START = {"w": np.zeros(100, np.float32)}
HEADER = 128
"""Bytes that NumPy's format puts before an array's numbers."""


def adding(hosting, fault=None):
    return hosted(hosting, lambda _, i: Adds(fault))


@pytest.mark.parametrize(
    ("hosting", "down", "up"),
    [
        # A node that adds up several clients gets the array once and returns a float64 sum.
        ("1", 1 * (HEADER + 400), 1 * (HEADER + 800)),
        ("2", 2 * (HEADER + 400), 2 * (HEADER + 800)),
        ("pairs", 2 * (HEADER + 400), 2 * (HEADER + 800)),
        ("4", 4 * (HEADER + 400), 4 * (HEADER + 400)),
        ("own", 4 * (HEADER + 400), 4 * (HEADER + 400)),
    ],
)
def test_bytes_on_the_wire_are_those_of_the_messages(hosting, down, up):
    strategy = FedAvg(min_available_nodes=HOSTINGS[hosting][0], evaluate_every=1)
    counts = totals(strategy, adding(hosting), START, 3)
    assert counts == {
        "models-down": 12.0,
        "models-up": 12.0,
        "client-bytes-down": 3 * 4 * (HEADER + 400),
        "client-bytes-up": 3 * 4 * (HEADER + 400),
        "wire-bytes-down": 3 * down,
        "wire-bytes-up": 3 * up,
        "wire-nodes": 3 * HOSTINGS[hosting][0],
    }


def test_a_chain_in_one_message_and_link_by_link():
    """A simulation sends and gets back the model once, however many clients the chain visits."""
    at_once = totals(Cyclic(), adding("1"), START, 1)
    assert (at_once["models-down"], at_once["models-up"]) == (4, 4)
    assert at_once["wire-bytes-down"] == at_once["wire-bytes-up"] == HEADER + 400
    link_by_link = totals(Cyclic(min_available_nodes=4), adding("own"), START, 1)
    assert (link_by_link["models-down"], link_by_link["models-up"]) == (4, 4)
    assert link_by_link["wire-bytes-down"] == link_by_link["wire-bytes-up"] == 4 * (HEADER + 400)
    for counts in (at_once, link_by_link):
        assert counts["client-bytes-down"] == counts["client-bytes-up"] == 4 * (HEADER + 400)


def test_further_arrays_count():
    class Two(FedAvg):
        def round(self, ctx, arrays):
            extra = {"more": {"v": np.zeros(50, np.float32)}}
            replies = yield Exchange("train", arrays, ctx.sample(), extra=extra)
            return replies.arrays, {}

    counts = totals(Two(), adding("2"), START, 1)
    assert counts["models-down"] == 4 * 1.5
    assert counts["models-up"] == 4
    assert counts["client-bytes-down"] == 4 * (HEADER + 400 + HEADER + 200)
    assert counts["wire-bytes-down"] == 2 * (HEADER + 400 + HEADER + 200)


@pytest.mark.parametrize("hosting", ["1", "2", "own"])
def test_every_attempt_counts_and_failures_send_nothing_back(hosting):
    """First all clients except 0 fail, then only client 1: 8 models down, 1 and 3 models up."""

    def fault(config):
        if config["client"] == 1 or (config["attempt"] == 0 and config["client"] > 0):
            raise ArithmeticError("boom")

    nodes = HOSTINGS[hosting][0]
    counts = totals(
        FedAvg(min_available_nodes=nodes, min_replies=2), adding(hosting, fault), START, 1
    )
    assert (counts["models-down"], counts["models-up"]) == (8, 4)
    assert counts["client-bytes-down"] == 8 * (HEADER + 400)
    assert counts["client-bytes-up"] == 4 * (HEADER + 400)
    # Both attempts count, with four clients each.
    assert (counts["replies-asked"], counts["replies-left-out"]) == (8, 4)


def test_arrays_in_an_evaluation_are_not_looked_at():
    """An app may return any arrays or no arrays in an evaluation; its metrics are used."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        content = {"arrays": message.content["arrays"], "m": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        node = context.node_config["partition-id"]
        content = {"m": MetricRecord({"num-examples": 1, "loss": float(node)})}
        if node < 2:
            content["arrays"] = to_record({f"own-{node}": np.ones(7)})
        return Message(RecordDict(content), reply_to=message)

    strategy = FedAvg(min_available_nodes=3, evaluate_every=1)
    counts = totals(strategy, LocalGrid(app, nodes=3), START, 2)
    assert [metrics["loss"] for metrics in run_of(strategy).history.evaluate.values()] == [1.0, 1.0]
    assert (counts["models-down"], counts["models-up"]) == (6, 6)
    assert counts["client-bytes-down"] == counts["client-bytes-up"] == 6 * (HEADER + 400)


def test_a_round_reports_its_traffic():
    seen = []
    strategy = FedAvg(clients=4)
    strategy.start(adding("1"), to_record(START), 2, hooks=[seen.append])
    assert [report.metrics["models-up"] for report in seen] == [4, 4]
    assert run_of(strategy).history.rounds()[2]["client-bytes-down"] == 4 * (HEADER + 400)
    assert run_of(strategy).history.rounds()[2]["wire-bytes-down"] == HEADER + 400


def test_a_round_without_messages_sends_nothing():
    class Idle(FedAvg):
        def round(self, ctx, arrays):
            return arrays, {}
            yield

    counts = totals(Idle(), adding("1"), START, 2)
    assert set(counts.values()) == {0}


def test_replies_are_counted_only_where_some_were_left_out():
    """The results of runs without failures stay the same, to the byte."""
    traffic, exchange = Traffic(), Exchange("evaluate", {}, range(5), MetricsOnly())
    traffic.count_up(exchange, [NodeReply(metrics={client: {} for client in range(5)})])
    assert "replies-asked" not in traffic.as_metrics()
    traffic.count_up(exchange, [NodeReply(metrics={client: {} for client in range(3)})])
    counts = traffic.as_metrics()
    assert (counts["replies-asked"], counts["replies-left-out"]) == (10, 2)
