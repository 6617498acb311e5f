"""Which clients there are, and which node hosts which."""

from collections.abc import Iterable, Sequence

from coprefl_flwr.errors import RunFailedError


class Roster:
    """The clients of a population and the nodes that can run them.

    There are three kinds, which the first node's answer distinguishes. `shared`: any node can run
    any of n clients, as in a simulation. `own`: each node names its clients. Neither: every node is
    one client, whose id is the node's; `plain` holds these nodes.
    """

    def __init__(self) -> None:
        self.shared: int | None = None
        self.plain: set[int] = set()
        self.owner: dict[int, int] = {}
        self.known: set[int] = set()

    def learn(self, node: int, answer: dict[str, object]) -> None:
        """Take in a node's answer; an empty one makes every node a client of its own id.

        Raises a RunFailedError if two nodes name the same client.
        """
        self.known.add(node)
        if "clients" in answer:
            self.shared = int(str(answer["clients"]))
            return
        if "own" not in answer:
            self.plain.add(node)
        own = answer.get("own", [node])
        for client in own if isinstance(own, list) else []:
            if self.owner.setdefault(int(client), node) != node:
                both = f"client {client} is named by two nodes, {self.owner[client]} and {node}"
                raise RunFailedError(f"{both}: give each node its own partition-id")

    def forget(self, gone: Iterable[int]) -> None:
        """Drop nodes that left; another node may name their clients later."""
        lost = set(gone)
        self.known -= lost
        self.plain -= lost
        self.owner = {client: node for client, node in self.owner.items() if node not in lost}

    def clients(self) -> list[int]:
        """Return the ids of all clients that can be asked, ascending."""
        return list(range(self.shared)) if self.shared is not None else sorted(self.owner)

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
