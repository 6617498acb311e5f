"""What a reply must keep to before it counts.

A node that hosts clients checks the result of each, as a sum does not show whose a bad number is;
the server checks what the node answers. Both check by `Limits`, which a request carries. What is
over a bound is left out with one line that names its node and its client.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from coprefl_flwr.arrays import Arrays, is_buffer, mismatch, norm
from coprefl_flwr.errors import LONGEST, SettingsError
from coprefl_flwr.federation.aggregation import Apart, LossMoments, Metrics, Rule, measured
from coprefl_flwr.federation.exchange import Exchange
from coprefl_flwr.federation.failures import MOD
from coprefl_flwr.federation.messages import NodeReply
from coprefl_flwr.handover import is_handed, records_of, size_of
from coprefl_flwr.options import check_declared, option

Names = tuple[str, ...]

LARGEST_METRIC = 1e100
"""No metric is larger: its square, and its product with any array's number, are finite."""

PER_ARRAY = 1024
"""Bytes that an array's header may have."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The bounds that a user sets: options of every strategy, in its field `bounds`.

    `loss_range` is the least and the largest value of a client's "loss"; not set, any finite one.
    `trainable` names the arrays that a gradient has; not set, those that most clients' have.
    """

    loss_range: tuple[float, float] | None = None
    trainable: tuple[str, ...] | None = None
    most_samples: int = option(
        10**9, "the largest number of samples that a client may say it has", minimum=1
    )
    largest_update: float | None = option(
        None,
        "the longest update of a client, as a multiple of the median length in the exchange; only "
        "where the server sees each client's own; not set: any length",
        minimum=1,
    )
    most_metrics: int = option(
        128,
        "metrics that a client's reply may have; all replies to one question have at most twice as "
        "many different names",
        minimum=1,
    )
    most_bytes: int | None = option(
        None,
        "bytes of arrays that a reply may have; not set: what those that were sent take in float64",
        minimum=1,
    )
    most_clients: int = option(10**7, "clients that nodes may say there are", minimum=1)
    clients_per_node: int | None = option(
        None,
        "clients that a node may name as its own; not set: one in a deployment, any number in a "
        "simulation or on a local grid, whose nodes are this program's own",
        minimum=1,
    )

    def __post_init__(self) -> None:
        """Check each bound."""
        check_declared(self)
        if self.loss_range is None:
            return
        try:
            least, most = map(float, self.loss_range)
        except (TypeError, ValueError):
            least, most = 1.0, 0.0
        if not least <= most:
            limit = "must be two numbers, the least loss and the largest"
            raise SettingsError(f"loss_range = {self.loss_range!r}: {limit}")

    def with_losses_of(self, phases: Sequence["Bounds"]) -> "Bounds":
        """Return these bounds for several phases: losses have none where those of one have none."""
        free = any(one.loss_range is None for one in phases)
        return replace(self, loss_range=None) if free else self

    def changed(self) -> dict[str, Any]:
        """Return the bounds that are no defaults, for a checkpoint.

        Without `loss_range`: it leaves out what is no loss at all, and runs that began before it
        was checked can be resumed.
        """
        values = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        del values["loss_range"]
        return {name: value for name, (value, default) in values.items() if value != default}


@dataclass(frozen=True)
class Limits:
    """What the result of each client must keep to in one exchange: the bounds, and what that says.

    `str(limits)` is sent to nodes that host clients, and `Limits.parse` reads it.
    """

    loss_range: tuple[float, float] | None = None
    most_samples: float = Bounds.most_samples
    most_metrics: int = Bounds.most_metrics
    positive: Names = ()
    counts: Names = ()
    trainable: Names | None = None

    @property
    def most_names(self) -> int:
        """How many different names the metrics of several clients may have together."""
        return 2 * self.most_metrics

    @classmethod
    def of(cls, bounds: Bounds, exchange: Exchange) -> "Limits":
        """Return the limits of an exchange; gradients have the names of the bounds."""
        names, rule = exchange.trainable, exchange.combine
        rule = rule.of if isinstance(rule, Apart) else rule
        if names is None and isinstance(rule, LossMoments):
            names = bounds.trainable
        return cls(
            bounds.loss_range,
            bounds.most_samples,
            bounds.most_metrics,
            tuple(exchange.positive),
            tuple(exchange.counts),
            None if names is None else tuple(names),
        )

    def __str__(self) -> str:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        defaults = {one.name: one.default for one in fields(self)}
        other = {name: value for name, value in values.items() if value != defaults[name]}
        return json.dumps(other) if other else ""

    @classmethod
    def parse(cls, text: str) -> "Limits":
        """Return the limits that `str(limits)` described."""
        found: dict[str, Any] = json.loads(text or "{}")
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in found.items()
        }
        return cls(**values)

    def check(self, arrays: Arrays, metrics: Metrics, sent: Arrays, rule: Rule) -> None:
        """Raise a ValueError if a client's result cannot enter the sums of `rule`."""
        of_sums = self.check_metrics(0, metrics, rule)
        if rule.sums:
            # A sum that is not divided by its weights holds each term as it is.
            weight = 1 / max([1.0, *map(abs, of_sums.values())]) if rule.partial else 1.0
            self.check_arrays(arrays, sent, rule, dict.fromkeys(sent, weight))

    def check_metrics(self, client: int, metrics: Metrics, rule: Rule) -> dict[str, float]:
        """Return a client's coefficients, or raise a ValueError for a number out of its range."""
        self._check_finite(metrics)
        coefficients = rule.coefficients({**metrics, "client": client})
        for coefficient in coefficients.values():
            rule.buffer_coefficient(metrics, coefficient)
        for name in self.positive:
            if measured(metrics, name) <= 0:
                raise ValueError(f"metric '{name}' is {metrics[name]:g}; it must be above 0")
        samples = metrics.get("num-examples")
        if samples is not None:
            self._check_range("num-examples", samples, (1, self.most_samples))
        if self.loss_range and "loss" in metrics:
            self._check_range("loss", metrics["loss"], self.loss_range)
        if not rule.sums and samples is not None and "correct" in metrics:  # An evaluation.
            self._check_range("correct", metrics["correct"], (0, samples))
        return coefficients

    def _check_finite(self, metrics: Metrics) -> None:
        if len(metrics) > self.most_metrics:
            found = f"{len(metrics)} metrics in the reply"
            raise ValueError(f"{found}, at most {self.most_metrics} are read")
        for name in metrics:
            if len(name) > LONGEST:
                raise ValueError(f"a metric's name has {len(name)} characters, at most {LONGEST}")
            self._check_range(name, measured(metrics, name), (-LARGEST_METRIC, LARGEST_METRIC))

    def _check_range(self, name: str, value: float, limits: tuple[float, float]) -> None:
        if not limits[0] <= value <= limits[1]:
            allowed = f"must be between {limits[0]:g} and {limits[1]:g}"
            raise ValueError(f"metric '{name}' is {value:g}; it {allowed}")

    def check_arrays(
        self, arrays: Arrays, sent: Arrays, rule: Rule, weights: Mapping[str, float]
    ) -> None:
        """Raise a ValueError if arrays, or sums of that weight, are not of what was sent."""
        problem = mismatch(arrays, sent, subset=rule.partial, weights=weights)
        if problem:
            raise ValueError(problem)
        for name in self.counts:
            if name in arrays and (arrays[name] < 0).any():
                raise ValueError(f"array '{name}' holds {arrays[name].min():g}; it must be counts")
        if self.trainable is not None:
            self._check_names(arrays, sent, self.trainable)

    def _check_names(self, arrays: Arrays, sent: Arrays, trainable: Names) -> None:
        missing = [name for name in trainable if name not in arrays]
        if missing:
            raise ValueError(f"array '{missing[0]}' is missing")
        further = [name for name in arrays if name not in trainable]
        known = weights_named(trainable, sent) if further else set()
        for name in further:
            if not weights_named([name], sent) <= known:
                raise ValueError(f"array '{name}' is not one of the {len(trainable)} trainable")


def weights_named(names: Iterable[str], sent: Arrays) -> set[str]:
    """Return the weights of these names: tied ones, which were sent under two names, are one.

    Arrays that hold one number over and over, as biases begin, are no copies of each other.
    """
    found = set()
    for name in names:
        array = sent[name]
        constant = not array.size or array.min() == array.max()
        found.add(name if constant else hashlib.sha256(array.tobytes()).hexdigest())
    return found


ROUNDING = 1e-6
"""By which part of itself the norm of arrays may differ from that which was sent along."""


def check_unchanged(exchange: Exchange, reply: NodeReply) -> None:
    """Raise a ValueError if a reply's arrays are not those whose norm the node sent with them.

    Numbers that are not finite are left to other checks.
    """
    if reply.norm is None:
        return
    found = norm(reply.records.values())
    if not abs(found - reply.norm) > ROUNDING * max(found, reply.norm):
        return
    changed = f"{MOD} changed a reply as if it were a model"
    raise ValueError(f"{changed}, but it is {no_model(exchange)}")


def no_model(exchange: Exchange) -> str:
    """Say what the replies are that a client-side mod must not change, and what to do instead."""
    rule = exchange.combine.of if isinstance(exchange.combine, Apart) else exchange.combine
    if isinstance(rule, LossMoments):
        return "a gradient: set clip= and noise= where it is made"
    if exchange.of_models:
        return "a sum over clients: let every node be one client"
    what = "other arrays" if rule.sums else "metrics alone"
    return f"{what}: take the mod away"


def check_reply(exchange: Exchange, limits: Limits, reply: NodeReply) -> None:
    """Raise a ValueError if what a node sent cannot enter the sums of `exchange`."""
    rule, sent = exchange.combine, exchange.template
    weights: dict[str, tuple[float, float]] = {}
    for client, metrics in reply.metrics.items():
        for name, coefficient in limits.check_metrics(client, metrics, rule).items():
            before, of_buffers = weights.get(name, (0.0, 0.0))
            one = rule.buffer_coefficient(metrics, coefficient)
            weights[name] = before + coefficient, of_buffers + one
    if not rule.sums:
        return
    if len(reply.metrics) == 1:
        if len(reply.records) != 1:
            raise ValueError(f"{len(reply.records)} ArrayRecords in the reply, not one")
        (client,), (arrays,) = reply.clients, reply.records.values()
        limits.check(arrays, reply.metrics[client], sent, rule)
        return
    if set(reply.records) != set(weights):
        raise ValueError(f"sums {sorted(reply.records)} in the reply, asked was {rule}")
    for name, arrays in reply.records.items():
        of_weights, of_buffers = weights[name]
        each = {n: of_buffers if is_buffer(n, array) else of_weights for n, array in sent.items()}
        limits.check_arrays(
            arrays,
            sent,
            rule,
            dict.fromkeys(sent, float(len(reply.metrics))) if rule.partial else each,
        )


def check_size(content: RecordDict, exchange: Exchange, clients: int, bounds: Bounds) -> None:
    """Raise a ValueError if a reply of so many clients is larger than any that was asked for.

    Nothing of it has been read by then: its size is that of the message.
    """
    records: list[MetricRecord | ConfigRecord] = []
    records += records_of(content, MetricRecord).values()
    records += records_of(content, ConfigRecord).values()
    for record in records:
        several = isinstance(record.get("clients"), list)
        most = (1 + several) * bounds.most_metrics
        if len(record) > most + several + 1:  # And the list itself, and the norm.
            raise ValueError(f"{len(record)} metrics in the reply, at most {most} are read")
        longest = max((len(v) for v in record.values() if isinstance(v, list)), default=0)
        if longest > clients and "clients" in record:
            raise ValueError(f"results of {longest} clients in the reply, asked were {clients}")
    if exchange.combine.sums:
        _check_arrays_size(content, exchange, clients, bounds)


def _check_arrays_size(
    content: RecordDict, exchange: Exchange, clients: int, bounds: Bounds
) -> None:
    """Check the number of arrays, and their bytes: at most those of sums in float64."""
    records, sent = records_of(content, ArrayRecord).values(), exchange.template
    sums = max(2, clients)  # What has two is the moments, and one a client the most.
    if len(records) > sums:
        raise ValueError(f"{len(records)} ArrayRecords in the reply, at most {sums} are read")
    most = max(map(len, records), default=0)
    if most > len(sent):
        raise ValueError(f"{most} arrays in the reply, sent were {len(sent)}")
    size = sum(size_of(array) for record in records for array in record.values())
    needed = sums * sum(8 * array.size + PER_ARRAY for array in sent.values())
    allowed = needed if bounds.most_bytes is None else bounds.most_bytes
    if size > allowed:
        raise ValueError(f"{size} bytes of arrays in the reply, at most {allowed} are read")
    for record in records:
        for name, array in record.items():
            if not is_handed(array) and _numbers(array) > len(array.data):
                raise ValueError(f"array '{name}' holds fewer numbers than its header says")


def _numbers(array: Array) -> int:
    """Return the bytes of the numbers that an array's header names, which would be taken for it."""
    file = BytesIO(array.data[: 1 << 16])
    header = np.lib.format
    readers = {(1, 0): header.read_array_header_1_0, (2, 0): header.read_array_header_2_0}
    version = header.read_magic(file)
    if version not in readers:
        raise ValueError(f"an array in NumPy's format {version}")
    shape, _, dtype = readers[version](file)
    return math.prod(shape) * dtype.itemsize
