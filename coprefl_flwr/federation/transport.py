"""The transport: sends the messages of exchanges to nodes and combines the nodes' replies."""

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from weakref import WeakKeyDictionary

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from coprefl_flwr.arrays import Arrays, cast_like, is_buffer, records_of, to_record
from coprefl_flwr.errors import RoundFailedError, RunFailedError, one_line, shorten
from coprefl_flwr.federation import messages, validation
from coprefl_flwr.federation.aggregation import Accumulator, Chain, Mean
from coprefl_flwr.federation.client_state import Versions
from coprefl_flwr.federation.communication import Traffic
from coprefl_flwr.federation.context import RunStrategy
from coprefl_flwr.federation.exchange import Exchange, Replies
from coprefl_flwr.federation.flower import end_with_simulation, plain_log
from coprefl_flwr.federation.messages import MessageConfig, NodeReply, program_error, reason
from coprefl_flwr.federation.nodes import Roster, hosted_clients
from coprefl_flwr.federation.tally import Tally

logger = logging.getLogger("flwr.coprefl")

PULL_INTERVAL = 0.01
"""Seconds between two polls for replies, on grids that have `pull_interval` (Flower's: 0.1)."""

_SILENT: WeakKeyDictionary[Grid, set[int]] = WeakKeyDictionary()
"""By grid, the nodes that did not answer in time, because their worker is still busy."""

NO_ROSTER = f"{messages.NOT_REGISTERED}|Invalid message type"
"""Pattern of Flower's errors for a query that an app has no function for."""

OWN_NODES_WAIT = 10.0
"""Time limit, in seconds, for the clients of a grid whose nodes are in this program."""
ASK_AGAIN = 30.0
"""Seconds after which a node that could not report its clients is asked again."""
FIRST_ANSWER = 300.0
"""Least time limit, in seconds, for a node's first answer: its worker must start and import."""

MOST_WARNINGS = 20
"""Largest number of warnings per round about one node, or another topic; the rest is counted."""


class Transport:
    """The connection of one run to the nodes; it sends messages and combines the replies.

    The options of `strategy` decide which node hosts which clients, how many clients must connect
    before the first exchange, and how many good replies an exchange needs. An exchange may take
    `timeout` seconds. A node that does not answer in this time is not asked again until it
    disconnects and connects again. `bound` is {client id: node id} from the checkpoint if the run
    resumes.

    The attribute `failed` holds, for the current round, {action: {client id: reason of failure}}.
    The attribute `worked` holds the actions that at least one client answered in this round. The
    attribute `begun` tells whether an earlier call of `clients` has waited for the clients, and
    `most_clients` is the largest number of clients that were connected at the same time.
    """

    def __init__(
        self,
        grid: Grid,
        strategy: RunStrategy,
        timeout: float,
        bound: Mapping[int, int] | None = None,
        most_clients: int = 0,
    ) -> None:
        self.grid, self.strategy, self.timeout = grid, strategy, timeout
        self._own_nodes = getattr(grid, "own_nodes", False)
        ours = end_with_simulation(grid) or self._own_nodes
        per_node = strategy.bounds.clients_per_node or (None if ours else 1)
        self.roster = Roster(hosted_clients(strategy.clients), per_node, bound)
        self.begun, self.most_clients = False, most_clients
        self.traffic = Traffic()
        self.refused: dict[int, str] = {}
        self.failed: dict[str, dict[int, str]] = {}
        self.worked: set[str] = set()
        self.tally, self._names = Tally(), dict[int, str]()
        self._warned = Counter[str]()
        self._heard: set[int] = set()
        self._asked_again = set[int]()
        self._action = self._same_error = ""
        self._sent: list[Message] = []
        self._shares: dict[int, list[int]] = {}
        self._with_models: set[int] = set()
        # Shared with later strategies on the same grid: a busy node is still busy for them.
        self.silent = _SILENT.setdefault(grid, set())
        # A simulation's grid looks for replies more often.
        if getattr(grid, "pull_interval", 0.0) > PULL_INTERVAL:
            grid.pull_interval = PULL_INTERVAL  # type: ignore[attr-defined]

    def nodes(self) -> list[int]:
        """Return the ids of the connected nodes, without nodes that did not answer, ascending.

        A node that did not answer is asked again after it was disconnected.
        """
        connected = set(self.grid.get_node_ids())
        self.silent &= connected
        return sorted(connected - self.silent)

    def clients(self, wanted: int | None = None) -> Sequence[int]:
        """Return the ids of all clients, ascending.

        The first call waits until `wanted` clients, and at least `min_available_nodes`, have
        connected. Later calls wait for one client only, so that the run continues if clients
        disconnect. If any node can run any client, one node is enough. Raises a RunFailedError if
        too few clients connect within the time limit.
        """
        limit = min(self.timeout, OWN_NODES_WAIT) if self._own_nodes else self.timeout
        end, waiting_logged = time.monotonic() + limit, False
        needed = 1 if self.begun else max(self.strategy.min_available_nodes, wanted or 1)
        self.refused.clear()
        next_question = time.monotonic() + min(ASK_AGAIN, limit / 2)
        while True:
            nodes = self.nodes()
            if time.monotonic() > next_question and self.roster.declared is None:
                next_question = time.monotonic() + ASK_AGAIN
                self._asked_again = {n for n, w in self.refused.items() if not program_error([w])}
                for node in self._asked_again:
                    del self.refused[node]
            self._ask_roster(nodes)
            clients = self.roster.clients()
            self.most_clients = max(self.most_clients, len(clients))
            if nodes and (self.roster.shared is not None or len(clients) >= needed):
                self._warn_of_few(len(clients))
                if self.roster.of_functions and not self.begun:
                    self.strategy.check_functions()
                self.begun = True
                self.roster.keep()
                return clients
            shared = program_error(self.refused.values())
            if waiting_logged and shared and set(nodes) <= set(self.refused):
                raise RunFailedError(f"no node could report its clients: {shared}")
            listed = set(self.grid.get_node_ids())
            if listed and listed <= self.silent:
                gone = f"none of the {len(listed)} nodes answered within {self.timeout:g} s"
                raise RunFailedError(f"{gone} and none is asked again; use a larger timeout")
            connected = f"{len(nodes)} nodes with {len(clients)} clients are connected"
            waiting = f"{connected}, needed: {needed} clients"
            if time.monotonic() > end:
                why = [*self.refused.values(), *self.roster.disputed][:1]
                raise RunFailedError("; ".join([waiting, f"waited {limit:g} s", *why]))
            if not waiting_logged:
                logger.info("waiting for nodes: %s", waiting)
                waiting_logged = True
            time.sleep(min(1.0, self.timeout))

    def patience(self, nodes: Iterable[int]) -> float:
        """Return the time limit, in seconds, for the answers of these nodes."""
        return self.timeout if self._heard.issuperset(nodes) else max(self.timeout, FIRST_ANSWER)

    def segments(self, chain: Sequence[int]) -> list[list[int]]:
        """Split a chain, a list of client ids, into segments of clients on the same node."""
        return self.roster.segments(chain)

    def _ask_roster(self, nodes: Sequence[int]) -> None:
        """Find out which clients new nodes host, unless any node can run any client."""
        roster = self.roster
        if roster.shared is not None:
            return
        new = [node for node in nodes if node not in roster.claims and node not in self.refused]
        replies = self._ask(new) if new and roster.asks else {}
        for node in replies if roster.asks else new:
            try:
                if roster.asks:
                    roster.hear(node, _named_by(replies[node]))
                    if not _runs_clients(replies[node]):
                        roster.of_functions.add(node)
                    self._names[node] = _name_in(replies[node])
                elif roster.declared is None:
                    roster.hear(node, None)
                elif node in roster.declared:
                    roster.hear(node, roster.declared[node])
                else:
                    raise ValueError("the strategy's option clients does not list this node")
            except Exception as error:  # Whatever a node sends must not end the run.
                self.refused[node] = shorten(one_line(error))
                self._warn(f"node {node}", f"node {node} is left out: {self.refused[node]}")
        before = roster.disputed
        roster.settle(nodes)
        for why in roster.disputed:
            if why not in before:
                self._warn("clients that several nodes name", why)

    def _ask(self, nodes: Sequence[int]) -> dict[int, Message]:
        """Ask these nodes for the ids of their clients; return the replies by node id."""
        # An app's mods may read the round of every message.
        config: MessageConfig = {"population": self.strategy.population, "server-round": 0}
        content = RecordDict({"config": ConfigRecord(config)})
        questions = [Message(content, node, messages.ROSTER) for node in nodes]
        within = ASK_AGAIN if self._asked_again.issuperset(nodes) else self.patience(nodes)
        with plain_log():  # Flower's wrappers do not call `start`, which enters this context too.
            answers = self.grid.send_and_receive(questions, timeout=within)
        replies = dict(_by_node(answers, questions))
        self._mark_silent(nodes, replies, within)
        return {node: replies[node] for node in nodes if node in replies}

    def called(self, client: int) -> str:
        """Return the name of a client in the log: of its node, its partition, or its id."""
        roster = self.roster
        node = roster.owner.get(client, roster.bound.get(client, -1))
        if node in roster.plain or self._names.get(node):
            return f"node {self._names.get(node) or node}"
        return f"partition {client}" if roster.per_node == 1 else f"client {client}"

    def _warn_of_few(self, clients: int) -> None:
        """Warn once in a round that fewer clients than `min_available_nodes` are connected."""
        topic, least = "connected clients", self.strategy.min_available_nodes
        few = self.begun and self.roster.shared is None and clients < least
        if few and not self._warned[topic]:
            self._warn(topic, f"{topic}: {clients}, fewer than min_available_nodes = {least}")

    def _warn(self, topic: str, line: str) -> None:
        """Log a warning, or only count it if this round has `MOST_WARNINGS` about the topic."""
        self._warned[topic] += 1
        if self._warned[topic] <= MOST_WARNINGS:
            logger.warning("%s", line)

    def prepare(
        self, exchange: Exchange, config: MessageConfig, versions: Versions
    ) -> list[Message]:
        """Return the messages of an exchange: one for each node that hosts some of its clients."""
        sent = {messages.ARRAYS: exchange.arrays, **exchange.extra}
        # Shared memory: the round's generator does not change the arrays while it waits.
        records = {name: to_record(arrays, copy=False) for name, arrays in sent.items()}
        self._action = exchange.action
        self._bounds = replace(
            self.strategy.bounds,
            positive=(*self.strategy.bounds.positive, *exchange.positive),
            buffers=tuple(self.strategy.buffers),
        )
        chained = isinstance(exchange.combine, Chain)
        self._shares = self.roster.assign(exchange.clients, self.nodes(), in_order=chained)
        self._with_models = self.roster.single() if exchange.of_models else set()
        returned: MessageConfig = {}
        if exchange.returned:
            returned = {messages.RETURNED: list(exchange.returned)}
        no_model = {messages.NO_MODEL: ArrayRecord()}
        self._sent = []
        for node, share in self._shares.items():
            of_share = [versions.of(client) if exchange.stateful else {} for client in share]
            content = messages.request(
                records if node in self._with_models else {**records, **no_model},
                {**config, **exchange.config, **returned},
                rule=exchange.combine,
                clients=None if node in self.roster.plain else share,
                of_clients={name: [values[name] for values in of_share] for name in of_share[0]},
                bounds=json.dumps(asdict(self._bounds)),
            )
            self._sent.append(Message(content, node, exchange.action))
        reached = {client for share in self._shares.values() for client in share}
        for client in sorted(set(exchange.clients) - reached):
            self._warn("lost nodes", f"client {client} is left out: its node has disconnected")
        self.traffic.count_down(exchange, len(reached), self._sent)
        return self._sent

    def collect(self, exchange: Exchange, received: Iterable[Message]) -> Replies:
        """Combine the replies to the messages that the last `prepare` made for `exchange`.

        Each failure is logged in one line. Raises a RoundFailedError if there are fewer good
        replies than the exchange needs.
        """
        replies: dict[int, NodeReply] = {}
        for node, message in _by_node(received, self._sent):
            if node in replies or node not in self._shares:
                why = f": {reason(message)}" if message.has_error() else ""
                self._warn(f"node {node}", f"node {node} sent an unexpected reply{why}")
                continue
            replies[node] = self._read(exchange, message, node)
            self.traffic.wire_bytes_up += messages.size_of_arrays(message)
            _empty(message)
        self._mark_silent(self._shares, replies, self.patience(self._shares))
        validation.leave_out_other_names(replies)
        asked = {client for share in self._shares.values() for client in share}
        self.tally.add(exchange, asked, replies.values())
        self._log_failures(exchange, replies)
        good = sorted((r for r in replies.values() if r.metrics), key=lambda r: r.clients[0])
        count = sum(len(reply.metrics) for reply in good)
        self.traffic.count_up(exchange, good)
        needed = self.strategy.min_replies if exchange.needed is None else exchange.needed
        if count < needed:
            counts = f"{exchange.action}: {count} good replies of {len(exchange.clients)}"
            failed = self.failed[exchange.action]
            why = messages.most_often(failed[c] for c in exchange.clients if c in failed)
            raise RoundFailedError(f"{counts}, needed: {needed}{why and f'; {why}'}")
        combined = combine_replies(exchange, good, self.strategy.buffers)
        return replace(combined, reductions=self.strategy.metric_reductions)

    def _log_failures(self, exchange: Exchange, replies: dict[int, NodeReply]) -> None:
        """Log why clients failed; raise a RoundFailedError if all failed by one program error."""
        failed = {c: why for reply in replies.values() for c, why in reply.failed.items()}
        self.failed.setdefault(exchange.action, {}).update(failed)
        if any(reply.metrics for reply in replies.values()):
            self.worked.add(exchange.action)
        elif alike := _alike(exchange.action, failed):
            if exchange.needed != 0:
                raise RoundFailedError(alike)
            logger.warning("%s", alike)
            return
        for node in sorted(replies):
            for client, why in replies[node].failed.items():
                self._warn(f"node {node}", f"client {client} on node {node} is left out: {why}")

    def new_round(self) -> None:
        """Clear the previous round's failures; log how many warnings were not shown."""
        for topic, number in sorted(self._warned.items()):
            hidden = number - MOST_WARNINGS
            if hidden > 0:
                logger.warning("%s: %s more such lines in this round", topic, hidden)
        self._warned.clear()
        self.failed.clear()
        self.worked.clear()
        self._same_error = ""

    def shared_error(self) -> str:
        """Return the error with which all clients of the last exchange failed, or else "".

        It is a program error, or the error of the last two attempts at the round. The result is
        also "" if only one client failed although the run has several clients: the cause may be
        this client's data.
        """
        failed = self.failed.get(self._action, {})
        before, self._same_error = self._same_error, messages.same_error(failed.values())
        if self._action in self.worked or len(failed) < min(2, self.most_clients):
            return ""
        twice = before != "" and before == self._same_error
        return _alike(self._action, failed, twice=twice)

    def _read(self, exchange: Exchange, message: Message, node: int) -> NodeReply:
        """Parse and check one node's reply; if it is invalid, all clients of the node failed."""
        share = self._shares[node]
        if message.has_error():
            why = reason(message)
            if messages.MOD in why and node not in self._with_models:
                why = f"{why}; the reply is not a model, but {validation.no_model(exchange)}"
            return NodeReply(failed=dict.fromkeys(share, why))
        try:
            reply = messages.read_reply(message.content, share, exchange.combine.sums)
            validation.check_reply(exchange, self._bounds, reply)
        except Exception as error:  # Whatever a node sends must not end the run.
            return NodeReply(failed=dict.fromkeys(share, shorten(one_line(error))))
        return reply

    def end(self) -> None:
        """Log the remaining warnings, and the nodes that did not answer.

        A simulation ends only when the workers of these nodes have finished.
        """
        self.new_round()
        if self.silent:
            names = ", ".join(map(str, sorted(self.silent)))
            logger.warning("done; a simulation ends only after these nodes answer: %s", names)

    def _mark_silent(self, nodes: Collection[int], heard: Collection[int], within: float) -> None:
        until = "is not asked again until it disconnects and connects again"
        for node in sorted(set(nodes) - set(heard)):
            logger.warning("node %s did not answer within %g s and %s", node, within, until)
            self.silent.add(node)
        self._heard.update(heard)


def _named_by(reply: Message) -> object:
    """Return the client ids in a node's reply; None: no roster query; other errors: ValueError."""
    if not reply.has_error():
        return records_of(reply.content, ConfigRecord)["roster"].get("own", "")
    if re.search(NO_ROSTER, reason(reply)):
        return None
    raise ValueError(reason(reply))


def _name_in(reply: Message) -> str:
    """Return the name in a node's reply to `query.roster`; "" if it gives none."""
    record = {} if reply.has_error() else records_of(reply.content, ConfigRecord)["roster"]
    return shorten(str(record.get("name", "")))


def _runs_clients(reply: Message) -> bool:
    """Return whether a node's app is made by `client_app`, and not of functions."""
    return not reply.has_error() and "runs-clients" in reply.content["roster"]


def _by_node(replies: Iterable[Message], sent: Sequence[Message]) -> Iterator[tuple[int, Message]]:
    """Yield (node asked, reply); an error reply may come from the SuperLink instead of the node."""
    addressed = {message.metadata.message_id: message.metadata.dst_node_id for message in sent}
    for reply in replies:
        metadata = reply.metadata
        yield addressed.get(metadata.reply_to_message_id, metadata.src_node_id), reply


def _empty(message: Message) -> None:
    """Delete the arrays of a parsed reply, to free memory: the grid may keep the message."""
    if not message.has_error():
        for name in records_of(message.content, ArrayRecord):
            del message.content[name]


def _alike(action: str, failed: Mapping[int, str], *, twice: bool = False) -> str:
    """Return a line if all clients failed with the same kind of program error, or else "".

    With `twice`, all clients are known to have failed with the same error of any kind.
    """
    shared = next(iter(failed.values())) if twice else program_error(failed.values())
    number = len(failed)
    clients = f"all {number} clients" if number > 1 else f"client {min(failed, default=0)}"
    return f"{action}: {clients} failed with {shared}" if shared else ""


def combine_replies(
    exchange: Exchange, replies: Sequence[NodeReply], buffers: Collection[str] = ()
) -> Replies:
    """Combine the nodes' replies, which are in the order of each node's smallest client id."""
    rule = exchange.combine
    accumulator = Accumulator(rule, exchange.template, buffers)
    for reply in replies:
        if reply.alone and rule.sums:
            ((client, metrics),) = reply.metrics.items()
            (own,) = reply.records.values()
            accumulator.add(client, own, metrics)
        elif rule.sums:
            accumulator.merge(reply.records)
    per_client = {client: metrics for reply in replies for client, metrics in reply.metrics.items()}
    arrays: Arrays = {}
    if isinstance(rule, Mean) and per_client:
        weight = sum(rule.coefficients(metrics)["sum"] for metrics in per_client.values())
        samples = sum(rule.buffer_coefficient(metrics, 0.0) for metrics in per_client.values())
        sums = accumulator.sums["sum"]
        # One array at a time, so that there is no second model in float64.
        for name, sent in exchange.template.items():
            mean = sums[name] / (samples if is_buffer(name, sent, buffers) else weight)
            arrays |= cast_like({name: mean}, {name: sent})
    if isinstance(rule, Chain) and per_client:
        arrays = cast_like(accumulator.sums["last"], exchange.template)
    return Replies(tuple(sorted(per_client)), messages.table(per_client), arrays, accumulator.sums)
