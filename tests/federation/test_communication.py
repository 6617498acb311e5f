"""Traffic: the bytes that a deployment sends and, separately, the bytes of a run's messages.

Models are counted as in CyclicFL's Table IV.
"""

from io import BytesIO

import numpy as np
import pytest
from flwr.client import NumPyClient

from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import CoPreFLClient, FedPCLClient, SCAFFOLDClient, TorchClient
from coprefl_flwr.learning.prototypes import no_prototypes
from coprefl_flwr.strategies import (
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
def test_number_of_models_is_that_of_cyclicfls_table_4(tmp_path, hosting):
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
def test_bytes_of_methods_by_hand(tmp_path, hosting, norm):
    """Two rounds of three clients count as in a deployment, however the clients are hosted.

    CoPreFL: model down, model up, model down, gradient up. The gradient has no buffers.
    """
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
    x = sum(array.nbytes for array in start.values())
    part = sum(array.nbytes for array in weights) / x
    assert counts["models-down"] == each * 2
    assert counts["models-up"] == pytest.approx(each * (1 + part), rel=1e-12)
    both = each * (model + gradient)  # The control variates are as large as the gradient.
    assert_bytes(sent(SCAFFOLD(**run), SCAFFOLDClient), both, both, hosting)
    assert_bytes(sent(Cyclic(**run), TorchClient), each * model, each * model, hosting)


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
def test_wire_bytes_are_those_of_the_messages(hosting, down, up):
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


def test_extra_arrays_are_counted():
    class Two(FedAvg):
        def round(self, ctx, arrays):
            if ctx.round == 2:  # A round without messages sends nothing.
                return arrays, {}
            extra = {"more": {"v": np.zeros(50, np.float32)}}
            replies = yield Exchange("train", arrays, ctx.sample(), extra=extra)
            return replies.arrays, {}

    counts = totals(Two(), adding("2"), START, 2)
    assert counts["models-down"] == 4 * 1.5
    assert counts["models-up"] == 4
    assert counts["client-bytes-down"] == 4 * (HEADER + 400 + HEADER + 200)
    assert counts["wire-bytes-down"] == 2 * (HEADER + 400 + HEADER + 200)


@pytest.mark.parametrize("hosting", ["1", "2", "own"])
def test_every_attempt_is_counted_and_failed_clients_send_nothing_back(hosting):
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
