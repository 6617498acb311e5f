"""Client states: arrays that a client stores in files, from round to round.

A version of a client's state is named "ROUND-ATTEMPT", after the attempt that wrote the version.
The server decides which version is valid. Every request contains the version that the server has
committed for the client, so that the state of a failed round or of a late message is never used.
The request also contains the version at the last checkpoint, from which the run may be resumed. The
client keeps these two versions and deletes older ones. In a run without checkpoints, a state only
serves this run: it has no checksum, and the client does not wait until it is on the disk.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coprefl_flwr.arrays import Arrays, read_sealed, write_sealed
from coprefl_flwr.errors import prefixed
from coprefl_flwr.files import PART, inside

STATE_FILE = re.compile(r"[0-9]+-[0-9]+\.safetensors")
"""Pattern of the names of a client state's files."""


@dataclass
class Versions:
    """The valid versions of the clients' states.

    `committed` is {client id: version}. The version, "ROUND-ATTEMPT", is the one that the client
    wrote in the last successful round with a good reply from this client. `at_checkpoint` is the
    value of `committed` at the last checkpoint, from which an interrupted run resumes; it is None
    in a run without checkpoints.
    """

    committed: dict[int, str] = field(default_factory=dict)
    at_checkpoint: dict[int, str] | None = None

    def of(self, client: int) -> dict[str, str]:
        """Return a request's settings on versions; a version is "" if there is no state yet."""
        versions = {"state-version": self.committed.get(client, "")}
        if self.at_checkpoint is not None:
            versions["state-kept"] = self.at_checkpoint.get(client, "")
        return versions

    def commit(self, clients: Iterable[int], server_round: int, attempt: int) -> None:
        """Mark the states that `clients` wrote in this attempt as the valid versions."""
        self.committed |= dict.fromkeys(clients, f"{server_round}-{attempt}")


class ClientState:
    """The stored versions of a client's state, one file per version.

    A file is FOLDER/RUN/POPULATION/CLIENT/VERSION.safetensors, with the run, the population and the
    client id in the request's config. All clients of a machine can therefore share one `folder`.
    The folder is created by the first `write`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def read(self, config: Mapping[str, Any]) -> Arrays | None:
        """Return the arrays of the version that the server has committed, or None if there is none.

        Raises a SettingsError if the file of the version is missing or damaged, for example because
        the folder was deleted.
        """
        version = str(config.get("state-version", ""))
        if not version:
            return None
        file = self._file(config, version)
        lost = f"this client's state of round {version.partition('-')[0]} is lost or damaged"
        with prefixed(f"{lost}: {file}", of=ValueError):
            return read_sealed(file)[0]

    def write(self, config: Mapping[str, Any], arrays: Arrays) -> None:
        """Store `arrays` as the state after the request of `config`; delete states of no use."""
        version = f"{config['server-round']}-{config.get('attempt', 0)}"
        file, kept = self._file(config, version), config.get("state-kept")
        needed = {str(config.get("state-version")), str(kept)}
        useless = []
        for name in os.listdir(file.parent) if file.parent.exists() else ():
            stem, state = name.removesuffix(".safetensors"), STATE_FILE.fullmatch(name)
            # Newer versions are kept, as this request may be late.
            old = state and stem not in needed and _age(stem) < _age(version)
            if old or name.endswith(PART):
                useless.append(file.with_name(name))
        reuse = useless.pop() if useless else None
        # Without a checkpoint, nothing can go on from the state after the machine stopped.
        write_sealed(file, arrays, "", durable=kept is not None, reuse=reuse)
        for path in useless:
            path.unlink(missing_ok=True)

    def _file(self, config: Mapping[str, Any], version: str) -> Path:
        """Return the path of a version's file; refuse names that would lead out of the folder."""
        parts = [config.get(name, "") for name in ("run", "population")]
        parts += [config.get("client", 0), f"{version}.safetensors"]
        # `inside` refuses a backslash, so that no part is a path itself.
        return inside(self.folder, "/".join(str(part).replace("/", "\\") for part in parts))


def _age(version: str) -> tuple[int, ...]:
    """Return (round, attempt) of a version; a later version has the larger tuple."""
    return tuple(int(part) for part in version.split("-") if part.isdigit())
