"""A model on disk: weights for any PyTorch program, and a small JSON of how they were made."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from coprefl_flwr.checksums import SUMS, damaged
from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.files import parse_json, read_text, written_beside

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
