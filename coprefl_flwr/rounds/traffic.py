"""What a round sends: models, as the papers count them, and the bytes really sent."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from flwr.app import ArrayRecord, Message

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.handover import records_of, size_of
from coprefl_flwr.rounds.exchange import Exchange
from coprefl_flwr.rounds.protocol import NodeReply


@dataclass
class Traffic:
    """Models and bytes sent to clients (down) and back (up).

    A model is what CyclicFL's Table IV calls X: the size of the global model, `model_size` bytes.
    Models are counted as if every client were a node of its own; other quantities, such as control
    variates, count by their size. Bytes are those of the serialised arrays in the messages of this
    run, where a node that hosts several clients is sent the arrays once and answers with one sum.
    """

    model_size: int = 0
    models_down: float = 0.0
    models_up: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    replies_asked: int = 0
    replies_left_out: int = 0

    def count_down(self, exchange: Exchange, clients: int, messages: Sequence[Message]) -> None:
        """Count an exchange's messages to `clients` clients."""
        sent = size(exchange.arrays) + sum(map(size, exchange.extra.values()))
        self.models_down += clients * self._models(sent)
        self.bytes_down += sum(map(array_bytes, messages))

    def count_up(self, message: Message) -> None:
        """Count the bytes of a reply, good or bad."""
        self.bytes_up += 0 if message.has_error() else array_bytes(message)

    def count_replies(self, asked: int, good: int) -> None:
        """Count the clients that were asked in an exchange, and those that are left out of it."""
        self.replies_asked += asked
        self.replies_left_out += asked - good

    def count_models_up(self, exchange: Exchange, replies: Sequence[NodeReply]) -> None:
        """Count what the clients of good replies answered with."""
        for reply in replies:
            answered: Arrays = next(iter(reply.records.values()), {})
            answer = {name: exchange.arrays[name] for name in answered}
            self.models_up += len(reply.metrics) * self._models(size(answer))

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


def size(arrays: Arrays) -> int:
    """Return the bytes of the arrays' numbers."""
    return sum(np.asarray(array).nbytes for array in arrays.values())


def array_bytes(message: Message) -> int:
    """Return the bytes of the serialised arrays in a message."""
    records = records_of(message.content, ArrayRecord).values()
    return sum(size_of(array) for record in records for array in record.values())
