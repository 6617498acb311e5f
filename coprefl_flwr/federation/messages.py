"""The contents of the messages between strategies and clients; no other module defines them.

Request   The ArrayRecord "arrays": clients return arrays with the same names. Further ArrayRecords:
          clients also return those in the list `returned`, with arrays named ".RECORD/NAME".
          The ConfigRecord "config": the app's settings and server-round, run, population, seed and
          attempt. If nodes host clients, it also has `clients` (the ids of the clients to run),
          `combine` (the aggregation rule) and, if there are bounds, `bounds` (limits on a result,
          see `federation.validation`). If clients keep a state, it has `state-version` and,
          in a run with checkpoints, `state-kept` (see `federation.client_state`): a string for one
          client, or a list in the order of `clients` for several.
          The empty ArrayRecord "no-model" marks a request whose reply is not one client's model.
          Flower's client-side mods would clip such a reply like a model, but they refuse a request
          with two ArrayRecords.
Reply     If `clients` was in the request: ArrayRecords, a MetricRecord and, if clients failed, the
          ConfigRecord "failed" with the lists `clients` and `reasons`. For one client, there is one
          ArrayRecord with its arrays. For several, each ArrayRecord is one sum of the rule, in
          float64. The MetricRecord holds lists, in the order of its list `clients`.
          If `clients` was not in the request: one ArrayRecord and a MetricRecord of scalars. This
          is the reply that Flower's own strategies expect, and that other Flower apps send.
Roster    The reply to `query.roster` has a ConfigRecord "roster" with the list `own`: the ids of
          the clients that the node hosts, and the node's `name`, if its node-config has one. It
          has the key `runs-clients` if the app runs NumPyClients instead of functions.
          Nodes are asked only if the strategy's option `clients` is not set.
"""

import math
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

from coprefl_flwr.arrays import Arrays, from_record, records_of, size_of, to_record
from coprefl_flwr.errors import SettingsError, shorten
from coprefl_flwr.federation.aggregation import Rule
from coprefl_flwr.plugins import METRIC

ROSTER = "query.roster"
ARRAYS = "arrays"
RETURNED = "returned"
NO_MODEL = "no-model"
"""The name of the record that marks a request whose reply is not a model."""

PER_CLIENT = ("state-version", "state-kept")
"""Settings that are lists in a request to several clients, with one value per client."""

OURS = (
    *("server-round", "run", "population", "seed", "attempt"),
    *("client", "clients", "combine", "bounds", RETURNED),
)
"""Names of settings that this package writes into requests; an app cannot use these names."""

Scalar = bool | int | float | str | bytes
Value = Scalar | list[int] | list[float] | list[str] | list[bool] | list[bytes]
MessageConfig = dict[str, Value]


@dataclass
class NodeReply:
    """The reply of one node.

    `metrics` holds the metrics by client id. `records` holds the arrays of one client, or the sums
    over several clients. `failed` holds the reason of failure by client id. `alone` is true if the
    request was for one client; `records` then has that client's arrays.
    """

    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    records: dict[str, Arrays] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    alone: bool = False


def of_host(
    clients: Sequence[int], of_each: Sequence[Mapping[str, str]], rule: Rule, bounds: str
) -> MessageConfig:
    """Return a request's settings for a node that hosts `clients`.

    `of_each` has the settings that differ between the clients, in the order of `clients`.
    """
    differing = {name: [own[name] for own in of_each] for name in of_each[0]}
    return {"clients": list(clients), "combine": str(rule), "bounds": bounds, **differing}


def check_free(what: str, config: Mapping[str, object]) -> None:
    """Raise a SettingsError if a config of the app has a key that this package writes itself.

    `what` is the name of the config for the error message.
    """
    for key in config:
        if key in (*OURS, *PER_CLIENT):
            raise SettingsError(f"{what}: '{key}' is set by the strategy itself")


def config_of(config: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Return the config for the client at this index of the request's list `clients`."""
    own = {name: config[name][position] for name in PER_CLIENT if name in config}
    return {**config, **own}


def hosted_reply(reply: NodeReply) -> RecordDict:
    """Return the content of the reply of a node that hosts clients."""
    lists = {name: values.tolist() for name, values in table(reply.metrics).items()}
    records = reply.records.items()
    content = RecordDict({name: to_record(arrays, copy=False) for name, arrays in records})
    content["metrics"] = MetricRecord({"clients": sorted(reply.metrics), **lists})
    if reply.failed:
        failed, reasons = list(reply.failed), list(reply.failed.values())
        content["failed"] = ConfigRecord({"clients": failed, "reasons": reasons})
    return content


def table(metrics: Mapping[int, Mapping[str, float]]) -> dict[str, npt.NDArray[np.float64]]:
    """Return {metric: array of its values, in the order of client ids}.

    Only metrics that every client reported are kept. Other metrics would have gaps. A user's metric
    of an evaluation may be undefined for some clients: its value for these clients is nan.
    """
    shared = set.intersection(*map(set, metrics.values())) if metrics else set()
    own = {name for of in metrics.values() for name in of if name.startswith(METRIC)}
    clients = sorted(metrics)
    return {
        name: np.array([float(metrics[client].get(name, math.nan)) for client in clients])
        for name in sorted(shared | own)
    }


def plain_reply(arrays: Arrays, metrics: Mapping[str, float]) -> RecordDict:
    """Return the reply that Flower's own strategies expect: the arrays, if any, and scalars."""
    content = RecordDict({"metrics": MetricRecord(dict(metrics))})
    if arrays:
        content[ARRAYS] = to_record(arrays)
    return content


def read_reply(message: Message, clients: Sequence[int], arrays: bool = True) -> NodeReply:
    """Parse a node's reply to a request for `clients`; `arrays` tells whether to read its arrays.

    The reply may be that of a hosting node (`hosted_reply`) or of a single client (`plain_reply`).
    Its arrays are taken out of the message, to free memory: the grid may keep the message.
    Raises a ValueError with a message of one line if the reply has neither form or is an error.
    """
    if message.has_error():
        raise ValueError(reason(message))
    content = message.content
    metric_records = records_of(content, MetricRecord)
    if len(metric_records) != 1:
        raise ValueError(f"{len(metric_records)} MetricRecords in the reply, not one")
    columns: dict[str, Any] = dict(*metric_records.values())
    records: dict[str, Arrays] = {}
    for name, record in records_of(content, ArrayRecord).items():
        del content[name]
        if arrays:
            records[name] = from_record(record, copy=False)
    ids = columns.get("clients")
    if not isinstance(ids, list):  # The reply of a node that is one client.
        if len(clients) != 1:
            raise ValueError(f"one result in the reply, expected: {len(clients)} clients")
        scalars = {name: float(v) for name, v in columns.items() if not isinstance(v, list)}
        return NodeReply({clients[0]: scalars}, records, alone=True)
    order = [int(str(client)) for client in ids]
    if not set(order) <= set(clients) or len(set(order)) < len(order):
        raise ValueError(f"results of clients {order}, expected: {list(clients)}")
    metrics: dict[int, dict[str, float]] = {client: {} for client in order}
    for name, values in columns.items():
        if name == "clients" or not isinstance(values, list):  # A mod's own metric is a number.
            continue
        for client, value in zip(order, map(float, values), strict=True):
            if not (math.isnan(value) and name.startswith(METRIC)):
                metrics[client][name] = value
    failed: dict[int, str] = {}
    if "failed" in (configs := records_of(content, ConfigRecord)):
        lists: Any = configs["failed"]
        reasons = zip(lists["clients"], lists["reasons"], strict=True)
        failed = {int(str(client)): shorten(str(why)) for client, why in reasons}
    if not set(failed) <= set(clients) - set(order):
        raise ValueError(f"failures of clients {sorted(failed)}, expected: {list(clients)}")
    lost = dict.fromkeys(set(clients) - set(order) - set(failed), "no result in the reply")
    return NodeReply(metrics, records, failed | lost, alone=len(clients) == 1)


def size_of_arrays(message: Message) -> int:
    """Return the number of bytes of the serialised arrays in a message; an error reply has 0."""
    if message.has_error():
        return 0
    records = records_of(message.content, ArrayRecord).values()
    return sum(size_of(array) for record in records for array in record.values())


# ---- why a client failed -------------------------------------------------------------------------
#
# A node that hosts clients writes the exception as one line, "KIND: text (FOLDER/FILE:LINE)". For
# other apps, the reason is the line of the exception in Flower's error reply, or its last line.

DIVERGED = r"^metric '.*loss' is (nan|-?inf)|holds a NaN or an infinity$"
"""Pattern of the reason for a client whose training diverged to NaN or infinity."""

MOD = "a client-side mod refused"
"""Text in the reason for a mod that refused a request or a reply."""

PROGRAM_ERROR = re.compile(
    r"\b(Assertion|Attribute|Import|Indentation|Index|Key|LoadClientApp|ModuleNotFound|Name"
    r"|NotImplemented|Settings|Syntax|Type|UnboundLocal)Error\b"
    rf"|No \w+ function registered|{MOD}"
)
"""Pattern of reasons that point to a bug in the program: a repeated round would fail again."""

_OF_MOD = 6
"""Flower's error code for an error that a mod raised."""

_LIBRARIES = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"))


def place(error: BaseException) -> str:
    """Return " (FOLDER/FILE:LINE)", the innermost line of a user's file, or "" if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        installed = "-packages/" in frame.filename or any(map(path.is_relative_to, _LIBRARIES))
        if not (installed or frame.filename.startswith("<")):
            return f" ({'/'.join(path.parts[-2:])}:{frame.lineno})"
    return ""


def reason(message: Message) -> str:
    """Return one line for the user: the error in a node's error reply."""
    text = (message.error.reason or "").strip() or f"error {message.error.code}"
    # A simulation sends a traceback, in which Flower's exception follows that of the app.
    raised = re.findall(r"(?m)^(?!.*ClientAppException)[\w.]+(?:Error|Exception)\b.*", text)
    line = [*text.splitlines(), *raised][-1]
    return shorten(f"{MOD}: {line}" if message.error.code == _OF_MOD else line)


def program_error(reasons: Iterable[str]) -> str:
    """Return the first reason if all reasons are the same kind of program error, or else ""."""
    lines = list(reasons)
    found = [PROGRAM_ERROR.search(line) for line in lines]
    kinds = {match[0] if match else "" for match in found}
    return lines[0] if len(kinds) == 1 and "" not in kinds else ""


def most_often(reasons: Iterable[str]) -> str:
    """Return the most frequent reason, with a hint if training diverged; "" if no client failed."""
    for line, number in Counter(reasons).most_common(1):
        grew = "; if its data have no NaN and no infinity, try a smaller learning rate"
        hint = grew if re.search(DIVERGED, line) else ""
        return f"{number} failed: {line}{hint}"
    return ""
