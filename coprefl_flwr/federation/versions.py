"""Which version of its state each client is to use: the server's side of `client_state`."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Versions:
    """Which states of the clients are valid.

    `committed` has by client id the version ("ROUND-ATTEMPT") that it wrote in the last successful
    round with its reply; `kept` the same at the last checkpoint, to which an interrupted run goes
    back.
    """

    committed: dict[int, str] = field(default_factory=dict)
    kept: dict[int, str] = field(default_factory=dict)

    def of(self, client: int) -> dict[str, str]:
        """Return the settings of a request to a client; "" is no state yet."""
        return {
            "state-version": self.committed.get(client, ""),
            "state-kept": self.kept.get(client, ""),
        }

    def commit(self, clients: Iterable[int], server_round: int, attempt: int) -> None:
        """Make the states that `clients` wrote in this attempt the valid ones."""
        self.committed |= dict.fromkeys(clients, f"{server_round}-{attempt}")

    def checkpointed(self) -> None:
        """Keep the committed versions: the run may be resumed from them."""
        self.kept = dict(self.committed)
