"""How the results of several clients become one: the rules an exchange names.

A node that hosts several clients adds their results up before it answers, and the server adds up
the answers of the nodes; both use the `Accumulator` below, so that a sum does not depend on which
node hosts which client. Sums run in float64 in the order of client ids. All rules but `Chain` are
linear: a rule says with which coefficient a client's arrays enter which sum, and the coefficient
may only depend on what that client measured itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np

from coprefl_flwr.arrays import Arrays, is_buffer

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Rule:
    """A way to combine clients' results; `str(rule)` is sent in a message and `parse` reads it.

    `partial` tells whether clients may answer with some of the arrays only, as a gradient covers
    only trainable parameters, and `sums` whether they answer with arrays at all.
    """

    name: ClassVar[str]
    partial: ClassVar[bool] = False
    sums: ClassVar[bool] = True

    def coefficients(self, metrics: Metrics) -> dict[str, float]:
        """Return {name of the sum: coefficient} of a client that measured `metrics`.

        Raises a ValueError if a metric that the rule needs is missing or not finite.
        """
        raise NotImplementedError

    def buffer_coefficient(self, metrics: Metrics, coefficient: float) -> float:
        """Return the coefficient of buffers in a sum where weights have `coefficient`."""
        return coefficient

    def __str__(self) -> str:
        parameters = [str(getattr(self, parameter.name)) for parameter in fields(self)]
        return ":".join([self.name, *parameters])


@dataclass(frozen=True)
class Mean(Rule):
    """Weighted mean sum_j w_j x_j / sum_j w_j; `weight` names the metric w, "" is equal weights.

    Buffers (BatchNorm's statistics) are weighted by num-examples whatever the weight is.
    """

    name = "mean"
    weight: str = "num-examples"

    def coefficients(self, metrics: Metrics) -> dict[str, float]:
        """Return the client's weight; it must be positive."""
        return {"sum": _positive(metrics, self.weight) if self.weight else 1.0}

    def buffer_coefficient(self, metrics: Metrics, coefficient: float) -> float:
        """Return the client's number of samples; it must be positive."""
        return _positive(metrics, "num-examples")


class Total(Rule):
    """Plain sum of the clients' arrays."""

    name = "total"
    partial = True

    def coefficients(self, metrics: Metrics) -> dict[str, float]:
        """Return 1 for every client."""
        return {"sum": 1.0}


class LossMoments(Rule):
    """Two sums of gradients: G1 = sum_j g_j and G2 = sum_j L_j g_j.

    They are all that CoPreFL's meta gradient needs (see `learning.meta`), so nobody but the
    node that hosts a client sees that client's gradient.
    """

    name = "loss-moments"
    partial = True

    def coefficients(self, metrics: Metrics) -> dict[str, float]:
        """Return 1 and the client's loss L_j."""
        return {"gradient": 1.0, "loss-gradient": finite_metric(metrics, "loss")}


@dataclass(frozen=True)
class PerClient(Rule):
    """Every client's arrays separately, in sums named by the client id.

    A client answers, and is checked, as under the rule `of`, which would add the arrays up. The
    server holds the arrays of all participants at once, in float64.
    """

    name = "per-client"
    of: Rule = field(default_factory=Total)

    @property
    def partial(self) -> bool:  # type: ignore[override]
        """Whether clients may answer with some of the arrays only: as under `of`."""
        return self.of.partial

    def coefficients(self, metrics: Metrics) -> dict[str, float]:
        """Return the one sum that holds this client alone; `of` must have what it needs."""
        for coefficient in self.of.coefficients(metrics).values():
            self.of.buffer_coefficient(metrics, coefficient)
        return {str(int(finite_metric(metrics, "client"))): 1.0}


class Chain(Rule):
    """The arrays go from one client to the next, in the order in which the clients are named.

    A client that fails is skipped: the next one gets what the last good one returned. A chain runs
    on one node (see `RoundContext.chain`), which returns the last client's arrays.
    """

    name = "chain"

    def coefficients(self, metrics: Metrics) -> dict[str, float]:
        """Return 1: the only arrays in the sum are the last client's; it must have samples."""
        _positive(metrics, "num-examples")
        return {"last": 1.0}


class MetricsOnly(Rule):
    """No arrays, only what the clients measured (an evaluation)."""

    name = "nothing"
    sums = False

    def coefficients(self, metrics: Metrics) -> dict[str, float]:
        """Return no sum; the metrics' means over clients need a positive num-examples."""
        _positive(metrics, "num-examples")
        return {}


def parse(text: str) -> Rule:
    """Return the rule that `str(rule)` described."""
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
    """Return a client's metric, or raise a ValueError that names it."""
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
    """Running float64 sums of clients' arrays under a rule.

    `sent` are the arrays that the clients were sent. Their dtypes tell which arrays are buffers; a
    client may return others.
    """

    def __init__(self, rule: Rule, sent: Arrays | None = None) -> None:
        self.rule = rule
        self.sent = sent or {}
        self.sums: dict[str, Arrays] = {}

    def add(self, client: int, arrays: Arrays, metrics: Metrics) -> None:
        """Add one client's arrays."""
        for name, weight in self.rule.coefficients({**metrics, "client": client}).items():
            self._add(name, arrays, weight, self.rule.buffer_coefficient(metrics, weight))

    def merge(self, sums: Mapping[str, Arrays]) -> None:
        """Add the sums of a node that added up several clients by the same rule; empty them."""
        for name, arrays in sums.items():
            for key in list(arrays):  # One by one, as a model may be large.
                self._add(name, {key: arrays.pop(key)}, 1.0, 1.0)

    def _add(self, name: str, arrays: Arrays, weight: float, buffer_weight: float) -> None:
        """Add weight x arrays; a name's first array becomes its running sum."""
        sums = self.sums.setdefault(name, {})
        for key, array in arrays.items():
            factor = buffer_weight if is_buffer(key, self.sent.get(key, array)) else weight
            if key in sums:
                # Plain sums, as of gradients and of nodes' sums, need no product.
                term = array if factor == 1 else np.multiply(array, factor, dtype=np.float64)
                np.add(sums[key], term, out=sums[key], dtype=np.float64)
            else:
                sums[key] = np.asarray(np.multiply(array, factor, dtype=np.float64))
