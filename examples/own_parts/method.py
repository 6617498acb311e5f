"""Your own method: the server moves part of the way, and clients keep their weights small."""

from dataclasses import dataclass

from torch.nn.functional import cross_entropy

from coprefl_flwr.arrays import cast_like, weights_of
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.federation import Exchange, Mean
from coprefl_flwr.options import option
from coprefl_flwr.strategies import RoundStrategy


class SmallWeights(TorchClient):
    """Adds `shrink` x (squared norm of weights) to each batch's loss."""

    options = {"shrink": option(1e-4, "weight of |w|^2", minimum=0)}

    def fit(self, parameters, config):
        """Train on the loss with the added term."""

        def objective(inputs, targets):
            length = sum(p.square().sum() for p in self.model.parameters())
            loss = cross_entropy(self.model(inputs), targets)
            return loss + self.shrink * length

        self.load(parameters)
        loss = self.train_locally(self.train, config, objective)
        return self.weights(), len(self.train), {"loss": loss}


@dataclass(kw_only=True, eq=False)
class PartWay(RoundStrategy):
    """Moves the weights by `step` of the way to the clients' mean."""

    step: float = option(0.5, "fraction of the way", above=0, maximum=1)

    client = SmallWeights
    roles = ("pretraining", "task")

    def round(self, ctx, arrays):
        """Return w + step (mean - w); BatchNorm statistics are the mean."""
        replies = yield Exchange("train", arrays, ctx.sample(), Mean())
        mean = replies.arrays
        old = weights_of(arrays)
        moved = {n: w + self.step * (mean[n] - w) for n, w in old.items()}
        return cast_like(mean | moved, arrays), replies.mean_metrics()
