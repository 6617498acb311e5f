"""The base of all strategies: a round is a program that yields exchanges.

Flower's `Strategy.start` knows one train and one evaluate exchange a round. Here a round is a
generator: it yields an `Exchange`, is sent the combined `Replies`, and returns the new arrays with
the round's metrics. Flower's own loop drives it, so whatever that adds applies here too.
"""

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from coprefl_flwr import seeds
from coprefl_flwr.arrays import Arrays, from_record, to_record
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.flower import at_absolute_rounds, plain_log, refuse_old_style
from coprefl_flwr.options import Option, Value
from coprefl_flwr.rounds.budget import UNKNOWN, Budget, Work
from coprefl_flwr.rounds.checkpoint import History, State
from coprefl_flwr.rounds.combine import Nothing, Rule
from coprefl_flwr.rounds.engine import (
    Asked,
    Engine,
    EvaluateFn,
    Hook,
    Round,
    RoundReport,
    Stop,
    Stopped,
)
from coprefl_flwr.rounds.exchange import Exchange, Replies
from coprefl_flwr.rounds.network import Network
from coprefl_flwr.rounds.options import RoundOptions
from coprefl_flwr.rounds.participants import DRAWN, drawn
from coprefl_flwr.rounds.protocol import check_free
from coprefl_flwr.rounds.robust import AGGREGATION
from coprefl_flwr.rounds.versions import Versions

__all__ = ["ROUNDS", "RUN_OPTIONS", "EvaluateFn", "Hook", "Round", "RoundReport", "RoundStrategy"]

ROUNDS = Option("rounds", "rounds", 1, (int,), "a number of rounds", minimum=1)


@dataclass(kw_only=True, eq=False)
class RoundStrategy(RoundOptions, Strategy, ABC):
    """A federated method whose round is a program of exchanges.

    A method is a subclass that writes `round`. Its options are fields made by `option`, which are
    checked when it is made; what else a study must know, it says in the class attributes below.
    """

    name: ClassVar[str] = ""
    """What the setting `method` calls it."""

    refined_name: ClassVar[str] = ""
    """Its name in scenario II, each round followed by SGD at the server; "": NAME-refined."""

    version: ClassVar[int] = 1
    """Raised only when the method's results change: results are stored under it."""

    client: ClassVar[str | type] = "coprefl_flwr.clients:TorchClient"
    """The class of its clients, or where it stands: "module:NAME"."""

    roles: ClassVar[tuple[str, ...]] = ("pretraining",)
    """The kinds of stage it can run as: "pretraining", "task", "personalised", "head"."""

    server_data: ClassVar[str] = ""
    """Whose data its field `server` holds: "server", all "clients" or "both"; "": no such field."""

    local_training: ClassVar[bool] = True
    """Whether its clients train as the settings of local training say."""

    samples_clients: ClassVar[bool] = True
    """Whether the participants of a round are drawn from the clients."""

    training_defaults: ClassVar[Mapping[str, Value]] = {}
    """Its own defaults of settings of local training, by key."""

    personal_defaults: ClassVar[Mapping[str, Value]] = {}
    """Other defaults of its options in a personalised study, by key."""

    network: ClassVar[str] = "classifier"
    """What its clients train: a "classifier", or a "projection" that has no classes."""

    travels: ClassVar[str] = ""
    """In a personalised study, what is sent; for the documentation."""

    tested_with: ClassVar[str] = ""
    """In a personalised study, what a client is evaluated with; for the documentation."""

    actions: ClassVar[tuple[str, ...]] = ("train",)
    """Message types that its clients must answer, in the order of the exchanges."""

    evaluates_own: ClassVar[bool] = False
    """Whether every client is evaluated with a state of its own, beside the global arrays."""

    loss_of: ClassVar[str] = "clients"
    """What a round's loss is: the mean cross-entropy of "clients" whose models began alike, that of
    a "chain", on the way from one to the next, or with "more" in it, which may be below 0."""

    wrappable: ClassVar[bool] = False
    """Whether a round is one exchange answered by models, as Flower's wrappers take it to be."""

    averages: ClassVar[bool] = False
    """Whether it takes only means of models, and moments of gradients, which `aggregation` can make
    robust; then `aggregation` and what belongs to it are options of the method."""

    needs_only_sums: ClassVar[bool] = False
    """Whether sums of clients' arrays are all that the server needs, as secure aggregation gives
    them; of a strategy whose `aggregation` is robust it is False."""

    def __post_init__(self) -> None:
        """Check the options and start with an empty state."""
        super().__post_init__()
        self._check_aggregation()
        self._engine = Engine(self)

    def _check_aggregation(self) -> None:
        """Refuse a robust rule for what has no mean; with it, sums are no longer enough."""
        if self.robust is None:
            return
        if not self.averages:
            own = self.name or type(self).__name__
            known = ", ".join(sorted(_that_average(RoundStrategy.__subclasses__())))
            raise SettingsError(
                f"aggregation = {self.aggregation}: {own} has no mean of models or gradients that "
                f"could be robust; methods that have: {known}",
                "aggregation",
            )
        if self.participants is not None:
            self.robust.check(self.participants)
        self.needs_only_sums = False  # type: ignore[misc]

    @classmethod
    def initial(cls, network: Network) -> Arrays:
        """Return the global arrays that the method begins with."""
        return network.arrays

    @classmethod
    def check_training(cls, options: Mapping[str, Any], clip_norm: float | None) -> None:
        """Raise a SettingsError where training with this `clip_norm` does not fit the options."""

    @classmethod
    def server_samples_needed(cls, participants: int) -> int:
        """Return how many samples the server must hold, where the method uses them."""
        return 1

    @abstractmethod
    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Run one round of the method from the global `arrays`, which are only to be read.

        Yields exchanges and is sent their replies; returns the new global arrays (names, shapes and
        dtypes as before) and the round's metrics. What a method carries on stands in `self.state`
        (numbers and arrays), which counts only once the round has returned.
        """

    def budget(self, work: Work) -> Budget:
        """Return what a round costs: FedAvg's local steps, where clients train as the settings say.

        A method that takes other steps, or computes more gradients, says so here.
        """
        if not self.local_training:
            return UNKNOWN
        return Budget(work.travel, work.participants * work.visited)

    def sample(self, server_round: int) -> list[int]:
        """Draw this round's participants: a function of (seed, population, round, attempt)."""
        rng = self.generator(server_round, "participants")
        return drawn(self._engine.link, self.participants, self.fraction_train, rng)

    def train(self, server_round: int, arrays: Arrays, combine: Rule, **more: Any) -> Asked:
        """Have the round's participants train from `arrays`; `more` is as in `Exchange`."""
        return (yield Exchange("train", arrays, self.sample(server_round), combine, **more))

    def generator(self, server_round: int, purpose: str) -> np.random.Generator:
        """Return the random numbers of (seed, population, round, attempt) for a purpose."""
        key = (self.seed, self.population, server_round, purpose, self._engine.attempt)
        return seeds.generator(*key)

    def evaluation_due(self, server_round: int, last_round: int) -> bool:
        """Return whether all clients evaluate the model after a round."""
        every = self.evaluate_every
        return bool(every) and (server_round % every == 0 or server_round == last_round)

    def evaluation_exchange(self, arrays: Arrays, clients: list[int]) -> Exchange:
        """Return the exchange that evaluates `arrays` on every client."""
        stateful = self.evaluates_own
        return Exchange("evaluate", arrays, clients, Nothing(), stateful=stateful, needed=1)

    def join(self, outer: "RoundStrategy") -> None:
        """Run inside the strategy `outer`: share its state and its options of the run.

        What follows in the round is this strategy's, so its exchanges are combined as it says.
        """
        self._engine = outer._engine
        for name in RUN_OPTIONS:
            setattr(self, name, getattr(outer, name))
        self._engine.running = self

    def population_size(self) -> int:
        """Return the number of all clients, M: of those that left in the meantime too."""
        return self._engine.link.most_clients

    def segments(self, chain: Sequence[int]) -> list[list[int]]:
        """Cut a chain of clients into segments, each of clients that one node hosts."""
        return self._engine.link.roster.segments(chain)

    @property
    def state(self) -> State:
        """What the method carries from round to round."""
        return self._engine.state

    @property
    def history(self) -> History:
        """The metrics and the traffic of all rounds so far: `history.rounds()` has a dict a round.

        After `cp.pretrain` it is that of the strategy that was given.
        """
        return self._engine.history

    @history.setter
    def history(self, history: History) -> None:
        self._engine.history = history

    @property
    def evaluation(self) -> Replies | None:
        """What every client measured, if the last round was evaluated."""
        return self._engine.evaluation

    @property
    def versions(self) -> Versions:
        """Which version of its state counts, for every client."""
        return self._engine.versions

    def kept(self, name: str, default: float) -> float:
        """Return a number of the strategy's state."""
        value = self.state.get(name, default)
        if not isinstance(value, float):
            raise TypeError(f"state '{name}' holds arrays, not a number")
        return value

    def kept_arrays(self, name: str, default: Arrays) -> Arrays:
        """Return arrays of the strategy's state."""
        value = self.state.get(name, default)
        if not isinstance(value, dict):
            raise TypeError(f"state '{name}' holds a number, not arrays")
        return value

    def summary(self) -> None:
        """Log the strategy's options, as part of Flower's own account of the start."""
        flower = logging.getLogger("flwr")
        options = [f"{name} = {value!r}" for name, value in self.options().items()]
        for line in options[:-1]:
            flower.info("\t├── %s", line)
        flower.info("\t└── %s", options[-1])

    initialize_parameters = refuse_old_style

    @plain_log()
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 1,
        resume: bool = False,
        hooks: Sequence[Hook] = (),
        stop: Stop | None = None,
        **more: Any,
    ) -> Result:
        """Run rounds up to `num_rounds`; what Flower's `start` takes, and the following.

        The file `checkpoint` keeps the run's state after every `checkpoint_every` rounds and the
        last; one that exists is not overwritten unless the run resumes from it. `resume` continues
        after the checkpoint's round; without a file, it starts anew and says so. `hooks` are called
        after every round, evaluations included, before the checkpoint is written. A round for which
        `stop` is true is the last, for the hooks too; what is evaluated after the last round alone
        is not then. Raises a RunFailedError if a round failed `max_failed_rounds` times or the
        clients' program is to blame, and a SettingsError if the options do not fit the clients, the
        checkpoint is of another run or model, or a config has a key that messages have themselves.
        """
        check_free("train_config", train_config or {})
        check_free("evaluate_config", evaluate_config or {})
        ROUNDS.checked(checkpoint_every, "checkpoint_every")
        engine = self._engine = Engine(
            self, True, num_rounds, timeout, evaluate_fn, checkpoint, checkpoint_every, hooks, stop
        )
        engine.begin(from_record(initial_arrays, copy=False), resume)
        result = Result()
        with contextlib.suppress(Stopped):
            result = super().start(
                grid,
                to_record(engine.arrays, copy=False),
                engine.rounds_left,
                timeout,
                train_config,
                evaluate_config,
                engine.evaluate_on_server if evaluate_fn else None,
                **at_absolute_rounds(more, engine.offset, engine.keep),
            )
        engine.end(result)
        return result

    def configure_train(self, *args: Any, **more: Any) -> list[Message]:
        """Take the step of Flower's loop as `Engine.configure_train` says."""
        return self._engine.configure_train(*args, **more)

    def aggregate_train(self, *args: Any, **more: Any) -> tuple[ArrayRecord, MetricRecord]:
        """Take the step of Flower's loop as `Engine.aggregate_train` says."""
        return self._engine.aggregate_train(*args, **more)

    def configure_evaluate(self, *args: Any, **more: Any) -> list[Message]:
        """Take the step of Flower's loop as `Engine.configure_evaluate` says."""
        return self._engine.configure_evaluate(*args, **more)

    def aggregate_evaluate(self, *args: Any, **more: Any) -> MetricRecord | None:
        """Take the step of Flower's loop as `Engine.aggregate_evaluate` says."""
        return self._engine.aggregate_evaluate(*args, **more)


def _that_average(classes: Sequence[type[RoundStrategy]]) -> set[str]:
    """Return the names of the methods that average, of these classes and those made of them."""
    found = {one.name for one in classes if one.averages and one.name}
    return found.union(*(_that_average(one.__subclasses__()) for one in classes))


RUN_OPTIONS = tuple(
    one.name for one in fields(RoundStrategy) if one.name not in (*DRAWN, *AGGREGATION)
)
"""Options that are the run's: they hold for every strategy of it."""
