"""Networks on top of frozen backbones: FedPCL's head, and the two layers of its baselines."""

from collections import OrderedDict

from torch import nn

from coprefl_flwr.models.build import seeded

WIDTH = 256
"""Numbers in a fused representation z (FedPCL, section 5.1)."""


def projection_head(
    features: int, norm: str = "batch", seed_key: tuple[str | int, ...] = ("head",)
) -> nn.Module:
    """Return FedPCL's head: FC(features, 256), ReLU, and BN(256) unless `norm` is "none".

    That is the first layer of Table 7 (appendix A.1.3), which the baselines have too (section 5.1).
    The authors' code is said to have no BatchNorm in it: that is "none". The weights are a function
    of `seed_key`. Takes (b, features) float32, gives z, (b, 256), which the client scales to length
    1. Before the first step its statistics are mean 0 and variance 1: z is as without BatchNorm.
    """
    with seeded(seed_key):
        return nn.Sequential(OrderedDict(_projection(features, norm)))


def lightweight_model(
    features: int,
    num_classes: int,
    norm: str = "batch",
    seed_key: tuple[str | int, ...] = ("model",),
) -> nn.Module:
    """Return the baselines' network: the same projection and FC(256, num_classes) (Table 7).

    Takes (b, features) float32, gives (b, num_classes) logits.
    """
    with seeded(seed_key):
        layers = _projection(features, norm)
        return nn.Sequential(OrderedDict(layers | {"classifier": nn.Linear(WIDTH, num_classes)}))


def _projection(features: int, norm: str) -> dict[str, nn.Module]:
    layers: dict[str, nn.Module] = {"projection": nn.Linear(features, WIDTH), "relu": nn.ReLU()}
    return layers | ({"norm": nn.BatchNorm1d(WIDTH)} if norm == "batch" else {})
