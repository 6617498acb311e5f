"""Small convolutional networks without normalisation."""

from collections import OrderedDict

from torch import nn


def lenet5(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """Return LeNet-5 as in CyclicFL: two convolutional and three fully connected layers.

    5x5 convolutions of 6 and 16 channels without padding, ReLU and 2x2 max-pooling after each,
    then 120 and 84 units. Takes (batch, channels, height, width) float32, gives
    (batch, num_classes) logits.
    """
    channels, height, width = image_shape
    features = 16 * _lenet5_side(height) * _lenet5_side(width)
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, 6, kernel_size=5),
        "relu1": nn.ReLU(inplace=True),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(6, 16, kernel_size=5),
        "relu2": nn.ReLU(inplace=True),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(features, 120),
        "relu3": nn.ReLU(inplace=True),
        "fc2": nn.Linear(120, 84),
        "relu4": nn.ReLU(inplace=True),
        "fc3": nn.Linear(84, num_classes),
    }
    return nn.Sequential(OrderedDict(layers))


def femnist_cnn(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """Return CoPreFL's FEMNIST network: two 3x3 convolutional and two linear layers.

    The paper (appendix D.4) gives no widths; ours are 32 and 64 channels with padding 1, ReLU and
    2x2 max-pooling after each, and 128 units. Takes (batch, channels, height, width) float32,
    gives (batch, num_classes) logits.
    """
    channels, height, width = image_shape
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, 32, kernel_size=3, padding=1),
        "relu1": nn.ReLU(inplace=True),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(32, 64, kernel_size=3, padding=1),
        "relu2": nn.ReLU(inplace=True),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(64 * (height // 4) * (width // 4), 128),
        "relu3": nn.ReLU(inplace=True),
        "fc2": nn.Linear(128, num_classes),
    }
    return nn.Sequential(OrderedDict(layers))


def _lenet5_side(pixels: int) -> int:
    return ((pixels - 4) // 2 - 4) // 2
