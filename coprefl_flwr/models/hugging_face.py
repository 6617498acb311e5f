"""Models of the library `transformers` from a folder: its config and, if present, its weights."""

from typing import Any

import torch
from torch import nn

from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.files import expanded, read_json

HUGGING_FACE = "hf:"
REMOTE = ("auto_map", "trust_remote_code")
"""Keys of a config that ask for code outside of `transformers`."""


def model_in(place: str, num_classes: int) -> nn.Module:
    """Return the classifier `hf:FOLDER` with `num_classes` labels, in float32.

    The folder has a config.json and, if the model was trained, its weights as safetensors. What
    these lack is drawn from torch's default generator, such as a last layer for another number of
    labels, or all weights. The class is the one that the config names if that is a classifier, or
    else a classifier of texts, or of images if the config has an `image_size`.

    Raises a SettingsError if there is no such config, if the config asks for remote code, if there
    are only weights of another format, or if `transformers` cannot make the model.
    """
    import transformers  # Imported here, because it takes seconds.

    folder = expanded(place.removeprefix(HUGGING_FACE))
    if not (folder / "config.json").is_file():
        raise SettingsError(f"{place}: there is no file {folder / 'config.json'}", "model")
    about = read_json(folder / "config.json")
    if asked := [key for key in REMOTE if about.get(key)]:
        problem = f"its config asks for code of its own ({asked[0]}), which is never run"
        raise SettingsError(f"{place}: {problem}; use a class of transformers", "model")
    trained = any(folder.glob("*.safetensors"))
    if not trained and (others := [*folder.glob("*.bin"), *folder.glob("*.h5")]):
        problem = f"{others[0].name} is no safetensors file: convert it by save_pretrained"
        raise SettingsError(f"{place}: {problem}", "model")
    name = (about.get("architectures") or [""])[0]
    if not name.endswith("Classification"):
        kind = "Image" if "image_size" in about else "Sequence"
        name = f"AutoModelFor{kind}Classification"
    # A study makes a model many times.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, num_labels=num_classes, **options)
        kind = getattr(transformers, name)
        if trained:
            options |= {"use_safetensors": True, "ignore_mismatched_sizes": True}
            options |= {"config": config, "dtype": torch.float32}
            model: nn.Module = kind.from_pretrained(folder, **options)
        else:
            model = getattr(kind, "from_config", kind)(config)
    except Exception as error:  # The library raises any type of error.
        raise SettingsError(f"{place}: {one_line(error)}", "model") from error
    return model
