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
    features = 16 * _unpadded_side(height) * _unpadded_side(width)
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


def femnist_cnn_linear(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """Return CyclicFL's FEMNIST network: two convolutional layers and one linear layer.

    The paper (section IV.A) gives no widths; ours are those of LEAF's FEMNIST network, 5x5
    convolutions of 32 and 64 channels with padding 2, ReLU and 2x2 max-pooling after each. Takes
    (batch, channels, height, width) float32, gives (batch, num_classes) logits.
    """
    channels, height, width = image_shape
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, 32, kernel_size=5, padding=2),
        "relu1": nn.ReLU(inplace=True),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(32, 64, kernel_size=5, padding=2),
        "relu2": nn.ReLU(inplace=True),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(64 * (height // 4) * (width // 4), num_classes),
    }
    return nn.Sequential(OrderedDict(layers))


def fashion_mnist_cnn(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """Return CyclicFL's Fashion-MNIST network: two convolutional, a dropout, two linear layers.

    The paper (section IV.A) gives no widths; ours are 5x5 convolutions of 10 and 20 channels
    without padding, ReLU and 2x2 max-pooling after each, dropout of half the features, and 50
    units. Takes (batch, channels, height, width) float32, gives (batch, num_classes) logits.
    """
    channels, height, width = image_shape
    features = 20 * _unpadded_side(height) * _unpadded_side(width)
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, 10, kernel_size=5),
        "relu1": nn.ReLU(inplace=True),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(10, 20, kernel_size=5),
        "relu2": nn.ReLU(inplace=True),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "dropout": nn.Dropout(0.5),
        "fc1": nn.Linear(features, 50),
        "relu3": nn.ReLU(inplace=True),
        "fc2": nn.Linear(50, num_classes),
    }
    return nn.Sequential(OrderedDict(layers))


def _unpadded_side(pixels: int) -> int:
    """Return what two unpadded 5x5 convolutions, each pooled 2x2, leave of a side."""
    return ((pixels - 4) // 2 - 4) // 2
