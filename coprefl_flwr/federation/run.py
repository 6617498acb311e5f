"""A run of a strategy: the rounds one after another; a failed round is repeated.

The run stores everything that changes from round to round: the global arrays, the method's state,
the versions of the clients' states, and the history. The strategy stores only options.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from coprefl_flwr.arrays import Arrays, mismatch, read_only, to_record
from coprefl_flwr.errors import RoundFailedError, RunFailedError, flower_log, logger
from coprefl_flwr.federation.averaging import mean_model, remember
from coprefl_flwr.federation.checkpoint import (
    Checkpoint,
    History,
    State,
    continue_from,
    write_checkpoint,
)
from coprefl_flwr.federation.client_state import Versions
from coprefl_flwr.federation.communication import Traffic, nbytes
from coprefl_flwr.federation.context import RoundContext, RunStrategy
from coprefl_flwr.federation.exchange import Exchange, Replies, RoundMetrics, concat_replies
from coprefl_flwr.federation.keep import SERVER, Best, Keep
from coprefl_flwr.federation.messages import MessageConfig
from coprefl_flwr.federation.transport import Transport

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class RoundReport:
    """The report of a finished round, which is passed to hooks.

    `arrays` are the arrays of the new global model, which must not be changed. `metrics` holds the
    metrics of training, of the evaluations and of the traffic. `evaluation` holds the clients'
    replies to the evaluation, or None if there was none in this round. `seconds` is the duration of
    the round. `history` holds the metrics of all rounds so far. `state` is the state that the
    method keeps from round to round, and `versions` the version of each client's state by client
    id. `training` holds the clients' replies in training, without arrays, by message type: "train",
    "train.query". Its `metrics` have the value of each client. `best` is the best round so far, if
    the run keeps one.
    """

    round: int
    num_rounds: int
    arrays: Arrays
    metrics: RoundMetrics
    evaluation: Replies | None
    seconds: float
    history: History = field(default_factory=History)
    state: State = field(default_factory=dict)
    versions: Mapping[int, str] = field(default_factory=dict)
    training: Mapping[str, Replies] = field(default_factory=dict)
    best: Best | None = None


Hook = Callable[[RoundReport], None]


@dataclass(repr=False)
class RunResult(Result):
    """Flower's `Result` with the history of all rounds.

    `best` is the best round, with its arrays, if the run keeps one. It is None if no value of the
    metric was finite. `average` is the mean of the models of several rounds, if the strategy has
    `average_window` or `average_decay`.
    """

    history: History = field(default_factory=History)
    best: Best | None = None
    average: Arrays | None = None


ShouldStop = Callable[[int, RunResult], bool]
"""A function of (number of the round, result so far) that returns whether to end the run."""


@dataclass(eq=False)
class Run:
    """One run of a strategy on a grid, which starts from the global `arrays`.

    The other fields are the arguments of `RoundStrategy.start`.
    """

    strategy: RunStrategy
    grid: Grid
    arrays: Arrays
    num_rounds: int = 0
    timeout: float = 3600.0
    train_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_fn: EvaluateFn | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int = 1
    resume: bool = False
    hooks: Sequence[Hook] = ()
    should_stop: ShouldStop | None = None
    keep: Keep | None = None

    def __post_init__(self) -> None:
        """Start at round 1, or after the checkpoint's round if the run resumes from one."""
        self.options = self.strategy.options() | ({"keep": str(self.keep)} if self.keep else {})
        stored = self.checkpoint, self.resume, self.arrays, self.options
        start = continue_from(*stored, self.num_rounds)
        self.arrays, self.first, self.best = start.arrays, start.round + 1, start.best
        self.history, self.state = start.history, start.state
        kept = dict(start.versions) if self.checkpoint else None
        self.versions = Versions(dict(start.versions), kept)
        most = start.most_clients
        self.transport = Transport(self.grid, self.strategy, self.timeout, most)
        self.evaluation: Replies | None = None
        self._logged: set[str] = set()
        self._stateful: set[int] = set()
        self._training: dict[str, list[Replies]] = {}

    def all_rounds(self) -> RunResult:
        """Run the remaining rounds; return the final model and the metrics of every round."""
        began = time.monotonic()
        if self.first == 1:
            self._evaluate_on_server(0)
            measured = self.history.of_round(0)
            if measured and self.keep and self.keep.metric.startswith(SERVER):
                self.keep.check(measured)
        done = self.first - 1
        if done and self._ends(done):
            self.num_rounds = done
        if 0 < done == self.num_rounds:
            # The hooks of a longer run, which was interrupted, saw no last round.
            for hook in self.hooks:
                hook(self._report(done, 0.0))
        while done < self.num_rounds:
            done += 1
            flower_log.info("")
            flower_log.info("[ROUND %s/%s]", done, self.num_rounds)
            self._one_round(done)
        result = self._result()
        flower_log.info("")
        flower_log.info("Strategy execution finished in %.2fs", time.monotonic() - began)
        flower_log.info("")
        flower_log.info("Final results:")
        for line in str(result).splitlines():
            flower_log.info("\t%s", line)
        return result

    def _one_round(self, server_round: int) -> None:
        """Run one round: train, evaluate, call the hooks, and write the checkpoint if it is due."""
        began = time.monotonic()
        self.train(server_round)
        self.evaluate(server_round)
        self._evaluate_on_server(server_round)
        seconds = time.monotonic() - began
        if self._ends(server_round):
            self.num_rounds = server_round
        report = self._report(server_round, seconds)
        for hook in self.hooks:
            hook(report)
        if server_round % self.checkpoint_every == 0 or server_round == self.num_rounds:
            self._write_checkpoint(server_round)

    def _ends(self, server_round: int) -> bool:
        """Update the best round; return whether the run ends after this round."""
        ends = False
        if self.keep:
            metrics, arrays = self.history.of_round(server_round), read_only(self.arrays)
            self.best, ends = self.keep.after(server_round, metrics, arrays, self.best)
        return ends or bool(self.should_stop and self.should_stop(server_round, self._result()))

    def _result(self) -> RunResult:
        """Return the result of the run so far."""
        arrays = to_record(self.arrays, copy=False)
        average = mean_model(self.state, self.arrays)
        result = RunResult(arrays, history=self.history, best=self.best, average=average)
        self.history.put_into(result)
        return result

    def train(self, server_round: int) -> None:
        """Run the strategy's generator of a round to its end; a failed attempt is repeated.

        Raises a RunFailedError if `max_failed_rounds` attempts failed, or if all clients fail with
        the same error of their program.
        """
        self.transport.traffic = Traffic(nbytes(self.arrays))
        most = self.strategy.max_failed_rounds
        for attempt in range(most):
            before = copy.deepcopy(self.state)
            try:
                arrays, metrics = self._attempt(self.context(server_round, attempt))
                break
            except RoundFailedError as failure:
                shared = self.transport.tally.shared_error()
                self.log_tally()
                self.state = before
                if shared:
                    raise RunFailedError(f"round {server_round}: {shared}") from None
                logger.warning(
                    "round %s, attempt %s failed: %s", server_round, attempt + 1, failure
                )
                if attempt + 1 == most:
                    failed = f"round {server_round} failed {most} times in a row"
                    raise RunFailedError(f"{failed}, last: {failure}") from failure
        self.arrays = arrays
        remember(self.state, server_round, arrays, self.strategy)
        self.versions.commit(self._stateful, server_round, attempt)
        self.history.train[server_round] = metrics
        self.history.traffic[server_round] = self.transport.traffic.as_metrics()
        self.log_tally()
        flower_log.info("\t└──> Aggregated MetricRecord: %s", metrics)

    def context(self, server_round: int, attempt: int = 0) -> RoundContext:
        """Return the `RoundContext` of an attempt at a round."""
        run = self.strategy, self.transport
        return RoundContext(*run, server_round, attempt, self.state, self.versions)

    def _attempt(self, ctx: RoundContext) -> tuple[Arrays, RoundMetrics]:
        """Run the round's generator once; return the new global arrays and the round's metrics.

        Raises a RoundFailedError if names, shapes or dtypes of the new arrays differ from those of
        the old ones, or if numbers are not finite.
        """
        self._stateful, self._training = set(), {}
        # Read-only: hooks may have kept these arrays, and another attempt starts from them.
        program = self.strategy.program(ctx, read_only(self.arrays))
        try:
            exchange = next(program)
            while True:
                exchange = program.send(self._replies(ctx, exchange, self.train_config))
        except StopIteration as end:
            returned, metrics = end.value
        # NumPy's arithmetic turns arrays of shape () into scalars.
        arrays = {name: np.asarray(array) for name, array in returned.items()}
        problem = mismatch(arrays, self.arrays)
        for name, old in self.arrays.items():
            if not problem and arrays[name].dtype != old.dtype:
                problem = f"array '{name}' has dtype {arrays[name].dtype}; expected is {old.dtype}"
        if problem:
            raise RoundFailedError(f"the new global model is invalid: {problem}")
        # In the old order: clients identify arrays by their index.
        return {name: arrays[name] for name in self.arrays}, as_numbers(metrics)

    def _replies(self, ctx: RoundContext, exchange: Exchange, config: ConfigRecord) -> Replies:
        """Return the replies to an exchange, whose messages have the settings `config` of the app.

        The replies to training are kept, and the clients that have a new state.
        """
        settings: MessageConfig = {
            "server-round": ctx.round,
            "run": self.strategy.run_name,
            "population": self.strategy.population,
            "seed": self.strategy.seed,
            "attempt": ctx.attempt,
        }
        replies = self.transport.exchange(exchange, {**config, **settings}, self.versions)
        if exchange.stateful:
            self._stateful |= set(replies.clients)
        if exchange.action != "evaluate":
            without_arrays = replace(replies, arrays={}, sums={})
            self._training.setdefault(exchange.action, []).append(without_arrays)
        return replies

    def log_tally(self) -> None:
        """Log how many clients answered the exchanges since the last such line."""
        if line := self.transport.tally.line(self.transport.called):
            flower_log.info("\t├──> %s; %d clients in all", line, self.transport.most_clients)

    def evaluate(self, server_round: int) -> None:
        """Have clients evaluate the global model, if an evaluation is due in this round.

        Clients are asked to use their states in the evaluation if they did in training.
        """
        self.evaluation = None
        if not self.strategy.evaluation_due(server_round, self.num_rounds):
            return
        ctx = self.context(server_round)
        exchange = self.strategy.evaluation_exchange(ctx, self.arrays)
        exchange = replace(exchange, stateful=bool(self._stateful))
        try:
            self.evaluation = self._replies(ctx, exchange, self.evaluate_config)
        except RoundFailedError as failure:
            if self.keep and self.keep.of_clients and not self.history.evaluate:
                raise RunFailedError(f"keep: the first evaluation failed: {failure}") from failure
            line = f"evaluation failed: {failure}; the same failure is not logged again"
            if line not in self._logged:
                logger.warning("%s", line)
            self._logged.add(line)
            return
        finally:
            self.log_tally()
        metrics = self.evaluation.evaluation_metrics()
        self.history.evaluate[server_round] = metrics
        flower_log.info("\t└──> Aggregated MetricRecord: %s", metrics)

    def _evaluate_on_server(self, server_round: int) -> None:
        """Call the user's `evaluate_fn`, if there is one, and store the returned metrics."""
        if self.evaluate_fn is None:
            return
        metrics = self.evaluate_fn(server_round, to_record(self.arrays, copy=False))
        flower_log.info("\t└──> Server's MetricRecord: %s", metrics)
        if metrics is not None:
            self.history.server[server_round] = dict(metrics)

    def _write_checkpoint(self, server_round: int) -> None:
        """Write the checkpoint of a round, if the run has a checkpoint file.

        Raises a RunFailedError if it cannot be written. The one before it is still there.
        """
        if self.checkpoint:
            checkpoint = Checkpoint(
                server_round,
                self.arrays,
                self.state,
                self.history,
                self.options,
                self.versions.committed,
                self.transport.most_clients,
                self.best,
            )
            try:
                write_checkpoint(self.checkpoint, checkpoint)
            except OSError as error:  # For example, the disk is full.
                failed = f"round {server_round}: {self.checkpoint} cannot be written"
                raise RunFailedError(f"{failed}: {error.strerror or error}") from error
            self.versions.at_checkpoint = dict(self.versions.committed)

    def _report(self, server_round: int, seconds: float) -> RoundReport:
        """Return the report of a round, which is passed to hooks."""
        return RoundReport(
            server_round,
            self.num_rounds,
            # Read-only, as the next round shares the memory of these arrays.
            read_only(self.arrays),
            self.history.of_round(server_round),
            self.evaluation,
            seconds,
            self.history,
            self.state,
            self.versions.committed,
            {action: concat_replies(parts) for action, parts in self._training.items()},
            self.best,
        )


def as_numbers(metrics: Mapping[str, Any]) -> RoundMetrics:
    """Return the metrics of a round as Python's numbers.

    Raises a RunFailedError for a metric that is no number: the history could not store it.
    """
    numbers: RoundMetrics = {}
    for name, value in metrics.items():
        number = value.item() if getattr(value, "ndim", None) == 0 else value  # of NumPy or torch
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise RunFailedError(f"metric '{name}' is a {type(value).__name__}, not a number")
        numbers[name] = number
    return numbers
