"""Frozen networks that turn images into features: torchvision's, or models of this package.

A backbone's features are what enters the linear layer it calls last; how many there are is read
from the network.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from coprefl_flwr import plugins
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError, short, unknown
from coprefl_flwr.files import expanded
from coprefl_flwr.models.arrays import as_array, load_arrays
from coprefl_flwr.models.build import MODELS, build_model, shapes_of
from coprefl_flwr.models.heads import outputs_and_representation
from coprefl_flwr.models.precision import FLOAT32, computing
from coprefl_flwr.models.weights import WEIGHTS, load_saved_model, read_tensors

LUMA = (0.299, 0.587, 0.114)
"""How much red, green and blue count in grey (ITU-R BT.601)."""

LARGEST_SIDE = 512
"""The most pixels of a side that a model.json may say: a ResNet's weights fit images of any size,
and what it computes of one takes memory by the pixel."""

_FORMS = (
    "a path is the folder or model.safetensors of a model this package made; resnet18=FILE has "
    "your own weights"
)


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network and the images it was trained on.

    The network is in eval mode, its parameters without gradients. `shape` is (channels, height,
    width) of its images, 1 or 3 channels, and `mean` and `std`, float32 (channels,), are theirs,
    from 0 to 1. A feature has `size` numbers.
    """

    network: nn.Module
    shape: tuple[int, int, int]
    mean: Tensor
    std: Tensor
    size: int

    @classmethod
    def of(cls, network: nn.Module, shape: Sequence[int], mean: Any, std: Any) -> "Backbone":
        """Freeze a network, and find the size of its features with an empty image."""
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise SettingsError(f"takes {tuple(shape)}; images of 1 or 3 channels are needed")
        network.eval().requires_grad_(False)
        with torch.no_grad():
            _, features = outputs_and_representation(network, torch.zeros(1, *shape))
        channels, height, width = shape
        return cls(
            network,
            (channels, height, width),
            torch.as_tensor(mean, dtype=torch.float32),
            torch.as_tensor(std, dtype=torch.float32),
            features.shape[1],
        )

    @torch.no_grad()
    def features(self, images: Tensor, precision: str = FLOAT32) -> Tensor:
        """Return the features, float32 (b, size), of images from 0 to 1, (b, C, H, W)."""
        device = images.device
        mean, std = (values.to(device)[:, None, None] for values in (self.mean, self.std))
        inputs = (fitted(images, self.shape) - mean) / std
        with computing(self.network.to(device), precision):
            _, features = outputs_and_representation(self.network, inputs)
        return features


def fitted(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return images, (b, C, H, W), in another number of channels, 1 or 3, and another size."""
    channels, *size = shape
    if images.shape[1] == 3 and channels == 1:
        images = (images * torch.tensor(LUMA, device=images.device)[:, None, None]).sum(1, True)
    elif images.shape[1] == 1 and channels == 3:
        images = images.expand(-1, 3, -1, -1)
    elif images.shape[1] != channels:
        raise SettingsError(f"images have {images.shape[1]} channels; allowed are 1 and 3")
    if list(images.shape[2:]) == size:
        return images
    return interpolate(images, size=size, mode="bilinear", antialias=True)


def load_backbone(name: str, weights: bool = True) -> Backbone:
    """Return the frozen network that `name` means.

    "resnet18" is a torchvision model with the weights torchvision has for it, downloaded where they
    are missing; "resnet18=FILE" has those of a file (.pth, .pt or .safetensors), whose images are
    taken to be of the size and normalisation of torchvision's; and a path is that of a model that
    `save_model` wrote, its folder or the file in it. Without `weights` those of
    torchvision are random, and need no file. Raises a SettingsError if the name is unknown, or its
    weights cannot be loaded or are another network's.
    """
    try:
        return Backbone.of(*_network_and_images(name, weights))
    except SettingsError as error:
        raise SettingsError(f"backbone '{name}': {error}", "backbones") from error


def _network_and_images(name: str, weights: bool) -> tuple[nn.Module, Sequence[int], Any, Any]:
    """Return a network, and the shape, mean and std of the images that it was trained on."""
    architecture, equals, file = name.partition("=")
    path = expanded(name)
    if not equals and (path.exists() or len(path.parts) > 1):
        return _saved(path)
    # torchvision takes two seconds to import.
    from torchvision import models

    known = models.list_models(module=models)
    if architecture not in known:
        raise SettingsError(f"{unknown('network', architecture, known)} ({_FORMS})")
    trained = models.get_model_weights(architecture).DEFAULT
    preprocessing = trained.transforms()
    input_format = (3, *(preprocessing.crop_size * 2)[:2]), preprocessing.mean, preprocessing.std
    if not weights:
        return models.get_model(architecture), *input_format
    if equals:
        return _from_file(architecture, expanded(file)), *input_format
    try:
        return models.get_model(name, weights=trained), *input_format
    except OSError as error:
        by_hand = f"put {trained.url} into {torch.hub.get_dir()}/checkpoints, or write {name}=FILE"
        why = f"its weights could not be downloaded ({error}); {by_hand}"
        raise SettingsError(why) from error


def _saved(path: Path) -> tuple[nn.Module, Sequence[int], Any, Any]:
    """Return a model of this package's, by its folder or the weights in it."""
    if path.is_file() and path.name != WEIGHTS:
        raise SettingsError(f"a file {path.name}; {_FORMS}")
    arrays, about = load_saved_model(path.parent if path.name == WEIGHTS else path)
    for key in ("model", "num-classes", "input-shape", "norm", "pixel-mean", "pixel-std"):
        if key not in about:
            why = ": it was not trained on images" if key.startswith("pixel") else ""
            raise SettingsError(f"its model.json has no {key}{why}")
    _check_about(about, arrays)
    shape = tuple(about["input-shape"])
    network = build_model(about["model"], about["num-classes"], shape, about["norm"])
    load_arrays(network, arrays)
    return network, shape, about["pixel-mean"], about["pixel-std"]


def _check_about(about: dict[str, Any], arrays: Arrays) -> None:
    """Raise a SettingsError for a model.json that names code, or sizes that its weights have not.

    The folder's maker could otherwise run programs here, or take all memory.
    """
    model, classes, shape = about["model"], about["num-classes"], about["input-shape"]
    own = ("model", str(model)) in plugins.REGISTERED or plugins.is_listed(str(model))
    if not isinstance(model, str) or not (model in MODELS or own):
        why = f"its model.json names the code {short(model)!r}; allowed are {', '.join(MODELS)}"
        raise SettingsError(f"{why}, and what {plugins.VARIABLE} lists")
    listed = isinstance(shape, list) and 1 <= len(shape) <= 3
    if not listed or not all(type(side) is int and 1 <= side <= LARGEST_SIDE for side in shape):
        why = f"its model.json has input-shape {short(shape)}"
        raise SettingsError(f"{why}; allowed are 1 to 3 whole numbers up to {LARGEST_SIDE}")
    known = type(classes) is int and any(array.shape[:1] == (classes,) for array in arrays.values())
    if not known:
        raise SettingsError(
            f"its model.json has {short(classes)} classes, but its weights have another number"
        )
    if not isinstance(about["norm"], str):
        raise SettingsError(f"its model.json has norm {short(about['norm'])}; it must be a text")
    if model in MODELS and not own:
        shapes = shapes_of(model, classes, tuple(shape), about["norm"])
        for name, expected in shapes.items():
            if name in arrays and (actual := arrays[name].shape) != expected:
                why = f"{name!r} is {actual}, and by its model.json would be {expected}"
                raise SettingsError(why)
    for key, least in (("pixel-mean", -math.inf), ("pixel-std", 0)):
        if not _are_numbers(about[key], shape[0], least):
            why = f"its model.json has {key} {short(about[key])}"
            raise SettingsError(f"{why}; allowed is a number above {least:g} for each channel")


def _are_numbers(values: Any, channels: int, least: float) -> bool:
    """Tell whether something is a list of a number above `least` for each channel, or for all."""
    listed = isinstance(values, list) and len(values) in (1, channels)
    return listed and all(type(value) in (int, float) and least < value < 1e30 for value in values)


def _from_file(architecture: str, path: Path) -> nn.Module:
    """Return a torchvision model with the weights of a file, and as many classes as these have."""
    from torchvision import models

    if not path.is_file():
        raise SettingsError(f"there is no file {path}")
    tensors = read_tensors(path)
    with torch.device("meta"):
        layers = models.get_model(architecture, weights=None).named_modules()
    linear = [layer for layer, module in layers if isinstance(module, nn.Linear)]
    if not linear:
        raise SettingsError(f"{architecture} has no nn.Linear, so no features")
    head = f"{linear[-1]}.weight"
    if head not in tensors:
        raise SettingsError(f"the file has no array '{head}'")
    # An expanded one says more rows than the file has numbers for.
    if tensors[head].ndim != 2 or 0 in tensors[head].stride():
        raise SettingsError(f"the file's array '{head}' is no matrix (classes, features)")
    network: nn.Module = models.get_model(
        architecture, weights=None, num_classes=len(tensors[head])
    )
    load_arrays(network, {n: as_array(tensor, n) for n, tensor in tensors.items()})
    return network
