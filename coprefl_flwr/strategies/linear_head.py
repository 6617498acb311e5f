"""A last layer that needs no training: computed from sums over the clients' features."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coprefl_flwr.arrays import Arrays, cast_like
from coprefl_flwr.federation import Exchange, HeadLayer, Round, RoundContext, RoundStrategy, Total
from coprefl_flwr.federation.budget import Budget, Work
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class LinearHead(RoundStrategy):
    """Replaces the last linear layer; all other arrays stay as they are sent.

    A client answers with sums over its training samples, of the z that enter that layer: "sums" (C,
    d) of z by class, "counts" (C,), and with `products` the sum of z z^T, (d, d); all float64. They
    are added up, so the layer is that of all samples in one place, whichever clients hold them.

    One round is enough where all clients take part. Where some are drawn, the sums of later rounds
    are added to those before, as z is the same in every round; a client answers once.

    `head` names the layer. A class of which nobody has a sample keeps what was sent for it.
    """

    head: HeadLayer
    logit_scale: float = option(
        1.0,
        "factor on the computed layer; does not change predictions, but scales the logits and thus "
        "the loss of later training",
        above=0,
    )

    client = "coprefl_flwr.clients:FeaturesClient"
    roles = ("head",)
    products: ClassVar[bool] = False

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Ask the participants that did not answer yet for their sums and renew the layer."""
        classes, size = arrays[self.head.weight].shape
        zeros = {"sums": np.zeros((classes, size)), "counts": np.zeros(classes)}
        if self.products:
            zeros["products"] = np.zeros((size, size))
        totals, metrics = ctx.state.get("sums", zeros), dict[str, float]()
        counted = ctx.state.get("counted", {"clients": np.zeros(0, np.uint64)})["clients"]
        new = sorted({*ctx.sample()} - {*counted.tolist()})
        if new:
            replies = yield Exchange(
                *("train", zeros, new, Total(), {"model": arrays}),
                config={"head-layer": self.head.module},
                needed=min(ctx.min_replies, len(new)),
            )
            totals = {name: totals[name] + new_sum for name, new_sum in replies.sums["sum"].items()}
            metrics = replies.mean_metrics()
            answered = np.array(replies.clients, np.uint64)
            ctx.state["sums"] = totals
            ctx.state["counted"] = {"clients": np.union1d(counted, answered)}
        (weight, bias), seen = self.layer(totals), totals["counts"] > 0
        before, scale = arrays[self.head.weight], self.logit_scale
        layer = {self.head.weight: np.where(seen[:, None], scale * weight, before)}
        if self.head.bias:
            layer[self.head.bias] = np.where(seen, scale * bias, arrays[self.head.bias])
        return cast_like(arrays | layer, arrays), metrics

    def budget(self, work: Work) -> Budget:
        """Return features alone: the layer is computed, without a step and without gradients."""
        return Budget(0.0, 0.0, forwards=work.participants * work.samples)

    @abstractmethod
    def layer(self, totals: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Return the layer's weight (C, d) and bias (C,) from the sums over all samples."""
