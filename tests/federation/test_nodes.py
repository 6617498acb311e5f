"""Who runs what: shares of clients, and the segments of a chain."""

from coprefl_flwr.federation.nodes import Roster


def shared(clients=6):
    return Roster(clients)


def owning():
    """Node 2 hosts clients 0 and 1, node 3 clients 4 and 2."""
    roster = Roster()
    roster.hear({2: {"own": [0, 1]}, 3: {"own": [4, 2]}})
    return roster


def plain():
    roster = Roster()
    roster.hear({2: None, 3: None, 4: None})
    return roster


def test_kinds():
    assert (list(shared().clients()), shared().plain) == ([0, 1, 2, 3, 4, 5], set())
    assert (owning().clients(), owning().plain) == ([0, 1, 2, 4], set())
    assert (plain().clients(), plain().plain) == ([2, 3, 4], {2, 3, 4})


def test_each_node_speaks_for_itself_alone():
    """A node that names its clients beside one that is a client, and two that say neither."""
    roster = Roster(most=9)
    unread = "it must name its own clients, in a list of at most 9"
    answers = {2: {"own": [5, 0]}, 7: None, 3: {"clients": 9}, 4: {}}
    assert roster.hear(answers) == {3: unread, 4: unread}
    assert (roster.clients(), roster.plain) == ([0, 5, 7], {7})
    assert roster.assign([0, 5, 7], [2, 3, 4, 7]) == {2: [0, 5], 7: [7]}


def test_a_node_that_is_a_client_is_nobody_elses():
    """Also where another has named it before."""
    roster = Roster()
    roster.hear({2: {"own": [7, 0]}})
    roster.keep()
    roster.hear({7: None})
    assert roster.lost == {
        7: "client 7 is named by 2 nodes (2, 7): it is node 7 itself; give each node its own "
        "partition-id"
    }
    assert roster.assign([0, 7], [2, 7]) == {2: [0], 7: [7]}


def test_nodes_that_left():
    roster = plain()
    roster.forget([3])
    assert (roster.clients(), roster.plain, roster.known()) == ([2, 4], {2, 4}, {2, 4})
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


def test_a_client_is_bound_to_the_node_that_first_named_it():
    """Another may have it while that one is gone, and loses it when it is back."""
    roster = owning()
    roster.keep()
    assert roster.hear({9: {"own": [4]}}) == {}
    assert roster.lost == {
        4: "client 4 is named by 2 nodes (3, 9): node 3 named it first and keeps it; give each "
        "node its own partition-id"
    }
    assert roster.assign([4, 2], [2, 3, 9]) == {3: [2, 4]}
    roster.forget([3])
    assert roster.assign([4, 2], [2, 9]) == {9: [4]}
    roster.keep()
    assert roster.hear({3: {"own": [4, 2]}}) == {}
    assert roster.assign([4, 2], [2, 3, 9]) == {3: [2, 4]}


def test_who_has_a_client_while_its_node_is_gone_keeps_it_from_a_third():
    roster = owning()
    roster.keep()
    roster.forget([3])
    roster.hear({9: {"own": [4]}})
    roster.keep()
    roster.hear({5: {"own": [4]}})
    assert roster.assign([4], [2, 5, 9]) == {9: [4]}


def test_a_node_that_names_more_than_it_may_has_none():
    roster = Roster(per_node=1)
    answers = {2: {"own": list(range(100))}, 3: {"own": [0]}, 4: {"own": [1]}}
    assert roster.hear(answers) == {
        2: "it names 100 clients as its own, at most 1 allowed: see clients_per_node of Bounds"
    }
    assert roster.clients() == [0, 1]


def test_clients_are_no_more_than_the_bound():
    roster = Roster(most=3)
    assert roster.hear({2: {"own": [0, 1]}, 3: {"own": [5, 6]}, 4: {"own": [0] * 4}}) == {
        3: "with its 2 clients there would be more than 3",
        4: "it must name its own clients, in a list of at most 3",
    }
