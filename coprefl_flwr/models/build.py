"""A model from its name: one of the papers' networks, or a function of the user's own."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from coprefl_flwr import seeds
from coprefl_flwr.errors import SettingsError, concerning
from coprefl_flwr.models.recurrent import CharLSTM
from coprefl_flwr.models.small import fashion_mnist_cnn, femnist_cnn, femnist_cnn_linear, lenet5
from coprefl_flwr.options import unknown

NORMS = ("batch", "group")
# The smallest height and width, in pixels, that leave a feature map of at least one pixel.
SMALLEST_SIDE = {
    "resnet18": 8,
    "resnet8": 4,
    "lenet5": 16,
    "fashion-mnist-cnn": 16,
    "femnist-cnn": 4,
    "femnist-cnn-linear": 4,
}
TEXT_MODEL = "char-lstm"
_SMALL = {
    "lenet5": lenet5,
    "fashion-mnist-cnn": fashion_mnist_cnn,
    "femnist-cnn": femnist_cnn,
    "femnist-cnn-linear": femnist_cnn_linear,
}


def build_model(
    name: str,
    num_classes: int,
    input_shape: tuple[int, ...],
    norm: str = "batch",
    seed_key: tuple[str | int, ...] = ("model",),
) -> nn.Module:
    """Return the network called `name`, on the CPU, with weights that depend on `seed_key` alone.

    The caller's random state is left as it was. Raises a SettingsError if the name is unknown, or a
    value cannot be used with that network.

    Parameters
    ----------
    name : "resnet18", "resnet8", "lenet5", "fashion-mnist-cnn", "femnist-cnn",
        "femnist-cnn-linear", "char-lstm", or "module:function" for a user's own model: the function
        is called with `num_classes`, returns a `torch.nn.Module`, and draws its weights from
        torch's generator
    num_classes : number of outputs, at least 2
    input_shape : (channels, height, width) of one image, or (length,) of one text, as a `Dataset`
        has it; not used for a user's own model
    norm : "batch" or "group"; only the ResNets take notice of it
    """
    if num_classes < 2:
        raise SettingsError(f"number of classes is {num_classes}; it must be at least 2")
    if norm not in NORMS:
        raise SettingsError(unknown("norm", norm, NORMS), "norm")
    with seeded(seed_key):
        if ":" in name:
            return _own_model(name, num_classes)
        return _known_model(name, num_classes, input_shape, norm)


@contextmanager
def seeded(key: tuple[str | int, ...]) -> Iterator[None]:
    """Draw weights on the CPU as a function of `key`, and leave the random state as it was."""
    # Not torch.manual_seed: it would also seed the caller's GPUs, which are not forked here.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seeds.integer(*key))
        yield


@concerning("model")
def head_names(
    name: str, num_classes: int, input_shape: tuple[int, ...], norm: str
) -> frozenset[str]:
    """Return the names in `state_dict()` whose shapes depend on the number of classes.

    This is the layer that a downstream task replaces. It is found by building the model for two
    numbers of classes, so it holds for a user's own model too.

    Raises a SettingsError if no shape depends on the number of classes, or the names themselves do.
    """
    shapes, others = (
        {array: tensor.shape for array, tensor in model.state_dict().items()}
        for model in (
            build_model(name, n, input_shape, norm) for n in (num_classes, num_classes + 1)
        )
    )
    differing = sorted(shapes.keys() ^ others.keys())
    if differing:
        raise SettingsError(
            f"model {name!r} has other arrays for {num_classes} than for {num_classes + 1} "
            f"classes (first: {differing[0]!r}); only their shapes may differ",
            "model",
        )
    head = frozenset(array for array in shapes if shapes[array] != others[array])
    if not head:
        raise SettingsError(
            f"model {name!r} has no array whose shape depends on the number of classes; "
            "one is needed as the head that a downstream task replaces",
            "model",
        )
    return head


def _known_model(name: str, num_classes: int, input_shape: tuple[int, ...], norm: str) -> nn.Module:
    known = (*SMALLEST_SIDE, TEXT_MODEL)
    if name not in known:
        line = unknown("model", name, known)
        raise SettingsError(f"{line} (a model of your own is module:function)", "model")
    _check_shape(name, input_shape)
    if name == TEXT_MODEL:
        return CharLSTM(num_classes)
    if name in _SMALL:
        return _SMALL[name](num_classes, input_shape)
    # torchvision takes two seconds to import, which in a deployment every message would pay.
    from coprefl_flwr.models.resnet import resnet8, resnet18

    residual = {"resnet8": resnet8, "resnet18": resnet18}
    return residual[name](num_classes, input_shape, norm)


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if name == TEXT_MODEL:
        fits = len(shape) == 1 and shape[0] >= 1
        takes = "(length,), a text of at least 1 character; models of images are "
        takes += ", ".join(SMALLEST_SIDE)
    else:
        side = SMALLEST_SIDE[name]
        fits = len(shape) == 3 and shape[0] >= 1 and min(shape[1:]) >= side
        takes = "(channels, height, width), an image with at least 1 channel and "
        takes += f"{side} x {side} pixels; for text there is {TEXT_MODEL}"
    if not fits:
        raise SettingsError(f"input shape is {shape}; {name} takes {takes}", "model")


def _own_model(name: str, num_classes: int) -> nn.Module:
    def refused(why: str) -> SettingsError:
        return SettingsError(f"model is {name!r}; {why}", "model")

    module_name, _, function_name = name.partition(":")
    if not function_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise refused("your own model is written module:function")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise refused(f"module {module_name!r} cannot be imported: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        public = [key for key, one in vars(module).items() if callable(one) and key[0] != "_"]
        raise refused(f"module {module_name!r}: {unknown('function', function_name, public)}")
    called = f"{function_name}({num_classes})"
    try:
        model = function(num_classes)
    except TypeError as error:
        raise refused(f"{called} failed: {error}") from error
    if not isinstance(model, nn.Module):
        raise refused(f"{called} must return a torch.nn.Module, not {type(model).__name__}")
    return model
