"""Small convolutional networks without normalisation.

All have two convolutions, 2x2 max-pooling and ReLU after each, and then linear layers. (ReLU before
pooling gives the same numbers, and the same gradients, from four times as many.) They take
(batch, channels, height, width) float32 and give (batch, num_classes) logits. CoPreFL (appendix
D.4) and CyclicFL (section IV.A) give no widths but LeNet-5's; the others are ours or LEAF's.
"""

from collections import OrderedDict

from torch import nn

_Shape = tuple[int, ...]


def lenet5(num_classes: int, image_shape: _Shape) -> nn.Module:
    """Return LeNet-5 as in CyclicFL."""
    return _network(image_shape, (6, 16), (120, 84, num_classes), kernel=5)


def femnist_cnn(num_classes: int, image_shape: _Shape) -> nn.Module:
    """Return CoPreFL's FEMNIST network, of two linear layers; the widths are ours."""
    return _network(image_shape, (32, 64), (128, num_classes), kernel=3, padding=1)


def femnist_cnn_linear(num_classes: int, image_shape: _Shape) -> nn.Module:
    """Return CyclicFL's FEMNIST network, of one linear layer; the widths are LEAF's."""
    return _network(image_shape, (32, 64), (num_classes,), kernel=5, padding=2)


def fashion_mnist_cnn(num_classes: int, image_shape: _Shape) -> nn.Module:
    """Return CyclicFL's Fashion-MNIST network, with dropout of half the features; widths ours."""
    return _network(image_shape, (10, 20), (50, num_classes), kernel=5, dropout=0.5)


def _network(
    image_shape: _Shape,
    channels: tuple[int, int],
    units: tuple[int, ...],
    *,
    kernel: int,
    padding: int = 0,
    dropout: float = 0.0,
) -> nn.Module:
    """Return convolutions of `channels` and linear layers of `units`; the last ones are classes."""
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
