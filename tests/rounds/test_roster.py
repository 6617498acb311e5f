"""Who runs what: shares of clients, and the segments of a chain."""

from coprefl_flwr.rounds.roster import Roster


def shared(clients=6):
    roster = Roster()
    roster.hear({2: {"clients": clients}})
    return roster


def owning():
    """Node 2 hosts clients 0 and 1, node 3 clients 4 and 2."""
    roster = Roster()
    roster.hear({2: {"own": [0, 1]}, 3: {"own": [4, 2]}})
    return roster


def plain():
    roster = Roster()
    roster.hear({2: {}, 3: {}, 4: {}})
    return roster


def test_kinds():
    assert (list(shared().clients()), shared().plain) == ([0, 1, 2, 3, 4, 5], set())
    assert (owning().clients(), owning().plain) == ([0, 1, 2, 4], set())
    assert (plain().clients(), plain().plain) == ([2, 3, 4], {2, 3, 4})
    assert (shared().hosting, owning().hosting, plain().hosting) == ("shared", "own", "node")


def test_nodes_that_left():
    roster = plain()
    roster.forget([3])
    assert (roster.clients(), roster.plain, roster.known) == ([2, 4], {2, 4}, {2, 4})
    roster = owning()
    roster.forget([2])
    assert roster.clients() == [2, 4]


def test_shares():
    assert shared().assign([5, 0, 3], [2, 3]) == {2: [0, 3], 3: [5]}
    assert owning().assign([4, 1, 2], [2, 3]) == {2: [1], 3: [2, 4]}
    assert owning().assign([4, 1, 2], [2]) == {2: [1]}
    assert plain().assign([4, 2], [2, 3, 4]) == {2: [2], 4: [4]}


def test_segments_pass_from_node_to_node():
    assert shared().segments([5, 0, 3]) == [[5, 0, 3]]
    assert owning().segments([4, 2, 1, 0, 2]) == [[4, 2], [1, 0], [2]]
    assert owning().segments([1, 4, 0, 2]) == [[1], [4], [0], [2]]
    assert plain().segments([4, 2, 3]) == [[4], [2], [3]]
    # Clients whose node is gone stand alone, also next to each other.
    assert owning().segments([8, 9, 1, 0]) == [[8], [9], [1, 0]]
    for roster in (shared(), owning(), plain()):
        assert roster.segments([]) == []


def test_a_segment_keeps_its_order():
    assert shared().assign([5, 0, 3], [2, 3], in_order=True) == {2: [5, 0, 3]}
    assert owning().assign([4, 2], [2, 3], in_order=True) == {3: [4, 2]}
    assert plain().assign([4], [2, 3, 4], in_order=True) == {4: [4]}


def test_a_segment_whose_node_is_gone_goes_to_nobody():
    assert shared().assign([5, 0], [], in_order=True) == {}
    assert owning().assign([4, 2], [2], in_order=True) == {}
    assert owning().assign([9], [2, 3], in_order=True) == {}
    assert owning().assign([], [2, 3], in_order=True) == {}
    # A node that left and came back while its segment waited: others may have taken a client.
    assert owning().assign([4, 1], [2, 3], in_order=True) == {3: [4]}
