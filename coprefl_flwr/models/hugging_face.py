"""Models of the library `transformers` from a folder: its config and, if present, its weights."""

import importlib
from typing import Any

import torch
from torch import nn

from coprefl_flwr.errors import SettingsError, prefixed
from coprefl_flwr.files import expanded, read_json

HUGGING_FACE = "hf:"


def library(name: str) -> Any:
    """Return a library that takes seconds to import; a SettingsError if it is not installed."""
    with prefixed(f"{name} needs pip install 'coprefl-flwr[peft]'", of=ImportError):
        return importlib.import_module(name)


def model_in(place: str, num_classes: int) -> nn.Module:
    """Return the classifier `hf:FOLDER` with `num_classes` labels, in float32.

    The folder has a config.json and, if the model was trained, its weights as safetensors. What
    these lack is drawn from torch's default generator, such as a last layer for another number of
    labels, or all weights. The class is the one that the config names if that is a classifier, or
    else a classifier of texts, or of images if the config has an `image_size`.

    Raises a SettingsError if there is no such config, if the config asks for remote code, if there
    are only weights of another format, or if `transformers` cannot make the model.
    """
    transformers, folder = library("transformers"), expanded(place.removeprefix(HUGGING_FACE))
    with prefixed(place, "model"):
        about = read_json(folder / "config.json")
    if about.get("auto_map") or about.get("trust_remote_code"):
        raise SettingsError(f"{place}: its config asks for other code, which is never run", "model")
    trained = any(folder.glob("*.safetensors"))
    if not trained and (others := [*folder.glob("*.bin")]):
        raise SettingsError(f"{place}: convert {others[0].name} to safetensors", "model")
    name = (about.get("architectures") or [""])[0]
    if not name.endswith("Classification"):
        kind = "Image" if "image_size" in about else "Sequence"
        name = f"AutoModelFor{kind}Classification"
    # A study makes a model many times.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with prefixed(place, "model", of=Exception):  # The library raises any type of error.
        config = transformers.AutoConfig.from_pretrained(folder, num_labels=num_classes)
        kind = getattr(transformers, name)
        if trained:
            options = {"config": config, "ignore_mismatched_sizes": True, "dtype": torch.float32}
            model: nn.Module = kind.from_pretrained(folder, use_safetensors=True, **options)
        else:
            model = getattr(kind, "from_config", kind)(config)
    return model
