"""The transport: sends the messages of exchanges to nodes and combines the nodes' replies."""

import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from weakref import WeakKeyDictionary

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from coprefl_flwr.arrays import Arrays, cast, cast_like, is_buffer, records_of, to_record
from coprefl_flwr.errors import RoundFailedError, RunFailedError, logger, one_line, shorten
from coprefl_flwr.federation import messages
from coprefl_flwr.federation.aggregation import Accumulator, Chain, Mean, products
from coprefl_flwr.federation.client_state import Versions
from coprefl_flwr.federation.communication import Traffic
from coprefl_flwr.federation.context import RunStrategy
from coprefl_flwr.federation.exchange import Exchange, Replies
from coprefl_flwr.federation.flower import send_and_receive
from coprefl_flwr.federation.messages import MessageConfig, NodeReply, reason
from coprefl_flwr.federation.nodes import Roster, hosted_clients
from coprefl_flwr.federation.tally import Tally
from coprefl_flwr.federation.validation import Bounds

PULL_INTERVAL = 0.01
"""Seconds between two polls for replies, on grids that have `pull_interval` (Flower's: 0.1)."""

_SILENT: WeakKeyDictionary[Grid, set[int]] = WeakKeyDictionary()
"""By grid, the nodes that did not answer in time, because their worker is still busy."""

NO_ROSTER = "No query function registered|Invalid message type"
"""Pattern of Flower's errors for a query that an app has no function for."""

OWN_NODES_WAIT = 10.0
"""Time limit, in seconds, for the clients of a grid whose nodes are in this program."""

MOST_WARNINGS = 20
"""Largest number of clients of an exchange whose failures are logged one by one."""


class Transport:
    """The connection of one run to the nodes; it sends messages and combines the replies.

    The options of `strategy` decide which node hosts which clients, how many clients must connect
    before the first exchange, and how many good replies an exchange needs. An exchange may take
    `timeout` seconds. A node that does not answer in this time is not asked again until it
    disconnects and connects again.

    The attribute `most_clients` is the largest number of clients that were connected at the same
    time, and `tally` holds the outcomes of the last exchanges.
    """

    def __init__(
        self, grid: Grid, strategy: RunStrategy, timeout: float, most_clients: int = 0
    ) -> None:
        self.grid, self.strategy, self.timeout = grid, strategy, timeout
        # The nodes of a simulation are part of this program, too.
        self._own_nodes = getattr(grid, "own_nodes", type(grid).__name__ == "InMemoryGrid")
        per_node = strategy.bounds.clients_per_node or (None if self._own_nodes else 1)
        self.roster = Roster(hosted_clients(strategy.clients), per_node)
        self._begun, self.most_clients = False, most_clients
        self.traffic, self.tally = Traffic(), Tally()
        self._refused: dict[int, str] = {}
        self._names: dict[int, str] = {}
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
        needed = 1 if self._begun else max(self.strategy.min_available_nodes, wanted or 1)
        if self.roster.asks:  # A node that failed is asked again in the next round.
            self._refused.clear()
        while True:
            nodes = self.nodes()
            self._ask_roster(nodes)
            clients = self.roster.clients()
            self.most_clients = max(self.most_clients, len(clients))
            if nodes and (self.roster.shared is not None or len(clients) >= needed):
                if self.roster.of_functions and not self._begun:
                    self.strategy.check_functions()
                self._begun = True
                return clients
            connected = f"{len(nodes)} nodes with {len(clients)} clients are connected"
            waiting = f"{connected}, needed: {needed} clients"
            if self.silent:
                waiting = f"{waiting}; {len(self.silent)} more nodes did not answer in time"
            if time.monotonic() > end:
                why = list(self._refused.values())[:1]
                raise RunFailedError("; ".join([waiting, f"waited {limit:g} s", *why]))
            if not waiting_logged:
                logger.info("waiting for nodes: %s", waiting)
                waiting_logged = True
            time.sleep(min(1.0, self.timeout))

    def segments(self, chain: Sequence[int]) -> list[list[int]]:
        """Split a chain, a list of client ids, into segments of clients on the same node."""
        return self.roster.segments(chain)

    def _ask_roster(self, nodes: Sequence[int]) -> None:
        """Find out which clients new nodes host, unless any node can run any client."""
        roster = self.roster
        if roster.shared is not None:
            return
        roster.settle(nodes)
        new = [node for node in nodes if node not in roster.claims and node not in self._refused]
        replies = self._ask(new) if new and roster.asks else {}
        for node in replies if roster.asks else new:
            try:
                if roster.asks:
                    ids = self._read_roster(node, replies[node])
                else:
                    ids = roster.declared[node] if roster.declared else None
                refused = roster.hear(node, ids)
            except KeyError:
                refused = "is left out: the strategy's option clients does not list it"
            except Exception as error:  # Whatever a node sends must not end the run.
                refused = f"is left out: {shorten(one_line(error))}"
            if refused:
                self._refused[node] = f"node {node} {refused}"
                logger.warning("%s", self._refused[node])

    def _read_roster(self, node: int, reply: Message) -> object:
        """Return the client ids in a node's reply to `query.roster`, or None if it has no query.

        Raises a ValueError for any other error.
        """
        if not reply.has_error():
            record = records_of(reply.content, ConfigRecord)["roster"]
            self._names[node] = shorten(str(record.get("name", "")))
            if "runs-clients" not in record:
                self.roster.of_functions.add(node)
            return record.get("own", "")
        if re.search(NO_ROSTER, reason(reply)):
            self.roster.of_functions.add(node)
            return None
        raise ValueError(reason(reply))

    def _ask(self, nodes: Sequence[int]) -> dict[int, Message]:
        """Ask these nodes for the ids of their clients; return the replies by node id."""
        # An app's mods may read the round of every message.
        config: MessageConfig = {"population": self.strategy.population, "server-round": 0}
        content = RecordDict({"config": ConfigRecord(config)})
        questions = [Message(content, node, messages.ROSTER) for node in nodes]
        answers = send_and_receive(self.grid, questions, self.timeout)
        asked = _asked(questions)
        replies = {asked[reply.metadata.reply_to_message_id]: reply for reply in answers}
        self._mark_silent(nodes, replies)
        return {node: replies[node] for node in nodes if node in replies}

    def called(self, client: int) -> str:
        """Return the name of a client in the log: of its node, its partition, or its id."""
        roster = self.roster
        node = roster.owner.get(client, -1)
        if node in roster.plain or self._names.get(node):
            return f"node {self._names.get(node) or node}"
        return f"partition {client}" if roster.per_node == 1 else f"client {client}"

    def exchange(self, exchange: Exchange, config: MessageConfig, versions: Versions) -> Replies:
        """Send the messages of an exchange to the nodes, and return the combined replies.

        `config` holds the settings for all clients. Each failure is logged in one line. Raises a
        RoundFailedError if there are fewer good replies than the exchange needs.
        """
        rule, template = exchange.combine, exchange.template
        chained = isinstance(rule, Chain)
        shares = self.roster.assign(exchange.clients, self.nodes(), in_order=chained)
        reached = {client for share in shares.values() for client in share}
        bounds = replace(
            self.strategy.bounds,
            positive=(*self.strategy.bounds.positive, *exchange.positive),
            buffers=tuple(self.strategy.buffers),
        )
        sent = self._requests(exchange, shares, config, versions, bounds)
        self.traffic.count_down(exchange, len(reached), sent)
        received = send_and_receive(self.grid, sent, self.timeout) if sent else []
        replies: dict[int, NodeReply] = {}
        nodes = _asked(sent)
        for message in received:
            node = nodes[message.metadata.reply_to_message_id]
            self.traffic.wire_bytes_up += messages.size_of_arrays(message)
            try:
                reply = messages.read_reply(message, shares[node], rule.sums)
                bounds.check(reply.metrics, reply.records, template, rule, alone=reply.alone)
            except Exception as error:  # Whatever a node sends must not end the run.
                why = shorten(one_line(error))
                if messages.MOD in why and not _is_model(exchange, shares[node]):
                    why = f"{why}; the answer is not one client's model: see docs/how-to/privacy.md"
                reply = NodeReply(failed=dict.fromkeys(shares[node], why))
            replies[node] = reply
        self._mark_silent(shares, set(replies))
        self.tally.add(exchange, reached, replies.values())
        return self._combined(exchange, replies)

    def _requests(
        self,
        exchange: Exchange,
        shares: Mapping[int, Sequence[int]],
        config: MessageConfig,
        versions: Versions,
        bounds: Bounds,
    ) -> list[Message]:
        """Return the messages of an exchange: one for each node, with the ids of its clients."""
        sent = {messages.ARRAYS: exchange.arrays, **exchange.extra}
        # Shared memory: the round's generator does not change the arrays while it waits.
        records = {name: to_record(arrays, copy=False) for name, arrays in sent.items()}
        no_model = {messages.NO_MODEL: ArrayRecord()}
        config = {**config, **exchange.config}
        if exchange.returned:
            config[messages.RETURNED] = list(exchange.returned)
        checks = json.dumps(asdict(bounds))
        requests = []
        for node, share in shares.items():
            of_share = [versions.of(client) if exchange.stateful else {} for client in share]
            own: MessageConfig = {**of_share[0]}
            if node not in self.roster.plain:
                own = messages.of_host(share, of_share, exchange.combine, checks)
            content = RecordDict({**records, **({} if _is_model(exchange, share) else no_model)})
            content["config"] = ConfigRecord({**config, **own})
            requests.append(Message(content, node, exchange.action))
        return requests

    def _combined(self, exchange: Exchange, replies: Mapping[int, NodeReply]) -> Replies:
        """Log why clients failed; return the combined replies of the others."""
        failed = [(n, *lost) for n in sorted(replies) for lost in replies[n].failed.items()]
        if exchange.needed != 0 and (shared := self.tally.shared_error()):
            raise RoundFailedError(shared)
        for node, client, why in failed[:MOST_WARNINGS]:
            logger.warning("client %s on node %s is left out: %s", client, node, why)
        if len(failed) > MOST_WARNINGS:
            logger.warning("%s: %d more such lines", exchange.action, len(failed) - MOST_WARNINGS)
        good = sorted((r for r in replies.values() if r.metrics), key=lambda r: min(r.metrics))
        count = sum(len(reply.metrics) for reply in good)
        names = next(iter(good[0].records.values()), {}) if good else {}
        self.traffic.count_up(exchange, count, list(exchange.combine.returned(names)))
        needed = self.strategy.min_replies if exchange.needed is None else exchange.needed
        if count < needed:
            counts = f"{exchange.action}: {count} good replies of {len(exchange.clients)}"
            why = messages.most_often(why for _, _, why in failed)
            raise RoundFailedError(f"{counts}, needed: {needed}{why and f'; {why}'}")
        combined = combine_replies(exchange, good, self.strategy.buffers)
        return replace(combined, reductions=self.strategy.metric_reductions)

    def _mark_silent(self, nodes: Collection[int], heard: Collection[int]) -> None:
        until = "is not asked again until it disconnects and connects again"
        for node in sorted(set(nodes) - set(heard)):
            logger.warning("node %s did not answer within %g s and %s", node, self.timeout, until)
            self.silent.add(node)


def _is_model(exchange: Exchange, share: Sequence[int]) -> bool:
    """Return whether the reply of a node with these clients is one client's model."""
    return exchange.of_models and len(share) == 1


def _asked(sent: Sequence[Message]) -> dict[str, int]:
    """Return {message id: node id}: an error reply may come from the SuperLink, not the node."""
    return {message.metadata.message_id: message.metadata.dst_node_id for message in sent}


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
        weights = [rule.weights(client, metrics)["sum"] for client, metrics in per_client.items()]
        weight, samples = map(sum, zip(*weights, strict=True))
        sums = accumulator.sums["sum"]
        # One array at a time, so that there is no second model in float64.
        for name, sent in exchange.template.items():
            mean = sums[name] / (samples if is_buffer(name, sent, buffers) else weight)
            arrays[name] = cast(np.asarray(mean), sent.dtype)
        # FedEx-LoRA: R <- R + mean(B A) - mean(B) mean(A), which a layer multiplies by its scale.
        for name, of_means in products(arrays, exchange.template).items():
            sent = exchange.template[name]
            arrays[name] = cast(sent + sums[name] / weight - of_means, sent.dtype)
    if isinstance(rule, Chain) and per_client:
        arrays = cast_like(accumulator.sums["last"], exchange.template)
    if rule.partial:  # An array that a client left out, such as a gradient, is 0.
        returned = {name for arrays in accumulator.sums.values() for name in arrays}
        for of_sum in accumulator.sums.values():
            missing = {
                name: np.zeros(exchange.template[name].shape) for name in returned - of_sum.keys()
            }
            of_sum |= missing
    return Replies(tuple(sorted(per_client)), messages.table(per_client), arrays, accumulator.sums)
