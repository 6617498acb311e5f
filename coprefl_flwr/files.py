"""Writing files so that no reader finds one half written."""

import os
from pathlib import Path


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file, and its missing parent folders, in one step; a failed write leaves nothing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A plain open, not tempfile: the result should have the permissions of any other file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
