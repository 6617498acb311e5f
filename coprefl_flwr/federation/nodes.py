"""The clients of a population, and the node that hosts each of them."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import SettingsError, one_line

LARGEST_ID = 2**63 - 1
"""Largest client id: the largest int64, as messages store ids in 64 bits."""

MOST_CLIENTS = 10**7
"""Largest number of clients that a strategy or a node may declare."""

Hosted = int | Mapping[int, Sequence[int]]
"""The number of all clients, any of which any node can run, or {node: its clients}."""


def checked_ids(own: object, per_node: int | None = None) -> tuple[int, ...]:
    """Return the client ids of a node; raise a ValueError if they are not valid.

    At most `per_node` ids are allowed, if `per_node` is set.
    """
    if not isinstance(own, list | tuple) or len(own) > MOST_CLIENTS:
        raise ValueError(f"it must name its own clients, in a list of at most {MOST_CLIENTS}")
    if per_node is not None and len(own) > per_node:
        allowed = f"at most {per_node} allowed: see clients_per_node of Bounds"
        raise ValueError(f"it names {len(own)} clients as its own, {allowed}")
    ids = tuple(_whole("a client's id", client, 0, LARGEST_ID) for client in own)
    if len(set(ids)) < len(ids):
        raise ValueError(f"it names client {Counter(ids).most_common(1)[0][0]} twice")
    return ids


def _whole(what: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        limit = f"must be a whole number between {least} and {most}"
        raise SettingsError(f"{what} = {value!r}: {limit}")
    return value


class Roster:
    """The clients of a population and the nodes that can run them.

    `clients` is what the strategy says about them: with a number, all nodes share this many; with
    {node: its clients}, nodes that it does not name are left out. If it is None, each node is asked
    and speaks for itself alone: it names its clients, at most `per_node` if that is set, or, where
    its app does not know the question, is one client whose id is the node's; `plain` holds these.

    `bound` has for each client the node that it is bound to, the one that named it first. A second
    node that names the client loses that claim alone, and may have the client only while the first
    is gone. A client that several nodes name before it is bound to one of them is nobody's, until
    only one of them is left: who is right cannot be known.
    """

    def __init__(
        self,
        clients: Hosted | None = None,
        per_node: int | None = None,
        bound: Mapping[int, int] | None = None,
    ) -> None:
        self.shared = clients if isinstance(clients, int) else None
        self.declared = None if isinstance(clients, int) else clients
        self.per_node = per_node if clients is None else None
        self.bound = dict(bound or {})
        self.plain: set[int] = set()
        self.claims: dict[int, Sequence[int]] = {}
        self.owner: dict[int, int] = {}
        self.disputed: list[str] = []

    def hear(self, node: int, own: object) -> None:
        """Take in the clients that a node names, None if its app does not know the question.

        Raises a ValueError if they are no good.
        """
        self.claims[node] = (node,) if own is None else checked_ids(own, self.per_node)
        if own is None:
            self.plain.add(node)

    def settle(self, nodes: Iterable[int]) -> None:
        """Find the owner of each client among the `nodes` that are there, and what is disputed."""
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
        """Bind the clients to the nodes that have them now: a later claim is the second."""
        self.bound = {**self.owner, **self.bound}

    def clients(self) -> Sequence[int]:
        """Return the ids of all clients that can be asked, ascending."""
        return range(self.shared) if self.shared is not None else sorted(self.owner)

    def single(self) -> set[int]:
        """Return the nodes that are one client each."""
        owned = Counter(self.owner.values())
        return {node for node, number in owned.items() if number == 1}

    def assign(
        self, clients: Sequence[int], nodes: Sequence[int], *, in_order: bool = False
    ) -> dict[int, list[int]]:
        """Return {node: its share of `clients`}; nodes without a client are left out.

        Shared clients are split into equal parts in the order of their ids, so that a node adds up
        a contiguous part of the whole sum. `in_order` keeps the order of a chain, all of which
        one node runs.
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
        """Cut a chain of clients into segments, each of clients that one node hosts."""
        if self.shared is not None:
            return [list(clients)] if clients else []
        runs = groupby(clients, lambda client: self.owner.get(client, -1 - client))
        return [list(run) for _, run in runs]


def _disputed(client: int, nodes: Sequence[int], holder: int | None) -> str:
    """Return the line about a client that several nodes name; `holder` is the one that has it."""
    several = ", ".join(map(str, nodes[:5])) + (", ..." if len(nodes) > 5 else "")
    problem = f"client {client} is named by {len(nodes)} nodes ({several})"
    outcome = f"node {holder} named it first and keeps it"
    if holder is None:
        outcome = "it is left out, as none of them named it first"
    return f"{problem}: {outcome}; give each node its own partition-id"


def hosted_clients(clients: Any) -> Hosted | None:
    """Return what a strategy's `clients` say.

    They are None, the number of all clients, {node: its clients}, or the path of a TOML file of
    that. Raises a SettingsError if they cannot be read, or give a client to two nodes.
    """
    if clients is None:
        return None
    what = "clients"
    if isinstance(clients, int):
        return _whole(what, clients, 1, MOST_CLIENTS)
    if isinstance(clients, str | Path):
        what = f"clients = {str(clients)!r}"
        try:
            clients = tomllib.loads(Path(clients).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"{what}: cannot be read: {one_line(error)}") from error
    if not isinstance(clients, Mapping) or not clients:
        raise SettingsError(f"{what}: must have an entry 'node id = [its clients]' for each node")
    hosted: dict[int, tuple[int, ...]] = {}
    owner: dict[int, int] = {}
    for node, ids in clients.items():
        try:
            number, own = int(node), checked_ids(list(ids))
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{what}: node {node!r}: {one_line(error)}") from error
        for client in own:
            if owner.setdefault(client, number) != number:
                nodes = f"{owner[client]} and {number}"
                raise SettingsError(f"{what}: client {client} is given to two nodes, {nodes}")
        hosted[number] = own
    return hosted
