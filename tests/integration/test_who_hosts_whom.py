"""Nodes report the clients that they host, and a node claims others' clients, or very many."""

import logging

import pytest
from flwr.app import ConfigRecord

from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.messages import ROSTER
from coprefl_flwr.strategies import FedAvg
from tests.common.by_hand import record_samples
from tests.common.replies import START, Good, Lying

FIRST = 2
"""The id of the local grid's first node."""


class Grid(Lying):
    """A grid of nodes of other parties; the nodes in `offline` are not connected."""

    def __init__(self, nodes, claims, each=None):
        """`claims` is {node id: reported client ids}; `each` returns the clients of other nodes."""
        app = client_app(lambda _, client: Good(client, lambda *_: None), clients=each)
        super().__init__(app, nodes, self.says)
        self.claims, self.offline, self.worked = claims, set(), {}

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node not in self.offline]

    def says(self, node, message_type, reply):
        if message_type == ROSTER and node in self.claims:
            return {"roster": ConfigRecord({"own": list(self.claims[node])})}
        if message_type == "train":
            for client in reply.content["metrics"]["clients"]:
                self.worked[client] = node
        return None


def three(context, population):
    """Host three clients on each node."""
    return [3 * context.node_config["partition-id"] + i for i in range(3)]


def run(grid, rounds=1, strategy=None, **more):
    """Run a strategy; return the participants of each round, and the warnings."""
    strategy = strategy or FedAvg()
    drawn, lines = record_samples(strategy), []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("flwr.coprefl").addHandler(handler)
    try:
        strategy.start(grid, to_record(START), rounds, **{"timeout": 5.0, **more})
    finally:
        logging.getLogger("flwr.coprefl").removeHandler(handler)
    return drawn, lines


def test_client_that_two_nodes_report_is_run_by_the_first():
    """The other clients of the second node take part."""
    grid = Grid(4, {FIRST + 3: [3, 9, 10]}, three)
    grid.own_nodes = True  # Each node may host any number of clients.
    drawn, lines = run(grid, 3, FedAvg(min_available_nodes=4))
    assert drawn == [[*range(9), 9, 10]] * 3
    assert grid.worked == {client: FIRST + min(client // 3, 3) for client in drawn[0]}
    assert lines == [
        "node 5 does not get client 3: node 3 named it first; give each node its own partition-id"
    ]


@pytest.mark.parametrize("named", [range(100, 100 + 10**6), [0, 7]])
def test_node_that_reports_too_many_clients_is_left_out_and_changes_no_draw(named):
    """Otherwise, a draw from a million claimed clients would nearly always choose this node."""
    expected, _ = run(Grid(4, {}), 20, FedAvg(participants=1, min_available_nodes=4, seed=3))
    grid = Grid(5, {FIRST + 4: named})
    drawn, lines = run(grid, 20, FedAvg(participants=1, min_available_nodes=4, seed=3))
    assert drawn == expected
    assert {line.split(", at most")[0] for line in lines} == {
        f"node 6 is left out: it reports {len(named)} clients"
    }


def test_client_of_a_node_that_left_is_run_by_the_node_that_reports_it_next():
    """Another node may run a client after the client's first node has left.

    Without node authentication, a node may return under another id.
    """
    grid = Grid(4, {FIRST + 3: [0]})
    grid.offline = {FIRST + 3}

    def restart(report):
        if report.round == 1:
            grid.offline = {FIRST}
            grid.worked.clear()

    drawn, lines = run(grid, 2, FedAvg(min_available_nodes=3), hooks=[restart])
    assert drawn == [[0, 1, 2]] * 2
    assert grid.worked[0] == FIRST + 3
    assert lines == []


def test_option_clients_lists_the_clients_of_each_node(tmp_path):
    """The server does not ask nodes: node 2 claims all clients, and node 5 is not in the list."""
    file = tmp_path / "nodes.toml"
    file.write_text("2 = [4]\n3 = [0, 1]\n4 = []\n")
    for given in (file, str(file), {2: [4], 3: (0, 1), 4: []}):
        grid = Grid(4, {FIRST: range(9), FIRST + 2: [0], FIRST + 3: [8]})
        drawn, lines = run(grid, 2, FedAvg(min_available_nodes=3, clients=given))
        assert drawn == [[0, 1, 4]] * 2
        assert grid.worked == {4: 2, 0: 3, 1: 3}
        assert grid.asked == 0
        assert set(lines) == {"node 5 is left out: the strategy's option clients does not list it"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("2 = [-1]", "must have an entry 'node id = [client ids]'"),
        ("hospital = [0]", "must have an entry 'node id = [client ids]'"),
        ("", "must have an entry 'node id = [client ids]' for each node"),
        (None, "must have an entry 'node id = [client ids]' for each node: FileNotFoundError"),
    ],
)
def test_invalid_list_of_nodes_is_refused(tmp_path, text, line):
    file = tmp_path / "nodes.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        FedAvg(clients=file)
    assert str(caught.value).startswith(f"clients = '{file}': {line}")
