"""ResNets for small images (He et al. 2016), with batch or group normalisation.

They take (batch, channels, height, width) float32 and give (batch, num_classes) logits.
"""

from collections import OrderedDict
from collections.abc import Callable

import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock

_Norm = Callable[[int], nn.Module]


def _group_norm(channels: int) -> nn.Module:
    """Return group normalisation in groups of 16 channels (Wu & He 2018); it has no buffers."""
    return nn.GroupNorm(channels // 16, channels)


_NORMS: dict[str, _Norm] = {"batch": nn.BatchNorm2d, "group": _group_norm}


def resnet18(num_classes: int, image_shape: tuple[int, ...], norm: str) -> nn.Module:
    """Return torchvision's ResNet-18 with the CIFAR stem.

    The first convolution is 3x3 with stride 1 and no pooling follows it: ImageNet's stem would
    leave a 32-pixel image 8 pixels wide before the first block.
    """
    model: nn.Module = torchvision.models.resnet18(num_classes=num_classes, norm_layer=_NORMS[norm])
    model.conv1 = nn.Conv2d(image_shape[0], 64, kernel_size=3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    _init_convolution(model.conv1)
    return model


def resnet8(num_classes: int, image_shape: tuple[int, ...], norm: str) -> nn.Module:
    """Return CyclicFL's ResNet-8: a 3x3 stem and three basic blocks of 16, 32 and 64 channels.

    Layers are named as in torchvision's ResNets.
    """
    norm_layer = _NORMS[norm]
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
    block: nn.Module = BasicBlock(inputs, outputs, 2, shortcut, norm_layer=norm)
    return block


def _init_convolution(convolution: nn.Conv2d) -> None:
    # As torchvision's ResNet does; the convolutions made here are not initialised by it.
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
