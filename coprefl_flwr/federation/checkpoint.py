"""Checkpoints: the state of a run in a file that is replaced atomically, and the history's file.

The checkpoint is a safetensors file. The model's arrays are named "arrays/NAME". The arrays of
entry number N of the method's state are named "state/N/NAME". Everything that is not an array is
one JSON string in the file's header. JSON stores Python floats exactly, so a resumed run gives the
same bytes as an uninterrupted run.

The history is the file CHECKPOINT.rounds.jsonl, with one line of JSON per round. New lines are
appended before the checkpoint is replaced. The checkpoint stores the number of bytes of the history
that belong to the checkpoint, and their SHA-256 checksum. If the program is killed between the two
steps, the file has further bytes, which are removed when the run resumes.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from coprefl_flwr.arrays import Arrays, mismatch, read_sealed, write_sealed
from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.files import alone

logger = logging.getLogger("flwr.coprefl")

State = dict[str, Any]
"""The state of a method: {name: number, or {name: array}}."""
Rounds = dict[int, dict[str, Any]]


@dataclass
class History:
    """The metrics of training, of both evaluations and of the traffic, each by round number.

    `evaluate` holds the metrics of evaluations on clients, and `server` those of evaluations on the
    server. Round numbers count from the first round of the run, also if the run was resumed.
    If metrics change after the line of their round was written, the change is not stored.
    """

    train: Rounds = field(default_factory=dict)
    evaluate: Rounds = field(default_factory=dict)
    server: Rounds = field(default_factory=dict)
    traffic: Rounds = field(default_factory=dict)

    def of_round(self, server_round: int) -> dict[str, float]:
        """Return a round's metrics; those of evaluations are prefixed "evaluate-" or "server-"."""
        metrics: dict[str, float] = {}
        parts = (self.train, self.traffic, self.evaluate, self.server)
        for prefix, rounds in zip(("", "", "evaluate-", "server-"), parts, strict=True):
            metrics |= {f"{prefix}{name}": v for name, v in rounds.get(server_round, {}).items()}
        return metrics

    def rounds(self) -> dict[int, dict[str, float]]:
        """Return {round number: metrics} of all rounds, in ascending order."""
        return {number: self.of_round(number) for number in sorted(self.train)}

    def put_into(self, result: Result) -> None:
        """Write the metrics by round number into a Flower `Result`."""
        result.train_metrics_clientapp = _records(self.train)
        result.evaluate_metrics_clientapp = _records(self.evaluate)
        result.evaluate_metrics_serverapp = _records(self.server)


def _records(rounds: Rounds) -> dict[int, MetricRecord]:
    return {number: MetricRecord(dict(metrics)) for number, metrics in rounds.items()}


def history_file(path: str | Path) -> Path:
    """Return the path of a checkpoint's history, which is in the same folder."""
    return Path(f"{path}.rounds.jsonl")


@dataclass
class HistoryLines:
    """The lines of a history's file that are written: those of all rounds before `next_round`."""

    next_round: int = 0
    size: int = 0
    """Number of bytes of these lines."""
    sum: Any = field(default_factory=hashlib.sha256, repr=False)
    """SHA-256 hash object, which has been updated with these lines."""

    def append(self, file: Path, history: History, until: int) -> None:
        """Truncate the file to the written lines; append the lines of new rounds up to `until`."""
        written = bytearray()
        for number in range(self.next_round, until + 1):
            row = {name: of[number] for name, of in vars(history).items() if number in of}
            written += f"{json.dumps({'round': number, **row})}\n".encode() if row else b""
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as opened:
            opened.truncate(self.size)
            opened.write(written)
            opened.flush()
            os.fsync(opened.fileno())
        self.next_round, self.size = until + 1, self.size + len(written)
        self.sum.update(written)

    @classmethod
    def read(cls, file: Path, until: int, stored: dict[str, Any]) -> tuple["HistoryLines", History]:
        """Read a history's file; return the lines that a checkpoint describes, and their history.

        `stored` is the checkpoint's {"bytes": size of the lines, "sha256": their checksum}, and
        `until` the checkpoint's round. Raises a ValueError if the file does not begin with these
        lines, and an OSError if the file does not exist.
        """
        with file.open("rb") as opened:
            written = opened.read(min(stored["bytes"], file.stat().st_size))
        lines, history = cls(until + 1, len(written), hashlib.sha256(written)), History()
        if lines.sum.hexdigest() != stored["sha256"]:
            raise ValueError(f"its history {file.name} is cut short or damaged")
        for line in written.splitlines():
            row = json.loads(line)
            number = int(row.pop("round"))
            for name, metrics in row.items():
                vars(history)[name][number] = dict(MetricRecord(metrics))
        return lines, history


@dataclass
class Checkpoint:
    """The state of a run after round `round`, from which the run can continue.

    `arrays` are the global arrays, `state` is the method's state, and `options` are the options of
    the strategy. `versions` is {client id: version of the client's committed state}. `bound` is
    {client id: node id}, if nodes name their clients. `most_clients` is the largest number of
    clients that were connected at the same time. `lines` describes the lines of the history
    that are already in the history's file.
    """

    round: int
    arrays: Arrays
    state: State
    history: History
    options: dict[str, Any]
    versions: dict[int, str] = field(default_factory=dict)
    bound: dict[int, int] = field(default_factory=dict)
    most_clients: int = 0
    lines: HistoryLines = field(default_factory=HistoryLines)


@contextmanager
def written_alone(path: Path | None) -> Iterator[None]:
    """Hold a lock file next to a checkpoint during this block; None means no checkpoint.

    Raises a SettingsError if another run holds the lock, or if the folder is not writable.
    """
    if path is None:
        yield
        return
    problem = f"checkpoint = {path}: another run is writing this file"
    with alone(Path(f"{path}.lock"), problem):
        yield


def continue_from(
    path: str | Path | None,
    resume: bool,
    initial: Arrays,
    options: Mapping[str, Any],
    num_rounds: int,
) -> Checkpoint:
    """Return the state from which a run starts: the arrays `initial`, or the checkpoint at `path`.

    Raises a SettingsError if an existing checkpoint would be overwritten; if the checkpoint has
    another model, other options, or a round after `num_rounds`; or if an option cannot be written
    into a checkpoint.
    """
    beginning = Checkpoint(0, initial, {}, History(), dict(options))
    if resume and path is None:
        raise SettingsError("resume = True: set checkpoint, the file to resume from")
    if path is None:
        return beginning
    try:  # As JSON returns them: tuples become lists.
        written: dict[str, Any] = json.loads(json.dumps(dict(options)))
    except (TypeError, ValueError) as error:
        allowed = "only numbers, texts, and lists and mappings of them"
        line = f"options of the strategy cannot be written into a checkpoint: {one_line(error)}"
        raise SettingsError(f"{line}; allowed are {allowed}") from error
    if not Path(path).exists():
        if resume:
            logger.info("there is no checkpoint %s yet: starting at round 1", path)
        return beginning
    if not resume:
        raise SettingsError(f"checkpoint {path} exists already: set resume = True, or another path")
    checkpoint = read_checkpoint(path)
    problem = mismatch(checkpoint.arrays, initial)
    if problem:
        raise SettingsError(f"{path} is a checkpoint of another model: {problem}")
    if num_rounds < checkpoint.round:
        over = f"{path} has round {checkpoint.round} already; set this number or more"
        raise SettingsError(f"num_rounds = {num_rounds}: {over}")
    free = {"min_available_nodes", "max_failed_rounds"}  # These do not change the results.
    for name in sorted({**written, **checkpoint.options}.keys() - free):
        was, value = checkpoint.options.get(name), written.get(name)
        if was != value:
            difference = f"its {name} is {was!r}, not {value!r}"
            raise SettingsError(f"{path} is a checkpoint of another run: {difference}")
    # Removes bytes that a killed run has written after these lines.
    checkpoint.lines.append(history_file(path), checkpoint.history, checkpoint.round)
    logger.info("resumed from %s after round %s", path, checkpoint.round)
    return checkpoint


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Append the lines of new rounds to the history's file, and write `checkpoint` to `path`.

    An existing checkpoint is replaced only after the new checkpoint is completely on disk.
    """
    tensors = {f"arrays/{name}": array for name, array in checkpoint.arrays.items()}
    state: dict[str, Any] = {}
    for number, (key, value) in enumerate(checkpoint.state.items()):
        if isinstance(value, dict):
            state[key] = list(value)
            tensors |= {f"state/{number}/{n}": a for n, a in value.items()}
        else:
            state[key] = float(value)
    lines = checkpoint.lines
    lines.append(history_file(path), checkpoint.history, checkpoint.round)
    header = {
        "round": checkpoint.round,
        "names": list(checkpoint.arrays),
        "state": state,
        "options": checkpoint.options,
        "versions": checkpoint.versions,
        # As texts: Flower's node ids have 64 bits without a sign, which JSON's readers cannot keep.
        "bound": {client: str(node) for client, node in checkpoint.bound.items()},
        "most-clients": checkpoint.most_clients,
        "history": {"bytes": lines.size, "sha256": lines.sum.hexdigest()},
    }
    write_sealed(path, tensors, json.dumps(header))


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint and its history's file.

    Raises a SettingsError if one of the two files is damaged, or if `path` is not a checkpoint of
    this package.
    """
    try:
        tensors, text = read_sealed(path)
        header = json.loads(text)
        last = int(header["round"])
        lines, history = HistoryLines.read(history_file(path), last, header["history"])
        return Checkpoint(
            round=last,
            arrays={name: tensors[f"arrays/{name}"] for name in header["names"]},
            state=_state(header["state"], tensors),
            history=history,
            options=dict(header["options"]),
            versions={int(client): version for client, version in header["versions"].items()},
            bound={int(client): int(node) for client, node in header["bound"].items()},
            most_clients=int(header["most-clients"]),
            lines=lines,
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, OSError) as error:
        why = f"{path} is not a complete checkpoint of this package: {one_line(error)}"
        raise SettingsError(f"{why}; remove this file and its history to start again") from error


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint, its history's file and its lock, if they exist."""
    for file in (path, history_file(path), Path(f"{path}.lock")):
        file.unlink(missing_ok=True)


def _state(entries: dict[str, Any], tensors: Arrays) -> State:
    """Return the method's state; `entries` has its numbers, and lists of its arrays' names."""
    state: State = {}
    for number, (key, value) in enumerate(entries.items()):
        arrays = isinstance(value, list)
        state[key] = {n: tensors[f"state/{number}/{n}"] for n in value} if arrays else float(value)
    return state
