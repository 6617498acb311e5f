"""The base of all strategies: a round is a program that yields exchanges.

Flower's `Strategy.start` knows one train and one evaluate exchange a round. Here a round is a
generator: it yields an `Exchange`, is sent the combined `Replies`, and returns the new arrays with
the round's metrics.
"""

import inspect
import logging
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from coprefl_flwr.arrays import Arrays, from_record
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.federation.aggregation import MetricsOnly
from coprefl_flwr.federation.budget import UNKNOWN, Budget, Work
from coprefl_flwr.federation.context import RoundContext
from coprefl_flwr.federation.exchange import Exchange, Round
from coprefl_flwr.federation.flower import plain_log, refuse_old_style
from coprefl_flwr.federation.messages import check_free
from coprefl_flwr.federation.nodes import hosted_clients
from coprefl_flwr.federation.robust import AGGREGATION, MEAN, Robust
from coprefl_flwr.federation.run import EvaluateFn, Hook, Run, RunResult, Stop
from coprefl_flwr.federation.validation import Bounds
from coprefl_flwr.federation.wrapped import STEPS, InsideWrapper
from coprefl_flwr.options import Option, Value, check_declared

if TYPE_CHECKING:
    from coprefl_flwr.models.build import Network

DRAWN = ("participants", "fraction_train")
"""Options that say how many take part: each strategy's own, not the run's."""

ROUNDS = Option("rounds", "rounds", 1, (int,), "a number of rounds", minimum=1)

FLOWER_ARGUMENTS = {
    "min_evaluate_nodes": "min_replies, the good replies that an exchange needs",
    "min_train_nodes": "participants, the clients of a round",
    "train_metrics_aggr_fn": "`round`, which returns the round's metrics",
    "evaluate_metrics_aggr_fn": "a hook of `start`, which is given every client's metrics",
}
"""What arguments of Flower's strategies are called here."""


class HeadLayer(NamedTuple):
    """The last linear layer of a network: its module's name, and those of its arrays.

    `bias` is "" for a layer without.
    """

    module: str
    weight: str
    bias: str = ""


@dataclass(kw_only=True, eq=False)
class RoundStrategy(InsideWrapper):
    """A federated method whose round is a program of exchanges, as a strategy of Flower's.

    A method is a subclass that writes `round`. Its options are fields made by `option`, which are
    checked when it is made; what else a study must know, it says in its class attributes. It holds
    nothing of a run. The options that all methods have are those of `RunStrategy`.
    """

    name: ClassVar[str] = ""
    """What the setting `method` calls it."""

    client: ClassVar[str | type] = "coprefl_flwr.clients:TorchClient"
    """The class of its clients, or its place: "module:NAME"."""

    roles: ClassVar[tuple[str, ...]] = ("pretraining",)
    """The kinds of stage it can run as: "pretraining", "task", "personalised", "head"."""

    actions: ClassVar[tuple[str, ...]] = ("train",)
    """Message types that its clients must answer, in the order of the exchanges."""

    server_data: ClassVar[str] = ""
    """Whose data its field `server` holds: "server", all "clients" or "both"; "": no such field."""

    training_defaults: ClassVar[Mapping[str, Value]] = {}
    """Its own defaults of settings of local training, by key."""

    loss_of: ClassVar[str] = "clients"
    """How to read a round's loss. "clients": mean cross-entropy of clients that all started from
    the global model; "chain": of one model passed from client to client; "more": the objective has
    further terms and may be negative."""

    averages: ClassVar[bool] = False
    """Whether it takes only means of models, and moments of gradients, which `aggregation` can make
    robust; then `aggregation` and what belongs to it are options of the method."""

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Refuse an argument that the class does not have, and say what Flower's is called here."""
        parameters = dict(inspect.signature(cls.__init__).parameters)
        parameters.pop("self", None)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return super().__new__(cls)
        for name in options.keys() - parameters.keys():
            line = unknown("option", name, parameters)
            if name in FLOWER_ARGUMENTS:
                line = f"unknown option '{name}': Flower's {name} is here {FLOWER_ARGUMENTS[name]}"
            raise SettingsError(f"{cls.__name__}: {line}", name)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check the options; refuse a robust rule for what has no mean."""
        check_declared(self)
        if self.participants is not None:
            self.check_participants(self.participants)
        if None not in (self.participants, self.fraction_train):
            raise SettingsError("participants and fraction_train: set one of them")
        hosted_clients(self.clients)
        for name in ("run_name", "population"):
            if not re.fullmatch(r"\w[\w.-]*", value := getattr(self, name)):
                limit = "must be letters, digits, '_', '-' and '.', as it names a folder"
                raise SettingsError(f"{name} = {value!r}: {limit}")
        if not self.robust:
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

    @property
    def robust(self) -> Robust | None:
        """The robust rule, None where it is the mean."""
        if self.aggregation == MEAN:
            return None
        return Robust(self.aggregation, self.tolerated_share, self.clip_factor)

    def options(self) -> dict[str, Any]:
        """Return the method and its options; a checkpoint must have the same to be resumed."""
        unused = () if self.robust else AGGREGATION
        values = {
            option.name: getattr(self, option.name)
            for option in fields(self)
            if option.metadata.get("option", True) and option.name not in unused
        }
        bounds = {"bounds": asdict(self.bounds)} if self.bounds != Bounds() else {}
        return {"strategy": type(self).__name__, **values, **bounds}

    def check_participants(self, participants: int) -> None:
        """Raise a SettingsError if this many participants cannot give `min_replies`."""
        if self.min_replies > participants:
            limit = f"must be at most participants = {participants}"
            raise SettingsError(f"min_replies = {self.min_replies}: {limit}")

    @classmethod
    def initial(cls, network: "Network") -> Arrays:
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
    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run one round of the method from the global `arrays`, which are only to be read.

        Yields exchanges and is sent their replies; returns the new global arrays (names, shapes and
        dtypes as before) and the round's metrics. What a method carries on is in `ctx.state`
        (numbers and arrays), which counts only once the round has returned.
        """

    def program(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the round, its means robust where `aggregation` says so."""
        rounds = self.round(ctx, arrays)
        return self.robust.around(rounds) if self.robust else rounds

    def budget(self, work: Work) -> Budget:
        """Return what a round costs: FedAvg's local steps, where clients train as the settings say.

        A method that takes other steps, or computes more gradients, says so here.
        """
        if "train" not in self.actions:
            return UNKNOWN
        return Budget(work.travel, work.participants * work.samples_seen)

    @property
    def rounds_to_evaluation(self) -> int:
        """Rounds between evaluations on clients; 0: never, as where the method asks no client."""
        return self.evaluate_every if self.fraction_evaluate and self.actions else 0

    def evaluation_due(self, server_round: int, last_round: int) -> bool:
        """Return whether clients evaluate the model after a round."""
        every = self.rounds_to_evaluation
        return bool(every) and (server_round % every == 0 or server_round == last_round)

    def evaluation_exchange(
        self, ctx: RoundContext, arrays: Arrays, clients: Sequence[int]
    ) -> Exchange:
        """Return the exchange that evaluates `arrays` on every client."""
        return Exchange("evaluate", arrays, clients, MetricsOnly(), needed=1)

    def summary(self) -> None:
        """Log the strategy's options, as part of Flower's own account of the start."""
        flower_log = logging.getLogger("flwr")
        options = [f"{name} = {value!r}" for name, value in self.options().items()]
        for line in options[:-1]:
            flower_log.info("\t├── %s", line)
        flower_log.info("\t└── %s", options[-1])

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
    ) -> RunResult:
        """Run rounds up to `num_rounds`; what Flower's `start` takes, and the following.

        The file `checkpoint` keeps the run's state after every `checkpoint_every` rounds and the
        last, and CHECKPOINT.rounds.jsonl next to it the rounds' metrics, a line of JSON each; a
        checkpoint that exists is not overwritten unless the run resumes from it. `resume` continues
        after the checkpoint's round; without a file, it starts again and says so. `hooks` are
        called after every round, evaluations included, before the checkpoint is written. A round
        for which `stop` is true is the last, for the hooks too; what is evaluated after the last
        round alone is not then. The result is Flower's, and has the `history` of all rounds.

        Raises a RunFailedError if a round failed `max_failed_rounds` times or the clients' program
        is to blame, and a SettingsError if the options do not fit the clients, the checkpoint is of
        another run or model, or a config has a key that messages have themselves.
        """
        check_free("train_config", train_config or {})
        check_free("evaluate_config", evaluate_config or {})
        ROUNDS.checked(checkpoint_every, "checkpoint_every")
        self._refuse_own_steps()
        run = Run(
            self,
            grid,
            from_record(initial_arrays, copy=False),
            num_rounds,
            timeout,
            train_config or ConfigRecord(),
            evaluate_config or ConfigRecord(),
            evaluate_fn,
            checkpoint,
            checkpoint_every,
            resume,
            hooks,
            stop,
        )
        flower_log = logging.getLogger("flwr")
        flower_log.info("Starting %s strategy:", type(self).__name__)
        flower_log.info("\t├── Number of rounds: %d", num_rounds)
        self.summary()
        return run.all_rounds()

    def _refuse_own_steps(self) -> None:
        """Raise a SettingsError for a subclass that overrides what `start` does not call."""
        for name in STEPS:
            if getattr(type(self), name) is not getattr(RoundStrategy, name):
                raise SettingsError(
                    f"{type(self).__name__} overrides {name}, which start() does not call: a round "
                    "here may have several exchanges; override `round` (docs/how-to/method.md)"
                )


RUN_OPTIONS: tuple[str, ...] = tuple(
    option.name for option in fields(RoundStrategy) if option.name not in (*DRAWN, *AGGREGATION)
)
"""Options that are the run's: they hold for every strategy of it."""


def of_run(strategy: RoundStrategy) -> dict[str, Any]:
    """Return the options of the run that a strategy was made with, by name."""
    return {name: getattr(strategy, name) for name in RUN_OPTIONS}


def _that_average(classes: Sequence[type[RoundStrategy]]) -> set[str]:
    """Return the names of the methods that average, of these classes and those made of them."""
    names = {method.name for method in classes if method.averages and method.name}
    return names.union(*(_that_average(method.__subclasses__()) for method in classes))
