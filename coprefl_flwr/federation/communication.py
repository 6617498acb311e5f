"""The traffic of a round: models and bytes in a deployment, and the bytes of this run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from flwr.app import Message

from coprefl_flwr.arrays import Arrays, size_of, to_record
from coprefl_flwr.federation.exchange import Exchange
from coprefl_flwr.federation.messages import NodeReply, size_of_arrays


@dataclass
class Traffic:
    """Models and bytes sent to clients (down) and back (up) in a round, evaluations left out.

    Both count what a deployment sends, where every client is its own node: it is sent all
    arrays of an exchange and answers with its own. They are the same however this run hosts its
    clients. A model is what CyclicFL's Table IV calls X: the size of the global model, `model_size`
    bytes; other quantities, such as control variates, count by their size. `client_bytes_down` and
    `client_bytes_up` are the bytes of the serialised arrays, each with its header; a reply is taken
    to have the dtypes that were sent.

    `wire_bytes_down` and `wire_bytes_up` are those of the messages of this run, where a node that
    hosts several clients is sent the arrays once and answers with one sum in float64. `wire_nodes`
    is the largest number of nodes that shared an exchange: by how many partial sums its clients'
    results were added up, on which the last digits of the round's numbers depend.

    Every attempt at a round counts: downwards each client that was sent something, upwards each
    that gave a good reply. A client that failed, or whose reply was refused, sends nothing back;
    the bytes of a refused reply are on the wire all the same.
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
        """Count an exchange's messages to `clients` clients; all have the same arrays."""
        sent = nbytes(exchange.arrays) + sum(map(nbytes, exchange.extra.values()))
        sizes = [size_of_arrays(message) for message in messages]
        self.models_down += clients * self._models(sent)
        self.client_bytes_down += clients * sizes[0] if sizes else 0
        self.wire_bytes_down += sum(sizes)
        self.wire_nodes = max(self.wire_nodes, len(messages))

    def count_up(self, exchange: Exchange, replies: Sequence[NodeReply]) -> None:
        """Count the clients that were asked, those of good replies, and what these answered with.

        All of them answer with the same arrays.
        """
        clients = sum(len(reply.metrics) for reply in replies)
        self.replies_asked += len(exchange.clients)
        self.replies_left_out += len(exchange.clients) - clients
        if not replies:
            return
        answered: Arrays = next(iter(replies[0].records.values()), {})
        template = exchange.template
        answer = {name: template[name] for name in answered}
        self.models_up += clients * self._models(nbytes(answer))
        self.client_bytes_up += clients * serialised(answer)

    def as_metrics(self) -> dict[str, float]:
        """Return the counts under the names they have in tables and files.

        Those of replies are there only where some were left out.
        """
        counts = {name.replace("_", "-"): count for name, count in asdict(self).items()}
        del counts["model-size"]
        if not self.replies_left_out:  # A round without failures says nothing of them.
            del counts["replies-asked"], counts["replies-left-out"]
        return counts

    def _models(self, amount: int) -> float:
        return amount / self.model_size if self.model_size else 0.0


def nbytes(arrays: Arrays) -> int:
    """Return the number of bytes of the arrays' data, without headers."""
    return sum(np.asarray(array).nbytes for array in arrays.values())


def serialised(arrays: Arrays) -> int:
    """Return the bytes of the serialised arrays, each with its header."""
    return sum(map(size_of, to_record(arrays, copy=False).values()))
