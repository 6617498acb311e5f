"""The contents of the messages between strategies and clients, defined here alone.

Request   the ArrayRecord "arrays", which clients answer with arrays of the same names; other
          ArrayRecords, of which those in the list `returned` are answered too, their arrays named
          "RECORD/NAME"; a ConfigRecord "config" with the app's own settings and: server-round, run,
          population, seed, attempt; where nodes host clients also `clients` (the ids to run) and
          `combine` (how to add up their results) and, if there are any, `bounds` (what a result
          must keep to, see `federation.validation`). Where clients keep a state, `state-version`
          and `state-kept` (see `federation.client_state`): a text for one client, a list in the
          order of `clients` for several. The empty ArrayRecord "no-model" says that the reply is
          not one client's model: Flower's client-side mods, which clip a reply as if it were,
          refuse a request of two ArrayRecords.
Reply     hosted: ArrayRecords (one client: its arrays as they are; several: the rule's sums in
          float64, one record a sum), a MetricRecord of lists in the order of its list `clients`,
          and, if any failed, a ConfigRecord "failed" (`clients`, `reasons`). A reply that is
          no model has the metric `norm-as-sent`: the l2 norm of all its arrays.
          A request without `clients` gets the reply Flower's own strategies expect: one
          ArrayRecord and a MetricRecord of scalars, as apps written for Flower alone do.
Roster    `query.roster` is answered by a ConfigRecord "roster": `own`, the ids of this node's own
          clients. Nodes are asked only where the strategy does not say who runs which client.
"""

import re
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from coprefl_flwr.arrays import Arrays, from_record, norm, records_of, size_of, to_record
from coprefl_flwr.errors import SettingsError, cut, one_line
from coprefl_flwr.federation.aggregation import Rule

ROSTER = "query.roster"
ARRAYS = "arrays"
RETURNED = "returned"
NO_MODEL, NORM = "no-model", "norm-as-sent"
"""The record of a request whose reply is no model, and the metric by which a change is noticed."""

PER_CLIENT = ("state-version", "state-kept")
"""Settings that differ from client to client, in a request to several."""

OURS = (
    *("server-round", "run", "population", "seed", "attempt"),
    *("client", "clients", "combine", "bounds", RETURNED),
)
"""Settings that every request has from this package; an app cannot send its own under these."""

Scalar = bool | int | float | str | bytes
Value = Scalar | list[int] | list[float] | list[str] | list[bool] | list[bytes]
MessageConfig = dict[str, Value]


@dataclass
class NodeReply:
    """What one node answered: per-client metrics, the arrays or sums, and who failed and why.

    `norm` is that of the arrays as they were sent, where the node says it. `alone` tells whether
    one client was asked, whose arrays are as they are.
    """

    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    records: dict[str, Arrays] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    norm: float | None = None
    alone: bool = False

    @property
    def clients(self) -> list[int]:
        """Ids of the clients whose results are in, ascending."""
        return sorted(self.metrics)


def request(
    records: Mapping[str, ArrayRecord],
    config: MessageConfig,
    *,
    rule: Rule,
    clients: Sequence[int] | None,
    of_clients: Mapping[str, Sequence[str]] | None = None,
    bounds: str = "",
) -> RecordDict:
    """Return the content of a request; `clients` None asks the node's only client.

    `of_clients` holds what differs from client to client, in their order.
    """
    differing = (of_clients or {}).items()
    settings: MessageConfig = {name: values[0] for name, values in differing}
    if clients is not None:
        settings = {"clients": list(clients), "combine": str(rule)}
        settings |= {name: list(values) for name, values in differing}
        settings |= {"bounds": bounds} if bounds else {}
    return RecordDict({**records, "config": ConfigRecord({**config, **settings})})


def check_free(what: str, config: Mapping[str, object]) -> None:
    """Raise a SettingsError if an app's settings `what` have a key that is the protocol's own."""
    for key in config:
        if key in (*OURS, *PER_CLIENT):
            problem = f"{what}: '{key}' is set by the strategy itself"
            raise SettingsError(f"{problem}; give yours another name")


def config_of(config: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Return the config that the client at `position` in the request's list is given."""
    own = {name: config[name][position] for name in PER_CLIENT if name in config}
    return {**config, **own}


def hosted_reply(reply: NodeReply) -> RecordDict:
    """Return the content of a hosting node's reply."""
    lists = {name: values.tolist() for name, values in table(reply.metrics).items()}
    records = reply.records.items()
    content = RecordDict({name: to_record(arrays, copy=False) for name, arrays in records})
    content["metrics"] = MetricRecord({"clients": reply.clients, **lists})
    if reply.failed:
        failed, reasons = list(reply.failed), list(reply.failed.values())
        content["failed"] = ConfigRecord({"clients": failed, "reasons": reasons})
    return content


def table(metrics: Mapping[int, Mapping[str, float]]) -> dict[str, npt.NDArray[np.float64]]:
    """Return {metric that every client has: its values in the order of client ids}.

    With metrics that some have, there could be as many names as clients, each with as many gaps.
    """
    shared = set.intersection(*map(set, metrics.values())) if metrics else set()
    clients = sorted(metrics)
    return {
        name: np.array([float(metrics[client][name]) for client in clients])
        for name in sorted(shared)
    }


def plain_reply(arrays: Arrays, metrics: Mapping[str, float]) -> RecordDict:
    """Return the content that Flower's own strategies expect: arrays (if any) and scalars."""
    content = RecordDict({"metrics": MetricRecord(dict(metrics))})
    if arrays:
        content[ARRAYS] = to_record(arrays)
    return content


def with_norm(content: RecordDict) -> RecordDict:
    """Add the norm of its arrays to the metrics of a reply, so that a change is noticed."""
    records = records_of(content, ArrayRecord).values()
    arrays = (from_record(record, copy=False) for record in records)
    records_of(content, MetricRecord)["metrics"][NORM] = norm(arrays)
    return content


def read_reply(content: RecordDict, clients: Sequence[int], arrays: bool = True) -> NodeReply:
    """Read a hosted or a plain reply to a request for `clients`, with its arrays or without.

    Raises a ValueError of one line if it cannot be read as either.
    """
    metric_records = records_of(content, MetricRecord)
    if len(metric_records) != 1:
        raise ValueError(f"{len(metric_records)} MetricRecords in the reply, not one")
    columns: dict[str, Any] = dict(*metric_records.values())
    array_records = records_of(content, ArrayRecord) if arrays else {}
    records = {name: from_record(record, copy=False) for name, record in array_records.items()}
    ids = columns.get("clients")
    if not isinstance(ids, list):  # The reply of a node that is one client.
        if len(clients) != 1:
            raise ValueError(f"one result for the {len(clients)} clients that were asked")
        scalars = {name: float(v) for name, v in columns.items() if not isinstance(v, list)}
        as_sent = scalars.pop(NORM, None)
        return NodeReply({clients[0]: scalars}, records, norm=as_sent, alone=True)
    order = [int(str(client)) for client in ids]
    if not set(order) <= set(clients) or len(set(order)) < len(order):
        raise ValueError(f"results of clients {order}, expected: {list(clients)}")
    sent = columns.pop(NORM, None)
    metrics: dict[int, dict[str, float]] = {client: {} for client in order}
    for name, values in columns.items():
        if name == "clients" or not isinstance(values, list):  # A mod's own metric is a number.
            continue
        for client, value in zip(order, values, strict=True):
            metrics[client][name] = float(value)
    failed = _failures(content)
    if not set(failed) <= set(clients) - set(order):
        raise ValueError(f"failures of clients {sorted(failed)}, expected: {list(clients)}")
    lost = dict.fromkeys(set(clients) - set(order) - set(failed), "no result in the reply")
    as_sent = None if sent is None else float(sent)
    return NodeReply(metrics, records, failed | lost, as_sent, alone=len(clients) == 1)


def size_of_arrays(message: Message) -> int:
    """Return the bytes of the serialised arrays in a message, 0 for an error reply."""
    if message.has_error():
        return 0
    records = records_of(message.content, ArrayRecord).values()
    return sum(size_of(array) for record in records for array in record.values())


def _failures(content: RecordDict) -> dict[int, str]:
    """Return {client: reason} of the reply's record `failed`."""
    if "failed" not in (records := records_of(content, ConfigRecord)):
        return {}
    failed = records["failed"]
    clients, reasons = failed["clients"], failed["reasons"]
    if not isinstance(clients, list) or not isinstance(reasons, list):
        raise ValueError("the record 'failed' holds no lists")
    return {int(str(client)): cut(str(why)) for client, why in zip(clients, reasons, strict=True)}


# ---- why a client failed -------------------------------------------------------------------------
#
# The line is "KIND: text (file.py:LINE)". A node that hosts clients writes it from the exception.
# Of other apps the server has the text of Flower's error reply: in a simulation the traceback, in a
# deployment the exception alone, without its place.

PROGRAM_ERRORS = {
    *("AssertionError", "AttributeError", "ImportError", "IndentationError", "IndexError"),
    *("KeyError", "LoadClientAppError", "ModuleNotFoundError", "NameError", "NotImplementedError"),
    *("SyntaxError", "TypeError", "UnboundLocalError"),
}
"""Errors that are in the program: if all clients raise one, they will raise it again."""

NOT_REGISTERED = r"No \w+ function registered"
"""What Flower's ClientApp says about a message that it has no function for."""

DIVERGED = r"^metric '.*loss' is (nan|-?inf)|holds a NaN or an infinity$"
"""The reason for leaving out a client whose training left the numbers that a float holds."""

OLD_STYLE = {
    "KeyError: 'fitins.parameters'": "its ClientApp(client_fn) is of Flower's old kind: make it "
    "client_app(client_fn), imported from coprefl_flwr.clients"
}
"""What to do about errors that say it to nobody."""

MOD = "a client-side mod"
"""What a line says about a mod that refused a message or spoilt an answer: it will do it again."""

_OF_MOD = 6
"""Flower's code of an error that a mod answers with."""

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = sysconfig.get_path("stdlib")
_FRAME = re.compile(r'^ *File "(.+?)", line (\d+), in .*$', re.MULTILINE)
_CAUSED = "\nThe above exception was the direct cause of the following exception:\n"
_ONLY_RAISED = re.compile(r"<class '(?:\w+\.)*(\w+)'>:<(['\"])(.*)\2>( \(.+:\d+\))?", re.DOTALL)


_LONGEST = 20_000
"""Characters of an error reply that are read: a traceback is shorter."""


def describe_exception(error: BaseException) -> str:
    """Return an exception as one line, with its place if it went through a user's file."""
    return one_line(error) + place(error)


def place(error: BaseException) -> str:
    """Return " (file.py:LINE)", the innermost line of a user's file, or "" if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    return _place((frame.filename, frame.lineno or 0) for frame in frames)


def reason(message: Message) -> str:
    """Return why a node sent no answer, of an error reply, in one line that can be shown."""
    text = (message.error.reason or "").strip() or f"error {message.error.code}"
    if len(text) > _LONGEST:
        text = text[: _LONGEST // 2] + text[-_LONGEST // 2 :]
    line = f"{MOD} refused: {_line(text)}" if message.error.code == _OF_MOD else _line(text)
    return cut(f"{line}: {OLD_STYLE[line]}" if line in OLD_STYLE else line)


def _line(text: str) -> str:
    """Return what was raised and its place, of a traceback or what else Flower says."""
    # Ray's worker wraps what an app raised in an exception of Flower's.
    own, _, wrapping = text.rpartition(_CAUSED)
    own = own if "ClientAppException" in wrapping and own else text
    frames = list(_FRAME.finditer(own))
    if frames:
        behind = own[frames[-1].end() :].splitlines()
        # Indented are the source line and the marks below it.
        start = next((n for n, line in enumerate(behind) if line and line[0] != " "), 0)
        line = " ".join(" ".join(behind[start:]).split())
        kind, mark, rest = line.partition(": ")
        where = _place((frame[1], int(frame[2])) for frame in frames)
        return kind.rpartition(".")[2] + mark + rest + where
    if raised := _ONLY_RAISED.fullmatch(text):
        kind, _, message, where = raised.groups()
        return f"{kind}: {' '.join(message.split())}{where or ''}"
    return text.splitlines()[-1]


def program_error(reasons: Iterable[str]) -> str:
    """Return the first of the clients' reasons if all are one kind of program error, else ""."""
    lines = list(reasons)
    kinds = {_kind(line) for line in lines}
    return lines[0] if len(kinds) == 1 and kinds != {""} else ""


def most_often(reasons: Iterable[str]) -> str:
    """Return the clients' most frequent reason, with a hint where training diverged; or ""."""
    for line, number in Counter(reasons).most_common(1):
        hint = ": a smaller learning rate?" if re.search(DIVERGED, line) else ""
        return f"{number} failed: {line}{hint}"
    return ""


def _kind(line: str) -> str:
    """Return which program error a line is of, "" if of none."""
    if registered := re.search(NOT_REGISTERED, line):
        return registered[0]
    if MOD in line:
        return MOD
    kind = line.partition(":")[0]
    return kind if kind in PROGRAM_ERRORS else ""


def _place(frames: Iterable[tuple[str, int]]) -> str:
    """Return the last of the frames (file, line) that is in a user's file."""
    own = [(file, line) for file, line in frames if _is_users(file)]
    return f" ({_short(own[-1][0])}:{own[-1][1]})" if own else ""


def _is_users(file: str) -> bool:
    path = Path(file)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    within = any(path.is_relative_to(folder) for folder in (_PACKAGE, _LIBRARIES))
    return not (file.startswith("<") or installed or within)


def _short(file: str) -> str:
    """Return a file as seen from the working folder, else its name and its folder's."""
    path = Path(file)  # `flwr run` runs a copy of an app, whose path says nothing to its author.
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return "/".join(path.parts[-2:])
