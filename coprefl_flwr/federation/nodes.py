"""The roster: the clients of a population, and the node that hosts each client."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.files import expanded

LARGEST_ID = 2**63 - 1
"""Largest allowed client id: the largest int64, as messages store ids in 64 bits."""

MOST_CLIENTS = 10**7
"""Largest allowed number of clients that a strategy or a node may declare."""

NODES = "nodes"
"""Value of a strategy's option `clients`: each node is one client, whose id is the node's id."""

Hosted = int | str | Mapping[int, Sequence[int]]
"""The number of all clients, if any node can run any client; {node id: list of ids}; or NODES."""


def checked_ids(own: object, per_node: int | None = None) -> tuple[int, ...]:
    """Return the client ids that a node names; raise a ValueError if they are invalid.

    `own` must be a list of distinct ids. If `per_node` is set, at most `per_node` ids are allowed.
    """
    if not isinstance(own, list | tuple) or len(own) > MOST_CLIENTS:
        raise ValueError(f"its clients must be a list of at most {MOST_CLIENTS} ids")
    if per_node is not None and len(own) > per_node:
        allowed = f"at most {per_node} allowed: see clients_per_node of Bounds"
        raise ValueError(f"it reports {len(own)} clients, {allowed}")
    ids = tuple(_whole("a client's id", client, 0, LARGEST_ID) for client in own)
    if len(set(ids)) < len(ids):
        raise ValueError(f"it reports client {Counter(ids).most_common(1)[0][0]} twice")
    return ids


def _whole(what: str, value: object, least: int, most: int) -> int:
    number = int(value) if isinstance(value, Integral) else -1
    if isinstance(value, bool) or not least <= number <= most:
        limit = f"must be a whole number between {least} and {most}"
        raise SettingsError(f"{what} = {value!r}: {limit}")
    return number


class Roster:
    """The clients of a population, and the node that runs each client.

    `clients` is the strategy's option. If it is a number, it is the number of all clients, and any
    node can run any client. If it is {node id: list of client ids}, nodes that are not in the
    mapping are left out. If it is None, each node is asked for its client ids; `per_node`, if set,
    is the largest allowed number of ids. A node whose app cannot answer this query is one client,
    and the client has the node's id. With NODES, this holds for all nodes, and none is asked. The
    set `plain` holds the ids of these nodes. The set `of_functions` holds the ids of the nodes that
    were asked and whose app has functions instead of NumPyClients.

    `bound` is {client id: node id}: each client is bound to the node that named the client first.
    If a second node names the client, the second node may run the client only while the first node
    is disconnected. If several nodes name a client at the same time before the client is bound, the
    right node is unknown. The client then runs only when a single one of these nodes is connected.
    """

    def __init__(
        self,
        clients: Hosted | None = None,
        per_node: int | None = None,
        bound: Mapping[int, int] | None = None,
    ) -> None:
        self.shared = clients if isinstance(clients, int) else None
        self.declared = clients if isinstance(clients, Mapping) else None
        self.asks = clients is None
        self.per_node = per_node if clients is None else None
        self.bound = dict(bound or {})
        self.plain: set[int] = set()
        self.of_functions: set[int] = set()
        self.claims: dict[int, Sequence[int]] = {}
        self.owner: dict[int, int] = {}
        self.disputed: list[str] = []

    def hear(self, node: int, own: object) -> None:
        """Store the client ids that a node names; `own` is None if its app has no roster query.

        Raises a ValueError if the ids are invalid.
        """
        self.claims[node] = (node,) if own is None else checked_ids(own, self.per_node)
        if own is None:
            self.plain.add(node)

    def settle(self, nodes: Iterable[int]) -> None:
        """Set the owner of each client among the connected `nodes`, and the lines on disputes."""
        connected = set(nodes)
        self.claims = {node: own for node, own in self.claims.items() if node in connected}
        self.plain &= connected
        claiming_nodes: dict[int, list[int]] = {}
        for node in sorted(self.claims):
            for client in self.claims[node]:
                claiming_nodes.setdefault(client, []).append(node)
        self.owner, self.disputed = {}, []
        for client, claimants in claiming_nodes.items():
            holder = self.bound.get(client)
            if len(claimants) == 1:
                self.owner[client] = claimants[0]
                continue
            if holder in claimants:
                self.owner[client] = holder
            self.disputed.append(_disputed(client, claimants, self.owner.get(client)))

    def keep(self) -> None:
        """Bind each client to the node that owns it now; clients that are bound stay so."""
        self.bound = {**self.owner, **self.bound}

    def clients(self) -> Sequence[int]:
        """Return the ids of all clients that can be asked, ascending."""
        return range(self.shared) if self.shared is not None else sorted(self.owner)

    def single(self) -> set[int]:
        """Return the ids of the nodes that host exactly one client."""
        owned = Counter(self.owner.values())
        return {node for node, number in owned.items() if number == 1}

    def assign(
        self, clients: Sequence[int], nodes: Sequence[int], *, in_order: bool = False
    ) -> dict[int, list[int]]:
        """Return {node id: the ids of `clients` that the node runs}, without nodes that run none.

        If any node can run any client, the ascending client ids are split into contiguous parts of
        nearly equal size. With `in_order`, `clients` is a chain: the order is kept, and only the
        node of the first client is returned.
        """
        ordered = list(clients) if in_order else sorted(clients)
        shares: dict[int, list[int]] = {node: [] for node in nodes}
        for position, client in enumerate(ordered):
            node = self.owner.get(client, -1)
            if self.shared is not None and nodes:
                node = nodes[0 if in_order else position * len(nodes) // len(ordered)]
            if node in shares:
                shares[node].append(client)
        return {
            node: share
            for node, share in shares.items()
            if share and (not in_order or ordered[0] in share)
        }

    def segments(self, clients: Sequence[int]) -> list[list[int]]:
        """Split a chain, a list of client ids, into segments of clients on the same node."""
        if self.shared is not None:
            return [list(clients)] if clients else []
        runs = groupby(clients, lambda client: self.owner.get(client, -1 - client))
        return [list(run) for _, run in runs]


def _disputed(client: int, nodes: Sequence[int], holder: int | None) -> str:
    """Return a warning about a client that several nodes name; `holder` is its owner, or None."""
    several = ", ".join(map(str, nodes[:5])) + (", ..." if len(nodes) > 5 else "")
    problem = f"client {client} is reported by {len(nodes)} nodes ({several})"
    outcome = f"node {holder} reported the client first and keeps it"
    if holder is None:
        outcome = "the client is left out, because no node reported it first"
    return f"{problem}: {outcome}; give each node its own partition-id"


def hosted_clients(clients: Any) -> Hosted | None:
    """Return a strategy's option `clients`, checked, with a TOML file read.

    The option is None, the number of all clients, NODES, {node id: list of client ids}, or the path
    of a TOML file with this mapping. Raises a SettingsError if the file cannot be read, if an entry
    is invalid, or if a client is given to two nodes.
    """
    if clients is None or clients == NODES:
        return clients  # type: ignore[no-any-return]
    what = "clients"
    if isinstance(clients, Integral):
        return _whole(what, clients, 1, MOST_CLIENTS)
    if isinstance(clients, str | Path):
        what = f"clients = {str(clients)!r}"
        try:
            clients = tomllib.loads(expanded(clients).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"{what}: cannot be read: {one_line(error)}") from error
    if not isinstance(clients, Mapping) or not clients:
        raise SettingsError(f"{what}: must have an entry 'node id = [client ids]' for each node")
    hosted: dict[int, tuple[int, ...]] = {}
    owner: dict[int, int] = {}
    for node, ids in clients.items():
        try:
            number, own = int(node), checked_ids(list(ids))
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{what}: node {node!r}: {one_line(error)}") from error
        if number in hosted:
            raise SettingsError(f"{what}: node {number} is listed twice")
        for client in own:
            if owner.setdefault(client, number) != number:
                nodes = f"{owner[client]} and {number}"
                raise SettingsError(f"{what}: client {client} is listed for two nodes, {nodes}")
        hosted[number] = own
    return hosted
