"""Strategies inside a wrapper of Flower's, such as Flower's DifferentialPrivacy strategies.

A wrapper runs Flower's own loop of rounds. The wrapper asks the strategy for messages, changes the
clients' replies, and gives the replies to the strategy. Therefore a round must have one exchange in
which clients return models. The new global model must be the mean of these models, because the
wrapper's noise is calibrated for a mean. Inside a wrapper, there are no checkpoints and no hooks.
"""

import weakref
from collections.abc import Iterable
from weakref import WeakKeyDictionary

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from coprefl_flwr.arrays import Arrays, from_record, to_record
from coprefl_flwr.errors import RoundFailedError, RunFailedError, SettingsError
from coprefl_flwr.federation.context import Listed, RoundContext, RunStrategy
from coprefl_flwr.federation.exchange import Exchange, Replies, Round
from coprefl_flwr.federation.robust import MEAN
from coprefl_flwr.federation.run import Run, as_numbers, logger

STEPS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
"""Methods that Flower's own loop and wrappers call in a round; `start` here calls none of them."""


class _WrappedRun(Run):
    """A run whose rounds a wrapper drives: the round's generator and its current exchange."""

    program: Round
    exchange: Exchange | None = None


_RUNS: WeakKeyDictionary[Strategy, _WrappedRun] = WeakKeyDictionary()
"""By strategy, the run that a wrapper drives: Flower's steps do not pass a run to each other."""


class InsideWrapper(Strategy, RunStrategy):
    """The methods of a strategy for Flower's own loop, which only Flower's wrappers call."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of the round's only exchange.

        Raises a SettingsError if the strategy cannot run inside a wrapper.
        """
        run = _RUNS.get(self)
        if run is None or run.grid is not grid:
            _check(self, from_record(arrays))
            # A weak reference, so that the entry is deleted with the strategy.
            run = _RUNS[self] = _WrappedRun(weakref.proxy(self), grid, {})
        # A copy, as the wrapper may change its record later.
        run.arrays = from_record(arrays)
        run.begin_round()
        ctx = run.context(server_round)
        run.program = self.program(ctx, run.arrays)
        run.exchange = next(run.program)
        return run.messages(ctx, run.exchange, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Return the new global model and the round's metrics.

        Raises a RunFailedError if the round failed. The round is not repeated, because the replies
        to another attempt would not pass through the wrapper.
        """
        run = _RUNS[self]
        if run.exchange is None:
            raise RuntimeError("no exchange is under way")
        try:
            run.program.send(run.collect(run.exchange, replies))
        except StopIteration as end:
            returned, metrics = end.value
        except RoundFailedError as failure:
            why = run.transport.shared_error() or str(failure)
            raise RunFailedError(f"round {server_round}: {why}") from None
        run.exchange = None
        metrics = as_numbers(metrics)
        run.end_round(server_round, 0, run.check_arrays(returned), metrics)
        return to_record(run.arrays, copy=False), MetricRecord(dict(metrics))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of an evaluation on clients, or none if no evaluation is due."""
        if not self.evaluation_due(server_round, 0):
            return []
        run = _RUNS[self]
        run.arrays = from_record(arrays)
        ctx, run.exchange = run.evaluation_exchange(server_round)
        return run.messages(ctx, run.exchange, config)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the means of the clients' metrics, weighted by num-examples.

        Returns None if there was no evaluation, or if the evaluation failed.
        """
        run, messages = _RUNS[self], list(replies)
        if not messages or run.exchange is None:
            return None
        try:
            metrics = run.collect(run.exchange, messages).evaluation_metrics()
        except RoundFailedError as failure:
            logger.warning("round %s, evaluation failed: %s", server_round, failure)
            return None
        finally:
            run.log_tally()
        return MetricRecord(dict(metrics))


def _check(strategy: RunStrategy, arrays: Arrays) -> None:
    """Raise a SettingsError if the strategy cannot run inside a wrapper."""
    if isinstance(strategy.clients, int):
        raise SettingsError(
            f"clients = {strategy.clients}: inside a wrapper such as Flower's DifferentialPrivacy "
            "every node must be one client, because nodes add up the results of their clients"
        )
    if strategy.aggregation != MEAN:
        raise SettingsError(
            f"aggregation = {strategy.aggregation}: inside a wrapper such as Flower's "
            "DifferentialPrivacy only the mean is allowed, because its noise is for a mean"
        )
    for part in getattr(strategy, "phase_strategies", [strategy]):
        if not is_one_mean(part, arrays):
            raise SettingsError(
                f"{type(part).__name__} has other rounds than one exchange of models, so it needs "
                "its own start(): remove another start() and use hooks=, and no wrapper such as "
                "DifferentialPrivacy (allowed with them: FedAvg, FedProx, PerFedAvg)"
            )


def is_one_mean(strategy: RunStrategy, arrays: Arrays) -> bool:
    """Return whether a round has one exchange, and the new model is the mean of clients' models.

    For this check, the round's generator is run with artificial replies; no message is sent.
    """
    ctx = RoundContext(strategy, Listed(range(max(2, strategy.participants or 0))))
    try:
        program = strategy.program(ctx, arrays)
        exchange = next(program)
        clients = tuple(exchange.clients)
        mean = {name: array.copy() for name, array in arrays.items()}
        metrics = {name: np.ones(len(clients)) for name in ("num-examples", "loss")}
        program.send(Replies(clients, metrics, mean))
    except StopIteration as end:
        return exchange.of_models and end.value is not None and end.value[0] is mean
    except Exception:  # The method may raise any error on artificial replies.
        return False
    return False
