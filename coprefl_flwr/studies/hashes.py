"""Hashes of the inputs of a result. Equal settings and files have equal hashes and results."""

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coprefl_flwr import plugins
from coprefl_flwr.data.hugging_face import files_of
from coprefl_flwr.federation.keep import Keep
from coprefl_flwr.files import expanded, sha256_of
from coprefl_flwr.named import Choice
from coprefl_flwr.options import declared

OWN = ("model", "dataset", "partition", "metric")
"""The kinds of plugins whose source code `content_hashes` hashes."""


def hash_of(content: Mapping[str, Any]) -> str:
    """Return the first 12 hex digits of the SHA-256 of content that can be written as JSON.

    The folder of your own file does not change the hash. A hash of the file is part of the content
    (see `content_hashes`).
    """
    text = json.dumps(content_without_folders(content), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def values_of(group: Any, *leave_out: str, later: bool = True) -> dict[str, Any]:
    """Return the values of a group of settings by key, without the keys in `leave_out`.

    Choices become texts. Without `later`, options that were added after results were stored are
    left out if they have their defaults.
    """
    values = {}
    for key, option in declared(type(group)).items():
        value = getattr(group, option.name)
        if key not in leave_out and (later or not option.later or value != option.default):
            values[key] = str(value) if isinstance(value, Choice | Keep) else value
    return values


def content_hashes(names: Iterable[str]) -> dict[str, str]:
    """Return a hash of the content of each file that settings name, by the name.

    A name may be a dataset's file (FILE, FILE:LABELS or FILE@DOMAIN), a folder with a model, or the
    place of your own code. All files of a Hugging Face dataset on disk are hashed. Other Hugging
    Face datasets and torchvision's datasets are identified by their names only.
    """
    hashes = {}
    for name in names:
        file = name.partition("@")[0]
        # FILE, FILE:LABELS, or the weights in a folder.
        whole = expanded(file)
        for path in (whole, expanded(file.rpartition(":")[0]), whole / "model.safetensors"):
            if ".py:" not in file and os.path.isfile(path):
                hashes[name] = hash_of_file(path)
        if stored := files_of(file):
            hashes[name] = hash_of({"files": [hash_of_file(path) for path in stored]})
        own = {kind: plugins.hash_at(kind, file) for kind in OWN if plugins.is_place(kind, file)}
        texts = sorted({text for text in own.values() if text})
        if name not in hashes and texts:
            hashes[plugins.without_folders(file)] = " ".join(texts)
    return hashes


def content_without_folders(content: Any) -> Any:
    """Return content with file names instead of paths (see `plugins.without_folders`)."""
    if isinstance(content, Mapping):
        return {key: content_without_folders(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [content_without_folders(value) for value in content]
    return plugins.without_folders(content) if isinstance(content, str) else content


def hash_of_file(path: Path) -> str:
    """Return the SHA-256 of a file. The hash is cached until the file changes."""
    status = path.stat()
    return _hash_of_file((path, status.st_size, status.st_mtime_ns))


@functools.lru_cache(maxsize=64)
def _hash_of_file(version: tuple[Path, int, int]) -> str:
    """Return the SHA-256 of a file, cached by path, size (bytes) and time of modification (ns)."""
    return sha256_of(version[0])
