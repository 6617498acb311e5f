"""A run's state in one file, written in one atomic step.

The file is a safetensors file: the model's arrays under "arrays/NAME", those of the state's entry
number N under "state/N/NAME", and one JSON text in its header for everything that is not an array.
JSON keeps Python floats exactly, so a resumed run continues with the very bytes of an uninterrupted
one. What every round measured stands under "history", as bytes: a line of JSON a round, each block
of rounds compressed by zlib once it is whole, behind them the lines of the rounds since. A line is
made and compressed once: to do it again for every checkpoint, or to write all as they are, would
make each slower than the last.
"""

import json
import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from coprefl_flwr import checksums
from coprefl_flwr.arrays import Arrays, mismatch
from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.files import parse_json, write_atomically

logger = logging.getLogger("flwr.coprefl")

State = dict[str, Any]
"""Numbers and named arrays by name."""
Rounds = dict[int, dict[str, Any]]

BLOCK = 64
"""Rounds whose lines are compressed together."""

LARGEST_HISTORY = 2**27
"""Bytes of a history's lines, of which a round of the usual metrics has 300; compressed, they can
be a thousandth."""


@dataclass
class History:
    """By absolute round: the metrics of training and of both evaluations, and the traffic.

    Those of a round that a checkpoint has are final: they are not read again for the next one.
    """

    train: Rounds = field(default_factory=dict)
    evaluate: Rounds = field(default_factory=dict)
    server: Rounds = field(default_factory=dict)
    traffic: Rounds = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin without a line written."""
        self._blocks, self._lines, self._until = bytearray(), bytearray(), -1

    def of_round(self, server_round: int) -> dict[str, float]:
        """Return a round's metrics, those of evaluations prefixed with where they were made."""
        found: dict[str, float] = {}
        measured = (self.train, self.traffic, self.evaluate, self.server)
        for mark, rounds in zip(("", "", "evaluate-", "server-"), measured, strict=True):
            found |= {f"{mark}{name}": v for name, v in rounds.get(server_round, {}).items()}
        return found

    def rounds(self) -> dict[int, dict[str, float]]:
        """Return every round's metrics, ascending."""
        return {number: self.of_round(number) for number in sorted(self.train)}

    def put_into(self, result: Result) -> None:
        """Fill in the metrics of Flower's `Result`, under absolute rounds."""
        result.train_metrics_clientapp = _records(self.train)
        result.evaluate_metrics_clientapp = _records(self.evaluate)
        result.evaluate_metrics_serverapp = _records(self.server)

    def lines(self, until: int) -> bytes:
        """Return a line of JSON for every round up to `until`, whole blocks compressed."""
        for number in range(self._until + 1, until + 1):
            measured = {name: getattr(self, name).get(number) for name in MEASURED}
            found = {name: metrics for name, metrics in measured.items() if metrics is not None}
            self._lines += f"{json.dumps([number, found])}\n".encode() if found else b""
            if number % BLOCK == BLOCK - 1:
                self._blocks += zlib.compress(self._lines)
                self._lines.clear()
        self._until = max(self._until, until)
        return bytes(self._blocks + self._lines)

    @classmethod
    def from_lines(cls, written: bytes, until: int) -> "History":
        """Read what `lines` returned."""
        text, rest = bytearray(), written
        while rest and not rest.startswith(b"["):  # Only a line does.
            block = zlib.decompressobj()
            text += block.decompress(rest, LARGEST_HISTORY - len(text) + 1)
            if len(text) > LARGEST_HISTORY or not block.eof:
                raise ValueError(f"its history has more than {LARGEST_HISTORY} bytes, or no end")
            rest = block.unused_data
        history = cls()
        history._blocks = bytearray(written[: len(written) - len(rest)])
        history._lines, history._until = bytearray(rest), until
        kept: dict[str, Rounds] = {name: getattr(history, name) for name in MEASURED}
        for line in (text + rest).splitlines():
            number, found = parse_json(bytes(line), infinite=True)
            for name, metrics in found.items():
                kept[name][int(number)] = dict(MetricRecord(metrics))
        return history


MEASURED = ("train", "evaluate", "server", "traffic")
"""What a history has of a round."""


def _records(rounds: Rounds) -> dict[int, MetricRecord]:
    return {number: MetricRecord(dict(metrics)) for number, metrics in rounds.items()}


@dataclass
class Checkpoint:
    """What a run needs to go on after `round`.

    `versions` are the clients' committed states, and `bound` has the node that each client is bound
    to, where nodes name their clients.
    """

    round: int
    arrays: Arrays
    state: State
    history: History
    options: dict[str, Any]
    versions: dict[int, str] = field(default_factory=dict)
    bound: dict[int, int] = field(default_factory=dict)


def continue_from(
    path: str | Path | None,
    resume: bool,
    initial: Arrays,
    options: Mapping[str, Any],
    num_rounds: int,
) -> Checkpoint:
    """Return where a run begins: at `initial` in round 0, or at its checkpoint.

    Raises a SettingsError if a checkpoint would be overwritten, has another model or other options,
    or is past `num_rounds`; or if an option cannot be written into one.
    """
    beginning = Checkpoint(0, initial, {}, History(), dict(options))
    if resume and path is None:
        raise SettingsError("resume = True: needs the checkpoint to resume from")
    written = {} if path is None else as_json(options)
    if path is None or not Path(path).exists():
        if resume:
            logger.info("there is no checkpoint %s yet: starting anew", path)
        return beginning
    if not resume:
        raise SettingsError(f"checkpoint {path} is there already: resume it, or name another")
    kept = read_checkpoint(path)
    problem = mismatch(kept.arrays, initial)
    if problem:
        raise SettingsError(f"{path} is a checkpoint of another model: {problem}")
    if num_rounds < kept.round:
        raise SettingsError(f"num_rounds = {num_rounds}: {path} is of round {kept.round} already")
    for name in {**written, **kept.options}:
        value = written.get(name)
        # How many nodes are waited for, and attempts are made, does not enter the numbers.
        free = name in ("min_available_nodes", "max_failed_rounds")
        if not free and kept.options.get(name) != value:
            both = f"its {name} is {kept.options.get(name)!r}, here it is {value!r}"
            raise SettingsError(f"{path} is a checkpoint of another run: {both}")
    logger.info("resumed from %s after round %s", path, kept.round)
    return kept


def as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as a checkpoint gives them back: a tuple is a list there."""
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
    """Write `checkpoint` to `path`, replacing what is there only once all of it is on disk."""
    tensors = {f"arrays/{n}": np.asarray(a, order="C") for n, a in checkpoint.arrays.items()}
    state: dict[str, Any] = {}
    for number, (key, value) in enumerate(checkpoint.state.items()):
        if isinstance(value, dict):
            state[key] = list(value)
            tensors |= {f"state/{number}/{n}": np.asarray(a, order="C") for n, a in value.items()}
        else:
            state[key] = float(value)
    lines = checkpoint.history.lines(checkpoint.round)
    tensors["history"] = np.frombuffer(lines, dtype=np.uint8)
    about = {
        "round": checkpoint.round,
        "names": list(checkpoint.arrays),
        "state": state,
        "options": checkpoint.options,
        "versions": checkpoint.versions,
        "bound": checkpoint.bound,
    }
    text = json.dumps(about)
    write_atomically(path, save(tensors, {"checkpoint": checksums.sealed(tensors, text)}))


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint; raise a SettingsError if it is damaged, or none of this package."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        entry = header["checkpoint"]
        _, brace, rest = entry.partition("{")
        text = brace + rest
        if entry != checksums.sealed(tensors, text):
            raise ValueError("it is damaged, as its checksum says")
        about = parse_json(text, infinite=True)
        return Checkpoint(
            round=int(about["round"]),
            arrays={name: tensors[f"arrays/{name}"] for name in about["names"]},
            state=_state(about["state"], tensors),
            history=History.from_lines(tensors["history"].tobytes(), int(about["round"])),
            options=dict(about["options"]),
            versions={int(client): version for client, version in about["versions"].items()},
            bound={int(client): int(node) for client, node in about["bound"].items()},
        )
    except (
        SafetensorError,
        zlib.error,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
        OSError,
    ) as error:
        why = f"{path} is not a checkpoint of this package: {one_line(error)}"
        raise SettingsError(f"{why}; remove it to begin anew") from error


def _state(kept: dict[str, Any], tensors: Arrays) -> State:
    """Return the state: numbers as they are, arrays by the names that stand for them."""
    state: State = {}
    for number, (key, value) in enumerate(kept.items()):
        arrays = isinstance(value, list)
        state[key] = {n: tensors[f"state/{number}/{n}"] for n in value} if arrays else float(value)
    return state
