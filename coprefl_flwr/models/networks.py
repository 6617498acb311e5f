"""The papers' networks: small CNNs, ResNets, an LSTM for text, and layers on top of backbones.

Networks for images take float32 (batch, channels, height, width). All networks except the
projection head return logits (batch, num_classes).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from coprefl_flwr import seeds
from coprefl_flwr.data import CHARACTERS
from coprefl_flwr.seeds import Key

# Small convolutional networks without normalisation have two convolutions, each followed by 2x2
# max-pooling and ReLU, and then linear layers. (ReLU before pooling would give the same values and
# gradients, but computes on four times as many values.) CoPreFL (appendix D.4) and CyclicFL
# (section IV.A) give no widths except for LeNet-5. The widths of femnist-cnn-linear are from LEAF;
# the other widths are our choice.


def _small_network(
    channels: tuple[int, int],
    hidden: tuple[int, ...],
    num_classes: int,
    image_shape: tuple[int, ...],
    *,
    kernel: int,
    padding: int = 0,
    dropout: float = 0.0,
) -> nn.Module:
    """Return convolutions with `channels`, and linear layers with `hidden` and output units."""
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
    # CyclicFL's LeNet-5 and its Fashion-MNIST network, which has dropout with probability 0.5.
    "lenet5": partial(_small_network, (6, 16), (120, 84), kernel=5),
    "fashion-mnist-cnn": partial(_small_network, (10, 20), (50,), kernel=5, dropout=0.5),
    # CoPreFL's FEMNIST network has two linear layers, and CyclicFL's has one.
    "femnist-cnn": partial(_small_network, (32, 64), (128,), kernel=3, padding=1),
    "femnist-cnn-linear": partial(_small_network, (32, 64), (), kernel=5, padding=2),
}
"""{name of a small network: function of (num_classes, image_shape) that returns the network}"""


def _group_norm(channels: int) -> nn.Module:
    """Return GroupNorm with groups of 16 channels (Wu & He 2018); this layer has no buffers."""
    return nn.GroupNorm(channels // 16, channels)


NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm2d, "group": _group_norm}


def resnet18(num_classes: int, image_shape: tuple[int, ...], norm: str) -> nn.Module:
    """Return torchvision's ResNet-18 with the stem that is usual for CIFAR.

    The first convolution is 3x3 with stride 1, without pooling after it. ImageNet's stem would
    reduce an image from 32 x 32 to 8 x 8 pixels before the first block.
    """
    from torchvision import models

    model: nn.Module = models.resnet18(num_classes=num_classes, norm_layer=NORMS[norm])
    model.conv1 = nn.Conv2d(image_shape[0], 64, kernel_size=3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    _init_convolution(model.conv1)
    return model


def resnet8(num_classes: int, image_shape: tuple[int, ...], norm: str) -> nn.Module:
    """Return CyclicFL's ResNet-8: a 3x3 stem and three basic blocks of 16, 32 and 64 channels.

    The layers have the same names as in torchvision's ResNets.
    """
    from torchvision.models.resnet import BasicBlock

    norm_layer = NORMS[norm]

    def halving_block(inputs: int, outputs: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, kernel_size=1, stride=2, bias=False)
        shortcut = nn.Sequential(convolution, norm_layer(outputs))
        block: nn.Module = BasicBlock(inputs, outputs, 2, shortcut, norm_layer=norm_layer)
        return block

    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(image_shape[0], 16, kernel_size=3, padding=1, bias=False),
        "bn1": norm_layer(16),
        "relu": nn.ReLU(inplace=True),
        "layer1": BasicBlock(16, 16, norm_layer=norm_layer),
        "layer2": halving_block(16, 32),
        "layer3": halving_block(32, 64),
        "avgpool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(64, num_classes),
    }
    model = nn.Sequential(OrderedDict(layers))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            _init_convolution(module)
    return model


def _init_convolution(convolution: nn.Conv2d) -> None:
    # The same initialisation as in torchvision's ResNet, which does not initialise the convolutions
    # that are created in this file.
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")


class CharLSTM(nn.Module):
    """CyclicFL's CharLSTM-256, which predicts the next character.

    The paper gives only the number of units, 256; the rest is as in LEAF (Caldas et al. 2018). The
    input is int64 (batch, length), indices in `CHARACTERS`; the output is logits (batch,
    num_classes). The embedding has all `CHARACTERS` for any `num_classes`, so only the linear layer
    depends on `num_classes` and is the head.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.fc = nn.Linear(256, num_classes)

    def forward(self, text: Tensor) -> Tensor:
        """Return logits (batch, num_classes) of the character after each text (batch, length)."""
        outputs, _ = self.lstm(self.embedding(text))
        logits: Tensor = self.fc(outputs[:, -1])
        return logits


@contextmanager
def seeded(key: Key) -> Iterator[None]:
    """Seed torch's CPU generator by `key`, for initial weights, and restore its state at the end.

    Modules that are created in this context are on the CPU.
    """
    # torch.manual_seed would also seed the caller's GPUs, whose state is not restored here.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seeds.integer(*key))
        yield


WIDTH = 256
"""Dimension of a fused representation z (FedPCL, section 5.1)."""


def projection_head(features: int, norm: str = "batch", seed_key: Key = ("head",)) -> nn.Module:
    """Return FedPCL's projection head: FC(features, 256), ReLU, and BN(256) if `norm` is "batch".

    This is the first layer in Table 7 of FedPCL (appendix A.1.3), which the baselines use too
    (section 5.1). The authors' code reportedly has no BatchNorm here: set `norm` to "none" for
    that. The initial weights depend only on `seed_key`. The input is float32 (b, features). The
    output is z, (b, 256), which the client scales to l2 norm 1. Before the first training step, the
    running mean is 0 and the running variance is 1, so in eval mode z is the same as without
    BatchNorm.
    """
    with seeded(seed_key):
        return nn.Sequential(OrderedDict(_projection(features, norm)))


def lightweight_model(
    features: int, num_classes: int, norm: str = "batch", seed_key: Key = ("model",)
) -> nn.Module:
    """Return the network of FedPCL's baselines: the projection head, and FC(256, num_classes).

    See Table 7 of FedPCL. The input is float32 (b, features); the output is logits (b,
    num_classes). `norm` and `seed_key` are as in `projection_head`.
    """
    with seeded(seed_key):
        layers = _projection(features, norm)
        return nn.Sequential(OrderedDict(layers | {"classifier": nn.Linear(WIDTH, num_classes)}))


def _projection(features: int, norm: str) -> dict[str, nn.Module]:
    layers: dict[str, nn.Module] = {"projection": nn.Linear(features, WIDTH), "relu": nn.ReLU()}
    return layers | ({"norm": nn.BatchNorm1d(WIDTH)} if norm == "batch" else {})
