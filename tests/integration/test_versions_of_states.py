"""A client starts from the state of its last valid participation, and from no other state."""

import numpy as np
import pytest
from flwr.client import NumPyClient

from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.federation.client_state import ClientState
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


class DiaryClient(NumPyClient):
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
    app = client_app(lambda _, i: DiaryClient(folder, i, fault))
    made = grid_class(without_roster(app) if hosting == "plain" else app, nodes=nodes)
    made.clients = clients if hosting == "shared" else None
    return made


def diary_entries(strategy, folder, first=0):
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
def test_failed_participation_leaves_no_state(tmp_path, fault, nodes, hosting, first):
    """Client 1 fails in round 2 after it wrote its state, and takes part again in round 3."""
    a_grid = grid(tmp_path, fault, nodes=nodes, hosting=hosting)
    strategy = start(Remembering(min_available_nodes=nodes), a_grid, 3)
    assert diary_entries(strategy, tmp_path, first) == {
        0: [10, 20, 30],
        1: [10, 30],
        2: [10, 20, 30],
    }


def test_repeated_round_starts_from_the_committed_states(tmp_path):
    """In round 2, two of three clients fail at first: no state of this attempt is used."""

    def first_attempt_fails(client, today, returned):
        if today == 20 and client != 0:
            raise ArithmeticError("boom")
        return returned

    a_grid = grid(tmp_path, first_attempt_fails, nodes=2)
    strategy = start(Remembering(min_replies=2), a_grid, 3)
    assert diary_entries(strategy, tmp_path) == {client: [10, 21, 30] for client in range(3)}
    assert run_of(strategy).versions.committed == dict.fromkeys(range(3), "3-0")


def test_participation_whose_reply_was_lost_leaves_no_state(tmp_path):
    """The client did all of its work in round 2, but the server did not receive its reply."""

    lost = []

    class LosingGrid(LocalGrid):
        def pull_messages(self, message_ids):
            for reply in super().pull_messages(message_ids):
                if reply.metadata.message_type == "train" and reply.metadata.src_node_id == 3:
                    lost.append(reply)
                    if len(lost) == 2:
                        continue
                yield reply

    a_grid = grid(tmp_path, nodes=2, clients=2, grid_class=LosingGrid)
    strategy = start(Remembering(), a_grid, 3)
    assert run_of(strategy).versions.committed == {0: "3-0", 1: "3-0"}
    assert diary_entries(strategy, tmp_path) == {0: [10, 20, 30], 1: [10, 30]}


def test_client_that_does_not_participate_keeps_its_state(tmp_path):
    strategy = Remembering(participants=2, seed=3)
    asked = record_samples(strategy)
    start(strategy, grid(tmp_path, clients=5, nodes=2), 8)
    took_part = {
        client: [10 * number for number, clients in enumerate(asked, 1) if client in clients]
        for client in range(5)
    }
    assert max(map(len, took_part.values())) > 2
    assert diary_entries(strategy, tmp_path) == {c: days for c, days in took_part.items() if days}


def test_state_files_of_a_checkpoint_stay_until_the_next_checkpoint(tmp_path):
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
