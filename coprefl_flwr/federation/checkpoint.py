"""A run's state in one file, written in one atomic step, and the history of its rounds next to it.

The file is a safetensors file: the model's arrays under "arrays/NAME", those of the state's entry
number N under "state/N/NAME", and one JSON text in its header for everything that is not an array.
JSON keeps Python floats exactly, so a resumed run continues with the very bytes of an uninterrupted
one.

The history is the file NAME.rounds.jsonl, a line of JSON a round. New lines are appended before the
checkpoint is replaced, which says how many bytes of the file are its own, and their checksum. What
a kill leaves behind these bytes is cut off when the run resumes.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from coprefl_flwr.arrays import Arrays, mismatch, read_sealed, write_sealed
from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.files import parse_json

logger = logging.getLogger("flwr.coprefl")

State = dict[str, Any]
"""Numbers and named arrays by name."""
Rounds = dict[int, dict[str, Any]]


@dataclass
class History:
    """By absolute round: the metrics of training and of both evaluations, and the traffic.

    A checkpoint stores those of its round and of the rounds before: a later change is not stored.
    """

    train: Rounds = field(default_factory=dict)
    evaluate: Rounds = field(default_factory=dict)
    server: Rounds = field(default_factory=dict)
    traffic: Rounds = field(default_factory=dict)

    def of_round(self, server_round: int) -> dict[str, float]:
        """Return a round's metrics, those of evaluations prefixed with where they were made."""
        metrics: dict[str, float] = {}
        parts = (self.train, self.traffic, self.evaluate, self.server)
        for prefix, rounds in zip(("", "", "evaluate-", "server-"), parts, strict=True):
            metrics |= {f"{prefix}{name}": v for name, v in rounds.get(server_round, {}).items()}
        return metrics

    def rounds(self) -> dict[int, dict[str, float]]:
        """Return every round's metrics, ascending."""
        return {number: self.of_round(number) for number in sorted(self.train)}

    def put_into(self, result: Result) -> None:
        """Fill in the metrics of Flower's `Result`, under absolute rounds."""
        result.train_metrics_clientapp = _records(self.train)
        result.evaluate_metrics_clientapp = _records(self.evaluate)
        result.evaluate_metrics_serverapp = _records(self.server)


def _records(rounds: Rounds) -> dict[int, MetricRecord]:
    return {number: MetricRecord(dict(metrics)) for number, metrics in rounds.items()}


def history_file(path: str | Path) -> Path:
    """Return the file of a checkpoint's history, which is next to it."""
    return Path(f"{path}.rounds.jsonl")


@dataclass
class HistoryLines:
    """The lines of a history's file that a checkpoint knows: of all rounds before `next_round`."""

    next_round: int = 0
    size: int = 0
    """Bytes of these lines."""
    sum: Any = field(default_factory=hashlib.sha256, repr=False)
    """A hash object, updated with every line."""

    def append(self, file: Path, history: History, until: int) -> None:
        """Truncate the file to the known lines; append lines of new rounds up to `until`."""
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
        """Return the lines that a checkpoint knows, and the history that they hold.

        Raises a ValueError if the file does not begin with them, and an OSError if it is not there.
        """
        with file.open("rb") as opened:
            written = opened.read(min(stored["bytes"], file.stat().st_size))
        lines, history = cls(until + 1, len(written), hashlib.sha256(written)), History()
        if lines.sum.hexdigest() != stored["sha256"]:
            raise ValueError(f"its history {file.name} is cut short or damaged")
        for line in written.splitlines():
            row = parse_json(line, infinite=True)
            number = int(row.pop("round"))
            for name, metrics in row.items():
                vars(history)[name][number] = dict(MetricRecord(metrics))
        return lines, history


@dataclass
class Checkpoint:
    """The state from which a run continues after `round`.

    `versions` has the version of each client's committed state, by client id. `bound` has the node
    that each client is bound to, if nodes name their clients. `lines` describes the lines of the
    history that are already in the history's file.
    """

    round: int
    arrays: Arrays
    state: State
    history: History
    options: dict[str, Any]
    versions: dict[int, str] = field(default_factory=dict)
    bound: dict[int, int] = field(default_factory=dict)
    lines: HistoryLines = field(default_factory=HistoryLines)


def continue_from(
    path: str | Path | None,
    resume: bool,
    initial: Arrays,
    options: Mapping[str, Any],
    num_rounds: int,
) -> Checkpoint:
    """Return where a run begins: at `initial` in round 0, or at its checkpoint.

    Raises a SettingsError if a checkpoint would be overwritten, has another model or other options,
    or is past `num_rounds`; if an option cannot be written into one; or if its history's file is a
    link.
    """
    beginning = Checkpoint(0, initial, {}, History(), dict(options))
    if resume and path is None:
        raise SettingsError("resume = True: needs the checkpoint to resume from")
    if path is None:
        return beginning
    written, history_path = as_json(options), history_file(path)
    if history_path.is_symlink() or (history_path.exists() and not history_path.is_file()):
        raise SettingsError(f"{history_path} is a link, or no regular file: move it away")
    if not Path(path).exists():
        if resume:
            logger.info("there is no checkpoint %s yet: starting at round 1", path)
        return beginning
    if not resume:
        raise SettingsError(f"checkpoint {path} exists already: resume it, or choose another name")
    checkpoint = read_checkpoint(path)
    problem = mismatch(checkpoint.arrays, initial)
    if problem:
        raise SettingsError(f"{path} is a checkpoint of another model: {problem}")
    if num_rounds < checkpoint.round:
        over = f"{path} is of round {checkpoint.round} already"
        raise SettingsError(f"num_rounds = {num_rounds}: {over}")
    for name in {**written, **checkpoint.options}:
        value = written.get(name)
        # How many nodes are waited for, and attempts are made, does not enter the numbers.
        free = name in ("min_available_nodes", "max_failed_rounds")
        if not free and checkpoint.options.get(name) != value:
            difference = f"its {name} is {checkpoint.options.get(name)!r}, here it is {value!r}"
            raise SettingsError(f"{path} is a checkpoint of another run: {difference}")
    # Cuts off what a kill left behind the lines.
    checkpoint.lines.append(history_path, checkpoint.history, checkpoint.round)
    logger.info("resumed from %s after round %s", path, checkpoint.round)
    return checkpoint


def as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as they are read from a checkpoint's JSON, with lists for tuples."""
    written = {}
    for name, value in options.items():
        try:
            written[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError) as error:
            raise SettingsError(
                f"{name} = {value!r}: cannot be written into a checkpoint, which takes numbers, "
                "texts, lists and mappings of them"
            ) from error
    return written


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` to `path`, and the lines of its new rounds to its history's file.

    The checkpoint that is there is replaced only once all of the new one is on disk.
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
        "bound": checkpoint.bound,
        "history": {"bytes": lines.size, "sha256": lines.sum.hexdigest()},
    }
    write_sealed(path, tensors, json.dumps(header))


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint and its history.

    Raises a SettingsError if one of them is damaged, or the file is no checkpoint of this package.
    """
    try:
        tensors, text = read_sealed(path)
        header = parse_json(text, infinite=True)
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
            lines=lines,
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, OSError) as error:
        why = f"{path} is not a whole checkpoint of this package: {one_line(error)}"
        raise SettingsError(f"{why}; remove this file and its history to start again") from error


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, if it is there, and its history."""
    for file in (path, history_file(path)):
        file.unlink(missing_ok=True)


def _state(entries: dict[str, Any], tensors: Arrays) -> State:
    """Return the state: numbers as they are, arrays by the names that identify them."""
    state: State = {}
    for number, (key, value) in enumerate(entries.items()):
        arrays = isinstance(value, list)
        state[key] = {n: tensors[f"state/{number}/{n}"] for n in value} if arrays else float(value)
    return state
