"""One client or node that sends replies as no honest one would affects only its own results.

A node's roster states which clients the node hosts. All lies about the roster are tested in
tests/integration/test_hostile.py.
"""

from hypothesis import example
from hypothesis import strategies as st

from coprefl_flwr.strategies import CoPreFL, FedAvg
from tests.chaos.behaviours import (
    EVALUATE,
    FIT,
    NODES_LIE,
    NODES_LIE_IN_ARRAYS,
    QUERY,
    clients_behave,
)
from tests.chaos.hostile import BY_NUMPY, OTHERS, check_client, check_node
from tests.chaos.length import examples
from tests.common.replies import KINDS


@st.composite
def of_clients(draw):
    """Draw a strategy, a kind of hosting, a client, an exchange, and the name of a behaviour."""
    strategy = draw(st.sampled_from([*BY_NUMPY, *BY_NUMPY, *OTHERS]))
    exchange = draw(st.sampled_from((BY_NUMPY | OTHERS)[strategy]))
    name = draw(st.sampled_from(list(clients_behave(exchange))))
    kind, client = draw(st.sampled_from(list(KINDS))), draw(st.sampled_from([0, 2, 4]))
    return strategy, kind, client, exchange, name


@st.composite
def of_nodes(draw):
    """Draw a strategy, a kind of hosting, a node, an exchange, and the name of a lie."""
    strategy = draw(st.sampled_from(list(BY_NUMPY)))
    exchange = draw(st.sampled_from(BY_NUMPY[strategy]))
    kind, nodes = draw(st.sampled_from([("own", (2, 4, 6)), ("two", (2, 3))]))
    # In a query, NaN means that the client reports no number of samples; none is needed.
    lies = [name for name in lies_in(exchange) if (exchange, name) != (QUERY, "NaN samples")]
    return strategy, kind, draw(st.sampled_from(nodes)), exchange, draw(st.sampled_from(lies))


def lies_in(exchange):
    return NODES_LIE if exchange == EVALUATE else NODES_LIE | NODES_LIE_IN_ARRAYS


@examples("hostile", 30, parts=2, case=of_clients())
def test_hostile_client_affects_only_its_results(case):
    *of, exchange, name = case
    check_client(*of, exchange, clients_behave(exchange)[name])


@examples("hostile", 10, parts=2, case=of_nodes())
@example(case=(FedAvg, "two", 3, FIT, "failures of another client"))
@example(case=(CoPreFL, "own", 4, QUERY, "NaN in sums"))
def test_lying_node_affects_only_the_results_of_its_clients(case):
    *of, exchange, name = case
    check_node(*of, exchange, lies_in(exchange)[name])
