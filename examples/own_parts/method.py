"""A method of one's own: the server goes part of the way, and clients keep their weights small."""

from dataclasses import dataclass

from torch.nn.functional import cross_entropy

from coprefl_flwr.arrays import cast_like, weights_of
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.federation import Exchange, Mean
from coprefl_flwr.options import option
from coprefl_flwr.strategies import RoundStrategy


class SmallWeights(TorchClient):
    """Adds `shrink` times the squared length of all weights to the loss of every batch."""

    options = {"shrink": option(1e-4, "weight of the squared length of the weights", minimum=0)}

    def fit(self, parameters, config):
        """Train on the loss with the added term."""

        def objective(inputs, targets):
            length = sum(p.square().sum() for p in self.model.parameters())
            return cross_entropy(self.model(inputs), targets) + self.shrink * length

        self.load(parameters)
        loss = self.train_locally(self.train, config, objective)
        return self.weights(), len(self.train), {"loss": loss}


@dataclass(kw_only=True, eq=False)
class PartWay(RoundStrategy):
    """Moves `step` of the way from the old weights to the clients' mean."""

    step: float = option(0.5, "part of the way to the mean", above=0, maximum=1)

    client = SmallWeights
    roles = ("pretraining", "task")

    def round(self, ctx, arrays):
        """Return w + step (mean - w); BatchNorm's statistics are the mean itself."""
        replies = yield Exchange("train", arrays, ctx.sample(), Mean())
        mean = replies.arrays
        moved = {n: w + self.step * (mean[n] - w) for n, w in weights_of(arrays).items()}
        return cast_like(mean | moved, arrays), replies.mean_metrics()
