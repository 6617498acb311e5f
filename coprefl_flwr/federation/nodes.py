"""The roster: the clients of a population, and the node that hosts each client."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import SettingsError, prefixed
from coprefl_flwr.files import expanded

NODES = "nodes"
"""Value of a strategy's option `clients`: each node is one client, whose id is the node's id."""

Hosted = int | str | Mapping[int, Sequence[int]]
"""The number of all clients, if any node can run any client; {node id: list of ids}; or NODES."""


def checked_ids(ids: object, per_node: int | None = None) -> tuple[int, ...]:
    """Return the client ids that a node names; raise a ValueError if they are invalid.

    `ids` must be a list of distinct whole numbers from 0 on. If `per_node` is set, at most
    `per_node` ids are allowed.
    """
    if not isinstance(ids, list | tuple):
        raise ValueError("its clients must be a list of ids")
    if per_node is not None and len(ids) > per_node:
        allowed = f"at most {per_node} allowed: see clients_per_node of Bounds"
        raise ValueError(f"it reports {len(ids)} clients, {allowed}")
    if any(not isinstance(one, Integral) or one < 0 for one in ids) or len(set(ids)) < len(ids):
        raise ValueError("its clients' ids must be distinct whole numbers from 0 on")
    return tuple(map(int, ids))


class Roster:
    """The clients of a population, and the node that runs each client.

    `clients` is the strategy's option. If it is a number, it is the number of all clients, and any
    node can run any client. If it is {node id: list of client ids}, nodes that are not in the
    mapping are left out. If it is None, each node is asked for its client ids; `per_node`, if set,
    is the largest allowed number of ids. A node whose app cannot answer this query is one client,
    and the client has the node's id. With NODES, this holds for all nodes, and none is asked. The
    set `plain` holds the ids of these nodes. The set `of_functions` holds the ids of the nodes that
    were asked and whose app has functions instead of NumPyClients.

    `claims` is {node id: client ids}, in the order in which the nodes named their clients. A client
    belongs to the first of the connected nodes that named it.
    """

    def __init__(self, clients: Hosted | None = None, per_node: int | None = None) -> None:
        self.shared = clients if isinstance(clients, int) else None
        self.declared = clients if isinstance(clients, Mapping) else None
        self.asks = clients is None
        self.per_node = per_node if clients is None else None
        self.plain: set[int] = set()
        self.of_functions: set[int] = set()
        self.claims: dict[int, Sequence[int]] = {}
        self.owner: dict[int, int] = {}

    def hear(self, node: int, ids: object) -> str:
        """Store the client ids that a node names; `ids` is None if its app has no roster query.

        Returns a line if another node has named one of the clients before, or else "". Raises a
        ValueError if the ids are invalid.
        """
        claimed = (node,) if ids is None else checked_ids(ids, self.per_node)
        if ids is None:
            self.plain.add(node)
        self.claims[node] = claimed
        taken = [client for client in claimed if self.owner.setdefault(client, node) != node]
        if not taken:
            return ""
        first = f"node {self.owner[taken[0]]} named it first"
        return f"does not get client {taken[0]}: {first}; give each node its own partition-id"

    def settle(self, nodes: Iterable[int]) -> None:
        """Forget the claims of nodes that are not among the connected `nodes`."""
        connected = set(nodes)
        self.claims = {node: ids for node, ids in self.claims.items() if node in connected}
        self.plain &= connected
        # Reversed, so that the first node that named a client has it.
        claims = reversed(self.claims.items())
        self.owner = {client: node for node, ids in claims for client in ids}

    def clients(self) -> Sequence[int]:
        """Return the ids of all clients that can be asked, ascending."""
        return range(self.shared) if self.shared is not None else sorted(self.owner)

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


def hosted_clients(clients: Any) -> Hosted | None:
    """Return a strategy's option `clients`, checked, with a TOML file read.

    The option is None, the number of all clients, NODES, {node id: list of client ids}, or the path
    of a TOML file with this mapping. Raises a SettingsError if the file cannot be read, or if an
    entry is invalid.
    """
    if clients is None or clients == NODES:
        return clients  # type: ignore[no-any-return]
    if isinstance(clients, Integral):
        if isinstance(clients, bool) or clients < 1:
            raise SettingsError(f"clients = {clients}: must be at least 1")
        return int(clients)
    what = f"clients = {str(clients)!r}" if isinstance(clients, str | Path) else "clients"
    needed = "must have an entry 'node id = [client ids]' for each node"
    with prefixed(f"{what}: {needed}", of=Exception):
        if isinstance(clients, str | Path):
            clients = tomllib.loads(expanded(clients).read_text(encoding="utf-8"))
        if not clients:
            raise ValueError("it is empty")
        return {int(node): checked_ids(list(ids)) for node, ids in clients.items()}
