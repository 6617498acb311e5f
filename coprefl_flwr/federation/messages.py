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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from coprefl_flwr.arrays import Arrays, from_record, norm, records_of, to_record
from coprefl_flwr.errors import SettingsError, cut
from coprefl_flwr.federation.aggregation import Rule

ROSTER = "query.roster"
ARRAYS = "arrays"
RETURNED = "returned"
NO_MODEL, NORM = "no-model", "norm-as-sent"
"""The record of a request whose reply is no model, and the metric by which a change is noticed."""

OF_CLIENTS = ("state-version", "state-kept")
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
    each: MessageConfig = {name: values[0] for name, values in differing}
    if clients is not None:
        each = {"clients": list(clients), "combine": str(rule)}
        each |= {name: list(values) for name, values in differing}
        each |= {"bounds": bounds} if bounds else {}
    return RecordDict({**records, "config": ConfigRecord({**config, **each})})


def check_free(what: str, config: Mapping[str, object]) -> None:
    """Raise a SettingsError if an app's settings `what` have a key that is the protocol's own."""
    for key in config:
        if key in (*OURS, *OF_CLIENTS):
            taken = f"{what}: '{key}' is set by the strategy itself"
            raise SettingsError(f"{taken}; give yours another name")


def config_of(config: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Return the config that the client at `position` in the request's list is given."""
    own = {name: config[name][position] for name in OF_CLIENTS if name in config}
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
    named = set.intersection(*map(set, metrics.values())) if metrics else set()
    each = {name: [float(metrics[client][name]) for client in sorted(metrics)] for name in named}
    return {name: np.array(each[name]) for name in sorted(each)}


def plain_reply(arrays: Arrays, metrics: Mapping[str, float]) -> RecordDict:
    """Return the content that Flower's own strategies expect: arrays (if any) and scalars."""
    content = RecordDict({"metrics": MetricRecord(dict(metrics))})
    if arrays:
        content[ARRAYS] = to_record(arrays)
    return content


def with_norm(content: RecordDict) -> RecordDict:
    """Add the norm of its arrays to the metrics of a reply, so that a change is noticed."""
    records = records_of(content, ArrayRecord).values()
    found = norm(from_record(record, copy=False) for record in records)
    records_of(content, MetricRecord)["metrics"][NORM] = found
    return content


def read_reply(content: RecordDict, clients: Sequence[int], arrays: bool = True) -> NodeReply:
    """Read a hosted or a plain reply to a request for `clients`, with its arrays or without.

    Raises a ValueError of one line if it cannot be read as either.
    """
    metric_records = records_of(content, MetricRecord)
    if len(metric_records) != 1:
        raise ValueError(f"{len(metric_records)} MetricRecords in the reply, not one")
    measured: dict[str, Any] = dict(*metric_records.values())
    found = records_of(content, ArrayRecord) if arrays else {}
    records = {name: from_record(record, copy=False) for name, record in found.items()}
    ids = measured.get("clients")
    if not isinstance(ids, list):  # The reply of a node that is one client.
        if len(clients) != 1:
            raise ValueError(f"one result for the {len(clients)} clients that were asked")
        scalars = {name: float(v) for name, v in measured.items() if not isinstance(v, list)}
        as_sent = scalars.pop(NORM, None)
        return NodeReply({clients[0]: scalars}, records, norm=as_sent, alone=True)
    order = [int(str(client)) for client in ids]
    if not set(order) <= set(clients) or len(set(order)) < len(order):
        raise ValueError(f"results of clients {order}, asked were {list(clients)}")
    sent = measured.pop(NORM, None)
    metrics: dict[int, dict[str, float]] = {client: {} for client in order}
    for name, values in measured.items():
        if name == "clients" or not isinstance(values, list):  # A mod's own metric is a number.
            continue
        for client, value in zip(order, values, strict=True):
            metrics[client][name] = float(value)
    failed = _failures(content)
    if not set(failed) <= set(clients) - set(order):
        raise ValueError(f"failures of clients {sorted(failed)}, asked were {list(clients)}")
    lost = dict.fromkeys(set(clients) - set(order) - set(failed), "no result in the reply")
    as_sent = None if sent is None else float(sent)
    return NodeReply(metrics, records, failed | lost, as_sent, alone=len(clients) == 1)


def _failures(content: RecordDict) -> dict[int, str]:
    """Return {client: reason} of the reply's record `failed`."""
    if "failed" not in (records := records_of(content, ConfigRecord)):
        return {}
    failed = records["failed"]
    clients, reasons = failed["clients"], failed["reasons"]
    if not isinstance(clients, list) or not isinstance(reasons, list):
        raise ValueError("the record 'failed' holds no lists")
    return {int(str(client)): cut(str(why)) for client, why in zip(clients, reasons, strict=True)}
