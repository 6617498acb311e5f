"""Methods that compute the last layer from sums over the clients' features, without training."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coprefl_flwr.arrays import Arrays, cast_like
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import Exchange, HeadLayer, Round, RoundContext, RoundStrategy
from coprefl_flwr.federation.aggregation import PerClient, Total
from coprefl_flwr.federation.budget import Budget, Work
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class LinearHead(RoundStrategy):
    """A method that computes the last linear layer. All other arrays keep their values.

    z, of dimension d, is the input of the last layer. A client returns float64 sums over its
    training samples: "sums" (C, d), the sum of z for each class; "counts" (C,), the number of
    samples of each class; and, if the class attribute `products` is true, "products" (d, d), the
    sum of z z^T. The server adds up the clients' sums. The layer is therefore the same as for all
    samples in one place, and does not depend on the partition. If the class attribute `by_client`
    is true, the clients' sums are not added up, and the layer may depend on the partition.

    One round in which all clients take part is enough. With a sample of the clients, the layer is
    that of the sample.

    `head` names the layer. A class of which no client has samples keeps its weights.
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
    by_client: ClassVar[bool] = False
    needs_bias: ClassVar[bool] = False

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Collect the participants' sums, and compute the layer."""
        if self.needs_bias and not self.head.bias:
            problem = f"the layer {self.head.module} has no bias; use ridge"
            raise SettingsError(f"head = {self.name}: {problem}")
        classes, size = arrays[self.head.weight].shape
        zeros = {"sums": np.zeros((classes, size)), "counts": np.zeros(classes)}
        if self.products:
            zeros["products"] = np.zeros((size, size))
        replies = yield Exchange(
            *("train", zeros, ctx.sample(), PerClient() if self.by_client else Total()),
            extra={"model": arrays},
            config={"head-layer": self.head.module},
        )
        totals = replies.sums.get("sum") or {
            name: np.stack([replies.sums[str(client)][name] for client in replies.clients])
            for name in zeros
        }
        (weight, bias), seen = self.layer(totals), np.atleast_2d(totals["counts"]).sum(axis=0) > 0
        before, scale = arrays[self.head.weight], self.logit_scale
        layer = {self.head.weight: np.where(seen[:, None], scale * weight, before)}
        if self.head.bias:
            layer[self.head.bias] = np.where(seen, scale * bias, arrays[self.head.bias])
        return cast_like(arrays | layer, arrays), replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return a budget of forward passes only: the layer needs no SGD steps and no gradients."""
        return Budget(0.0, 0.0, forwards=work.participants * work.samples)

    @abstractmethod
    def layer(self, totals: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Return the layer's weight (C, d) and bias (C,) from the sums over all samples.

        If `by_client` is true, the arrays are those of each client: (clients, C, d), (clients, C).
        """
