"""Build a model by name: one of the papers' networks, or a user's function."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from coprefl_flwr import plugins
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError, about_settings, unknown
from coprefl_flwr.models import networks
from coprefl_flwr.models.arrays import check_weights, model_arrays
from coprefl_flwr.models.copies import unwrapped
from coprefl_flwr.models.heads import outputs_and_representation
from coprefl_flwr.models.hugging_face import HUGGING_FACE, model_in
from coprefl_flwr.models.precision import computing

RESIDUAL = {"resnet18": networks.resnet18, "resnet8": networks.resnet8}
SMALLEST_SIDE = dict(zip((*RESIDUAL, *networks.SMALL), (8, 4, 16, 16, 4, 4), strict=True))
"""{network: smallest height and width in pixels whose last feature map has at least one pixel}"""

TEXT_MODEL = "char-lstm"
MODELS = (*SMALLEST_SIDE, TEXT_MODEL)


def build_model(
    name: str,
    num_classes: int,
    input_shape: tuple[int, ...],
    norm: str = "batch",
    seed_key: tuple[str | int, ...] = ("model",),
) -> nn.Module:
    """Return the network `name` on the CPU, with initial weights that depend only on `seed_key`.

    The caller's random state does not change. Raises a SettingsError if the name is unknown, or if
    the network does not support an argument, such as the input shape.

    Parameters
    ----------
    name : "resnet18", "resnet8", "lenet5", "fashion-mnist-cnn", "femnist-cnn",
        "femnist-cnn-linear", "char-lstm", a folder of transformers, as "hf:FOLDER" (see
        `model_in`), or a user's function, as "module:NAME" or "file.py:NAME" (see `own_model`),
        which draws its weights from torch's default generator
    num_classes : number of outputs
    input_shape : (channels, height, width) of an image, or (length,) of a text, as in
        `Dataset.shape`
    norm : "batch" or "group", the normalisation of the ResNets; the other networks ignore it
    seed_key : key of the random weights
    """
    with networks.seeded(seed_key):
        if name.startswith(HUGGING_FACE):
            return model_in(name, num_classes)
        if name not in MODELS and plugins.is_place("model", name):
            return own_model(name, num_classes, input_shape)
        return _known_model(name, num_classes, input_shape, norm)


def head_of(make: Callable[[int], nn.Module], num_classes: int) -> frozenset[str]:
    """Return the head: the names of the arrays whose shapes depend on the number of classes.

    A downstream task replaces these arrays. To find the names, `make` makes the network for two
    numbers of classes, and the shapes are compared, so this works for a user's network too.
    """
    shapes, others = (
        {array: tensor.shape for array, tensor in make(number).state_dict().items()}
        for number in (num_classes, num_classes + 1)
    )
    return frozenset(array for array in shapes if shapes[array] != others.get(array))


@about_settings("model")
def head_names(
    name: str, num_classes: int, input_shape: tuple[int, ...], norm: str
) -> frozenset[str]:
    """Return the head of the network `name` (see `head_of`); a SettingsError if it has none."""
    head = head_of(lambda number: build_model(name, number, input_shape, norm), num_classes)
    if not head:
        raise SettingsError(f"model {name!r} has no array that depends on the number of classes")
    return head


def _known_model(name: str, num_classes: int, input_shape: tuple[int, ...], norm: str) -> nn.Module:
    if name not in MODELS:
        line = unknown("model", name, [*MODELS, *plugins.brought("model")])
        raise SettingsError(f"{line} (or module:NAME, path/file.py:NAME)", "model")
    _check_shape(name, input_shape)
    if name == TEXT_MODEL:
        return networks.CharLSTM(num_classes)
    if name in networks.SMALL:
        return networks.SMALL[name](num_classes, input_shape)
    return RESIDUAL[name](num_classes, input_shape, norm)


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if name == TEXT_MODEL:
        fits, takes = len(shape) == 1, "(length,), a text"
    else:
        side = SMALLEST_SIDE[name]
        fits = len(shape) == 3 and min(shape[1:]) >= side
        takes = f"(channels, height, width), an image of at least {side} x {side} pixels"
    if not fits:
        raise SettingsError(f"input shape is {shape}; {name} takes {takes}", "model")


def own_model(
    text: str, num_classes: int, input_shape: tuple[int, ...], kind: str = "model"
) -> nn.Module:
    """Return the module that a user's function returns.

    `text` is the name of the function, "module:NAME" or "file.py:NAME", and options may follow it.
    The function is called with `num_classes` and these options. If its second parameter is called
    `input_shape` or has no default, the function is given `input_shape` too. If the function has no
    positional parameters, as the functions of torchvision, `num_classes` is a keyword argument.

    Raises a SettingsError if there is no such function, if the function does not return a module,
    or if the module has lazy layers.
    """
    function = plugins.find(kind, text)
    parameters = inspect.signature(function).parameters.values()
    by_position = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if by_position:
        takes_shape = any(p.name == "input_shape" or p.default is p.empty for p in by_position[1:2])
        arguments = (num_classes, input_shape) if takes_shape else (num_classes,)
        model = plugins.call(text, function, arguments)
    else:
        model = plugins.call(text, functools.partial(function, num_classes=num_classes), ())
    if not isinstance(model, nn.Module):
        raise SettingsError(f"{text} returned {type(model).__name__}, not a torch.nn.Module", kind)
    check_weights(model, text)
    return unwrapped(model)


@dataclass(eq=False)
class Network:
    """A module with its initial weights (`arrays`).

    `name` is the module's name in error messages. `head` are the names of the arrays of the last
    layer, which depend on the number of classes. `input_shape` is the shape of one sample. All
    clients of a process may share the module: each client loads its weights into the module.
    """

    name: str
    module: nn.Module
    num_classes: int
    input_shape: tuple[int, ...]
    head: frozenset[str]

    def __post_init__(self) -> None:
        """Store a copy of the initial weights in `arrays`."""
        self.arrays: Arrays = model_arrays(self.module)

    @functools.cached_property
    @torch.no_grad()
    def outputs(self) -> int:
        """Dimension of the network's output for one sample."""
        with computing(self.module):
            return int(self.module.eval()(torch.zeros(1, *self.input_shape)).shape[1])

    @functools.cached_property
    @torch.no_grad()
    def representation(self) -> int:
        """Dimension of the input of the network's last linear layer."""
        sample = torch.zeros(1, *self.input_shape)
        return int(outputs_and_representation(self.module.eval(), sample)[1].shape[1])
