"""FedETF: FedAvg with a fixed equiangular tight frame as the classifier of normalised features."""

from dataclasses import dataclass

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Exchange, Mean, Round, RoundContext, RoundStrategy
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class FedETF(RoundStrategy):
    """FedETF (Li et al. 2023, arxiv.org/abs/2303.10058), its federated training.

    The network's outputs, one for each class, are the features that the paper's projection layer
    computes. Clients normalise them and multiply them by the frame (see `clients.fedetf`).
    """

    temperature: float = option(
        10.0, "factor s of the class scores in round 1; it is trained and averaged", above=0
    )

    name = "fedetf"
    means_models = True
    client = "coprefl_flwr.clients:FedETFClient"

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the sample-weighted mean of the models; keep that of the clients' factors s."""
        config = {"temperature": ctx.state.get("temperature", self.temperature)}
        train = Exchange("train", arrays, ctx.sample(), Mean("num-examples"), config=config)
        replies = yield train
        metrics = replies.mean_metrics()
        ctx.state["temperature"] = metrics["temperature"]
        return replies.arrays, metrics
