"""Provenance of a result: versions of packages, the machine, and the commit of the package."""

import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import coprefl_flwr


def made_by() -> dict[str, Any]:
    """Return the versions, the machine, and the commit if the package runs from a checkout."""
    here = {"versions": versions(), "machine": machine()}
    commit = _commit_of(Path(coprefl_flwr.__file__).parents[1])
    return here | ({"commit": commit} if commit else {})


@functools.cache
def machine() -> str:
    """Return the processor, the number of cores, and the GPU if the process uses one."""
    import torch

    from coprefl_flwr.learning.device import default_device

    cpus = Path("/proc/cpuinfo")
    line = re.search(r"model name\s*:\s*(.+)", cpus.read_text()) if cpus.exists() else None
    name = line[1].strip() if line else platform.processor() or platform.machine()
    device = default_device()
    gpu = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    return f"{name}, {os.cpu_count()} cores{gpu}"


@functools.cache
def _commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, "-dirty" if files differ; "" without git or checkout."""
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    with suppress(OSError):  # Git is not installed.
        return subprocess.run(command, cwd=checkout, capture_output=True, text=True).stdout.strip()
    return ""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    others = {name: importlib.metadata.version(name) for name in ("flwr", "torch")}
    return {"coprefl-flwr": coprefl_flwr.__version__, "python": platform.python_version(), **others}
