"""What a result depends on, as a hash: the same settings and files, the same result."""

import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coprefl_flwr.options import declared


def hash_of(content: Mapping[str, Any]) -> str:
    """Return 12 hex digits of the SHA-256 of what can be JSON."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def values_of(group: Any, *leave_out: str) -> dict[str, Any]:
    """Return a group of settings by key, without some keys."""
    found = {key: getattr(group, one.name) for key, one in declared(type(group)).items()}
    return {key: value for key, value in found.items() if key not in leave_out}


def contents(names: Iterable[str]) -> dict[str, str]:
    """Return a hash of each file that settings name, by name: another content, another result.

    A file may be a dataset (FILE, FILE:LABELS or FILE@DOMAIN), a folder with a model in it, or a
    user's module, `module:function`. torchvision's datasets and folders of images count by their
    name alone.
    """
    found = {}
    for name in names:
        file = name.partition("@")[0]
        paths = [Path(file), Path(file.rpartition(":")[0]), Path(file) / "model.safetensors"]
        for path in [*paths, *_module(name)]:
            if path.is_file():
                status = path.stat()
                found[name] = _hash_of_file((path, status.st_size, status.st_mtime_ns))
    return found


def _module(name: str) -> list[Path]:
    """Return the file of "module:function", if there is such a module."""
    module, colon, _ = name.partition(":")
    if not colon or not all(part.isidentifier() for part in module.split(".")):
        return []
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return []
    return [Path(spec.origin)] if spec and spec.origin else []


@functools.lru_cache(maxsize=64)
def _hash_of_file(version: tuple[Path, int, int]) -> str:
    """Return the hash of a file of some size and time, read again only after it was changed."""
    with version[0].open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
