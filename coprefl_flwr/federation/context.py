"""The context of a round, which its program uses, and the options of a run."""

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coprefl_flwr import seeds
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import RoundFailedError, SettingsError
from coprefl_flwr.federation.aggregation import Chain
from coprefl_flwr.federation.client_state import Versions
from coprefl_flwr.federation.exchange import Exchange, Replies, Round, concat_replies
from coprefl_flwr.federation.robust import AGGREGATIONS, MEAN, MOST_ATTACKERS
from coprefl_flwr.federation.validation import Bounds
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class RunStrategy:
    """A strategy as its run sees it: the options that all strategies have, and its programs.

    The options of `AGGREGATION` are for methods that average (see `RoundStrategy.averages`).
    `clients` says which clients nodes run: the number of all clients, any of which any node can run
    (a simulation); {node id: its clients}, or the path of a TOML file of that, where a node that it
    does not name is left out; or None: each node is asked, and is one client, or those that it
    names. The first node to name a client keeps it.
    """

    participants: int | None = option(
        None, "clients per round, |m|; not set: all clients", minimum=1
    )
    fraction_train: float | None = option(
        None, "fraction of all clients per round; instead of `participants`", above=0, maximum=1
    )
    seed: int = option(0, "seed of every random choice")
    run_name: str = option(
        "run", "name of the run, under which clients store their states; must be unique to the run"
    )
    population: str = option(
        "train",
        "name of the group of clients, such as `task-3`; ids and seeds are relative to it",
    )
    min_available_nodes: int = option(
        1,
        "clients to wait for before the first round; a node that hosts several clients counts as "
        "that many",
        minimum=1,
    )
    min_replies: int = option(
        1,
        "valid client replies needed per message exchange; with fewer, the round is repeated",
        minimum=1,
    )
    max_failed_rounds: int = option(3, "attempts at a round before the run fails", minimum=1)
    evaluate_every: int = option(
        1, "rounds between evaluations on clients, also after the last; 0: never", minimum=0
    )
    fraction_evaluate: float = option(
        1.0, "fraction of all clients that evaluates; 0: none", minimum=0, maximum=1
    )
    aggregation: str = option(
        MEAN,
        "how the server combines the clients' models and gradients: the method's mean, or a robust "
        "rule, for which the server sees every client's own reply",
        choices=AGGREGATIONS,
    )
    tolerated_share: float = option(
        0.2,
        "with a robust rule: largest fraction of a round's clients that may be attackers",
        minimum=0,
        maximum=MOST_ATTACKERS,
    )
    clip_factor: float = option(
        1.0,
        "with norm-clipping: largest norm of a client's update, as a multiple of the round's "
        "median norm",
        above=0,
    )
    bounds: Bounds = field(default=Bounds(), metadata={"option": False})
    clients: int | Mapping[int, Sequence[int]] | str | Path | None = field(
        default=None, metadata={"option": False}
    )

    @property
    def most_participants(self) -> int | None:
        """The largest number of clients that a round can need; None for all clients."""
        return self.participants

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return the method and its options; a checkpoint must have the same to be resumed."""

    @abstractmethod
    def program(self, ctx: "RoundContext", arrays: Arrays) -> Round:
        """Return the program of a round."""

    @abstractmethod
    def evaluation_due(self, server_round: int, last_round: int) -> bool:
        """Return whether clients evaluate the model after a round."""

    @abstractmethod
    def evaluation_exchange(
        self, ctx: "RoundContext", arrays: Arrays, clients: Sequence[int]
    ) -> Exchange:
        """Return the exchange that evaluates `arrays` on clients."""


class Members(Protocol):
    """The clients of a population, as a round sees them."""

    begun: bool
    """Whether a round has asked for the clients before."""

    @property
    def most_clients(self) -> int:
        """The largest number of clients that there were."""

    def clients(self, wanted: int | None = None) -> Sequence[int]:
        """Return the ids of all clients; the first time, wait for as many as are wanted."""

    def segments(self, chain: Sequence[int]) -> list[list[int]]:
        """Cut a chain of clients into segments, each of clients that one node hosts."""


@dataclass
class Listed:
    """Clients whose ids are known without a grid, each on its own node."""

    ids: Sequence[int]
    begun: bool = True

    @property
    def most_clients(self) -> int:
        """The number of clients."""
        return len(self.ids)

    def clients(self, wanted: int | None = None) -> Sequence[int]:
        """Return the ids."""
        return self.ids

    def segments(self, chain: Sequence[int]) -> list[list[int]]:
        """Return one segment for each client."""
        return [[client] for client in chain]


@dataclass(frozen=True, eq=False)
class RoundContext:
    """A round of a run: its number, its clients, its random numbers, and what the method carries.

    Parameters
    ----------
    run : RoundStrategy
        The options of the run: its seed, its population and the replies it needs.
    members : Transport or Listed
        The clients; `Listed([0, 1, 2])` drives a round by hand.
    round : int
        The number of the round, from 1.
    attempt : int
        How often this round has failed already; another attempt draws other participants.
    state : dict
        Numbers and arrays that the method carries from round to round, by name. What a round
        changes counts only once the round has returned.
    """

    run: RunStrategy
    members: Members
    round: int = 1
    attempt: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)
    inner: RunStrategy | None = None

    def within(self, inner: RunStrategy) -> "RoundContext":
        """Return the context of a strategy that is run as a part of another one.

        It draws as many participants as its own options say; all else is the run's.
        """
        return replace(self, inner=inner)

    @property
    def num_clients(self) -> int:
        """The number of all clients, those that left in the meantime too."""
        return self.members.most_clients

    @property
    def min_replies(self) -> int:
        """How many good replies an exchange needs."""
        return self.run.min_replies

    def sample(self) -> list[int]:
        """Draw the participants, ascending: a function of (seed, population, round, attempt).

        A fraction of the clients is rounded down, as Flower's is, but to one client at least.
        """
        options = self.inner or self.run
        clients, wanted = self._clients(), options.participants
        if options.fraction_train is not None:
            wanted = max(1, int(options.fraction_train * len(clients)))
        return self._choose(clients, len(clients) if wanted is None else wanted, "participants")

    def evaluating(self) -> list[int]:
        """Draw the clients that evaluate the model, ascending: by `fraction_evaluate`."""
        clients = self._clients()
        number = max(1, int(self.run.fraction_evaluate * len(clients)))
        return self._choose(clients, number, "evaluating")

    def _choose(self, clients: Sequence[int], number: int, purpose: str) -> list[int]:
        """Return this many of the clients, or all there are, ascending."""
        if number >= len(clients):
            return list(clients)
        positions = self.random(purpose).choice(len(clients), number, replace=False)
        return sorted(clients[position] for position in positions)

    def _clients(self) -> Sequence[int]:
        """Return all clients; in the first round there must be as many as the run's rounds ask."""
        first, most = not self.members.begun, self.run.most_participants
        clients = self.members.clients(most)
        if first and most is not None and most > len(clients):
            raise SettingsError(f"participants = {most}: there are only {len(clients)} clients")
        return clients

    def key(self, purpose: str) -> tuple[str | int, ...]:
        """Return the key from which the server's random numbers of a purpose are made."""
        return (self.run.seed, self.run.population, self.round, purpose)

    def random(self, purpose: str) -> np.random.Generator:
        """Return the random numbers of (seed, population, round, attempt) for a purpose."""
        return seeds.generator(*self.key(purpose), self.attempt)

    def chain(
        self, arrays: Arrays, clients: Sequence[int]
    ) -> Generator[Exchange, Replies, Replies]:
        """Have each client train the arrays that the one before it returned.

        A client that fails is skipped. The replies' arrays are the last good client's. Nodes that
        host several clients run their part of the chain in one message.
        """
        links = []
        for segment in self.members.segments(clients):
            link = yield Exchange("train", arrays, segment, combine=Chain(), needed=0)
            arrays = link.arrays or arrays
            links.append(link)
        trained = concat_replies(links)
        if len(trained.clients) < self.min_replies:
            raise RoundFailedError(
                f"{len(trained.clients)} clients of {len(clients)} trained, needed: "
                f"{self.min_replies}"
            )
        return replace(trained, arrays=arrays)

    def forget(self) -> None:
        """Delete the method's state and the committed states of the clients."""
        self.state.clear()
        self.versions.committed.clear()
