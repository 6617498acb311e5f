"""Checkpoints: the state of a run in a file that is replaced atomically, and the history's file.

The checkpoint is a safetensors file. The model's arrays are named "arrays/NAME". The arrays of
entry number N of the method's state are named "state/N/NAME", and those of the best round
"best/NAME". Everything that is not an array is
one JSON string in the file's header. JSON stores Python floats exactly, so a resumed run gives the
same bytes as an uninterrupted run.

The history is the file CHECKPOINT.rounds.jsonl, with one line of JSON per round. It is replaced
before the checkpoint is. The checkpoint stores the number of bytes of the history that belong to
the checkpoint, and their SHA-256 checksum. If the program is killed between the two steps, the file
has further lines, which are removed when the run resumes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from coprefl_flwr.arrays import Arrays, mismatch, read_sealed, write_sealed
from coprefl_flwr.errors import SettingsError, logger, prefixed
from coprefl_flwr.federation.keep import Best
from coprefl_flwr.files import write_atomically

State = dict[str, Any]
"""The state of a method: {name: number, or {name: array}}."""
Rounds = dict[int, dict[str, Any]]


@dataclass
class History:
    """The metrics of training, of both evaluations and of the traffic, each by round number.

    `evaluate` holds the metrics of evaluations on clients, and `server` those of evaluations on the
    server. Round numbers count from the first round of the run, also if the run was resumed.
    The metrics of earlier rounds must not be changed.
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


def history_lines(history: History, until: int) -> bytes:
    """Return the content of a history's file: a line of JSON per round up to the round `until`."""
    lines = []
    for number in range(until + 1):
        row = {name: of[number] for name, of in vars(history).items() if number in of}
        if row:
            lines.append(json.dumps({"round": number, **row}) + "\n")
    return "".join(lines).encode()


def read_history(file: Path, stored: Mapping[str, Any]) -> History:
    """Read the lines of a history's file that a checkpoint describes.

    `stored` is the checkpoint's {"bytes": size of the lines, "sha256": their checksum}. Raises a
    ValueError if the file does not begin with these lines, and an OSError if it does not exist.
    """
    lines, history = file.read_bytes()[: stored["bytes"]], History()
    if hashlib.sha256(lines).hexdigest() != stored["sha256"]:
        raise ValueError(f"its history {file.name} is cut short or damaged")
    for line in lines.splitlines():
        row = json.loads(line)
        number = int(row.pop("round"))
        for name, metrics in row.items():
            vars(history)[name][number] = dict(MetricRecord(metrics))
    return history


@dataclass
class Checkpoint:
    """The state of a run after round `round`, from which the run can continue.

    `arrays` are the global arrays, `state` is the method's state, and `options` are the options of
    the strategy. `versions` is {client id: version of the client's committed state}.
    `most_clients` is the largest number of clients that were connected at the same time. `best` is
    the best round so far, if the run keeps one.
    """

    round: int
    arrays: Arrays
    state: State
    history: History
    options: dict[str, Any]
    versions: dict[int, str] = field(default_factory=dict)
    most_clients: int = 0
    best: Best | None = None


def continue_from(
    path: str | Path | None,
    resume: bool,
    initial: Arrays,
    options: Mapping[str, Any],
    num_rounds: int,
) -> Checkpoint:
    """Return the state from which a run starts: the arrays `initial`, or the checkpoint at `path`.

    Raises a SettingsError if an existing checkpoint would be overwritten; if the checkpoint has
    another model, other options, or a round after `num_rounds`.
    """
    if resume and path is None:
        raise SettingsError("resume = True: set checkpoint, the file to resume from")
    if path is None or not Path(path).exists():
        if resume:
            logger.info("there is no checkpoint %s yet: starting at round 1", path)
        return Checkpoint(0, initial, {}, History(), dict(options))
    if not resume:
        raise SettingsError(f"checkpoint {path} exists already: set resume = True, or another path")
    checkpoint = read_checkpoint(path)
    problem = mismatch(checkpoint.arrays, initial)
    if problem:
        raise SettingsError(f"{path} is a checkpoint of another model: {problem}")
    if num_rounds < checkpoint.round:
        raise SettingsError(f"num_rounds: {path} has round {checkpoint.round} already")
    free = {"min_available_nodes", "max_failed_rounds"}  # These do not change the results.
    written: dict[str, Any] = json.loads(json.dumps(dict(options)))  # Tuples become lists.
    for name in sorted({**written, **checkpoint.options}.keys() - free):
        was, value = checkpoint.options.get(name), written.get(name)
        if was != value:
            raise SettingsError(f"{path} is of another run: its {name} is {was!r}, not {value!r}")
    # Removes lines that a killed run has written for later rounds.
    write_atomically(history_file(path), history_lines(checkpoint.history, checkpoint.round))
    logger.info("resumed from %s after round %s", path, checkpoint.round)
    return checkpoint


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write the history's file, and then `checkpoint` to `path`.

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
    lines = history_lines(checkpoint.history, checkpoint.round)
    write_atomically(history_file(path), lines)
    header: dict[str, Any] = {
        "round": checkpoint.round,
        "names": list(checkpoint.arrays),
        "state": state,
        "options": checkpoint.options,
        "versions": checkpoint.versions,
        "most-clients": checkpoint.most_clients,
        "history": {"bytes": len(lines), "sha256": hashlib.sha256(lines).hexdigest()},
    }
    if best := checkpoint.best:
        tensors |= {f"best/{name}": array for name, array in best.arrays.items()}
        header["best"] = {"round": best.round, "value": best.value}
    write_sealed(path, tensors, json.dumps(header))


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint and its history's file.

    Raises a SettingsError if one of the two files is damaged, or if `path` is not a checkpoint of
    this package.
    """
    problem = f"{path} is not a complete checkpoint of this package"
    with prefixed(f"{problem} (remove it and its history to start again)", of=Exception):
        tensors, text = read_sealed(path)
        header, best = json.loads(text), None
        if "best" in header:
            arrays = {name: tensors[f"best/{name}"] for name in header["names"]}
            best = Best(**header["best"], arrays=arrays)
        return Checkpoint(
            round=int(header["round"]),
            arrays={name: tensors[f"arrays/{name}"] for name in header["names"]},
            state=_state(header["state"], tensors),
            history=read_history(history_file(path), header["history"]),
            options=dict(header["options"]),
            versions={int(client): version for client, version in header["versions"].items()},
            most_clients=int(header["most-clients"]),
            best=best,
        )


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
