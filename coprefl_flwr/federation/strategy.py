"""The base class of all strategies, in which a round is a generator that yields exchanges.

Flower's `Strategy.start` has one train and one evaluate exchange per round. Here a round is a
generator. The generator yields an `Exchange`, is sent the combined `Replies`, and can yield further
exchanges. At its end it returns the new global arrays and the round's metrics.
"""

import inspect
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from coprefl_flwr.arrays import Arrays, from_record
from coprefl_flwr.errors import SettingsError, check_name, flower_log, unknown
from coprefl_flwr.federation.averaging import AVERAGES
from coprefl_flwr.federation.budget import UNKNOWN, Budget, Work
from coprefl_flwr.federation.context import RoundContext, RunStrategy
from coprefl_flwr.federation.exchange import REDUCTIONS, Round
from coprefl_flwr.federation.flower import plain_log, refuse_old_style
from coprefl_flwr.federation.keep import Keep
from coprefl_flwr.federation.messages import check_free
from coprefl_flwr.federation.nodes import hosted_clients
from coprefl_flwr.federation.robust import AGGREGATION, MEAN, Robust
from coprefl_flwr.federation.run import EvaluateFn, Hook, Run, RunResult, ShouldStop
from coprefl_flwr.federation.validation import Bounds
from coprefl_flwr.files import alone, expanded
from coprefl_flwr.options import Option, Value, check_declared

if TYPE_CHECKING:
    from coprefl_flwr.models.build import Network

DRAWN = ("participants", "fraction_train")
"""Options for the number of participants: each strategy sets these itself, not the run."""

ROUNDS = Option("rounds", "rounds", 1, (int,), "a number of rounds", minimum=1)

CLIENTS = "coprefl_flwr.clients:"
ANSWERED_BY_FUNCTIONS = ("", "TorchClient", "CoPreFLClient", "FedProxClient", "QFFLClient")
"""Clients whose messages an app of functions can answer; "" is a client of the user."""


class HeadLayer(NamedTuple):
    """The last linear layer of a network: the names of its module, weight and bias.

    `bias` is "" if the layer has no bias.
    """

    module: str
    weight: str
    bias: str = ""


@dataclass(kw_only=True, eq=False)
class RoundStrategy(Strategy, RunStrategy):
    """A federated method as a Flower strategy; a round is a generator that yields exchanges.

    A method is a subclass that implements `round`. The method's options are dataclass fields made
    by `option`; their values are checked when the strategy is created. Class attributes declare the
    other properties of the method, such as its client class. A strategy object stores no state of a
    run. All methods inherit the options of `RunStrategy`.
    """

    name: ClassVar[str] = ""
    """Name of the method: the value of the setting `method` that selects this class."""

    client: ClassVar[str | type] = "coprefl_flwr.clients:TorchClient"
    """The client class, or the place of the class to import, written "module:NAME"."""

    roles: ClassVar[tuple[str, ...]] = ("pretraining",)
    """Stages of a study in which the method can run: "pretraining", "task", "personalised",
    "head"."""

    server_data: ClassVar[str] = ""
    """The owner of the data in the method's field `server`. "server": the server's data; "clients":
    the data of all clients; "both": the data of server and clients; "": there is no such field."""

    training_defaults: ClassVar[Mapping[str, Value]] = {}
    """Default values that the method changes, as {setting of local training: default}."""

    personal_defaults: ClassVar[Mapping[str, Value]] = {}
    """{option of the method: default} in a personalised study, if it differs."""

    loss_of: ClassVar[str] = "clients"
    """The meaning of a round's loss. "clients": the mean loss of clients that all start from the
    global model. "chain": the loss of one model that is trained step by step, for example passed
    from client to client."""

    trains_head: ClassVar[bool] = True
    """Whether a pre-training trains the last layer. If not, the layer keeps its initial weights,
    which are the same in every process and are not sent."""

    sums_steps: ClassVar[bool] = True
    """Whether a round moves the model by the clients' steps, so that their sizes can be summed."""

    averages: ClassVar[bool] = False
    """Whether the method only aggregates by means of models, or by `LossMoments` of gradients. Only
    then can `aggregation` make the method robust, and the method has the options in
    `AGGREGATION`."""

    means_models: ClassVar[bool] = False
    """Whether a round's model is a weighted mean of the clients' models, or is passed from client
    to client, and perhaps moved along a gradient at it. Adapters can then be averaged by "exact",
    in which the correction of the mean is not moved."""

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Raise a SettingsError for unknown arguments, such as those of Flower's strategies."""
        parameters = dict(inspect.signature(cls.__init__).parameters)
        parameters.pop("self", None)
        others = [name for name in options if name not in parameters]
        if others and all(one.kind is not one.VAR_KEYWORD for one in parameters.values()):
            lines = [unknown("option", name, parameters) for name in others]
            flowers = "(arguments of Flower's strategies: docs/how-to/flower-app.md)"
            raise SettingsError(f"{cls.__name__}: {'; '.join(lines)} {flowers}", *others)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check the options; refuse a robust rule if the method does not average."""
        check_declared(self)
        if self.participants is not None:
            self.check_participants(self.participants)
        if None not in (self.participants, self.fraction_train):
            raise SettingsError("participants and fraction_train: set one of them")
        if None not in (self.average_window, self.average_decay):
            raise SettingsError("average-window and average-decay: set one of them", *AVERAGES)
        hosted_clients(self.clients)
        for name, reduction in self.metric_reductions.items():
            check_name("reduction", reduction, REDUCTIONS, f"metric_reductions, {name}")
        if not self.robust:
            return
        if not self.averages:
            problem = f"{self.name or type(self).__name__} allows only the mean"
            raise SettingsError(f"aggregation = {self.aggregation}: {problem}", "aggregation")
        if isinstance(number := self.participants or self.clients, int):
            self.robust.check(number)

    @property
    def robust(self) -> Robust | None:
        """The robust aggregation rule, or None if the option `aggregation` is the mean."""
        if self.aggregation == MEAN:
            return None
        return Robust(self.aggregation, self.tolerated_share, self.clip_factor)

    def options(self) -> dict[str, Any]:
        """Return the name of the strategy class and the values of its options.

        A run can resume only from a checkpoint with the same options. An option that was added
        later is left out if it has its default.
        """
        unused = () if self.robust else AGGREGATION
        values = {
            option.name: getattr(self, option.name)
            for option in fields(self)
            if option.metadata.get("option", True) and option.name not in unused
            if not option.metadata.get("later") or getattr(self, option.name) != option.default
        }
        bounds = {"bounds": asdict(self.bounds)} if self.bounds != Bounds() else {}
        return {"strategy": type(self).__name__, **values, **bounds}

    def check_functions(self) -> None:
        """Raise a SettingsError if the functions of a Flower app cannot do the clients' work.

        Such a strategy would compute something else, such as FedAvg, without an error.
        """
        for strategy in getattr(self, "phase_strategies", [getattr(self, "inner", self)]):
            if strategy is not self:
                strategy.check_functions()
            client = str(strategy.client).partition(CLIENTS)[2]
            if client not in ANSWERED_BY_FUNCTIONS:
                needs = f"{type(strategy).__name__} needs other clients than @app.train functions"
                how = f"make the app by client_app, with {client} (docs/how-to/flower-app.md)"
                raise SettingsError(f"{needs}: {how}")

    def check_participants(self, participants: int) -> None:
        """Raise a SettingsError if this many participants cannot give `min_replies`."""
        if self.min_replies > participants:
            raise SettingsError(f"min_replies: must be at most participants = {participants}")

    @classmethod
    def initial(cls, network: "Network") -> Arrays:
        """Return the initial global arrays of the method, before its first round."""
        return network.arrays

    @classmethod
    def check_training(cls, options: Mapping[str, Any], training: Any) -> None:
        """Raise a SettingsError if the options do not allow this `learning.LocalTraining`."""

    @abstractmethod
    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run one round of the method from the global `arrays`, which must not be changed.

        The generator yields exchanges and is sent their replies. It returns the new global arrays
        and the round's metrics. The new arrays have the same names, shapes and dtypes as `arrays`.
        `ctx.state` holds the numbers and arrays that the method keeps from round to round. Changes
        of `ctx.state` are kept only if the round returns.
        """

    def program(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the generator of a round, with robust means if `aggregation` is a robust rule."""
        rounds = self.round(ctx, arrays)
        return self.robust.around(rounds, ctx.run.buffers) if self.robust else rounds

    def budget(self, work: Work) -> Budget:
        """Return the costs of a round; here they are the costs of a FedAvg round.

        A method with other steps, or with more gradients, overrides this method. The costs are
        `UNKNOWN` if the clients do not answer "train".
        """
        if "train" not in self.actions:
            return UNKNOWN
        step_sum = work.step_sum if self.sums_steps else math.nan
        return Budget(step_sum, work.participants * work.samples_seen)

    def summary(self) -> None:
        """Log the strategy's options, in the part of the log that Flower writes at the start."""
        options = [f"{name} = {value!r}" for name, value in self.options().items()]
        for line in options[:-1]:
            flower_log.info("\t├── %s", line)
        flower_log.info("\t└── %s", options[-1])

    initialize_parameters = refuse_old_style

    def _refuse_step(self, *_: Any) -> Any:
        """Raise a SettingsError: the steps of Flower's loop are not those of a round here."""
        problem = f"{type(self).__name__}: its start() calls no configure_train or aggregate_train"
        raise SettingsError(f"{problem}: override `round` instead (docs/how-to/flower-app.md)")

    configure_train = aggregate_train = _refuse_step  # type: ignore[assignment]
    configure_evaluate = aggregate_evaluate = _refuse_step  # type: ignore[assignment]

    @plain_log()
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 1,
        resume: bool = False,
        hooks: Sequence[Hook] = (),
        should_stop: ShouldStop | None = None,
        keep: Keep | Mapping[str, Any] | str | None = None,
    ) -> RunResult:
        """Run the rounds up to `num_rounds` and return the result of the run.

        The arguments are those of Flower's `start` and the following. `timeout`, in seconds, is the
        time limit for replies; None is no limit.

        The file `checkpoint` stores the state of the run, after every `checkpoint_every` rounds and
        after the last round. The file CHECKPOINT.rounds.jsonl next to it stores the metrics, with
        one line of JSON per round. An existing checkpoint is overwritten only if the run resumes
        from it. Only one run at a time may write it. With `resume`, the run continues after the
        checkpoint's round; if there is no such file, the run starts at round 1 and logs this.

        `hooks` are called after the evaluations of every round, before the checkpoint is written.
        If the checkpoint already has all rounds, they are called once for the last round, without
        its evaluation.
        `should_stop(server_round, result)`, as in Flower 1.43, is called after every round with the
        result so far. If it returns True, that round is the last one, and the hooks are given its
        number as `num_rounds`. An evaluation that is due only after the last round is then skipped.
        `keep` is a `Keep`, its text or its mapping, as in `{"metric": "accuracy", "patience": 20}`.
        The best round by this metric is then a part of the checkpoint, and the run may end early.
        The result is a Flower `Result` with the `history` of all rounds and with the `best` round.
        Its `arrays` are those of the last round.

        Raises a RunFailedError if a round failed `max_failed_rounds` times, or if all clients fail
        with the same error of their program. Raises a SettingsError if the options do not fit the
        clients, if the checkpoint is of another run or model, or if a config has a key that this
        package uses in its messages.
        """
        check_free("train_config", train_config or {})
        check_free("evaluate_config", evaluate_config or {})
        checkpoint_every = ROUNDS.checked(checkpoint_every, "checkpoint_every")
        num_rounds = replace(ROUNDS, minimum=0).checked(num_rounds, "num_rounds")
        steps = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
        if any(getattr(type(self), step) is not RoundStrategy._refuse_step for step in steps):
            self._refuse_step()
        chosen = None if keep is None else Keep.read(keep)
        if chosen and not (self.rounds_to_evaluation if chosen.of_clients else evaluate_fn):
            needed = "evaluate_every" if chosen.of_clients else "evaluate_fn"
            raise SettingsError(f"keep: nothing measures '{chosen.metric}': set {needed}", "keep")
        path = None if checkpoint is None else expanded(checkpoint)
        writing = f"checkpoint = {path}: another run is writing this file"
        with alone(Path(f"{path}.lock"), writing) if path else nullcontext():
            run = Run(
                self,
                grid,
                from_record(initial_arrays, copy=False),
                num_rounds,
                math.inf if timeout is None else timeout,
                train_config or ConfigRecord(),
                evaluate_config or ConfigRecord(),
                evaluate_fn,
                path,
                checkpoint_every,
                resume,
                hooks,
                should_stop,
                chosen,
            )
            flower_log.info("Starting %s strategy:", type(self).__name__)
            flower_log.info("\t├── Number of rounds: %d", num_rounds)
            self.summary()
            return run.all_rounds()


RUN_OPTIONS: tuple[str, ...] = tuple(
    option.name for option in fields(RoundStrategy) if option.name not in (*DRAWN, *AGGREGATION)
)
"""Names of the options of the run; they are the same for every strategy of a run."""


def of_run(strategy: RoundStrategy) -> dict[str, Any]:
    """Return {name: value} of the options of the run, as set in this strategy."""
    return {name: getattr(strategy, name) for name in RUN_OPTIONS}
