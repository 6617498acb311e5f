"""A federated method as a run sees it: its options, the program of a round, and what that costs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.aggregation import Nothing
from coprefl_flwr.federation.budget import UNKNOWN, Budget, Work
from coprefl_flwr.federation.context import RoundContext
from coprefl_flwr.federation.exchange import Exchange, Round
from coprefl_flwr.federation.options import RoundOptions
from coprefl_flwr.options import Value


class HeadLayer(NamedTuple):
    """The last linear layer of a network: its module's name, and those of its arrays.

    `bias` is "" for a layer without.
    """

    module: str
    weight: str
    bias: str = ""


class Network(Protocol):
    """A network, as `RoundStrategy.initial` is given it."""

    @property
    def name(self) -> str:
        """Its name, for errors."""

    @property
    def arrays(self) -> Arrays:
        """Its weights and buffers, in the order of its `state_dict`."""

    @property
    def num_classes(self) -> int:
        """How many classes the clients' labels have."""

    @property
    def outputs(self) -> int:
        """How many numbers it returns for a sample."""

    @property
    def representation(self) -> int:
        """How many numbers enter its last linear layer for a sample."""

    @property
    def head(self) -> frozenset[str]:
        """Names of the arrays of its last linear layer."""


@dataclass(kw_only=True, eq=False)
class RoundProgram(RoundOptions, ABC):
    """The options of a method, and what a run and a study ask of it; nothing of a run is held."""

    name: ClassVar[str] = ""
    """What the setting `method` calls it."""

    client: ClassVar[str | type] = "coprefl_flwr.clients:TorchClient"
    """The class of its clients, or where it stands: "module:NAME"."""

    roles: ClassVar[tuple[str, ...]] = ("pretraining",)
    """The kinds of stage it can run as: "pretraining", "task", "personalised", "head"."""

    actions: ClassVar[tuple[str, ...]] = ("train",)
    """Message types that its clients must answer, in the order of the exchanges."""

    server_data: ClassVar[str] = ""
    """Whose data its field `server` holds: "server", all "clients" or "both"; "": no such field."""

    training_defaults: ClassVar[Mapping[str, Value]] = {}
    """Its own defaults of settings of local training, by key."""

    loss_of: ClassVar[str] = "clients"
    """What a round's loss is: the mean cross-entropy of "clients" whose models began alike, that of
    a "chain", on the way from one to the next, or with "more" in it, which may be below 0."""

    averages: ClassVar[bool] = False
    """Whether it takes only means of models, and moments of gradients, which `aggregation` can make
    robust; then `aggregation` and what belongs to it are options of the method."""

    def __post_init__(self) -> None:
        """Check the options; refuse a robust rule for what has no mean."""
        super().__post_init__()
        if self.robust is None:
            return
        if not self.averages:
            own = self.name or type(self).__name__
            known = ", ".join(sorted(_that_average(RoundProgram.__subclasses__())))
            raise SettingsError(
                f"aggregation = {self.aggregation}: {own} has no mean of models or gradients that "
                f"could be robust; methods that have: {known}",
                "aggregation",
            )
        if self.participants is not None:
            self.robust.check(self.participants)

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
    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run one round of the method from the global `arrays`, which are only to be read.

        Yields exchanges and is sent their replies; returns the new global arrays (names, shapes and
        dtypes as before) and the round's metrics. What a method carries on stands in `ctx.state`
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
        return Budget(work.travel, work.participants * work.visited)

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
        return Exchange("evaluate", arrays, clients, Nothing(), needed=1)


def _that_average(classes: Sequence[type[RoundProgram]]) -> set[str]:
    """Return the names of the methods that average, of these classes and those made of them."""
    found = {one.name for one in classes if one.averages and one.name}
    return found.union(*(_that_average(one.__subclasses__()) for one in classes))
