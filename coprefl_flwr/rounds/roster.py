"""Which clients there are, and which node hosts which."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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


def read_answer(answer: Mapping[str, object], most: int) -> Answer:
    """Read a node's answer, {} of one that knows no roster; raise a ValueError if it is no good."""
    if "clients" in answer:
        return Answer(SHARED, _whole("clients", answer["clients"], 1, most))
    if "own" not in answer:
        return Answer(NODE)
    own = answer["own"]
    if not isinstance(own, list) or len(own) > most:
        raise ValueError(f"its own clients are no list of at most {most}")
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

    A client is bound to the node that first named it: another may have it only while that one is
    gone. There are at most `most` clients.
    """

    def __init__(self, hosting: str | None = None, most: int = Bounds.most_clients) -> None:
        self.hosting = hosting
        self.most = most
        self.shared: int | None = None
        self.plain: set[int] = set()
        self.owner: dict[int, int] = {}
        self.known: set[int] = set()
        self.false: set[int] = set()
        self._first: dict[int, int] = {}
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
        return self.known | self.false | set(self._heard)

    def hear(self, answers: Mapping[int, Mapping[str, object]]) -> dict[int, str]:
        """Take in the answers of nodes, {} of one that knows no roster.

        Returns {node: reason} of those that are left out: their answers are no good.
        """
        refused = {}
        for node, answer in answers.items():
            try:
                self._heard[node] = read_answer(answer, self.most)
            except ValueError as error:
                refused[node] = str(error)
        self._decide()
        if self.shared is not None:  # Nobody is asked again.
            self.false |= refused.keys()
        return refused | (self._take_in() if self.agreed else {})

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
        # Who names few comes first: a node that names everyone's clients then takes none away.
        for node, answer in sorted(self._heard.items(), key=lambda one: (len(one[1].own), one[0])):
            try:
                self._take(node, answer)
            except ValueError as error:
                refused[node] = str(error)
        self._heard.clear()
        return refused

    def _take(self, node: int, answer: Answer) -> None:
        if (answer.hosting, answer.count) != (self.hosting, self.shared or 0):
            if self.shared is not None:
                self.false.add(node)
            truth = Answer(self.hosting or "", self.shared or 0)
            raise ValueError(f"it says {answer}; agreed is {truth}")
        own = (node,) if answer.hosting == NODE else answer.own
        if len(self.owner) + len(own) > self.most:
            raise ValueError(f"with its {len(own)} clients there would be more than {self.most}")
        for client in own:
            self._check_claim(client, node)
        self.known.add(node)
        if answer.hosting == NODE:
            self.plain.add(node)
        for client in own:
            self.owner[client] = node
            self._first.setdefault(client, node)

    def _check_claim(self, client: int, node: int) -> None:
        """Raise a ValueError if a client is another node's, which named it first."""
        owner = self.owner.get(client, node)
        if owner != node and self._first[client] != node:
            both = f"client {client} is named by two nodes, {owner} and {node}"
            raise ValueError(f"{both}: give each node its own partition-id")

    def forget(self, gone: Iterable[int]) -> None:
        """Drop nodes that left; another node may name their clients until they are back."""
        lost = set(gone)
        if not lost:
            return
        self.known -= lost
        self.plain -= lost
        self.owner = {client: node for client, node in self.owner.items() if node not in lost}
        self._heard = {node: one for node, one in self._heard.items() if node not in lost}

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
