"""A client starts from the state of its last valid participation, and from no other state."""

import logging
import tracemalloc

import numpy as np
import pytest
from flwr.client import NumPyClient

from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.federation.client_state import ClientState, Versions
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import Exchange, FedAvg
from tests.common.by_hand import record_samples
from tests.common.federation import without_roster
from tests.common.runs import run_of

START = {"w": np.zeros(2, np.float32)}


class Remembering(FedAvg):
    """FedAvg whose clients keep a state."""

    def round(self, ctx, arrays):
        clients = ctx.sample()
        replies = yield Exchange("train", arrays, clients, stateful=True)
        return replies.arrays, {}


class Diary(NumPyClient):
    """A client whose state lists its participations, as 10 x round + attempt.

    `fault` is called after the client has written its state.
    """

    def __init__(self, folder, client_id, fault=None):
        self.state, self.client_id, self.fault = ClientState(folder), client_id, fault

    def fit(self, parameters, config):
        before = self.state.read(config)
        days = [] if before is None else list(before["days"])
        today = 10 * config["server-round"] + config["attempt"]
        self.state.write(config, {"days": np.array([*days, today])})
        returned = [parameters[0] + 1]
        if self.fault:
            returned = self.fault(self.client_id, today, returned)
        return returned, 1, {}


def grid(folder, fault=None, clients=3, nodes=1, grid_class=LocalGrid, hosting="shared"):
    app = client_app(lambda _, i: Diary(folder, i, fault))
    made = grid_class(without_roster(app) if hosting == "plain" else app, nodes=nodes)
    made.clients = clients if hosting == "shared" else None
    return made


def diaries(strategy, folder, first=0):
    """Return {client: the participations in its valid state}; `first` is the id of client 0."""
    found = {}
    for client, version in run_of(strategy).versions.committed.items():
        config = {"run": "run", "population": "train", "state-version": version}
        days = ClientState(folder).read({**config, "client": client - first})["days"]
        found[client - first] = days.tolist()
    return found


def start(strategy, a_grid, rounds, **more):
    strategy.clients = getattr(a_grid, "clients", strategy.clients)
    strategy.start(a_grid, to_record(START), rounds, **more)
    return strategy


def raises(client, today, returned):
    if (client, today) == (1, 20):
        raise ArithmeticError("boom")
    return returned


def returns_nan(client, today, returned):
    return [returned[0] * np.nan] if (client, today) == (1, 20) else returned


KINDS = [(1, "shared", 0), (2, "shared", 0), (3, "own", 0), (3, "plain", 2)]


@pytest.mark.parametrize(("nodes", "hosting", "first"), KINDS)
@pytest.mark.parametrize("fault", [raises, returns_nan])
def test_a_failed_participation_leaves_no_state(tmp_path, fault, nodes, hosting, first):
    """Client 1 fails in round 2 after it wrote its state, and takes part again in round 3."""
    a_grid = grid(tmp_path, fault, nodes=nodes, hosting=hosting)
    strategy = start(Remembering(min_available_nodes=nodes), a_grid, 3)
    assert diaries(strategy, tmp_path, first) == {0: [10, 20, 30], 1: [10, 30], 2: [10, 20, 30]}


def test_a_repeated_attempt_starts_from_the_committed_state(tmp_path):
    """In round 2, two of three clients fail at first: no state of this attempt is used."""

    def first_attempt_fails(client, today, returned):
        if today == 20 and client != 0:
            raise ArithmeticError("boom")
        return returned

    a_grid = grid(tmp_path, first_attempt_fails, nodes=2)
    strategy = start(Remembering(min_replies=2), a_grid, 3)
    assert diaries(strategy, tmp_path) == {client: [10, 21, 30] for client in range(3)}
    assert run_of(strategy).versions.committed == dict.fromkeys(range(3), "3-0")


def test_a_reply_that_was_lost_leaves_no_state(tmp_path):
    """The client did all of its work in round 2, but the server did not receive its reply."""

    class Loses(LocalGrid):
        def pull_messages(self, message_ids):
            for reply in super().pull_messages(message_ids):
                config = {} if reply.has_error() else reply.content.metric_records
                lost = config and reply.metadata.src_node_id == 3 and self.rounds == 2
                if not lost:
                    yield reply

        rounds = 0

        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            self.rounds += any(m.metadata.message_type == "train" for m in messages)
            return super().send_and_receive(messages, timeout=timeout)

    a_grid = grid(tmp_path, nodes=2, clients=2, grid_class=Loses)
    strategy = start(Remembering(), a_grid, 3)
    assert run_of(strategy).versions.committed == {0: "3-0", 1: "3-0"}
    assert diaries(strategy, tmp_path) == {0: [10, 20, 30], 1: [10, 30]}


def test_a_late_message_changes_nothing(tmp_path):
    """Node 3 does the work of round 2 only after round 3, at the start of round 4."""

    class Slow(LocalGrid):
        held = ()
        rounds = 0

        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            if any(m.metadata.message_type == "train" for m in messages):
                self.rounds += 1
                if self.rounds == 2:
                    self.held = [m for m in messages if m.metadata.dst_node_id == 3]
                    messages = [m for m in messages if m not in self.held]
                elif self.rounds == 4:
                    list(super().send_and_receive(self.held, timeout=timeout))
            return super().send_and_receive(messages, timeout=timeout)

    a_grid = grid(tmp_path, nodes=2, clients=2, grid_class=Slow)
    strategy = start(Remembering(), a_grid, 5)
    # The server does not ask node 3 again. From round 3 on, node 2 runs node 3's client, which
    # starts from the state of round 1.
    assert diaries(strategy, tmp_path) == {0: [10, 20, 30, 40, 50], 1: [10, 30, 40, 50]}


def test_clients_that_stay_away_keep_their_state(tmp_path):
    strategy = Remembering(participants=2, seed=3)
    asked = record_samples(strategy)
    start(strategy, grid(tmp_path, clients=5, nodes=2), 8)
    took_part = {
        client: [10 * number for number, clients in enumerate(asked, 1) if client in clients]
        for client in range(5)
    }
    assert max(map(len, took_part.values())) > 2
    assert diaries(strategy, tmp_path) == {c: days for c, days in took_part.items() if days}


def test_files_of_the_checkpoint_stay_until_the_next(tmp_path):
    """The checkpoints are after rounds 3 and 6: in round 5, the states of 3, 4 and 5 exist."""
    files = {}

    def look(report):
        folder = tmp_path / "run" / "train" / "0"
        files[report.round] = sorted(path.stem for path in folder.iterdir())

    strategy = Remembering()
    checkpoint = tmp_path / "c"
    start(strategy, grid(tmp_path), 7, checkpoint=checkpoint, checkpoint_every=3, hooks=[look])
    assert files[3] == ["2-0", "3-0"]
    assert files[4] == ["3-0", "4-0"]
    assert files[5] == ["3-0", "4-0", "5-0"]
    assert files[6] == ["3-0", "5-0", "6-0"]
    assert files[7] == ["6-0", "7-0"]


@pytest.mark.parametrize(("nodes", "hosting"), [(1, "shared"), (3, "own"), (3, "plain")])
def test_a_lost_folder_is_one_clear_line(tmp_path, caplog, nodes, hosting):
    strategy = Remembering(min_available_nodes=nodes, evaluate_every=0)

    def lose(report):
        if report.round == 1:
            (tmp_path / "run" / "train" / "1" / "1-0.safetensors").unlink()

    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        start(strategy, grid(tmp_path, nodes=nodes, hosting=hosting), 2, hooks=[lose])
    (record,) = caplog.records
    line = record.getMessage()
    assert "is left out: " in line
    assert "this client's state of round 1 is lost or damaged: " in line
    assert "\n" not in line
    assert sorted(run_of(strategy).versions.committed.values()) == ["1-0", "2-0", "2-0"]


@pytest.mark.parametrize("stateful", [False, True])
def test_exchanges_without_a_state_say_nothing_of_versions(stateful):
    """An evaluation has versions if the training in the same round has a state."""
    seen = []

    class Twice(FedAvg):
        def round(self, ctx, arrays):
            clients = ctx.sample()
            yield Exchange("train", arrays, clients, config={"about": "no state"})
            replies = yield Exchange("train", arrays, clients, stateful=stateful)
            return replies.arrays, {}

    class Sees(NumPyClient):
        def fit(self, parameters, config):
            seen.append((config.get("about", "state"), config))
            return parameters, 1, {}

        def evaluate(self, parameters, config):
            seen.append(("evaluation", config))
            return 0.5, 1, {}

    strategy = Twice(evaluate_every=1, clients=2)
    start(strategy, LocalGrid(client_app(lambda _, i: Sees()), nodes=1), 2)
    assert len(seen) == 2 * 3 * 2
    for about, config in seen:
        told = {"state-version", "state-kept"} & config.keys()
        assert len(told) == (2 if stateful and about != "no state" else 0)
    assert run_of(strategy).versions.committed == (
        dict.fromkeys(range(2), "2-0") if stateful else {}
    )


STATE = 6400
"""Number of values in a client's state."""


def states_in_memory():
    """Return the number of memory blocks with the size of a state in float32 or float64 (a copy).

    Other memory is not counted, because Python's internal tables, such as the table of strings,
    may grow by 15 MB.
    """
    traces = tracemalloc.take_snapshot().traces
    return sum(4 * STATE <= trace.size <= 9 * STATE for trace in traces)


def test_states_of_many_clients_are_not_held_in_memory(tmp_path, monkeypatch):
    """At most five states are in memory, while clients read and write them and after the rounds."""
    monkeypatch.setattr("os.fsync", lambda _: None)  # Hundreds of calls take long.
    held = []

    class Heavy(NumPyClient):
        def fit(self, parameters, config):
            state = ClientState(tmp_path)
            kept = state.read(config)
            grown = np.zeros(STATE, np.float32) if kept is None else kept["x"] + 1
            state.write(config, {"x": grown})
            if config["client"] % 20 == 19:
                held.append(states_in_memory())
            return parameters, 1, {}

    a_grid = LocalGrid(client_app(lambda _, i: Heavy()), nodes=2)
    strategy = Remembering(clients=200)
    tracemalloc.start()
    try:
        start(strategy, a_grid, 2)
        left = states_in_memory()
    finally:
        tracemalloc.stop()
    assert len(run_of(strategy).versions.committed) == 200
    assert len(held) == 20
    assert min(held) >= 1
    assert max(held) <= 5
    assert left <= 5


def test_versions():
    """A request has the valid version and, until the next checkpoint, the checkpoint's version."""
    versions = Versions()
    versions.commit([4, 7], 1, 0)
    assert versions.of(4) == {"state-version": "1-0", "state-kept": ""}
    versions.mark_checkpoint()
    versions.commit([7], 2, 1)
    assert versions.of(4) == {"state-version": "1-0", "state-kept": "1-0"}
    assert versions.of(7) == {"state-version": "2-1", "state-kept": "1-0"}
    assert versions.of(9) == {"state-version": "", "state-kept": ""}
