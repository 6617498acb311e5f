"""Which clients there are, and which node hosts which."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.federation.validation import Bounds

LARGEST_ID = 2**63 - 1
"""What a message can hold."""

Hosted = int | Mapping[int, Sequence[int]]
"""The number of all clients, any of which any node can run, or {node: its clients}."""


def read_answer(
    answer: Mapping[str, object], most: int, per_node: int | None = None
) -> tuple[int, ...]:
    """Return the clients that a node names as its own; raise a ValueError if they are no good.

    There are at most `most` clients, of which a node hosts at most `per_node`, if that is set.
    """
    own = answer.get("own")
    if not isinstance(own, list) or len(own) > most:
        raise ValueError(f"it must name its own clients, in a list of at most {most}")
    if per_node is not None and len(own) > per_node:
        allowed = f"at most {per_node} allowed: see clients_per_node of Bounds"
        raise ValueError(f"it names {len(own)} clients as its own, {allowed}")
    ids = tuple(_whole("a client's id", client, 0, LARGEST_ID) for client in own)
    if len(set(ids)) < len(ids):
        raise ValueError(f"it names client {Counter(ids).most_common(1)[0][0]} twice")
    return ids


def _whole(what: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{what} = {value!r}: must be a whole number between {least} and {most}")
    return value


class Roster:
    """The clients of a population and the nodes that can run them.

    `clients` is what the strategy says of them: with a number, all nodes share so many; with
    {node: its clients}, nodes that it does not name are left out. If it is None, each node is asked
    and speaks for itself alone: it names its clients, or, where its app does not know the question,
    is one client whose id is the node's; `plain` holds these nodes.

    Of nodes that name their clients: `bound` has for each client the node that it is bound to, the
    one that named it first. A second node that names the client loses that claim alone, and may
    have the client only while the first is gone. A client that several nodes name before it is
    bound to one of them is nobody's, until only one of them is left: who is right cannot be known.
    The client of a plain node is always that node's.
    A node names at most `per_node` clients, if that is set, and all together at most `most`.
    """

    def __init__(
        self,
        clients: Hosted | None = None,
        most: int = Bounds.most_clients,
        per_node: int | None = None,
        bound: Mapping[int, int] | None = None,
    ) -> None:
        self.shared = clients if isinstance(clients, int) else None
        self.given = None if isinstance(clients, int) else clients
        self.most = most
        self.per_node = per_node
        self.bound = dict(bound or {}) if clients is None else {}
        self.plain: set[int] = set()
        self.owner: dict[int, int] = {}
        self.lost: dict[int, str] = {}
        self._claims: dict[int, Sequence[int]] = {}
        self._kept: dict[int, int] = {}

    def known(self) -> set[int]:
        """Return the nodes whose clients are known."""
        return set(self._claims)

    def hear(self, answers: Mapping[int, Mapping[str, object] | None]) -> dict[int, str]:
        """Take in the answers of nodes, None of one that does not know the question.

        Returns {node: reason} of those that are left out: their answers are no good.
        """
        named, refused = dict[int, Sequence[int]](), {}
        for node, answer in answers.items():
            if answer is None:
                named[node] = (node,)
                self.plain.add(node)
                continue
            try:
                named[node] = read_answer(answer, self.most, self.per_node)
            except ValueError as error:
                refused[node] = str(error)
        refused |= self._take_in(named)
        self.plain -= refused.keys()
        return refused

    def look_up(self, nodes: Iterable[int]) -> dict[int, str]:
        """Take in nodes by what is `given`; return {node: reason} of those that are left out."""
        given, asked = self.given or {}, set(nodes)
        refused = dict.fromkeys(asked - given.keys(), "the strategy's clients do not name it")
        return refused | self._take_in({node: given[node] for node in asked & given.keys()})

    def _take_in(self, named: Mapping[int, Sequence[int]]) -> dict[int, str]:
        """Take in {node: its clients}; return why nodes are left out."""
        refused, number = {}, sum(map(len, self._claims.values()))
        # Who names few comes first: a node that names very many takes nobody's place in `most`.
        for node, own in sorted(named.items(), key=lambda one: (len(one[1]), one[0])):
            if number + len(own) > self.most:
                beyond = f"there would be more than {self.most}"
                refused[node] = f"with its {len(own)} clients {beyond}"
                continue
            number += len(own)
            self._claims[node] = own
        self._find_owners()
        return refused

    def _find_owners(self) -> None:
        """Find each client's node among those that name it, and why others' claims are lost."""
        named: dict[int, list[int]] = {}
        for node in sorted(self._claims):
            for client in self._claims[node]:
                named.setdefault(client, []).append(node)
        self.owner, self.lost = {}, {}
        for client, nodes in named.items():
            itself = client if client in self.plain else None
            first = (itself, self.bound.get(client), self._kept.get(client))
            holder = next((node for node in first if node in nodes), None)
            if holder is None and len(nodes) == 1:
                (holder,) = nodes
            if holder is not None:
                self.owner[client] = holder
            if len(nodes) > 1:
                self.lost[client] = _disputed(client, nodes, holder)

    def keep(self) -> None:
        """Bind the clients to the nodes that have them now: a later claim is the second."""
        if self._kept is self.owner:
            return
        self._kept = self.owner
        named = {client: node for client, node in self.owner.items() if node not in self.plain}
        self.bound = {**named, **self.bound}

    def forget(self, gone: Iterable[int]) -> None:
        """Drop nodes that left; another node may have their clients until they are back."""
        lost = set(gone)
        if not lost:
            return
        self.plain -= lost
        self._claims = {node: own for node, own in self._claims.items() if node not in lost}
        self._find_owners()

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
        if in_order:
            return self._chain(clients, nodes)
        shares: dict[int, list[int]] = {node: [] for node in nodes}
        ordered = sorted(clients)
        for position, client in enumerate(ordered):
            node = self.owner.get(client, -1)
            if self.shared is not None:
                node = nodes[position * len(nodes) // len(ordered)]
            if node in shares:
                shares[node].append(client)
        return {node: share for node, share in shares.items() if share}

    def _chain(self, clients: Sequence[int], nodes: Sequence[int]) -> dict[int, list[int]]:
        if self.shared is not None:
            return {nodes[0]: list(clients)} if nodes else {}
        owner = self.owner.get(clients[0], -1) if clients else -1
        return {owner: [c for c in clients if self.owner.get(c) == owner]} if owner in nodes else {}

    def segments(self, clients: Sequence[int]) -> list[list[int]]:
        """Cut a chain of clients into segments, each of clients that one node hosts."""
        if self.shared is not None:
            return [list(clients)] if clients else []
        runs: list[list[int]] = []
        for client in clients:
            if runs and self.owner.get(runs[-1][-1], -1) == self.owner.get(client, -2):
                runs[-1].append(client)
            else:
                runs.append([client])
        return runs


def _disputed(client: int, nodes: Sequence[int], holder: int | None) -> str:
    """Return the line about a client that several nodes name; `holder` is the one that has it."""
    several = ", ".join(map(str, nodes[:5])) + (", ..." if len(nodes) > 5 else "")
    named = f"client {client} is named by {len(nodes)} nodes ({several})"
    if holder is None:
        known = "it is left out, as none of them named it first"
    elif holder == client:
        known = f"it is node {holder} itself"
    else:
        known = f"node {holder} named it first and keeps it"
    return f"{named}: {known}; give each node its own partition-id"


def hosted_clients(given: Any, most: int = Bounds.most_clients) -> Hosted | None:
    """Return what a strategy's `clients` say, of which there are at most `most`.

    They are None, the number of all clients, {node: its clients}, or the path of a TOML file of
    that. Raises a SettingsError if they cannot be read, or give a client to two nodes.
    """
    if given is None:
        return None
    what = "clients"
    if isinstance(given, int):
        try:
            return _whole(what, given, 1, most)
        except ValueError as error:
            raise SettingsError(str(error)) from error
    if isinstance(given, str | Path):
        what = f"clients = {str(given)!r}"
        try:
            given = tomllib.loads(Path(given).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"{what}: cannot be read: {one_line(error)}") from error
    if not isinstance(given, Mapping) or not given:
        raise SettingsError(f"{what}: must have an entry 'node id = [its clients]' for each node")
    found: dict[int, tuple[int, ...]] = {}
    owner: dict[int, int] = {}
    for node, clients in given.items():
        try:
            number, own = int(node), read_answer({"own": list(clients)}, most)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{what}: node {node!r}: {one_line(error)}") from error
        for client in own:
            if owner.setdefault(client, number) != number:
                both = f"{owner[client]} and {number}"
                raise SettingsError(f"{what}: client {client} is given to two nodes, {both}")
        found[number] = own
    return found
