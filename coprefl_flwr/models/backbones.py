"""Backbones: frozen networks that turn images into features, from torchvision or this package.

The features of an image are the input of the linear layer that the network calls last. Their
dimension is found by calling the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError, check_name, excerpt, prefixed
from coprefl_flwr.files import expanded
from coprefl_flwr.models.arrays import as_array, load_arrays
from coprefl_flwr.models.build import MODELS, build_model
from coprefl_flwr.models.copies import named_as
from coprefl_flwr.models.frozen import set_trainable
from coprefl_flwr.models.heads import outputs_and_representation
from coprefl_flwr.models.precision import FLOAT32, computing
from coprefl_flwr.models.weights import WEIGHTS, load_saved_model, load_start, read_tensors

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the conversion to grey (ITU-R BT.601)."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network, with the shape and normalisation of the images it was trained on.

    The network is in eval mode, and its parameters have no gradients. `shape` is (channels, height,
    width) of an image, with 1 or 3 channels. `mean` and `std`, float32 (channels,), normalise
    images with pixels in 0..1. `size` is the dimension of an image's feature vector.
    """

    network: nn.Module
    shape: tuple[int, ...]
    mean: Tensor
    std: Tensor
    size: int

    @classmethod
    def of(cls, network: nn.Module, shape: Sequence[int], mean: Any, std: Any) -> "Backbone":
        """Freeze a network, and find the dimension of its features by a call with a black image.

        `shape`, `mean` and `std` are the attributes of the backbone. Raises a SettingsError if the
        network calls no linear layer.
        """
        network.eval().requires_grad_(False)
        with torch.no_grad():
            _, features = outputs_and_representation(network, torch.zeros(1, *shape))
        return cls(
            network,
            tuple(shape),
            torch.as_tensor(mean, dtype=torch.float32),
            torch.as_tensor(std, dtype=torch.float32),
            features.shape[1],
        )

    @torch.no_grad()
    def features(self, images: Tensor, precision: str = FLOAT32) -> Tensor:
        """Return the features, float32 (b, size), of images (b, C, H, W) with pixels in 0..1.

        Images of another size or number of channels are converted (see `fitted`). The network
        computes in `precision`.
        """
        device = images.device
        mean, std = (values.to(device)[:, None, None] for values in (self.mean, self.std))
        inputs = (fitted(images, self.shape) - mean) / std
        with computing(self.network.to(device), precision):
            _, features = outputs_and_representation(self.network, inputs)
        return features.float()


def fitted(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Convert images (b, C, H, W) to `shape`, (channels, height, width), with 1 or 3 channels.

    Colours become grey by `LUMA`, and grey becomes three equal channels. The size is changed by
    antialiased bilinear interpolation.
    """
    channels, *size = shape
    if images.shape[1] == 3 and channels == 1:
        images = (images * torch.tensor(LUMA, device=images.device)[:, None, None]).sum(1, True)
    elif images.shape[1] == 1 and channels == 3:
        images = images.expand(-1, 3, -1, -1)
    if list(images.shape[2:]) == size:
        return images
    return interpolate(images, size=size, mode="bilinear", antialias=True)


def load_backbone(name: str) -> Backbone:
    """Load a backbone by its name, which has one of three forms.

    "resnet18" is the name of a torchvision network; the weights are torchvision's default weights,
    which are downloaded if they are missing. "resnet18=FILE" is a torchvision network with the
    weights of a file (.pth, .pt or .safetensors); the images are assumed to have the size and
    normalisation of torchvision's default weights. A path is the folder of a model that
    `save_model` wrote, or the `model.safetensors` in it. Raises a SettingsError if the name is
    unknown, or if the weights cannot be loaded or do not fit the network.
    """
    with prefixed(f"backbone '{name}'", "backbones"):
        return Backbone.of(*_network_and_images(name))


def _network_and_images(name: str) -> tuple[nn.Module, Sequence[int], Any, Any]:
    """Return (network, shape of its training images, their mean, their std) for a backbone."""
    architecture, equals, file = name.partition("=")
    path = expanded(name)
    if not equals and (path.exists() or len(path.parts) > 1):
        return _saved(path)
    # Imported here, because the import of torchvision takes two seconds.
    from torchvision import models

    known = models.list_models(module=models)
    check_name("network", architecture, known)
    trained = models.get_model_weights(architecture).DEFAULT
    preprocessing = trained.transforms()
    input_format = (3, *(preprocessing.crop_size * 2)[:2]), preprocessing.mean, preprocessing.std
    if equals:
        return _from_file(architecture, expanded(file)), *input_format
    by_hand = f"download {trained.url}, and write {name}=FILE"
    with prefixed(f"its weights could not be downloaded ({by_hand})", of=OSError):
        return models.get_model(name, weights=trained), *input_format


def _saved(path: Path) -> tuple[nn.Module, Sequence[int], Any, Any]:
    """Load a model that `save_model` wrote, by its folder or the model.safetensors in it."""
    _, about = load_saved_model(path.parent if path.name == WEIGHTS else path)
    if "pixel-mean" not in about:
        raise SettingsError("its model.json has no pixel-mean: it was not trained on images")
    # Otherwise the author of the folder could run code on this machine.
    model = str(about.get("model"))
    allowed = ("model", model) in plugins.REGISTERED or plugins.is_listed(model)
    if model not in MODELS and not allowed:
        raise SettingsError(f"its network {excerpt(model, 200)}: {plugins.VARIABLE} must list it")
    shape = tuple(about["input-shape"])
    key = about.get("settings", {}).get("seed", 0), "model"  # What is frozen was drawn from it.
    network = build_model(model, about["num-classes"], shape, about["norm"], key)
    if "trainable" in about:
        set_trainable(network, about["trainable"])
    return load_start(network, path), shape, about["pixel-mean"], about["pixel-std"]


def _from_file(architecture: str, path: Path) -> nn.Module:
    """Return a torchvision network with the weights of a file and their number of classes."""
    from torchvision import models

    with torch.device("meta"):
        empty: nn.Module = models.get_model(architecture, weights=None)
    tensors = named_as(empty.state_dict().keys(), read_tensors(path))
    heads = [name for name, layer in empty.named_modules() if isinstance(layer, nn.Linear)]
    if not heads or f"{heads[-1]}.weight" not in tensors:
        raise SettingsError(f"{architecture} has no nn.Linear of which the file has the weights")
    num_classes = len(tensors[f"{heads[-1]}.weight"])
    network: nn.Module = models.get_model(architecture, weights=None, num_classes=num_classes)
    load_arrays(network, {n: as_array(tensor) for n, tensor in tensors.items()})
    return network
