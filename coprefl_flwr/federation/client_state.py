"""Client states: arrays that a client stores from round to round, in files.

A version of a client's state is named "ROUND-ATTEMPT" after the attempt that wrote it. The server
decides which one is valid: every request names the version it has committed for the client, so
that the state of a failed round or of a late message is never used. It also names the version of
the last checkpoint, from which the run may have to be resumed. These two are kept.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coprefl_flwr.arrays import Arrays, read_sealed, write_sealed
from coprefl_flwr.errors import SettingsError, short
from coprefl_flwr.files import LONGEST_NAME, check_links, remove_unfinished

STATE_FILE = re.compile(r"[0-9]+-[0-9]+\.safetensors")
"""Names of a state's files."""


@dataclass
class Versions:
    """The versions of the clients' states that are valid.

    `committed` has by client id the version ("ROUND-ATTEMPT") that it wrote in the last successful
    round with its reply; `at_checkpoint` the same at the last checkpoint, to which an interrupted
    run goes back.
    """

    committed: dict[int, str] = field(default_factory=dict)
    at_checkpoint: dict[int, str] = field(default_factory=dict)

    def of(self, client: int) -> dict[str, str]:
        """Return the settings of a request to a client; "" is no state yet."""
        return {
            "state-version": self.committed.get(client, ""),
            "state-kept": self.at_checkpoint.get(client, ""),
        }

    def commit(self, clients: Iterable[int], server_round: int, attempt: int) -> None:
        """Make the states that `clients` wrote in this attempt the valid ones."""
        self.committed |= dict.fromkeys(clients, f"{server_round}-{attempt}")

    def mark_checkpoint(self) -> None:
        """Keep the committed versions: the run may be resumed from them."""
        self.at_checkpoint = dict(self.committed)


class ClientState:
    """The states of a client, a file a version.

    `folder` is made when something is written. In it each run, population and client (as the
    request names them) has a folder, so that all clients of a machine can share one.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def read(self, config: Mapping[str, Any]) -> Arrays | None:
        """Return the state the server has committed, None for a client that has none yet.

        Raises a SettingsError if it is not here, as when the folder was lost.
        """
        version = str(config.get("state-version", ""))
        if not version:
            return None
        file = self._file(config, version)
        lost = f"this client's state of round {version.partition('-')[0]} is lost or damaged"
        try:
            arrays, identity = read_sealed(file)
        except ValueError as error:
            raise SettingsError(f"{lost}: {file}") from error
        if identity != self._identity(file):
            raise SettingsError(f"{lost}: {file}")
        return arrays

    def write(self, config: Mapping[str, Any], arrays: Arrays) -> None:
        """Keep `arrays` as the state after this request, and delete versions no longer needed."""
        version = f"{config['server-round']}-{config.get('attempt', 0)}"
        file = self._file(config, version)
        check_links(self.folder, file)
        remove_unfinished(file.parent, shared=True)
        write_sealed(file, arrays, self._identity(file))
        needed = {str(config.get("state-version")), str(config.get("state-kept"))}
        versions = [path for path in file.parent.iterdir() if STATE_FILE.fullmatch(path.name)]
        for path in versions:
            # Not the newer ones: this request may be a late one.
            if path.stem not in needed and _age(path.stem) < _age(version):
                path.unlink(missing_ok=True)

    def _identity(self, file: Path) -> str:
        """Return the run, population, client and version of a file, by which it is identified."""
        return file.relative_to(self.folder).with_suffix("").as_posix()

    def _file(self, config: Mapping[str, Any], version: str) -> Path:
        """Return the file of a version; refuse names that would lead out of the folder."""
        parts = [str(config.get(name, "")) for name in ("run", "population")]
        parts.append(str(config.get("client", 0)))
        for part in [*parts, version]:
            wrong = (
                not part or part in (".", "..") or any(character in part for character in "/\\\0")
            )
            if wrong or len(part.encode()) > LONGEST_NAME:
                raise SettingsError(f"'{short(part)}' cannot name a folder of a client's state")
        return self.folder.joinpath(*parts) / f"{version}.safetensors"


def _age(version: str) -> tuple[int, ...]:
    """Return (round, attempt), by which versions are in order of time."""
    return tuple(int(part) for part in version.split("-") if part.isdigit())
