"""CoPreFL, scenario II: the server has data too, and computes the meta step on its data."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coprefl_flwr import seeds
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import RoundFailedError, SettingsError
from coprefl_flwr.federation import Exchange, Round, RoundContext, RoundStrategy
from coprefl_flwr.federation.aggregation import Accumulator, LossMoments, Mean
from coprefl_flwr.federation.budget import Budget, Work
from coprefl_flwr.learning.meta import descend, meta_gradient
from coprefl_flwr.options import same_option
from coprefl_flwr.strategies.coprefl import CoPreFL

if TYPE_CHECKING:
    from coprefl_flwr.learning.server_data import ServerData


@dataclass(kw_only=True, eq=False)
class HybridCoPreFL(RoundStrategy):
    """CoPreFL for a server that also has data (Algorithm 2); `server` is the server's data, D^s.

    The server splits D^s into one random part per participant. The parts replace the participants'
    query sets; the rest is as in `CoPreFL`.
    """

    server: "ServerData" = field(metadata={"option": False})
    gamma: float = same_option(CoPreFL, "gamma")
    meta_learning_rate: float = same_option(CoPreFL, "meta_learning_rate")
    name = "coprefl-hybrid"
    averages = means_models = True
    server_data = "server"

    def __post_init__(self) -> None:
        """Refuse a server dataset with fewer samples than participants."""
        super().__post_init__()
        if len(self.server) < (self.participants or 1):
            has = f"the server has {len(self.server)} samples"
            raise SettingsError(f"{has}; one for each of {self.participants or 1} is needed")

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run a round of Algorithm 2 (AAAI text, appendix B)."""
        participants = ctx.sample()
        # Local SGD on all of each participant's data, averaged into the temporary global model.
        local = yield Exchange("train", arrays, participants, combine=Mean("num-examples"))
        temporary, metrics, number = local.arrays, local.mean_metrics(), len(local.clients)
        del local  # Its float64 sums take twice the memory of a model.
        # D^s is split into |m| random parts, which replace the participants' query sets.
        moments, losses = Accumulator(LossMoments()), []
        for position, part in enumerate(self.parts(ctx, number)):
            result = self.server.loss_and_gradient(temporary, part)
            if not np.isfinite(result.loss):
                raise RoundFailedError(f"the loss on the server's data is {result.loss}")
            moments.add(position, result.gradient, {"loss": result.loss})
            losses.append(result.loss)
        gradient, query_metrics = meta_gradient(moments.sums, np.array(losses), self.gamma)
        # The meta update is that of scenario I.
        return descend(temporary, gradient, self.meta_learning_rate), metrics | query_metrics

    def budget(self, work: Work) -> Budget:
        """Return FedAvg's budget plus the meta step zeta gamma |m| and the gradients on D^s."""
        meta = self.meta_learning_rate * self.gamma * work.participants
        return super().budget(work).and_server(meta, len(self.server))

    def parts(self, ctx: RoundContext, number: int) -> list[npt.NDArray[np.int64]]:
        """Split D^s at random, differently each round; the parts' sizes differ by at most one."""
        order = seeds.generator(*ctx.key("server-parts")).permutation(len(self.server))
        return np.array_split(order, number)
