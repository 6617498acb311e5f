"""Which clients there are, and which node hosts which."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.rounds.bounds import Bounds

SHARED, OWN, NODE = "shared", "own", "node"
HOSTINGS = (SHARED, OWN, NODE)

LARGEST_ID = 2**63 - 1
"""What a message can hold."""


@dataclass(frozen=True)
class Answer:
    """What a node says: how clients are hosted, how many all nodes share, and its own ids."""

    hosting: str
    count: int = 0
    own: tuple[int, ...] = ()

    def __str__(self) -> str:
        known = {
            SHARED: f"every node can run any of {self.count} clients",
            OWN: "clients of its own",
        }
        return known.get(self.hosting, "that it is one client")


def read_answer(answer: Mapping[str, object], most: int, per_node: int | None = None) -> Answer:
    """Read a node's answer, {} of one that knows no roster; raise a ValueError if it is no good.

    There are at most `most` clients, of which a node hosts at most `per_node`, if that is set.
    """
    if "clients" in answer:
        return Answer(SHARED, _whole("clients", answer["clients"], 1, most))
    if "own" not in answer:
        return Answer(NODE)
    own = answer["own"]
    if not isinstance(own, list) or len(own) > most:
        raise ValueError(f"its own clients are no list of at most {most}")
    if per_node is not None and len(own) > per_node:
        allowed = f"at most {per_node} allowed: see clients_per_node of Bounds"
        raise ValueError(f"it names {len(own)} clients as its own, {allowed}")
    ids = tuple(_whole("a client's id", client, 0, LARGEST_ID) for client in own)
    if len(set(ids)) < len(ids):
        raise ValueError(f"it names client {Counter(ids).most_common(1)[0][0]} twice")
    return Answer(OWN, own=ids)


def _whole(what: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{what} = {value!r}: must be a whole number between {least} and {most}")
    return value


class Roster:
    """The clients of a population and the nodes that can run them.

    There are three kinds of `hosting`: "shared", any node can run any of n clients, as in a
    simulation; "own", each node names its clients; "node", every node is one client, whose id is
    the node's, and `plain` holds these nodes. If it is not set, it is what more than half of the
    nodes say that were asked until they agreed; who then says otherwise is left out.

    Of nodes that name their clients: `bound` has for each client the node that it is bound to, the
    one that named it first. A second node that names the client loses that claim alone, and may
    have the client only while the first is gone. A client that several nodes name before it is
    bound to one of them is nobody's, until only one of them is left: who is right cannot be known.
    A node names at most `per_node` clients, if that is set, and all together at most `most`.

    `given` says {node: its clients} in the place of the nodes, which are not asked then; nodes that
    it does not name are left out.
    """

    def __init__(
        self,
        hosting: str | None = None,
        most: int = Bounds.most_clients,
        per_node: int | None = None,
        given: Mapping[int, Sequence[int]] | None = None,
        bound: Mapping[int, int] | None = None,
    ) -> None:
        self.hosting = hosting if given is None else OWN
        self.most = most
        self.per_node = per_node
        self.given = given
        self.bound = {} if given else dict(bound or {})
        self.shared: int | None = None
        self.plain: set[int] = set()
        self.owner: dict[int, int] = {}
        self.lost: dict[int, str] = {}
        self.false: set[int] = set()
        self._claims: dict[int, Sequence[int]] = {}
        self._kept: dict[int, int] = {}
        self._heard: dict[int, Answer] = {}

    @property
    def agreed(self) -> bool:
        """Whether it is known how clients are hosted."""
        return self.hosting is not None and (self.hosting != SHARED or self.shared is not None)

    @property
    def undecided(self) -> str:
        """What the nodes said that could not agree, "" if they did, or none said anything."""
        said = Counter(map(str, self._heard.values()))
        found = "; ".join(f"{count} say: {what}" for what, count in said.most_common(3))
        return f"the nodes do not agree ({found}): wait for more, or set hosting" if found else ""

    def asked(self) -> set[int]:
        """Return the nodes that answered."""
        return self._claims.keys() | self.false | set(self._heard)

    def hear(self, answers: Mapping[int, Mapping[str, object]]) -> dict[int, str]:
        """Take in the answers of nodes, {} of one that knows no roster.

        Returns {node: reason} of those that are left out: their answers are no good.
        """
        refused = {}
        for node, answer in answers.items():
            try:
                self._heard[node] = read_answer(answer, self.most, self.per_node)
            except ValueError as error:
                refused[node] = str(error)
        self._decide()
        if self.shared is not None:  # Nobody is asked again.
            self.false |= refused.keys()
        return refused | (self._take_in() if self.agreed else {})

    def look_up(self, nodes: Iterable[int]) -> dict[int, str]:
        """Take in nodes without asking them, as every node is a client or `given` has its clients.

        Returns {node: reason} of those that are left out.
        """
        if self.given is None:
            return self.hear({node: {} for node in nodes})
        refused = {}
        for node in nodes:
            if node in self.given:
                self._heard[node] = Answer(OWN, own=tuple(self.given[node]))
            else:
                refused[node] = "node_clients does not name it"
        return refused | self._take_in()

    def _decide(self) -> None:
        """Find out what more than half of the nodes say."""
        if self.agreed:
            return
        found = Counter(
            (answer.hosting, answer.count)
            for answer in self._heard.values()
            if self.hosting in (None, answer.hosting)
        )
        for (hosting, count), number in found.most_common(1):
            if 2 * number > found.total():
                self.hosting = hosting
                self.shared = count if hosting == SHARED else None

    def _take_in(self) -> dict[int, str]:
        """Take the clients from what was heard; return why nodes are left out."""
        refused = {}
        named = sum(map(len, self._claims.values()))
        # Who names few comes first: a node that names very many takes nobody's place in `most`.
        for node, answer in sorted(self._heard.items(), key=lambda one: (len(one[1].own), one[0])):
            try:
                named += self._take(node, answer, named)
            except ValueError as error:
                refused[node] = str(error)
        self._heard.clear()
        self._find_owners()
        return refused

    def _take(self, node: int, answer: Answer, named: int) -> int:
        """Take a node in, where others named so many clients; return how many it names."""
        if (answer.hosting, answer.count) != (self.hosting, self.shared or 0):
            if self.shared is not None:
                self.false.add(node)
            truth = Answer(self.hosting or "", self.shared or 0)
            raise ValueError(f"it says {answer}; agreed is {truth}")
        own = (node,) if answer.hosting == NODE else answer.own
        if named + len(own) > self.most:
            raise ValueError(f"with its {len(own)} clients there would be more than {self.most}")
        if answer.hosting == NODE:
            self.plain.add(node)
        self._claims[node] = own
        return len(own)

    def _find_owners(self) -> None:
        """Find each client's node among those that name it, and why others' claims are lost."""
        named: dict[int, list[int]] = {}
        for node in sorted(self._claims):
            for client in self._claims[node]:
                named.setdefault(client, []).append(node)
        self.owner, self.lost = {}, {}
        for client, nodes in named.items():
            present = [one.get(client) for one in (self.bound, self._kept)]
            holder = next((node for node in present if node in nodes), None)
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
        if self.hosting == OWN:
            self.bound = {**self.owner, **self.bound}

    def forget(self, gone: Iterable[int]) -> None:
        """Drop nodes that left; another node may have their clients until they are back."""
        lost = set(gone)
        if not lost:
            return
        self.plain -= lost
        self._claims = {node: own for node, own in self._claims.items() if node not in lost}
        self._heard = {node: one for node, one in self._heard.items() if node not in lost}
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
    else:
        known = f"node {holder} named it first and keeps it"
    return f"{named}: {known}; give each node its own partition-id"


def given_clients(given: Any) -> dict[int, tuple[int, ...]]:
    """Return {node: its clients} of a mapping, or of the TOML file whose path is given.

    Raises a SettingsError if it cannot be read, or gives a client to two nodes.
    """
    what = "node_clients"
    if isinstance(given, str | Path):
        what = f"node_clients = {str(given)!r}"
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
            number = int(node)
            answer = read_answer({"own": list(clients)}, Bounds.most_clients)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{what}: node {node!r}: {one_line(error)}") from error
        for client in answer.own:
            if owner.setdefault(client, number) != number:
                both = f"{owner[client]} and {number}"
                raise SettingsError(f"{what}: client {client} is given to two nodes, {both}")
        found[number] = answer.own
    return found
