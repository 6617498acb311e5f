"""Which node runs which clients: shares of clients, and the segments of a chain."""

import pytest

from coprefl_flwr.federation.nodes import Roster, hosted_clients


def shared(clients=6):
    return Roster(clients)


def hear(roster, claims):
    """Return the roster after connected nodes reported their clients: {node: its report}."""
    for node, own in claims.items():
        roster.hear(node, own)
    roster.settle(roster.claims)
    return roster


def owning():
    """Node 2 hosts clients 0 and 1, node 3 clients 4 and 2."""
    return hear(Roster(), {2: [0, 1], 3: [4, 2]})


def plain():
    return hear(Roster(), dict.fromkeys((2, 3, 4)))


def test_roster_has_the_clients_of_shared_hosting_and_single_nodes():
    assert (list(shared().clients()), shared().plain) == ([0, 1, 2, 3, 4, 5], set())
    assert (owning().clients(), owning().plain) == ([0, 1, 2, 4], set())
    assert (plain().clients(), plain().plain) == ([2, 3, 4], {2, 3, 4})


def test_invalid_report_affects_only_its_node():
    """Node 2 names its clients, node 7 is a client itself, and the report of node 3 is invalid."""
    roster = Roster()
    with pytest.raises(ValueError, match="its clients must be a list of ids"):
        roster.hear(3, "")
    hear(roster, {2: [5, 0], 7: None})
    assert (roster.clients(), roster.plain) == ([0, 5, 7], {7})
    assert roster.assign([0, 5, 7], [2, 3, 4, 7]) == {2: [0, 5], 7: [7]}


def test_plain_nodes_that_left_are_no_longer_clients():
    roster = plain()
    roster.settle([2, 4])
    assert (roster.clients(), roster.plain, set(roster.claims)) == ([2, 4], {2, 4}, {2, 4})
    roster = owning()
    roster.settle([3])
    assert roster.clients() == [2, 4]


def test_clients_are_assigned_to_their_nodes():
    assert shared().assign([5, 0, 3], [2, 3]) == {2: [0, 3], 3: [5]}
    assert owning().assign([4, 1, 2], [2, 3]) == {2: [1], 3: [2, 4]}
    assert owning().assign([4, 1, 2], [2]) == {2: [1]}
    assert plain().assign([4, 2], [2, 3, 4]) == {2: [2], 4: [4]}


def test_chain_is_cut_into_segments_by_node():
    assert shared().segments([5, 0, 3]) == [[5, 0, 3]]
    assert owning().segments([4, 2, 1, 0, 2]) == [[4, 2], [1, 0], [2]]
    assert owning().segments([1, 4, 0, 2]) == [[1], [4], [0], [2]]
    assert plain().segments([4, 2, 3]) == [[4], [2], [3]]
    # A client whose node is gone is a segment of one client, even next to another such client.
    assert owning().segments([8, 9, 1, 0]) == [[8], [9], [1, 0]]
    for roster in (shared(), owning(), plain()):
        assert roster.segments([]) == []


def test_segment_keeps_its_order_and_is_lost_with_its_node():
    assert shared().assign([5, 0, 3], [2, 3], in_order=True) == {2: [5, 0, 3]}
    assert owning().assign([4, 2], [2, 3], in_order=True) == {3: [4, 2]}
    assert plain().assign([4], [2, 3, 4], in_order=True) == {4: [4]}
    assert shared().assign([5, 0], [], in_order=True) == {}
    assert owning().assign([4, 2], [2], in_order=True) == {}
    assert owning().assign([9], [2, 3], in_order=True) == {}
    # If a node leaves and comes back while its segment waits, other nodes may have a client.
    assert owning().assign([4, 1], [2, 3], in_order=True) == {3: [4]}


def test_client_belongs_to_the_first_node_that_reported_it_until_this_node_leaves():
    roster = owning()
    line = "does not get client 4: node 3 named it first; give each node its own partition-id"
    assert roster.hear(9, [4]) == line
    assert roster.assign([4, 2], [2, 3, 9]) == {3: [2, 4]}
    roster.settle([2, 9])
    assert roster.assign([4, 2], [2, 9]) == {9: [4]}
    roster.hear(3, [4, 2])
    assert roster.assign([4, 2], [2, 3, 9]) == {3: [2], 9: [4]}


def test_node_that_reports_too_many_clients_has_none():
    roster = Roster(per_node=1)
    with pytest.raises(ValueError, match="it reports 100 clients, at most 1 allowed: see"):
        roster.hear(2, list(range(100)))
    hear(roster, {3: [0], 4: [1]})
    assert roster.clients() == [0, 1]


def test_nodes_are_clients_without_a_question():
    roster = hear(Roster(hosted_clients("nodes")), dict.fromkeys((2, 3)))
    assert (roster.asks, roster.clients(), roster.plain) == (False, [2, 3], {2, 3})
