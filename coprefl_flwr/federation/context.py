"""The options of a run, and the context that is passed to a round's generator."""

from abc import abstractmethod
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from coprefl_flwr import seeds
from coprefl_flwr.arrays import Arrays, weights_of
from coprefl_flwr.errors import RoundFailedError, SettingsError
from coprefl_flwr.federation.aggregation import Chain, MetricsOnly
from coprefl_flwr.federation.client_state import Versions
from coprefl_flwr.federation.exchange import Exchange, Replies, Round, concat_replies
from coprefl_flwr.federation.robust import AGGREGATIONS, MEAN, MOST_ATTACKERS
from coprefl_flwr.federation.validation import Bounds
from coprefl_flwr.options import option

if TYPE_CHECKING:
    from coprefl_flwr.federation.transport import Transport


@dataclass(kw_only=True, eq=False)
class RunStrategy:
    """The interface of a strategy that a run needs: the options of all strategies, and the round.

    The options in `AGGREGATION` apply only to methods that average (see `RoundStrategy.averages`).

    `clients` decides which node runs which client. If it is a number, it is the number of all
    clients, and any node can run any client, as in a simulation. If it is {node id: list of client
    ids}, or the path of a TOML file with this mapping, nodes that are not in the mapping are not
    used. If it is None, each node is asked for its client ids; a node whose app cannot answer is
    one client. If several nodes name a client, the client belongs to the node that named it first.

    `buffers` are the names of the model's buffers, which are averaged and never stepped. Without
    them, only BatchNorm's statistics and integers are recognised as buffers. A study sets them.

    `metric_reductions` is {metric of the clients: "max", "min" or "sum"}. A round reports the mean
    of every other metric, which would be wrong for a bound such as a privacy budget.
    """

    actions: ClassVar[tuple[str, ...]] = ("train",)
    """Message types that the clients must answer, in the order of a round's exchanges."""

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
        "train", "group of clients, such as `task-3`, with its own client ids and random numbers"
    )
    min_available_nodes: int = option(
        1, "clients to wait for before the first round, however few nodes host them", minimum=1
    )
    min_replies: int = option(
        1, "valid replies needed per exchange; with fewer, the round is repeated", minimum=1
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
        0.2, "with a robust rule: largest share of attackers", minimum=0, maximum=MOST_ATTACKERS
    )
    clip_factor: float = option(
        1.0, "with norm-clipping: largest norm of an update, in median norms of the round", above=0
    )
    average_window: int | None = option(
        None,
        "the result is the mean of the global models of the last W rounds (WIMA); it does not "
        "change the training",
        unit="rounds",
        minimum=1,
        later=True,
    )
    average_decay: float | None = option(
        None,
        "the result is the exponential mean of the global models, in which each round's mean "
        "has this weight in the next round's",
        above=0,
        maximum=0.9999,
        later=True,
    )
    bounds: Bounds = field(default=Bounds(), metadata={"option": False})
    clients: int | Mapping[int, Sequence[int]] | str | Path | None = field(
        default=None, metadata={"option": False}
    )
    buffers: Collection[str] = field(default=(), metadata={"option": False})
    metric_reductions: Mapping[str, str] = field(default_factory=dict, metadata={"option": False})

    @property
    def most_participants(self) -> int | None:
        """The largest number of participants that a round can draw, or None for all clients."""
        return self.participants

    def number_of_participants(self, clients: int) -> int:
        """Return the number of participants of a round, of this number of clients."""
        if self.fraction_train is not None:
            return max(1, int(self.fraction_train * clients))
        return clients if self.participants is None else self.participants

    def check_functions(self) -> None:
        """Raise a SettingsError if the functions of a Flower app cannot do the clients' work."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return the name of the strategy class and the values of its options.

        A run can resume only from a checkpoint with the same options.
        """

    @abstractmethod
    def program(self, ctx: "RoundContext", arrays: Arrays) -> Round:
        """Return the generator of a round, which starts from the global `arrays`."""

    @property
    def rounds_to_evaluation(self) -> int:
        """Number of rounds between evaluations on clients.

        0 means that clients never evaluate, for example because the method has no clients.
        """
        return self.evaluate_every if self.fraction_evaluate and self.actions else 0

    def evaluation_due(self, server_round: int, last_round: int) -> bool:
        """Return whether clients evaluate the model after this round."""
        every = self.rounds_to_evaluation
        return bool(every) and (server_round % every == 0 or server_round == last_round)

    def evaluation_exchange(self, ctx: "RoundContext", arrays: Arrays) -> Exchange:
        """Return the exchange in which clients evaluate `arrays`."""
        return Exchange("evaluate", arrays, ctx.evaluating(), MetricsOnly(), needed=1)


@dataclass(frozen=True, eq=False)
class RoundContext:
    """One attempt at a round: the round's number, clients, random numbers and stored state.

    Parameters
    ----------
    run : RoundStrategy
        The strategy with the options of the run, such as the seed, the population and the number
        of good replies that an exchange needs.
    members : Transport
        The clients.
    round : int
        The number of the round, from 1.
    attempt : int
        The number of failed attempts at this round so far. Every attempt draws new participants.
    state : dict
        Numbers and arrays that the method keeps from round to round, by name. Changes are kept
        only if the round returns.
    versions : Versions
        The versions of the clients' states.
    inner : RoundStrategy, optional
        The strategy that is running, if it is a part of the strategy `run` (see `within`).
    before : int
        The number of rounds before the first round of `inner`.
    """

    run: RunStrategy
    members: "Transport"
    round: int = 1
    attempt: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)
    inner: RunStrategy | None = None
    before: int = 0

    def within(self, inner: RunStrategy, before: int = 0) -> "RoundContext":
        """Return a context for the strategy `inner`, which runs as a part of another strategy.

        The number of participants is set by the options of `inner`. Everything else is the run's.
        `before` is the number of rounds before the part.
        """
        return replace(self, inner=inner, before=before)

    @property
    def num_clients(self) -> int:
        """The number of all clients, including clients that have disconnected since."""
        return self.members.most_clients

    def weights(self, arrays: Arrays) -> Arrays:
        """Return the arrays of the model that are weights, without its buffers."""
        return weights_of(arrays, self.run.buffers)

    def sample(self) -> list[int]:
        """Draw the participants of the round and return their client ids, ascending.

        The draw depends only on the clients and on (seed, population, round, attempt). With
        `fraction_train`, the number of participants is rounded down, as in Flower, but is at
        least 1.
        """
        clients, options = self._clients(), self.inner or self.run
        number = options.number_of_participants(len(clients))
        return self._choose(clients, number, "participants")

    def evaluating(self) -> list[int]:
        """Draw the fraction `fraction_evaluate` of the clients; return their ids, ascending."""
        clients = self._clients()
        number = max(1, int(self.run.fraction_evaluate * len(clients)))
        return self._choose(clients, number, "evaluating")

    def _choose(self, clients: Sequence[int], number: int, purpose: str) -> list[int]:
        """Draw `number` of the clients, or all if there are fewer; return their ids, ascending."""
        if number >= len(clients):
            return list(clients)
        positions = self.random(purpose).choice(len(clients), number, replace=False)
        return sorted(clients[position] for position in positions)

    def _clients(self) -> Sequence[int]:
        """Return all client ids; refuse `participants` above the number of all clients."""
        wanted = self.run.most_participants
        clients, most = self.members.clients(wanted), self.members.most_clients
        if wanted is not None and wanted > most:
            raise SettingsError(f"participants = {wanted}: there are only {most} clients")
        return clients

    def key(self, purpose: str) -> tuple[str | int, ...]:
        """Return the key that seeds the server's random numbers for a purpose."""
        return (self.run.seed, self.run.population, self.round, purpose)

    def random(self, purpose: str) -> np.random.Generator:
        """Return a random generator for a purpose, such as "participants".

        The generator is seeded by (seed, population, round, purpose, attempt).
        """
        return seeds.generator(*self.key(purpose), self.attempt)

    def chain(
        self, arrays: Arrays, clients: Sequence[int]
    ) -> Generator[Exchange, Replies, Replies]:
        """Let the clients train one after another, each on the arrays of the client before it.

        The first client starts from `arrays`. A client that fails is skipped. The returned replies
        contain the arrays of the last client that did not fail. Clients that follow each other and
        are on the same node are sent one message. Raises a RoundFailedError if fewer than
        `min_replies` clients trained.
        """
        links = []
        for segment in self.members.segments(clients):
            link = yield Exchange("train", arrays, segment, combine=Chain(), needed=0)
            arrays = link.arrays or arrays
            links.append(link)
        trained = concat_replies(links)
        if len(trained.clients) < self.run.min_replies:
            counts = f"{len(trained.clients)} clients of {len(clients)} trained"
            raise RoundFailedError(f"{counts}, needed: {self.run.min_replies}")
        return replace(trained, arrays=arrays)

    def forget(self) -> None:
        """Delete the method's state and the committed states of the clients."""
        self.state.clear()
        self.versions.committed.clear()
