"""Which clients there are, and which node hosts which."""

from collections.abc import Iterable, Sequence

from coprefl_flwr.errors import RunFailedError


class Roster:
    """The clients of a population and the nodes that can run them.

    There are three kinds, told apart by what the first node answers: `shared` (in a simulation
    any node can run any of n clients), `own` (each node names its clients) and neither (every node
    is one client, whose id is the node's).
    """

    def __init__(self) -> None:
        self.shared: int | None = None
        self.plain = False
        self.owner: dict[int, int] = {}
        self.known: set[int] = set()

    def learn(self, node: int, answer: dict[str, object]) -> None:
        """Take in a node's answer; an empty one makes every node a client of its own id.

        Raises
        ------
        RunFailedError
            If two nodes name the same client.
        """
        self.known.add(node)
        if "clients" in answer:
            self.shared = int(str(answer["clients"]))
            return
        if "own" not in answer:
            self.plain = True
        own = answer.get("own", [node])
        for client in own if isinstance(own, list) else []:
            if self.owner.setdefault(int(client), node) != node:
                raise RunFailedError(
                    f"client {client} is named by two nodes, {self.owner[client]} and {node}: "
                    "give each node its own partition-id"
                )

    def forget(self, gone: Iterable[int]) -> None:
        """Drop nodes that left; their clients come back with whichever node names them next."""
        lost = set(gone)
        self.known -= lost
        self.owner = {client: node for client, node in self.owner.items() if node not in lost}

    def clients(self) -> list[int]:
        """Return the ids of all clients that can be asked, ascending."""
        return list(range(self.shared)) if self.shared is not None else sorted(self.owner)

    def assign(self, clients: Sequence[int], nodes: Sequence[int]) -> dict[int, list[int]]:
        """Return {node: its share of `clients`}; nodes without a client are left out.

        Shared clients are dealt out in runs of equal length, in id order: what a node adds up is
        then a contiguous part of the whole sum.
        """
        shares: dict[int, list[int]] = {node: [] for node in nodes}
        ordered = sorted(clients)
        for position, client in enumerate(ordered):
            if self.shared is not None:
                node = nodes[position * len(nodes) // len(ordered)]
            else:
                node = self.owner.get(client, -1)
            if node in shares:
                shares[node].append(client)
        return {node: share for node, share in shares.items() if share}
