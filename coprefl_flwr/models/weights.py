"""A model's weights on disk and from elsewhere: files, torchvision, a former run, a function.

`save_model` writes weights for any PyTorch program, and a small JSON of how they were made.
"""

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

from coprefl_flwr import plugins
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError, one_line, short, unknown
from coprefl_flwr.files import (
    SUMS,
    damaged,
    expanded,
    parse_json,
    read_text,
    written_beside,
)
from coprefl_flwr.models.arrays import check_plain
from coprefl_flwr.models.build import Network, own_model
from coprefl_flwr.models.networks import seeded

WEIGHTS = "model.safetensors"
ABOUT = "model.json"


def save_model(folder: Path, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Write the weights, in their order, and how they were made, which is anything JSON can hold.

    The same input gives the same bytes. A model already in the folder is replaced; where
    `model.safetensors` exists, both files are complete and belong together, whenever the program
    was stopped.
    """
    # safetensors sorts by dtype and name, and writes a strided array's memory as it lies.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    weights = safetensors.numpy.save(contiguous, metadata={"order": json.dumps(list(arrays))})
    text = json.dumps(about, indent=2, sort_keys=True) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMS).unlink(missing_ok=True)  # Those of an older model.
    with (
        written_beside(folder / WEIGHTS, weights) as new_weights,
        written_beside(folder / ABOUT, text.encode()) as new_about,
    ):
        # An older model's weights must never stand beside the new model's description.
        (folder / WEIGHTS).unlink(missing_ok=True)
        os.replace(new_about, folder / ABOUT)
        os.replace(new_weights, folder / WEIGHTS)


def load_saved_model(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what `save_model` was given: the arrays, in their order, and how they were made.

    Raises a SettingsError if the folder holds no complete model, or a file cannot be read.
    """
    for name in (WEIGHTS, ABOUT):
        if not (folder / name).is_file():
            raise SettingsError(f"no saved model in {str(folder)!r}: it has no file {name}")
    if wrong := damaged(folder, WEIGHTS, ABOUT):
        told = f"{SUMS} says another content of {wrong[0]}"
        raise SettingsError(f"the saved model in {str(folder)!r} is damaged: {told}")
    try:
        about: dict[str, Any] = parse_json(read_text(folder / ABOUT))
        if not isinstance(about, dict):
            raise ValueError(f"{ABOUT} holds no {{key: value}}")
        with safetensors.safe_open(folder / WEIGHTS, framework="numpy") as weights:
            order = parse_json((weights.metadata() or {}).get("order", "null"))
            names = list(weights.keys())
            if order is not None and (not isinstance(order, list) or not _same(order, names)):
                raise ValueError(f"{WEIGHTS} says an order that is not that of its arrays")
            arrays = {name: weights.get_tensor(name) for name in order or names}
    # An AttributeError or a TypeError for numbers that NumPy has not, such as bfloat16.
    except (ValueError, TypeError, AttributeError, safetensors.SafetensorError) as error:
        why = one_line(error)
        raise SettingsError(f"the saved model in {str(folder)!r} is damaged: {why}") from error
    return arrays, about


def _same(order: list[Any], names: list[str]) -> bool:
    return all(isinstance(one, str) for one in order) and sorted(order) == sorted(names)


FILE, TORCHVISION = "file:", "torchvision:"
"""How a starting model that is a file, or torchvision's weights, begins."""


def comes_from_elsewhere(text: str) -> bool:
    """Return whether a starting model's name says that its weights were made elsewhere."""
    return text.startswith((FILE, TORCHVISION)) or (
        plugins.is_place("start", text) and not isinstance(plugins.find("start", text), type)
    )


def path_of(text: str) -> Path | None:
    """Return the file that holds the weights, None where there is none."""
    if not text.startswith(FILE):
        return None
    path = expanded(text.removeprefix(FILE))
    return path / WEIGHTS if path.is_dir() else path


def arrays_from(text: str, network: Network, seed: int, *, needs_head: bool = False) -> Arrays:
    """Return weights made elsewhere, in the names, shapes, dtypes and order of a network.

    The last layer, which a task replaces, is the network's own where the weights have none of its
    shape, unless it is needed.

    Parameters
    ----------
    text : str
        `file:PATH` (.safetensors, a state_dict that `torch.load` reads with weights only, or the
        folder of a model that this package saved), `torchvision:WEIGHTS` such as
        `torchvision:ResNet18_Weights.IMAGENET1K_V1`, or the place of a function that returns a
        module; the function is called as that of a model is.
    seed : int
        What a function's random weights depend on.

    Raises a SettingsError with the names of the tensors that are missing, unknown or of another
    shape, or if there are no weights.
    """
    if text.startswith(TORCHVISION):
        found = _of_torchvision(text)
    elif (path := path_of(text)) is not None:
        found = _of_file(text, path)
    else:
        found = _of_function(text, network, seed)
    return _fitted(text, network, _unwrapped(found), needs_head)


def _of_file(text: str, path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise SettingsError(f"method, {text}: there is no such file, and no folder with {WEIGHTS}")
    if damaged(path.parent, path.name):
        raise SettingsError(f"method, {text}: damaged: {SUMS} beside it says another content")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # Whatever the file holds, it is told in one line.
        why = one_line(error).partition(". ")[0]
        raise SettingsError(f"method, {text}: the weights cannot be read: {why}") from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise SettingsError(f"method, {text}: the file holds no state_dict, but a {kind}")
    for name, one in found.items():
        if not isinstance(name, str) or not isinstance(one, Tensor):
            what = "the key" if not isinstance(name, str) else "what stands under"
            kind = type(one if isinstance(name, str) else name).__name__
            why = f"{what} {short(repr(name))} is of the type {kind}"
            raise SettingsError(f"method, {text}: the file holds no state_dict: {why}")
        try:
            check_plain(one, name)
        except SettingsError as error:
            raise SettingsError(f"method, {text}: {error}") from error
    return found


def _of_torchvision(text: str) -> Mapping[str, Any]:
    from torchvision import models

    name = text.removeprefix(TORCHVISION)
    family, _, member = name.partition(".")
    families = {one for one in vars(models) if one.endswith("_Weights")}
    if family not in families:
        raise SettingsError(f"method, {text}: {unknown('weights', family, sorted(families))}")
    members = [one.name for one in getattr(models, family)]
    if member not in members:
        raise SettingsError(f"method, {text}: {unknown(f'weights of {family}', member, members)}")
    try:
        weights: Mapping[str, Any] = getattr(models, family)[member].get_state_dict(
            progress=False, check_hash=True, weights_only=True
        )
    except (OSError, RuntimeError) as error:
        raise SettingsError(
            f"method, {text}: the weights are neither in torch's cache nor could they be "
            f"downloaded ({one_line(error)})"
        ) from error
    return weights


def _of_function(text: str, network: Network, seed: int) -> Mapping[str, Any]:
    with seeded((seed, "start", plugins.portable(text))):
        made = own_model(text, network.num_classes, network.input_shape, "start")
    return made.state_dict()


def _unwrapped(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tensors by the names they have without a wrapper such as DataParallel."""
    wrapper = "module."
    if all(name.startswith(wrapper) for name in found):
        return {name.removeprefix(wrapper): one for name, one in found.items()}
    return found


def _fitted(text: str, network: Network, found: Mapping[str, Tensor], needs_head: bool) -> Arrays:
    wanted = network.arrays
    body = [name for name in wanted if needs_head or name not in network.head]
    shapes = {name: tuple(one.shape) for name, one in found.items()}
    absent = [name for name in body if name not in shapes]
    missing = list(map(repr, absent))
    extra = [_with_nearest(name, absent) for name in shapes if name not in wanted]
    misshapen = [
        f"{name!r} is {shapes[name]} for {wanted[name].shape}"
        for name in body
        if name in shapes and shapes[name] != wanted[name].shape
    ]
    told = {"missing": missing, "unknown": extra, "of another shape": misshapen}
    if any(told.values()):
        why = "; ".join(f"{what}: {_some(names)}" for what, names in told.items() if names)
        raise SettingsError(f"method, {text}: these are no weights of {network.name}: {why}")
    fits = {n: one for n, one in found.items() if shapes[n] == wanted[n].shape}
    arrays = {
        name: _array(fits[name], own) if name in fits else own for name, own in wanted.items()
    }
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise SettingsError(f"method, {text}: {name!r} holds a NaN or an infinity")
    return arrays


def _with_nearest(name: str, wanted: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, wanted, n=1, cutoff=0.8)
    return f"{name!r} (nearest: {near[0]!r})" if near else repr(name)


def _array(tensor: Tensor, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a tensor as an array of the dtype that the network has; NumPy knows no bfloat16."""
    exact = tensor.detach().double() if tensor.is_floating_point() else tensor.detach()
    return exact.cpu().contiguous().numpy().astype(like.dtype)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
