"""What runs a strategy: it turns the rounds' programs into messages for Flower's loop.

A new engine is made for every run. It starts each round's program, sends its exchanges, repeats a
round that failed, evaluates, and keeps what a checkpoint holds.
"""

import copy
import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from coprefl_flwr.arrays import Arrays, from_record, mismatch, other_dtype, read_only, to_record
from coprefl_flwr.errors import RoundFailedError, RunFailedError, SettingsError
from coprefl_flwr.rounds.checkpoint import (
    Checkpoint,
    History,
    State,
    continue_from,
    write_checkpoint,
)
from coprefl_flwr.rounds.exchange import Exchange, Replies
from coprefl_flwr.rounds.protocol import MessageConfig
from coprefl_flwr.rounds.traffic import Traffic, size
from coprefl_flwr.rounds.transport import Transport
from coprefl_flwr.rounds.versions import Versions

if TYPE_CHECKING:
    from coprefl_flwr.rounds.strategy import RoundStrategy

logger = logging.getLogger("flwr.coprefl")

Metrics = dict[str, float]
Round = Generator[Exchange, Replies, tuple[Arrays, Metrics]]
Asked = Generator[Exchange, Replies, Replies]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class RoundReport:
    """What a hook learns after a round: metrics as in Flower's `Result`, and the traffic.

    `arrays` are the new global model's, only to be read.
    """

    round: int
    num_rounds: int
    arrays: Arrays
    metrics: Metrics
    evaluation: Replies | None
    seconds: float


Hook = Callable[[RoundReport], None]
Stop = Callable[[RoundReport], bool]


class Stopped(Exception):  # noqa: N818  It is no error.
    """Leaves Flower's loop, which knows a fixed number of rounds, after the last that is wanted."""


@dataclass(eq=False)
class Engine:
    """Runs the rounds of one strategy, once; but for the first two, the fields are as in `start`.

    Inside one of Flower's wrappers `start` is never called, and there are no checkpoint and hooks.
    """

    strategy: "RoundStrategy"
    started: bool = False
    num_rounds: int = 0
    timeout: float = 3600.0
    evaluate_fn: EvaluateFn | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int = 1
    hooks: Sequence[Hook] = ()
    stop: Stop | None = None

    def __post_init__(self) -> None:
        """Begin without anything of a run."""
        self.state: State = {}
        self.history = History()
        self.versions = Versions()
        self.evaluation: Replies | None = None
        self.running = self.strategy  # Whose exchanges these are: that of a phase, if it has such.
        self.arrays: Arrays = {}
        self._bound: dict[int, int] = {}
        self.round = self.attempt = self.offset = self._kept = 0
        self._transport: Transport | None = None

    def begin(self, initial: Arrays, resume: bool) -> None:
        """Start from `initial`, or from the checkpoint if the run resumes and there is one."""
        options = self.strategy.options()
        kept = continue_from(self.checkpoint, resume, initial, options, self.num_rounds)
        self.arrays, self.offset = kept.arrays, kept.round
        self.history, self.state = kept.history, kept.state
        self.versions = Versions(dict(kept.versions), dict(kept.versions))
        self._bound = kept.bound
        if self.offset and self.stop and self.stop(self._report(self.offset, 0.0)):
            self.num_rounds = self.offset

    @property
    def rounds_left(self) -> int:
        """How many rounds the run still has before it."""
        return max(self.num_rounds - self.offset, 0)

    @property
    def link(self) -> Transport:
        """The link to the nodes."""
        if self._transport is None:
            raise RuntimeError("the strategy is not connected to a grid: call start()")
        return self._transport

    def end(self, result: Result) -> None:
        """Fill in what Flower's loop does not know: the last model, and absolute rounds."""
        result.arrays = to_record(self.arrays, copy=False)
        self.history.put_into(result)
        if self._transport:
            self._transport.end()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Start the round's program and return the messages of its first exchange."""
        self._connect(grid)
        self._round_began = time.monotonic()
        self.round = server_round + self.offset
        # Flower's loop hands back what it was given; a wrapper may change its record later.
        self.arrays = from_record(arrays, copy=not self.started)
        self._config = dict(config)
        self.link.new_round()
        self.link.traffic = Traffic(size(self.arrays))
        messages = self._start_attempt(0)
        if not self.started and self.link.roster.shared is not None:
            raise SettingsError(
                "inside a wrapper such as Flower's DifferentialPrivacy every node must be one "
                "client, but these nodes add up the results of the several that they host"
            )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Run the round's program to its end, from its beginning again if an attempt failed.

        Raises a RunFailedError if too many did, or the clients' program is to blame.
        """
        most = self.strategy.max_failed_rounds
        for attempt in range(1, most + 1):
            try:
                arrays, metrics = self._finish_attempt(replies)
                break
            except RoundFailedError as failure:
                self.state = self._state_before
                if shared := self.link.shared_error():
                    raise RunFailedError(f"round {self.round}: {shared}") from None
                logger.warning("round %s, attempt %s failed: %s", self.round, attempt, failure)
                if attempt == most:
                    failed = f"round {self.round} failed {attempt} times in a row"
                    raise RunFailedError(f"{failed}, last: {failure}") from failure
                replies = self._send(self._start_attempt(attempt))
        self.arrays = arrays
        self.versions.commit(self._wrote_state, self.round, self.attempt)
        self.history.train[self.round] = metrics
        self.history.traffic[self.round] = self.link.traffic.as_metrics()
        return to_record(arrays, copy=False), MetricRecord(dict(metrics))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask all clients to evaluate the global model, in the rounds that are due."""
        self._connect(grid)
        absolute = server_round + self.offset
        self.evaluation = None
        if not self.strategy.evaluation_due(absolute, self.num_rounds):
            return []
        clients = list(self.link.clients())
        exchange = self.strategy.evaluation_exchange(from_record(arrays, copy=False), clients)
        self.round, self.attempt = absolute, 0
        return self._prepare(exchange, dict(config))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Keep what every client measured and return the means, weighted by num-examples."""
        record = None
        messages = list(replies)
        if messages:
            try:
                self.evaluation = self.link.collect(messages)
                metrics = self.evaluation.evaluation_metrics()
                self.history.evaluate[self.round] = metrics
                record = MetricRecord(dict(metrics))
            except RoundFailedError as failure:
                logger.warning("round %s, evaluation failed: %s", self.round, failure)
        if not self.evaluate_fn:
            self._after_round(server_round + self.offset)
        return record

    def evaluate_on_server(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Call the user's `evaluate_fn` with absolute rounds, not again before a resumed one."""
        absolute = server_round + self.offset
        if self.evaluate_fn is None or (server_round == 0 and self.offset):
            return None
        metrics = self.evaluate_fn(absolute, arrays)
        if metrics is not None:
            self.history.server[absolute] = dict(metrics)
        if server_round:
            self._after_round(absolute)
        return metrics

    def _connect(self, grid: Grid) -> None:
        """Make the link to the grid once a run; refuse wrappers that would see half a round."""
        strategy = self.strategy
        if self._transport is not None and self._transport.grid is grid:
            return
        if not self.started and not strategy.wrappable:
            raise SettingsError(
                f"{type(strategy).__name__} cannot run inside a wrapper such as Flower's "
                "DifferentialPrivacy, which takes a round for one exchange answered by models "
                "(allowed inside a wrapper: FedAvg, FedProx)"
            )
        if not self.started and strategy.robust:
            raise SettingsError(
                f"aggregation = {strategy.aggregation}: inside a wrapper such as Flower's "
                "DifferentialPrivacy only the mean is allowed, as its noise is that of a mean"
            )
        self._transport = Transport(
            grid,
            self.timeout,
            strategy.min_nodes,
            strategy.min_replies,
            strategy.population,
            strategy.hosting,
            strategy.bounds,
            strategy.given,
            self._bound,
        )

    def _start_attempt(self, attempt: int) -> list[Message]:
        """Start the round's program and return the messages of its first exchange."""
        self.attempt = attempt
        self._state_before = copy.deepcopy(self.state)
        self._wrote_state: set[int] = set()
        self.running, self._told = self.strategy, Metrics()
        # Hooks may have kept them, and another attempt begins with them.
        self._program = self.strategy.round(self.round, read_only(self.arrays))
        self._returned: tuple[Arrays, Metrics] | None = None
        return self._advance(None)

    def _advance(self, replies: Replies | None) -> list[Message]:
        """Send the program its replies; return the messages of its next exchange, [] at its end."""
        try:
            program = self._program
            self._asked = next(program) if replies is None else program.send(replies)
        except StopIteration as end:
            self._returned = end.value
            return []
        return self._prepare(self._asked, self._config)

    def _finish_attempt(self, messages: Iterable[Message]) -> tuple[Arrays, Metrics]:
        """Send the program its replies, exchange by exchange, until it returns."""
        while self._returned is None:
            messages = self._send(self._advance(self._combined(messages)))
        returned, metrics = self._returned
        # NumPy's arithmetic makes numbers of arrays of one.
        arrays = {name: np.asarray(array) for name, array in returned.items()}
        problem = mismatch(arrays, self.arrays) or other_dtype(arrays, self.arrays)
        if problem:
            raise RoundFailedError(f"the new global model is no good: {problem}")
        # In the old order, by which clients tell arrays from each other.
        return {name: arrays[name] for name in self.arrays}, metrics | self._told

    def _combined(self, messages: Iterable[Message]) -> Replies:
        """Return the combined replies to what was last asked; only the program keeps them."""
        replies = self.link.collect(messages)
        if self._asked.stateful:
            self._wrote_state |= set(replies.clients)
        if robust := self.running.robust:
            replies, told = robust.mean(self._asked, replies)
            self._told |= told
        return replies

    def _send(self, messages: list[Message]) -> Iterable[Message]:
        """Send messages that Flower's loop does not: those behind a round's first exchange."""
        grid = self.link.grid
        return grid.send_and_receive(messages, timeout=self.timeout) if messages else []

    def _prepare(self, exchange: Exchange, config: MessageConfig) -> list[Message]:
        """Return the messages of an exchange, with the app's settings and what every one names."""
        named: MessageConfig = {
            "server-round": self.round,
            "run": self.strategy.run_name,
            "population": self.strategy.population,
            "seed": self.strategy.seed,
            "attempt": self.attempt,
        }
        robust = self.running.robust
        asked = robust.apart(exchange) if robust else exchange
        return self.link.prepare(asked, {**config, **named}, self.versions)

    def _after_round(self, server_round: int) -> None:
        """Call the hooks, then write the checkpoint if it is due; raise Stopped at an early end."""
        report = self._report(server_round, time.monotonic() - self._round_began)
        early = server_round < self.num_rounds and self.stop is not None and self.stop(report)
        if early:
            self.num_rounds = server_round
            report = replace(report, num_rounds=server_round)
        for hook in self.hooks:
            hook(report)
        if server_round % self.checkpoint_every == 0 or server_round == self.num_rounds:
            self.keep(server_round)
        if early:
            raise Stopped

    def keep(self, server_round: int) -> None:
        """Write the checkpoint of a round, unless it is there or none is wanted."""
        if not self.checkpoint or server_round == self._kept:
            return
        options, versions = self.strategy.options(), self.versions
        bound = self._transport.roster.bound if self._transport else self._bound
        kept = (self.arrays, self.state, self.history, options, versions.committed, bound)
        write_checkpoint(self.checkpoint, Checkpoint(server_round, *kept))
        versions.checkpointed()
        self._kept = server_round

    def _report(self, server_round: int, seconds: float) -> RoundReport:
        """Return what hooks learn after a round."""
        metrics, evaluation = self.history.of_round(server_round), self.evaluation
        # A hook that changed them would change the next round, which shares their memory.
        arrays = read_only(self.arrays)
        return RoundReport(server_round, self.num_rounds, arrays, metrics, evaluation, seconds)
