"""The options that every strategy has, and what is checked of them before any work."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.federation.nodes import Hosted, hosted_clients
from coprefl_flwr.federation.robust import AGGREGATION, AGGREGATIONS, MEAN, MOST_ATTACKERS, Robust
from coprefl_flwr.federation.validation import Bounds
from coprefl_flwr.options import check_declared, option

DRAWN = ("participants", "fraction_train")
"""Options that say how many take part: each strategy's own, not the run's."""

OF_FLOWER = {
    "min_evaluate_nodes": "min_replies, the good replies that an exchange needs",
    "min_train_nodes": "participants, the clients of a round",
    "train_metrics_aggr_fn": "`round`, which returns the round's metrics",
    "evaluate_metrics_aggr_fn": "a hook of `start`, which is given every client's metrics",
}
"""What arguments of Flower's strategies are called here."""


@dataclass(kw_only=True, eq=False)
class RoundOptions:
    """Options of the run, of who takes part, and of how clients' results become one.

    The last are `AGGREGATION`, for methods that average: see `RoundStrategy.averages`.
    `clients` says which clients nodes run: the number of all clients, any of which any node can run
    (a simulation); {node id: its clients}, or the path of a TOML file of that, where a node that it
    does not name is left out; or None: each node is asked, and is one client, or those that it
    names. The first node to name a client keeps it.
    """

    participants: int | None = option(
        None, "clients per round, |m|; not set: all there are", minimum=1
    )
    fraction_train: float | None = option(
        None, "instead of `participants`: which part of all clients", above=0, maximum=1
    )
    seed: int = option(0, "every random choice is a function of it")
    run_name: str = option(
        "run", "name of the run, under which clients keep their states: every run needs its own"
    )
    population: str = option(
        "train",
        "which group of clients this is, such as `task-3`: ids and seeds are relative to it",
    )
    min_available_nodes: int = option(
        1,
        "clients to wait for before the first round; a node that hosts several counts as these",
        minimum=1,
    )
    min_replies: int = option(
        1, "good replies an exchange needs; with fewer, the round is repeated", minimum=1
    )
    max_failed_rounds: int = option(3, "attempts at a round before the run fails", minimum=1)
    evaluate_every: int = option(
        1, "rounds between evaluations on clients, also after the last; 0: never", minimum=0
    )
    fraction_evaluate: float = option(
        1.0, "which part of all clients evaluates; 0: none", minimum=0, maximum=1
    )
    aggregation: str = option(
        MEAN,
        "how clients' models and gradients become one: the method's mean, or a robust rule, for "
        "which the server sees each client's own",
        choices=AGGREGATIONS,
    )
    tolerated_share: float = option(
        0.2,
        "with a robust aggregation, the largest share of a round's clients that may be attackers",
        minimum=0,
        maximum=MOST_ATTACKERS,
    )
    clip_factor: float = option(
        1.0,
        "with norm-clipping, the longest update, as a multiple of the round's median length",
        above=0,
    )
    bounds: Bounds = field(default=Bounds(), metadata={"option": False})
    clients: int | Mapping[int, Sequence[int]] | str | Path | None = field(
        default=None, metadata={"option": False}
    )

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse an argument that the class does not have, and say what Flower's is called here."""
        taken = inspect.signature(cls.__init__).parameters
        if any(one.kind is one.VAR_KEYWORD for one in taken.values()):
            return super().__new__(cls)
        for name in given.keys() - taken.keys():
            line = unknown("option", name, [one for one in taken if one != "self"])
            if name in OF_FLOWER:
                line = f"unknown option '{name}': Flower's {name} is here {OF_FLOWER[name]}"
            raise SettingsError(f"{cls.__name__}: {line}", name)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check the options."""
        check_declared(self)
        if self.participants is not None:
            self.enough(self.participants)
        if None not in (self.participants, self.fraction_train):
            raise SettingsError("participants and fraction_train: set one of them")
        self.hosted()
        for name in ("run_name", "population"):
            if not re.fullmatch(r"\w[\w.-]*", value := getattr(self, name)):
                limit = "must be letters, digits, '_', '-' and '.', as it names a folder"
                raise SettingsError(f"{name} = {value!r}: {limit}")

    def hosted(self) -> Hosted | None:
        """Return what `clients` say; raise a SettingsError if they are no good."""
        return hosted_clients(self.clients)

    @property
    def robust(self) -> Robust | None:
        """The robust rule, None where it is the mean."""
        if self.aggregation == MEAN:
            return None
        return Robust(self.aggregation, self.tolerated_share, self.clip_factor)

    @property
    def most_participants(self) -> int | None:
        """The most clients that a round asks for; None is all there are."""
        return self.participants

    def options(self) -> dict[str, Any]:
        """Return the method and its options; a checkpoint must have the same to be resumed."""
        kept = [one.name for one in fields(self) if one.metadata.get("option", True)]
        unheeded = () if self.robust else AGGREGATION
        values = {name: getattr(self, name) for name in kept if name not in unheeded}
        bounds = {"bounds": asdict(self.bounds)} if self.bounds != Bounds() else {}
        return {"strategy": type(self).__name__, **values, **bounds}

    def enough(self, participants: int) -> None:
        """Raise a SettingsError if so many participants cannot give `min_replies`."""
        if self.min_replies > participants:
            limit = f"must be at most participants = {participants}"
            raise SettingsError(f"min_replies = {self.min_replies}: {limit}")
