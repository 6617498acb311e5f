"""A model from its name: one of the papers' networks, or a function of the user's own."""

import difflib
import importlib
import inspect
from collections.abc import Iterable

import torch
from torch import nn

from coprefl_flwr import seeds
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models.small import femnist_cnn, lenet5

NORMS = ("batch", "group")
# The smallest height and width, in pixels, that leave a feature map of at least one pixel.
SMALLEST_SIDE = {"resnet18": 8, "resnet8": 4, "lenet5": 16, "femnist-cnn": 4}


def build_model(
    name: str,
    num_classes: int,
    image_shape: tuple[int, int, int],
    norm: str = "batch",
    seed_key: tuple[str | int, ...] = ("model",),
) -> nn.Module:
    """Return the network called `name`, on the CPU, with weights that depend on `seed_key` alone.

    The caller's random state is left as it was.

    Parameters
    ----------
    name : str
        "resnet18", "resnet8", "lenet5", "femnist-cnn", or "module:function" for a user's own
        model: the function is called with `num_classes`, returns a `torch.nn.Module`, and draws
        its weights from torch's generator.
    num_classes : int
        Number of outputs, at least 2.
    image_shape : tuple[int, int, int]
        (channels, height, width) of one image; not used for a user's own model.
    norm : str
        "batch" or "group"; LeNet-5, the FEMNIST CNN and a user's own model take no notice of it.
    seed_key : tuple[str | int, ...]
        What the initial weights are a function of.

    Raises
    ------
    SettingsError
        If the name is unknown, or a value cannot be used with that network.
    """
    if num_classes < 2:
        raise SettingsError(f"number of classes is {num_classes}; it must be at least 2")
    if norm not in NORMS:
        raise SettingsError(
            f"norm is {norm!r}; it must be one of {', '.join(NORMS)}{_nearest(norm, NORMS)}"
        )
    # Not torch.manual_seed: it would also seed the caller's GPUs, which are not forked here.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seeds.integer(*seed_key))
        if ":" in name:
            return _own_model(name, num_classes)
        return _known_model(name, num_classes, image_shape, norm)


def head_names(
    name: str, num_classes: int, image_shape: tuple[int, int, int], norm: str
) -> frozenset[str]:
    """Return the names in `state_dict()` whose shapes depend on the number of classes.

    This is the layer that a downstream task replaces. It is found by building the model for two
    numbers of classes, so it holds for a user's own model too.

    Raises
    ------
    SettingsError
        If no shape depends on the number of classes, or the names themselves do.
    """
    shapes = _shapes(build_model(name, num_classes, image_shape, norm))
    others = _shapes(build_model(name, num_classes + 1, image_shape, norm))
    differing = sorted(shapes.keys() ^ others.keys())
    if differing:
        raise SettingsError(
            f"model {name!r} has other arrays for {num_classes} than for {num_classes + 1} "
            f"classes (first: {differing[0]!r}); only their shapes may differ"
        )
    head = frozenset(array for array in shapes if shapes[array] != others[array])
    if not head:
        raise SettingsError(
            f"model {name!r} has no array whose shape depends on the number of classes; "
            "one is needed as the head that a downstream task replaces"
        )
    return head


def _known_model(
    name: str, num_classes: int, image_shape: tuple[int, int, int], norm: str
) -> nn.Module:
    if name not in SMALLEST_SIDE:
        raise SettingsError(
            f"model is {name!r}; it must be one of {', '.join(SMALLEST_SIDE)}, or "
            f"module:function for your own{_nearest(name, SMALLEST_SIDE)}"
        )
    _check_image_shape(name, image_shape)
    if name == "lenet5":
        return lenet5(num_classes, image_shape)
    if name == "femnist-cnn":
        return femnist_cnn(num_classes, image_shape)
    # torchvision takes two seconds to import, which in a deployment every message would pay.
    from coprefl_flwr.models.resnet import resnet8, resnet18

    network = {"resnet8": resnet8, "resnet18": resnet18}[name]
    return network(num_classes, image_shape, norm)


def _check_image_shape(name: str, image_shape: tuple[int, int, int]) -> None:
    smallest = SMALLEST_SIDE[name]
    if len(image_shape) != 3 or image_shape[0] < 1 or min(image_shape[1:]) < smallest:
        raise SettingsError(
            f"image shape is {image_shape}; {name} takes (channels, height, width) with at "
            f"least 1 channel and {smallest} x {smallest} pixels"
        )


def _own_model(name: str, num_classes: int) -> nn.Module:
    module_name, _, function_name = name.partition(":")
    if not function_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise SettingsError(f"model is {name!r}; your own model is written module:function")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise SettingsError(
            f"model is {name!r}; module {module_name!r} cannot be imported: {error}"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [key for key, _ in inspect.getmembers(module, callable) if key[0] != "_"]
        raise SettingsError(
            f"model is {name!r}; module {module_name!r} has no function {function_name!r}"
            f"{_nearest(function_name, functions)}"
        )
    try:
        model = function(num_classes)
    except TypeError as error:
        raise SettingsError(
            f"model is {name!r}; {function_name}({num_classes}) failed: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise SettingsError(
            f"model is {name!r}; {function_name}({num_classes}) must return a torch.nn.Module, "
            f"not {type(model).__name__}"
        )
    return model


def _nearest(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"; nearest: {nearest[0]}" if nearest else ""


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}
