"""The line that tells an operator how many clients answered."""

import numpy as np

from coprefl_flwr.federation.exchange import Exchange
from coprefl_flwr.federation.messages import NodeReply
from coprefl_flwr.federation.tally import MOST_NAMED, Tally

GOOD = {"num-examples": 1.0}


def exchange(action, clients):
    return Exchange(action, {"w": np.zeros(1)}, clients)


def replies(good, failed=None):
    return [NodeReply(dict.fromkeys(good, GOOD), failed=failed or {})]


def line(tally):
    return tally.line(lambda client: f"partition {client}")


def test_line_counts_each_exchange_and_names_who_is_missing():
    tally = Tally()
    tally.add(exchange("train", range(10)), range(9), replies(range(9)))
    tally.add(exchange("train.query", range(9)), range(9), replies([0, 1, 2, 4, 5, 6, 7, 8]))
    expected = "train: 9 of 10 (partition 9: disconnected), query: 8 of 9 (partition 3: timeout)"
    assert line(tally) == expected
    assert line(tally) == ""  # Each exchange is reported once.


def test_links_of_a_chain_are_one_exchange():
    """The client that is skipped is named with the reason of its own failure."""
    tally = Tally()
    for client, failed in ((0, {}), (1, {1: "ValueError: no data"}), (2, {})):
        tally.add(exchange("train", [client]), [client], replies({client} - {*failed}, failed))
    assert line(tally) == "train: 2 of 3 (partition 1: ValueError: no data)"


def test_long_lists_and_reasons_are_cut():
    tally, number = Tally(), MOST_NAMED + 3
    tally.add(exchange("evaluate", range(number)), [], replies([], {0: "x" * 500}))
    found = line(tally)
    assert found.startswith(f"evaluate: 0 of {number} (partition 0: xxx")
    assert found.endswith("partition 4: disconnected, 3 more)")
    assert len(found) < 300
