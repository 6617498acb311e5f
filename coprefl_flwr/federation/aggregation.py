"""The rules that aggregate the results of several clients.

A node that hosts several clients adds up the clients' results before the node replies. The server
adds up the nodes' replies. Nodes and server use the same `Accumulator`, so that a sum does not
depend on which node hosts which client. Sums are computed in float64, in the order of client ids.
All rules except `Chain` are linear: a rule defines one or more sums, and the coefficient of a
client's arrays in each sum. The coefficient depends only on the metrics of that client.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np

from coprefl_flwr.arrays import CORRECTION, Arrays, is_buffer, without_corrections

Metrics = Mapping[str, float]

PART = 1 << 17
"""Number of elements that are added at once, so that their products stay in the CPU's cache."""


@dataclass(frozen=True)
class Rule:
    """A rule to aggregate clients' results; `parse(str(rule))` returns an equal rule.

    The text `str(rule)` is sent in messages. `partial` tells whether clients may return only some
    of the arrays; a gradient, for example, has only the trainable parameters. `sums` tells whether
    clients return arrays at all.
    """

    name: ClassVar[str]
    partial: ClassVar[bool] = False
    sums: ClassVar[bool] = True

    def weights(self, client: int, metrics: Metrics) -> dict[str, tuple[float, float]]:
        """Return {name of a sum: (coefficient of the client's weights, of its buffers)}.

        Raises a ValueError if one of the client's `metrics` that the rule needs is missing or not
        finite.
        """
        raise NotImplementedError

    def returned(self, arrays: Arrays) -> Arrays:
        """Return those of the exchange's arrays that a client's reply needs to have."""
        return arrays

    def __str__(self) -> str:
        parameters = [str(getattr(self, parameter.name)) for parameter in fields(self)]
        return ":".join([self.name, *parameters])


@dataclass(frozen=True)
class Mean(Rule):
    """The weighted mean sum_j w_j x_j / sum_j w_j of the clients' arrays x_j.

    `weight` names the metric w_j of client j; if `weight` is "", all clients have equal weights.
    Buffers, such as BatchNorm's statistics, are always weighted by the metric num-examples.
    """

    name = "mean"
    weight: str = "num-examples"

    def weights(self, client: int, metrics: Metrics) -> dict[str, tuple[float, float]]:
        """Return the client's weight and its number of samples, which must be above 0."""
        weight = _positive(metrics, self.weight) if self.weight else 1.0
        return {"sum": (weight, _positive(metrics, "num-examples"))}

    def returned(self, arrays: Arrays) -> Arrays:
        """Return the arrays without the corrections of adapters, which clients do not change."""
        return without_corrections(arrays)


class Total(Rule):
    """The unweighted sum of the clients' arrays."""

    name = "total"
    partial = True

    def weights(self, client: int, metrics: Metrics) -> dict[str, tuple[float, float]]:
        """Return the coefficient 1 of every client."""
        return {"sum": (1.0, 1.0)}


class LossMoments(Rule):
    """Two sums over the clients' gradients g_j and losses L_j: sum_j g_j and sum_j L_j g_j.

    CoPreFL's meta gradient is computed from these two sums (see `learning.meta`). A node that
    hosts several clients sends only the two sums, so the server does not see their gradients.
    """

    name = "loss-moments"
    partial = True

    def weights(self, client: int, metrics: Metrics) -> dict[str, tuple[float, float]]:
        """Return the coefficients 1 and L_j, the client's loss."""
        loss = finite_metric(metrics, "loss")
        return {"gradient": (1.0, 1.0), "loss-gradient": (loss, loss)}


@dataclass(frozen=True)
class PerClient(Rule):
    """No aggregation: each client's arrays are a separate sum, named by the client id.

    `of` is the rule that would add the arrays up. Clients answer, and their replies are checked, as
    with the rule `of`. The server holds the arrays of all participants at once, in float64.
    """

    name = "per-client"
    of: Rule = field(default_factory=Total)

    @property
    def partial(self) -> bool:  # type: ignore[override]
        """Whether clients may return only some of the arrays, as with the rule `of`."""
        return self.of.partial

    def weights(self, client: int, metrics: Metrics) -> dict[str, tuple[float, float]]:
        """Return {client id: (1.0, 1.0)}: the arrays of each client stay a separate sum.

        Raises a ValueError if the client's metrics would be refused by the rule in `self.of`.
        """
        self.of.weights(client, metrics)
        return {str(client): (1.0, 1.0)}


class Chain(Rule):
    """Sequential training: each client starts from the arrays that the client before it returned.

    The clients train in the order of the exchange's list of client ids. A client that fails is
    skipped: the next client gets the arrays of the last client that did not fail. One exchange with
    this rule runs on one node (see `RoundContext.chain`), which returns the last client's arrays.
    """

    name = "chain"

    def weights(self, client: int, metrics: Metrics) -> dict[str, tuple[float, float]]:
        """Return the coefficient 1, as the sum "last" has only the last client's arrays.

        Raises a ValueError if the client has no samples.
        """
        _positive(metrics, "num-examples")
        return {"last": (1.0, 1.0)}


class MetricsOnly(Rule):
    """Clients return metrics and no arrays, as in an evaluation."""

    name = "nothing"
    sums = False

    def weights(self, client: int, metrics: Metrics) -> dict[str, tuple[float, float]]:
        """Return an empty mapping, as there are no sums.

        Raises a ValueError if the metric num-examples, the weight of the means, is not above 0.
        """
        _positive(metrics, "num-examples")
        return {}


def products(arrays: Arrays, sent: Iterable[str]) -> Arrays:
    """Return B A of the adapters that have a correction in `sent`, by its name, (out, in), float64.

    LoRA's factors A, (r, in), and B, (out, r), of a layer are `LAYER.lora_A.NAME.weight` and
    `LAYER.lora_B.NAME.weight` in `arrays`.
    """
    found = {}
    for name in sent:
        layer, correction, _ = name.partition(CORRECTION)
        if correction:
            own = [n for n in arrays if n.startswith(f"{layer}.lora_") and n.endswith("weight")]
            (a,), (b,) = ([arrays[n] for n in own if f".lora_{factor}." in n] for factor in "AB")
            found[name] = np.matmul(b, a, dtype=np.float64)
    return found


def parse(text: str) -> Rule:
    """Return the rule whose `str(rule)` is `text`; raise a ValueError for an unknown rule."""
    name, colon, value = text.partition(":")
    if name == PerClient.name and colon:
        return PerClient(parse(value))
    if name == Mean.name and colon:
        return Mean(value)
    for rule in (Total, LossMoments, Chain, MetricsOnly):
        if rule.name == text:
            return rule()
    raise ValueError(f"unknown rule '{text}'")


def finite_metric(metrics: Metrics, name: str) -> float:
    """Return the metric `name` of a client; raise a ValueError if it is missing or not finite."""
    if name not in metrics:
        raise ValueError(f"no metric '{name}' in the reply")
    value = float(metrics[name])
    if not math.isfinite(value):
        raise ValueError(f"metric '{name}' is {value}")
    return value


def _positive(metrics: Metrics, name: str) -> float:
    weight = finite_metric(metrics, name)
    if weight <= 0:
        raise ValueError(f"metric '{name}' is {weight:g}; a weight must be above 0")
    return weight


class Accumulator:
    """The running sums of clients' arrays by a rule, in float64.

    `sent` holds the arrays that the clients were sent, and `buffers` the names of the model's
    buffers. The dtypes in `sent` decide which other arrays are buffers, because a client may return
    other dtypes.
    """

    def __init__(
        self, rule: Rule, sent: Arrays | None = None, buffers: Collection[str] = ()
    ) -> None:
        self.rule, self.buffers = rule, frozenset(buffers)
        self.sent = sent or {}
        self.sums: dict[str, Arrays] = {}

    def add(self, client: int, arrays: Arrays, metrics: Metrics) -> None:
        """Add one client's arrays to the sums, with the rule's weights.

        In a mean, a client's product B A takes the place of the correction of an adapter.
        """
        if isinstance(self.rule, Mean):
            arrays = arrays | products(arrays, self.sent)
        for name, weights in self.rule.weights(client, metrics).items():
            self._add(name, arrays, *weights)

    def add_stack(self, clients: Sequence[int], stack: Arrays, metrics: Sequence[Metrics]) -> None:
        """Add the arrays of K clients, each (K, *shape), to the sums, with the rule's weights."""
        if isinstance(self.rule, Mean):
            stack = stack | products(stack, self.sent)
        weights = [self.rule.weights(c, of) for c, of in zip(clients, metrics, strict=True)]
        sums = {name: Arrays() for name in weights[0]}
        for name, key in itertools.product(sums, stack):
            averaged = is_buffer(key, self.sent.get(key, stack[key]), self.buffers)
            factors = np.array([of_client[name][averaged] for of_client in weights])
            sums[name][key] = np.tensordot(factors, stack[key].astype(np.float64), 1)
        self.merge(sums)  # Only now, so that an error leaves no client half added.

    def merge(self, sums: Mapping[str, Arrays]) -> None:
        """Add the sums in a node's reply, which the node made by the same rule.

        The mappings in `sums` are emptied, to free memory.
        """
        for name, arrays in sums.items():
            for key in list(arrays):  # One array at a time, as a model may be large.
                self._add(name, {key: arrays.pop(key)}, 1.0, 1.0)

    def _add(self, name: str, arrays: Arrays, weight: float, buffer_weight: float) -> None:
        """Add weight * arrays to the sum `name`; buffers are multiplied by `buffer_weight`."""
        sums = self.sums.setdefault(name, {})
        for key, array in arrays.items():
            averaged = is_buffer(key, self.sent.get(key, array), self.buffers)
            factor = buffer_weight if averaged else weight
            if key not in sums:
                sums[key] = np.asarray(np.multiply(array, factor, dtype=np.float64))
                continue
            total, numbers = np.atleast_1d(sums[key], array)  # Views.
            rows = max(1, PART * len(total) // max(1, total.size))
            for first in range(0, len(total), rows):
                product = numbers[first : first + rows].astype(np.float64)
                product *= factor
                total[first : first + rows] += product
