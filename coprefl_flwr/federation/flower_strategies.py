"""Flower's own strategies as methods: FedTrimmedAvg, Krum, FedAdagrad and others that average.

A class of `flwr.serverapp.strategy` becomes a method, and the arguments of the class become the
method's options. This package draws the participants, hosts clients, evaluates and writes
checkpoints. Flower's strategy is given a separate message with the reply of each client, in
float64, and aggregates the replies into the new global model.
"""

import contextlib
import copy
import functools
import gc
import importlib.metadata
import inspect
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, make_dataclass, replace
from types import NoneType
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flowers
from flwr.serverapp.strategy import Strategy

from coprefl_flwr import plugins
from coprefl_flwr.arrays import Arrays, cast_like, from_record, to_record
from coprefl_flwr.errors import RoundFailedError, SettingsError, one_line, prefixed
from coprefl_flwr.federation.aggregation import Mean, PerClient
from coprefl_flwr.federation.budget import Budget, Work
from coprefl_flwr.federation.checkpoint import State
from coprefl_flwr.federation.context import RoundContext
from coprefl_flwr.federation.exchange import Exchange, Replies, Round
from coprefl_flwr.federation.strategy import RoundStrategy
from coprefl_flwr.named import with_options
from coprefl_flwr.options import option

PLACE, FLWR_VERSION = flowers.__name__, f"flwr {importlib.metadata.version('flwr')}"
CLIENTS = {
    "FedProx": "coprefl_flwr.clients:FedProxClient",
    "QFedAvg": "coprefl_flwr.clients:QFFLClient",
}
"""{Flower class: client class}, for strategies whose clients need more than local training."""

OF_THE_RUN = {
    *("fraction_train", "fraction_evaluate", "min_train_nodes", "min_evaluate_nodes"),
    *("min_available_nodes", "arrayrecord_key", "configrecord_key"),
}
"""Arguments that do not become options: this package sets participants and message formats."""

ATTRIBUTES = {"initial_clipping_norm": "clipping_norm"}
"""{argument: attribute of the strategy that holds the argument's value}, if the names differ."""


@dataclass(kw_only=True, eq=False)
class FlowerStrategy(RoundStrategy):
    """A method in which a Flower strategy aggregates the clients' models into the new model.

    `method_class` creates a subclass for each class of Flower's; the options of the subclass are
    the arguments of Flower's class.
    """

    of: ClassVar[type[Strategy]]
    arguments: ClassVar[tuple[str, ...]] = ()
    roles = ("pretraining", "task")

    def __post_init__(self) -> None:
        """Check the options, and create Flower's strategy."""
        super().__post_init__()
        self.flower = self.instantiate({name: getattr(self, name) for name in self.arguments})
        _innermost(self.flower).fraction_train = 0.0  # It draws no participants.

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the object by Flower's class: its class is created at run time."""
        return _blank, (self.of,), self.__dict__

    @classmethod
    def check_training(cls, options: Mapping[str, Any], training: Any) -> None:
        """Raise a SettingsError if Flower's class refuses the values of its arguments."""
        cls.instantiate({name: options[name.replace("_", "-")] for name in cls.arguments})

    @classmethod
    def instantiate(cls, values: Mapping[str, Any]) -> Strategy:
        """Return Flower's strategy with these arguments, or raise a SettingsError if invalid."""
        arguments = {name: value for name, value in values.items() if value is not None}
        if "strategy" in values:
            arguments["strategy"] = _inner(values["strategy"])
        with prefixed(cls.__name__, of=Exception):  # Flower's class may raise any error.
            return cls.of(**arguments)

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run one round: the participants train, and Flower's strategy aggregates their models.

        Integer arrays are averaged here, weighted by num-examples. If Flower's strategy takes a
        server step from the old model, BatchNorm's statistics are averaged here too, because a step
        could make a variance negative. A wrapper is given all float arrays, as it clips them.
        """
        flower, config = self._resumed(ctx.state), ConfigRecord()
        floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
        steps = hasattr(flower, "current_arrays") and not hasattr(flower, "strategy")
        seen = ctx.weights(arrays) if steps else floats
        flower.configure_train(ctx.round, to_record(seen), config, None)
        before = dict(_attributes(flower))
        config.pop("server-round", None)
        config_sent = dict(config) | ({"q": flower.q} if hasattr(flower, "q") else {})
        replies = yield Exchange(
            "train", arrays, ctx.sample(), PerClient(Mean()), config=config_sent
        )
        moved = self._aggregated(flower, ctx, replies, seen)
        ctx.state.update(self._changed(flower, before))
        models = [replies.sums[str(client)] for client in replies.clients]
        weights = replies.metrics["num-examples"]
        mean = {
            name: np.average([model[name] for model in models], axis=0, weights=weights)
            for name in arrays.keys() - seen.keys()
        }
        return cast_like(mean | moved, arrays), replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return FedAvg's budget, with `step_sum` nan if Flower's strategy takes a server step."""
        budget = super().budget(work)
        steps = hasattr(self.flower, "current_arrays")
        return replace(budget, step_sum=math.nan) if steps else budget

    def _aggregated(self, flower: Any, ctx: RoundContext, replies: Replies, seen: Arrays) -> Arrays:
        """Return Flower's aggregate of the clients' arrays that have the names in `seen`."""
        metrics = dict(replies.metrics)
        key = getattr(flower, "train_loss_key", "loss-before")  # A metric of q-FFL's client.
        if key not in metrics and "loss-before" in metrics:
            metrics[key] = metrics["loss-before"]
        messages = []
        for number, client in enumerate(replies.clients):
            sums = replies.sums[str(client)]
            arrays = to_record({name: sums[name] for name in seen}, copy=False)
            own = MetricRecord({name: float(values[number]) for name, values in metrics.items()})
            content = RecordDict({"arrays": arrays, "metrics": own})
            messages.append(Message(content, dst_node_id=client, message_type="train"))
        name = self.of.__name__
        try:
            with _in_flower(ctx.random(name)):
                model, _ = flower.aggregate_train(ctx.round - ctx.before, messages)
        except Exception as error:  # Flower's strategy may raise any error.
            raise RoundFailedError(f"{name}: {one_line(error)}") from error
        if model is None:
            raise RoundFailedError(f"{name} returned no model for {len(messages)} replies")
        return from_record(model)

    def _resumed(self, state: State) -> Any:
        """Return a copy of Flower's strategy with its attributes as after the last round."""
        flower = copy.deepcopy(self.flower)
        for key, value in state.items():
            *path, name = key.removesuffix("[]").split(".")
            attribute = list(value.values()) if key.endswith("[]") else value
            setattr(functools.reduce(getattr, path, flower), name, attribute)
        return flower

    def _changed(self, flower: Any, before: Mapping[str, Any]) -> State:
        """Return the attributes that a round changed, without ArrayRecords (the global model)."""
        state: State = {}
        for key, value in _attributes(flower):
            if value is before.get(key) or isinstance(value, ArrayRecord):
                continue
            if isinstance(value, list):
                state[f"{key}[]"] = {str(n): np.asarray(array) for n, array in enumerate(value)}
            else:
                state[key] = dict(value) if isinstance(value, dict) else float(value)
        return state


def as_method(part: Any) -> Any:
    """Return the method for a strategy class of Flower's; return any other part unchanged."""
    return method_class(part) if is_flowers(part) else part


def is_flowers(part: Any) -> bool:
    """Return whether `part` is a strategy class in `flwr.serverapp.strategy`."""
    return isinstance(part, type) and part in vars(flowers).values() and issubclass(part, Strategy)


def of_flower(strategy: Strategy, **run: Any) -> RoundStrategy:
    """Return a strategy of Flower's as a method, for `cp.pretrain` and `cp.evaluate_starts`.

    Parameters
    ----------
    strategy : Strategy
        An instance of a class in `flwr.serverapp.strategy`. The strategy's `fraction_train` is
        used, but its other arguments on participants are ignored.
    **run : options that all strategies here have, such as `participants` and `seed`

    Raises
    ------
    SettingsError
        If the strategy does not average arrays, or if one of its arguments is a user's function or
        an accountant.
    """
    kind = method_class(type(strategy))
    if not run.keys() & {"participants", "fraction_train"}:
        fraction = getattr(_innermost(strategy), "fraction_train", 1.0)
        run["fraction_train"] = None if fraction == 1 else fraction
    return kind(**_values(strategy), **run)


@functools.cache
def method_class(flower_class: type[Strategy]) -> type[FlowerStrategy]:
    """Return the method for a strategy class of Flower's.

    Raises a SettingsError if the class cannot become a method.
    """
    name = flower_class.__name__
    if not is_flowers(flower_class) or inspect.isabstract(flower_class):
        raise SettingsError(f"{name}: is not a concrete strategy class of {PLACE}")
    if name.startswith("FedXgb"):
        raise SettingsError(f"{name}: aggregates boosted trees, but a method averages arrays")
    if "ClientSide" in name:
        near = f"use {name.replace('Client', 'Server')}, which clips at the server"
        raise SettingsError(f"{name}: needs Flower's clipping mod at the clients; {near}")
    options: list[Any] = []
    for argument, kind in _arguments(flower_class).items():
        default, meaning = argument.default, f"`{argument.name}` of Flower's {name}"
        if kind is Strategy:
            kind, default = str, f"{PLACE}:FedAvg"
            meaning = "the strategy that is wrapped"
        if default is argument.empty:
            kind, default = kind | None, None
        options.append((argument.name, kind, option(default, meaning)))
    namespace = {
        "__module__": __name__,
        "of": flower_class,
        "arguments": tuple(name for name, _, _ in options),
        "client": CLIENTS.get(name, RoundStrategy.client),
    }
    bases = (FlowerStrategy,)
    return make_dataclass(name, options, bases=bases, namespace=namespace, kw_only=True, eq=False)


def _arguments(flower_class: type[Strategy]) -> dict[inspect.Parameter, Any]:
    """Return {argument of a Flower class that becomes an option: type of the argument}."""
    hints = typing.get_type_hints(flower_class.__init__)
    allowed = {bool, int, float, str, Strategy, NoneType}
    options = {}
    for argument in inspect.signature(flower_class).parameters.values():
        kind = hints.get(argument.name)
        if argument.name not in OF_THE_RUN and {*(typing.get_args(kind) or [kind])} <= allowed:
            options[argument] = kind
    return options


def _values(strategy: Strategy) -> dict[str, Any]:
    """Return a Flower strategy's options; other arguments that are set raise a SettingsError."""
    kind = method_class(type(strategy))
    values = {name: getattr(strategy, ATTRIBUTES.get(name, name)) for name in kind.arguments}
    if deviation := values.get("clipped_count_stddev"):  # It has the rest of the noise.
        parts = values["noise_multiplier"], 2 * deviation
        values["noise_multiplier"] = sum(part**-2 for part in parts) ** -0.5
    others = inspect.signature(kind.of).parameters.keys() - values.keys() - OF_THE_RUN
    for name in sorted(others):
        value = getattr(strategy, name, None)
        if value is not None and not (inspect.isfunction(value) and "flwr" in value.__module__):
            raise SettingsError(f"{kind.__name__}: leave out {name}, which cannot be stored")
    if isinstance(inner := values.get("strategy"), Strategy):
        place = f"{PLACE}:{type(inner).__name__}"
        values["strategy"] = with_options(place, _values(inner).items())
    return values


def _inner(wrapped: str) -> Strategy:
    """Return the Flower strategy at a place with options, for a wrapper."""
    kind = method_class(plugins.find("method", wrapped))
    if kind.client != RoundStrategy.client or "strategy" in kind.arguments:
        raise SettingsError(f"strategy = {wrapped}: is a wrapper, or needs its own clients")
    strategy: Strategy = plugins.call(wrapped, kind.of, ())
    return strategy


def _innermost(strategy: Any) -> Any:
    """Return the innermost strategy inside wrappers, or the strategy if it is not a wrapper."""
    return _innermost(strategy.strategy) if hasattr(strategy, "strategy") else strategy


def _attributes(strategy: Strategy, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of each attribute of a strategy and of the strategies it wraps."""
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            yield from _attributes(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


@contextlib.contextmanager
def _in_flower(rng: np.random.Generator) -> Iterator[None]:
    """Seed NumPy's global generator for Flower's noise, and make garbage collection faster."""
    # Some strategies call `to_numpy_ndarrays(keep_input=False)` for each reply, which runs Python's
    # garbage collection: a third of a second per call if torch is loaded.
    before, spare = np.random.get_state(), not gc.get_freeze_count()  # noqa: NPY002
    np.random.seed(rng.integers(2**32))  # noqa: NPY002
    if spare:
        gc.freeze()
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
        if spare:
            gc.unfreeze()


def _blank(flower_class: type[Strategy]) -> FlowerStrategy:
    """Return a method object without attributes, which unpickling then sets."""
    kind = method_class(flower_class)
    return object.__new__(kind)
