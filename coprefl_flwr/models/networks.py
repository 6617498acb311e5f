"""The papers' networks: small convolutions, ResNets, one for text, and layers on backbones.

Networks of images take (batch, channels, height, width) float32. All except the projection head
give (batch, num_classes) logits.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from coprefl_flwr import seeds
from coprefl_flwr.data import CHARACTERS

_Shape = tuple[int, ...]

# Small convolutional networks without normalisation have two convolutions, 2x2 max-pooling and ReLU
# after each, and then linear layers. (ReLU before pooling gives the same numbers, and the same
# gradients, from four times as many.) CoPreFL (appendix D.4) and CyclicFL (section IV.A) give no
# widths but LeNet-5's; those of femnist-cnn-linear are LEAF's, the others ours.


def _small_network(
    channels: tuple[int, int],
    hidden: tuple[int, ...],
    num_classes: int,
    image_shape: _Shape,
    *,
    kernel: int,
    padding: int = 0,
    dropout: float = 0.0,
) -> nn.Module:
    """Return convolutions of `channels`, and linear layers of `hidden` units and of the classes."""
    units = (*hidden, num_classes)
    layers: dict[str, nn.Module] = {}
    width, *sides = image_shape
    for number, out in enumerate(channels, start=1):
        layers[f"conv{number}"] = nn.Conv2d(width, out, kernel, padding=padding)
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        width, sides = out, [(side + 2 * padding - kernel + 1) // 2 for side in sides]
    layers["flatten"] = nn.Flatten()
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    width *= sides[0] * sides[1]
    for number, out in enumerate(units, start=1):
        layers[f"fc{number}" if len(units) > 1 else "fc"] = nn.Linear(width, out)
        if number < len(units):
            layers[f"relu{len(channels) + number}"] = nn.ReLU(inplace=True)
        width = out
    return nn.Sequential(OrderedDict(layers))


SMALL = {
    # CyclicFL's LeNet-5, and its Fashion-MNIST network, with dropout of half the features.
    "lenet5": partial(_small_network, (6, 16), (120, 84), kernel=5),
    "fashion-mnist-cnn": partial(_small_network, (10, 20), (50,), kernel=5, dropout=0.5),
    # CoPreFL's FEMNIST network, of two linear layers, and CyclicFL's, of one.
    "femnist-cnn": partial(_small_network, (32, 64), (128,), kernel=3, padding=1),
    "femnist-cnn-linear": partial(_small_network, (32, 64), (), kernel=5, padding=2),
}
"""The small networks by name, each a function of (num_classes, image_shape)."""

_Norm = Callable[[int], nn.Module]


def _group_norm(channels: int) -> nn.Module:
    """Return group normalisation in groups of 16 channels (Wu & He 2018); it has no buffers."""
    return nn.GroupNorm(channels // 16, channels)


NORMS: dict[str, _Norm] = {"batch": nn.BatchNorm2d, "group": _group_norm}


def resnet18(num_classes: int, image_shape: tuple[int, ...], norm: str) -> nn.Module:
    """Return torchvision's ResNet-18 with the CIFAR stem.

    The first convolution is 3x3 with stride 1 and no pooling follows it: ImageNet's stem would
    leave a 32-pixel image 8 pixels wide before the first block.
    """
    from torchvision import models

    model: nn.Module = models.resnet18(num_classes=num_classes, norm_layer=NORMS[norm])
    model.conv1 = nn.Conv2d(image_shape[0], 64, kernel_size=3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    _init_convolution(model.conv1)
    return model


def resnet8(num_classes: int, image_shape: tuple[int, ...], norm: str) -> nn.Module:
    """Return CyclicFL's ResNet-8: a 3x3 stem and three basic blocks of 16, 32 and 64 channels.

    Layers are named as in torchvision's ResNets.
    """
    from torchvision.models.resnet import BasicBlock

    norm_layer = NORMS[norm]
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(image_shape[0], 16, kernel_size=3, padding=1, bias=False),
        "bn1": norm_layer(16),
        "relu": nn.ReLU(inplace=True),
        "layer1": BasicBlock(16, 16, norm_layer=norm_layer),
        "layer2": _halving_block(16, 32, norm_layer),
        "layer3": _halving_block(32, 64, norm_layer),
        "avgpool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(64, num_classes),
    }
    model = nn.Sequential(OrderedDict(layers))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            _init_convolution(module)
    return model


def _halving_block(inputs: int, outputs: int, norm: _Norm) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, kernel_size=1, stride=2, bias=False)
    shortcut = nn.Sequential(convolution, norm(outputs))
    from torchvision.models.resnet import BasicBlock

    block: nn.Module = BasicBlock(inputs, outputs, 2, shortcut, norm_layer=norm)
    return block


def _init_convolution(convolution: nn.Conv2d) -> None:
    # As torchvision's ResNet does; the convolutions made here are not initialised by it.
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")


class CharLSTM(nn.Module):
    """CyclicFL's CharLSTM-256, which predicts the next character.

    The paper gives only the 256 units; the rest is as in LEAF (Caldas et al. 2018). Takes
    int64 (batch, length), positions in `CHARACTERS`, gives (batch, num_classes) logits. There is an
    embedding for every character whatever `num_classes` is, so the linear layer is the head.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.fc = nn.Linear(256, num_classes)

    def forward(self, text: Tensor) -> Tensor:
        """Return logits (batch, num_classes)."""
        outputs, _ = self.lstm(self.embedding(text))
        logits: Tensor = self.fc(outputs[:, -1])
        return logits


@contextmanager
def seeded(key: tuple[str | int, ...]) -> Iterator[None]:
    """Draw weights on the CPU as a function of `key`, and leave the random state as it was."""
    # Not torch.manual_seed: it would also seed the caller's GPUs, which are not forked here.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seeds.integer(*key))
        yield


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
