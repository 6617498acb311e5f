"""The traffic of a round: models and bytes in a deployment, and the bytes sent in this run."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from flwr.app import Message

from coprefl_flwr.arrays import Arrays, size_of, to_record
from coprefl_flwr.federation.exchange import Exchange
from coprefl_flwr.federation.messages import size_of_arrays


@dataclass
class Traffic:
    """Models and bytes sent to clients (down) and back (up) in a round, without evaluations.

    `models_*` and `client_bytes_*` are the traffic of a deployment in which every client is its own
    node. There, each client is sent all arrays of an exchange and returns its arrays. These counts
    do not depend on how nodes host clients in this run. The unit of `models_*` is X in Table IV of
    CyclicFL, the size of the global model, `model_size` bytes. Other arrays, such as control
    variates, count as the fraction (their bytes / `model_size`). `client_bytes_down` and
    `client_bytes_up` are the bytes of the serialised arrays with their headers. Replies are counted
    with the dtypes that were sent.

    `wire_bytes_down` and `wire_bytes_up` are the bytes of the arrays in the messages of this run.
    In this run, a node that hosts several clients is sent the arrays once and returns sums in
    float64. `wire_nodes` is the largest number of nodes in an exchange, which is the number of
    partial sums. The last digits of the round's results depend on this number.

    All attempts at a round are counted. Down counts each client that was sent a request. Up counts
    each client with a good reply. A client that failed, or whose reply was refused, counts no
    models and no `client_bytes_up`, but the bytes of a refused reply are in `wire_bytes_up`.

    `replies_asked` is the number of clients that exchanges asked, and `replies_left_out` the number
    of those without a good reply.
    """

    model_size: int = 0
    models_down: float = 0.0
    models_up: float = 0.0
    client_bytes_down: int = 0
    client_bytes_up: int = 0
    wire_bytes_down: int = 0
    wire_bytes_up: int = 0
    wire_nodes: int = 0
    replies_asked: int = 0
    replies_left_out: int = 0

    def count_down(self, exchange: Exchange, clients: int, messages: Sequence[Message]) -> None:
        """Add the traffic of an exchange's requests to `clients` clients, all with equal arrays."""
        sent = nbytes(exchange.arrays) + sum(map(nbytes, exchange.extra.values()))
        sizes = [size_of_arrays(message) for message in messages]
        self.models_down += clients * self._models(sent)
        self.client_bytes_down += clients * sizes[0] if sizes else 0
        self.wire_bytes_down += sum(sizes)
        self.wire_nodes = max(self.wire_nodes, len(messages))

    def count_up(self, exchange: Exchange, clients: int, names: Iterable[str]) -> None:
        """Add the traffic of the good replies of `clients` clients, and count those without.

        `names` are the names of the arrays in each of these replies.
        """
        self.replies_asked += len(exchange.clients)
        self.replies_left_out += len(exchange.clients) - clients
        template = exchange.template
        answer = {name: template[name] for name in names}
        self.models_up += clients * self._models(nbytes(answer))
        self.client_bytes_up += clients * sum(map(size_of, to_record(answer, copy=False).values()))

    def as_metrics(self) -> dict[str, float]:
        """Return {name in tables and files: count}.

        "replies-asked" and "replies-left-out" are included only if a reply was left out.
        """
        counts = {name.replace("_", "-"): count for name, count in asdict(self).items()}
        del counts["model-size"]
        if not self.replies_left_out:  # Not shown for a round without failures.
            del counts["replies-asked"], counts["replies-left-out"]
        return counts

    def _models(self, amount: int) -> float:
        return amount / self.model_size if self.model_size else 0.0


def nbytes(arrays: Arrays) -> int:
    """Return the number of bytes of the arrays' data, without headers."""
    return sum(np.asarray(array).nbytes for array in arrays.values())
