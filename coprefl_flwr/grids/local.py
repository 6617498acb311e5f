"""A grid in this process: it runs ServerApp and ClientApp without Ray or a SuperLink.

The grid is meant for tests, for debugging with breakpoints, and for machines with one GPU.
"""

import itertools
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from coprefl_flwr.arrays import records_of
from coprefl_flwr.errors import EXITS, logger
from coprefl_flwr.federation.flower import enter_run, name_message
from coprefl_flwr.federation.machine import keep_freed_memory
from coprefl_flwr.federation.messages import place

ClientAppFn = Callable[[Message, Context], Message]


class LocalGrid(Grid):
    """Runs a `ClientApp` in this process, one message at a time; each node is only a context.

    `nodes` is the number of nodes. As in a simulation, the node-config of node i has `partition-id`
    i and `num-partitions` equal to `nodes`. The ClientApp gets `run_config` as
    `context.run_config`.
    """

    run: Any = None
    own_nodes = True
    """The nodes belong to this program, so each node may report that it hosts many clients."""

    def __init__(
        self, client_app: ClientAppFn, nodes: int = 1, run_config: Mapping[str, Any] | None = None
    ) -> None:
        self._client_app = client_app
        self._contexts = {
            node + 2: Context(  # Flower's SuperLink is node 1.
                run_id=1,
                node_id=node + 2,
                node_config={"partition-id": node, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for node in range(nodes)
        }
        self._message_ids = itertools.count(1)
        self._replies: dict[str, Message] = {}
        enter_run(run_id=1, node_id=1)
        keep_freed_memory()

    def set_run(self, run: Any) -> None:
        """Store the run in the attribute `run`, as Flower's grids do."""
        self.run = run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message to the node `dst_node_id`."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return a list of the ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the ClientApp on each message before returning the ids of the messages."""
        ids = []
        for message in messages:
            ids.append(self._give_id(message))
            self._replies[ids[-1]] = self._handle(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to the messages with these ids; each reply is returned only once."""
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Run the ClientApp on each message and return the replies; `timeout` is not used."""
        return self.pull_messages(self.push_messages(messages))

    def _give_id(self, message: Message) -> str:
        """Give a new id to a message, and return the id."""
        message_id = str(next(self._message_ids))
        name_message(message, message_id)
        return message_id

    def _handle(self, message: Message) -> Message:
        # All messages of an exchange share a record, but an app may change its own.
        for name, record in records_of(message.content, ArrayRecord).items():
            message.content[name] = fresh = ArrayRecord()
            fresh.update(record)
        return run_app(self._client_app, message, self._contexts[message.metadata.dst_node_id])


def run_app(client_app: ClientAppFn, message: Message, context: Context) -> Message:
    """Return the ClientApp's reply to a message, or an error reply if it raises an exception."""
    try:
        reply = client_app(message, context)
        if reply.metadata.reply_to_message_id == message.metadata.message_id:
            return reply
        # A Flower mod that refuses the app's reply replies to that reply, not to the message.
        stray = Error(2, "its reply belongs to no message that it received")
        return Message(reply.error if reply.has_error() else stray, reply_to=message)
    except (Exception, *EXITS) as error:
        logger.debug("%s", traceback.format_exc())
        # 2 is Flower's code of an exception in the ClientApp.
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return Message(Error(2, line + place(error)), reply_to=message)
