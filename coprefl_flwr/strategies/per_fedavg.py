"""Per-FedAvg: FedAvg on the loss after one step of adaptation."""

from dataclasses import dataclass, replace
from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.rounds.combine import Mean
from coprefl_flwr.rounds.exchange import Exchange
from coprefl_flwr.rounds.protocol import Config
from coprefl_flwr.rounds.strategy import Round, RoundStrategy


@dataclass(kw_only=True, eq=False)
class PerFedAvg(RoundStrategy):
    """Per-FedAvg (Fallah, Mokhtari and Ozdaglar 2020, arxiv.org/abs/2002.07948), Algorithm 1.

    Parameters
    ----------
    variant : str
        How clients take the step of line 7 (see `PerFedAvgClient`): "fo", without the Hessian, or
        "hf", with a finite difference in its place.
    inner_learning_rate : float
        Step size alpha of the adaptation.
    """

    variant: str = "fo"
    inner_learning_rate: float = 1e-3

    variants: ClassVar[tuple[str, ...]] = ("fo", "hf")
    actions: ClassVar[tuple[str, ...]] = ("train",)

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        self.one_of("variant", self.variant, self.variants)
        self.positive("inner_learning_rate", self.inner_learning_rate, or_zero=True)

    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Return the unweighted mean of the participants' models (line 11)."""
        clients = self.sample(server_round)
        replies = yield Exchange(
            "train",
            arrays,
            clients,
            combine=Mean(""),
            config={
                "meta-variant": self.variant,
                "inner-learning-rate": self.inner_learning_rate,
            },
        )
        return replies.arrays, replies.mean_metrics()

    def evaluation_exchange(self, arrays: Arrays, clients: list[int]) -> Exchange:
        """Return the exchange that evaluates the model after each client's own adaptation."""
        config: Config = {"inner-learning-rate": self.inner_learning_rate}
        return replace(super().evaluation_exchange(arrays, clients), config=config)
