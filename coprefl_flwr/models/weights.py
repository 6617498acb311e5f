"""Save a model's weights, and load weights from a file, torchvision, or a user's function.

`save_model` writes the weights to a file that any PyTorch program can read, and a small JSON file
that describes how the weights were made.
"""

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor, nn

from coprefl_flwr import plugins
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError, check_name, one_line, prefixed
from coprefl_flwr.files import (
    PART,
    SUMS,
    check_sums,
    damaged,
    expanded,
    read_json,
    write_atomically,
)
from coprefl_flwr.models.adapters import ADAPTER, CONFIG, check_adapters
from coprefl_flwr.models.arrays import as_array, check_same_model, load_arrays
from coprefl_flwr.models.base import base_hash
from coprefl_flwr.models.build import Network, own_model
from coprefl_flwr.models.copies import named_as, unwrapped
from coprefl_flwr.models.frozen import without_base
from coprefl_flwr.models.networks import seeded

WEIGHTS = "model.safetensors"
ABOUT = "model.json"


def save_model(folder: str | Path, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Write the weights `arrays`, in their order, and their description `about` to a folder.

    `about` describes how the weights were made; it may have any JSON values. The same arguments
    give the same bytes. A model that is already in the folder is replaced. If the folder
    has a `model.safetensors`, both files are complete and belong together, even if the program was
    stopped while it wrote them.
    """
    folder = expanded(folder)
    # safetensors sorts arrays by dtype and name, and writes the memory of a strided array without
    # regard to its strides.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    weights = safetensors.numpy.save(contiguous, metadata={"order": json.dumps(list(arrays))})
    text = json.dumps(about, indent=2, sort_keys=True) + "\n"
    new = folder / f".{WEIGHTS}{PART}"  # Written first: a full disk must not cost the older model.
    write_atomically(new, weights)
    # The folder must never hold an older model's weights with the new model's description.
    for older in (SUMS, WEIGHTS):
        (folder / older).unlink(missing_ok=True)
    write_atomically(folder / ABOUT, text.encode())
    os.replace(new, folder / WEIGHTS)


def load_saved_model(folder: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return (arrays, about) as given to `save_model`: weights in their order, and description.

    Raises a SettingsError if the folder holds no complete model, if a file does not match its
    checksum, or if a file cannot be read.
    """
    folder = expanded(folder)
    for name in (WEIGHTS, ABOUT):
        if not (folder / name).is_file():
            raise SettingsError(f"no saved model in {str(folder)!r}: the file {name} is missing")
    check_sums(folder, WEIGHTS, ABOUT)
    about: dict[str, Any] = read_json(folder / ABOUT)
    try:
        with safetensors.safe_open(folder / WEIGHTS, framework="numpy") as weights:
            order = json.loads((weights.metadata() or {}).get("order", "null"))
            arrays = {name: weights.get_tensor(name) for name in order or weights.keys()}
    # safetensors raises an AttributeError or a TypeError for dtypes that NumPy does not have, such
    # as bfloat16.
    except (ValueError, TypeError, AttributeError, safetensors.SafetensorError) as error:
        raise damaged(folder / WEIGHTS, one_line(error)) from error
    return arrays, about


FILE, HUB, TORCHVISION = "file:", "hub:", "torchvision:"
"""Prefixes of the name of a starting model: weights of a file, of the Hub, or of torchvision."""


def is_external(text: str) -> bool:
    """Return whether the starting model `text` has weights that were made outside this package.

    Such a model is `file:PATH`, `hub:NAME/REPO`, `torchvision:WEIGHTS`, or a user's function.
    """
    return text.startswith((FILE, HUB, TORCHVISION)) or (
        plugins.is_place("start", text) and not isinstance(plugins.find("start", text), type)
    )


def text_of(source: str | Path) -> str:
    """Return `file:PATH` or `hub:NAME/REPO` for a path, or for this name on the Hub."""
    return str(source) if str(source).startswith(HUB) else f"{FILE}{source}"


def path_of(text: str) -> Path | None:
    """Return the file of weights of `file:PATH` or `hub:NAME/REPO`, or None for another `text`."""
    if not text.startswith((FILE, HUB)):
        return None
    is_file = text.startswith(FILE)
    path = expanded(text.removeprefix(FILE)) if is_file else _of_hub(text.removeprefix(HUB))
    of_peft = (path / ADAPTER).is_file() and not (path / WEIGHTS).is_file()
    return path / (ADAPTER if of_peft else WEIGHTS) if path.is_dir() else path


@functools.cache
def _of_hub(name: str) -> Path:
    """Return the folder of `NAME/REPO` or `NAME/REPO@REVISION` of the Hub, after its download."""
    import huggingface_hub  # Imported here, because few programs need it.

    repo, _, revision = name.partition("@")
    files = [WEIGHTS, ABOUT, SUMS, CONFIG, ADAPTER]
    with prefixed(f"{name} could not be downloaded", of=Exception):  # Of the library: any type.
        return Path(
            huggingface_hub.snapshot_download(repo, revision=revision or None, allow_patterns=files)
        )


def arrays_from(text: str, network: Network, seed: int, *, needs_head: bool = False) -> Arrays:
    """Return weights made outside this package, with the names, dtypes and order of a network.

    The head is the network's last layer, which a task replaces. If an array of the head is missing
    or has another shape, the network's initial array replaces it, unless `needs_head` is true.

    Parameters
    ----------
    text : str
        `file:PATH` (a .safetensors file, a state_dict that `torch.load` reads with
        `weights_only=True`, or the folder of a model that this package saved), `hub:NAME/REPO`,
        `torchvision:WEIGHTS`, such as `torchvision:ResNet18_Weights.IMAGENET1K_V1`, or the name of
        a function that returns a module, as "module:NAME" or "file.py:NAME"; the function is called
        as in `own_model`.
    network : Network
        The network that the weights are for.
    seed : int
        Seed of a function's random weights.
    needs_head : bool
        Whether the weights must include the head.

    Raises a SettingsError with the names of the tensors that are missing, are unknown or have
    another shape, or if there is no such file or function.
    """
    with prefixed(text):
        if text.startswith(TORCHVISION):
            tensors = _of_torchvision(text.removeprefix(TORCHVISION))
        elif (path := path_of(text)) is not None:
            tensors = read_tensors(path)
            check_adapters(path.parent, tensors, network.module)
            _check_base(path, network.module)
        else:
            with seeded((seed, "start", plugins.without_folders(text))):
                module = own_model(text, network.num_classes, network.input_shape, "start")
            tensors = module.state_dict()
        return _fitted(network, tensors, needs_head)


def load_start(model: nn.Module, source: str | Path) -> nn.Module:
    """Put the weights of a start into a network, and return the network.

    What is frozen in the network must be the same as when the start was trained: make the network
    from the same file or seed, freeze the same parameters, and then call this function.

    Parameters
    ----------
    model : nn.Module
        The network. The start's weights replace those of this object.
    source : str or Path
        The folder of a start that this package saved, a file of weights, or "hub:NAME/REPO", a
        model of the Hugging Face Hub, of which only safetensors are read; "hub:NAME/REPO@REVISION"
        names its commit, branch or tag.

    Raises
    ------
    SettingsError
        If the weights are not those of the checksum next to them, if the start belongs to other
        frozen weights, or if it lacks a weight that the network trains, has further weights, or
        weights of other shapes.
    """
    inner = unwrapped(model)
    network = Network(type(inner).__name__, inner, 0, (), frozenset())
    load_arrays(inner, arrays_from(text_of(source), network, 0, needs_head=True))
    return model


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return {name: tensor} of a file of weights; no code in the file is executed.

    Raises a SettingsError if there is no such file, if it cannot be read, does not match its
    checksum, or holds no state_dict of plain tensors.
    """
    if not path.is_file():
        raise SettingsError(f"there is no file {path}")
    check_sums(path.parent, path.name)
    try:
        if path.suffix == ".safetensors":
            content: dict[str, Any] = safetensors.torch.load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(content.get("state_dict"), dict):
            content = content["state_dict"]
    except Exception as error:  # A bad file can raise any type of error; the user gets one line.
        raise SettingsError(f"cannot be read: {one_line(error).partition('. ')[0]}") from error
    for name, tensor in content.items():
        if not isinstance(tensor, Tensor):
            raise SettingsError(f"{name!r} is a {type(tensor).__name__}, not a tensor")
    return content


def _of_torchvision(name: str) -> Mapping[str, Tensor]:
    from torchvision import models

    families = [family for key, family in vars(models).items() if key.endswith("_Weights")]
    known = [str(member) for family in families for member in family]
    check_name("weights", name, known)
    with prefixed("they could not be downloaded", of=(OSError, RuntimeError)):
        weights: Mapping[str, Tensor] = models.get_weight(name).get_state_dict(
            progress=False, check_hash=True, weights_only=True
        )
    return weights


def _check_base(path: Path, module: nn.Module) -> None:
    """Raise a SettingsError if a start's file belongs to another base than the module's."""
    about = path.parent / ABOUT
    base = read_json(about).get("base") if path.name == WEIGHTS and about.is_file() else None
    if base and base["hash"] != (own := base_hash(module)):
        theirs = f"the frozen weights of {base['network']} with the hash {base['hash']}"
        raise SettingsError(f"it belongs to {theirs}; this network's hash is {own or 'none'}")


def _fitted(network: Network, tensors: Mapping[str, Tensor], needs_head: bool) -> Arrays:
    replaced, names = frozenset() if needs_head else network.head, network.module.state_dict()
    tensors = without_base(named_as(names, tensors), network.module, replaced)
    body = {name: array for name, array in network.arrays.items() if name not in replaced}
    given = {name: tensor for name, tensor in tensors.items() if name not in replaced}
    check_same_model(given, body, network.name)
    arrays = dict(network.arrays)
    for name, first in network.arrays.items():
        if name in tensors and tuple(tensors[name].shape) == first.shape:
            arrays[name] = as_array(tensors[name]).astype(first.dtype, order="C")
        if first.dtype.kind == "f" and not np.isfinite(arrays[name]).all():
            raise SettingsError(f"{name!r} holds a NaN or an infinity")
    return arrays
