"""The base of all strategies: a round is a program that yields exchanges.

Flower's `Strategy.start` knows one train and one evaluate exchange a round. Here a strategy writes
its round as a generator instead: it yields an `Exchange`, is sent the combined `Replies`, and
returns the new global arrays with the round's metrics. Flower's own loop drives it, so whatever
Flower adds to that loop applies here too.
"""

import copy
import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from coprefl_flwr import seeds
from coprefl_flwr.arrays import Arrays, from_record, misfit, to_record
from coprefl_flwr.errors import RoundFailedError, RunFailedError, SettingsError
from coprefl_flwr.rounds.checkpoint import Checkpoint, History, continue_from, write_checkpoint
from coprefl_flwr.rounds.combine import Nothing
from coprefl_flwr.rounds.exchange import Exchange, Replies
from coprefl_flwr.rounds.protocol import Config
from coprefl_flwr.rounds.traffic import Traffic, size
from coprefl_flwr.rounds.transport import Transport
from coprefl_flwr.rounds.versions import Versions

logger = logging.getLogger("flwr.coprefl")

Metrics = dict[str, float]
Round = Generator[Exchange, Replies, tuple[Arrays, Metrics]]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class RoundReport:
    """What a hook learns after a round: metrics as in Flower's `Result`, and the traffic."""

    round: int
    num_rounds: int
    arrays: Arrays
    metrics: Metrics
    evaluation: Replies | None
    seconds: float


Hook = Callable[[RoundReport], None]


@dataclass(kw_only=True, eq=False)
class RoundStrategy(Strategy, ABC):
    """A federated method whose round is a program of exchanges.

    Parameters
    ----------
    participants : int or None
        Clients per round, |m|; None takes all there are.
    seed : int
        Every random choice is a function of (seed, population, round, client).
    run_name : str
        Name of the run, under which clients keep their states: another one for every run of a
        method whose clients have some.
    population : str
        Which group of clients this is ("train", "pretrain", "task-3"); client ids and seeds are
        relative to it.
    min_nodes : int
        Nodes to wait for before the first round.
    min_replies : int
        Good replies that every exchange needs; with fewer, the round is repeated with others.
    max_failed_rounds : int
        Attempts at one round; when all have failed the run fails.
    evaluate_every : int
        Evaluate on all clients after every so many rounds, and after the last; 0 is never.
    """

    participants: int | None = None
    seed: int = 0
    run_name: str = "run"
    population: str = "train"
    min_nodes: int = 1
    min_replies: int = 1
    max_failed_rounds: int = 3
    evaluate_every: int = 0

    actions: ClassVar[tuple[str, ...]] = ("train",)
    """Message types that this strategy's clients must answer, in the order of the exchanges."""

    wrappable: ClassVar[bool] = False
    """Whether a round is one exchange answered by models, as Flower's wrappers take it to be."""

    def __post_init__(self) -> None:
        """Check the options and start with an empty state."""
        if self.participants is not None:
            self.at_least("participants", self.participants, 1)
            self.enough(self.participants)
        for name in ("run_name", "population"):
            if not re.fullmatch(r"\w[\w.-]*", getattr(self, name)):
                raise SettingsError(
                    f"{name} = {getattr(self, name)!r}: must be letters, digits, '_', '-' and '.', "
                    "as it names a folder"
                )
        for name in ("min_nodes", "min_replies", "max_failed_rounds"):
            self.at_least(name, getattr(self, name), 1)
        self.at_least("evaluate_every", self.evaluate_every, 0)
        self.state: dict[str, float | Arrays] = {}
        self.evaluation: Replies | None = None
        self.versions = Versions()
        self.history = History()
        self._transport: Transport | None = None
        self._started = False
        self._timeout = 3600.0
        self._offset = 0
        self._last_round = 0
        self._round = self._attempt = 0
        self._round_began = 0.0
        self._after_round: Callable[[int], None] = lambda _: None
        self._evaluate_fn: EvaluateFn | None = None

    @staticmethod
    def at_least(name: str, value: int, minimum: int) -> None:
        """Raise a SettingsError unless `value` is a whole number and at least `minimum`."""
        if not isinstance(value, int):
            raise SettingsError(f"{name} = {value}: must be a whole number")
        if value < minimum:
            raise SettingsError(f"{name} = {value}: must be at least {minimum}")

    def enough(self, participants: int) -> None:
        """Raise a SettingsError if so many participants cannot give `min_replies`."""
        if self.min_replies > participants:
            raise SettingsError(
                f"min_replies = {self.min_replies}: must be at most participants = {participants}"
            )

    @staticmethod
    def positive(name: str, value: float, *, or_zero: bool = False) -> None:
        """Raise a SettingsError unless `value` is a finite number above 0 (or 0)."""
        if not (math.isfinite(value) and (value > 0 or (or_zero and value == 0))):
            bound = "at least 0" if or_zero else "above 0"
            raise SettingsError(f"{name} = {value}: must be a finite number {bound}")

    @staticmethod
    def one_of(name: str, value: str, allowed: Sequence[str]) -> None:
        """Raise a SettingsError unless `value` is one of the allowed."""
        if value not in allowed:
            raise SettingsError(f"{name} = '{value}': must be one of {', '.join(allowed)}")

    @abstractmethod
    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Run one round of the method from the global `arrays`.

        Yields exchanges and is sent their replies; returns the new global arrays (same names,
        shapes and dtypes) and the round's metrics. What a method carries from round to round
        stands in `self.state` (numbers and arrays), which counts only once the round has returned.
        """

    def sample(self, server_round: int) -> list[int]:
        """Draw this round's participants: a function of (seed, population, round, attempt)."""
        link = self._link()
        first = not link.begun
        clients = link.clients(self.participants)
        wanted = len(clients) if self.participants is None else self.participants
        if wanted > len(clients) and first:
            raise SettingsError(f"participants = {wanted}: there are only {len(clients)} clients")
        if wanted >= len(clients):
            return clients
        key = (self.seed, self.population, server_round, "participants", self._attempt)
        drawn = seeds.generator(*key).choice(len(clients), wanted, replace=False)
        return sorted(clients[position] for position in drawn)

    def evaluation_exchange(self, arrays: Arrays, clients: list[int]) -> Exchange:
        """Return the exchange that evaluates `arrays`: on each client, the global model.

        Where every client is evaluated with a model of its own, the exchange is `stateful`.
        """
        return Exchange("evaluate", arrays, clients, combine=Nothing(), needed=1)

    def options(self) -> dict[str, Any]:
        """Return what makes two runs the same: the method and its options."""
        return {"strategy": type(self).__name__} | {
            f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("option", True)
        }

    def join(self, outer: "RoundStrategy") -> None:
        """Take part in the round of a strategy around this one, which the run's options are of."""
        self._transport, self._attempt, self.state = outer._transport, outer._attempt, outer.state
        self.versions = outer.versions
        for name in RUN_OPTIONS:
            setattr(self, name, getattr(outer, name))

    def population_size(self) -> int:
        """Return the number of all clients, M: of those that left in the meantime too."""
        return self._link().most_clients

    def stretches(self, chain: Sequence[int]) -> list[list[int]]:
        """Cut a chain of clients into the parts that one node runs after the other."""
        return self._link().roster.stretches(chain)

    def kept(self, name: str, default: float) -> float:
        """Return a number of the strategy's state."""
        value = self.state.get(name, default)
        if not isinstance(value, float):
            raise TypeError(f"state '{name}' holds arrays, not a number")
        return value

    def kept_arrays(self, name: str, default: Arrays) -> Arrays:
        """Return arrays of the strategy's state."""
        value = self.state.get(name, default)
        if not isinstance(value, dict):
            raise TypeError(f"state '{name}' holds a number, not arrays")
        return value

    def summary(self) -> None:
        """Log the strategy's options, as part of Flower's own account of the start."""
        flower = logging.getLogger("flwr")
        options = [f"{name} = {value!r}" for name, value in self.options().items()]
        for option in options[:-1]:
            flower.info("\t├── %s", option)
        flower.info("\t└── %s", options[-1])

    # ---- Flower's five steps -------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 1,
        resume: bool = False,
        hooks: Sequence[Hook] = (),
        **more: Any,
    ) -> Result:
        """Run rounds up to `num_rounds`; what Flower's `start` takes, and the following.

        Parameters
        ----------
        checkpoint : path, optional
            File that keeps the run's state after every `checkpoint_every` rounds and the last. One
            that exists is not overwritten unless the run resumes from it.
        resume : bool
            Continue after the checkpoint's round; without a file, start anew and say so.
        hooks : Sequence[Hook]
            Called after every round, evaluations included, before the checkpoint is written.

        Raises
        ------
        RunFailedError
            If a round failed `max_failed_rounds` times; the last checkpoint is good.
        SettingsError
            If the options do not fit the clients, or the checkpoint another run or model.
        """
        self.at_least("checkpoint_every", checkpoint_every, 1)
        self._restore(checkpoint, resume, from_record(initial_arrays), num_rounds)
        self._started, self._timeout = True, timeout
        self._last_round = num_rounds
        self._transport = None
        self._evaluate_fn = evaluate_fn

        def after_round(server_round: int) -> None:
            self._call_hooks(server_round, hooks)
            due = server_round % checkpoint_every == 0 or server_round == num_rounds
            if checkpoint and due:
                write_checkpoint(checkpoint, self._checkpoint(server_round))
                self.versions.checkpointed()

        self._after_round = after_round
        result = super().start(
            grid,
            to_record(self._global),
            max(num_rounds - self._offset, 0),
            timeout,
            train_config,
            evaluate_config,
            self._evaluate_on_server if evaluate_fn else None,
            **more,
        )
        result.arrays = to_record(self._global)
        self.history.put_into(result)
        if self._transport:
            self._transport.tell_of_silent_nodes()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Start the round's program and return the messages of its first exchange."""
        self._connect(grid)
        self._round_began = time.monotonic()
        self._round = server_round + self._offset
        self._global = from_record(arrays)
        self._config = dict(config)
        self._link().traffic = Traffic(size(self._global))
        messages = self._begin(attempt=0)
        if not self._started and self._link().roster.shared is not None:
            raise SettingsError(
                "inside a wrapper such as Flower's DifferentialPrivacy every node must be one "
                "client, but these nodes add up the results of the several that they host"
            )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Feed the replies to the program and run it to its end, again if clients failed it."""
        for attempt in range(1, self.max_failed_rounds + 1):
            try:
                arrays, metrics = self._finish(replies)
                break
            except RoundFailedError as failure:
                self.state = self._state_before
                logger.warning("round %s, attempt %s failed: %s", self._round, attempt, failure)
                if attempt == self.max_failed_rounds:
                    raise RunFailedError(
                        f"round {self._round} failed {attempt} times in a row, last: {failure}"
                    ) from failure
                replies = self._link().grid.send_and_receive(
                    self._begin(attempt), timeout=self._timeout
                )
        self._global = arrays
        self.versions.commit(self._remembering, self._round, self._attempt)
        self.history.train[self._round] = metrics
        self.history.traffic[self._round] = self._link().traffic.as_metrics()
        return to_record(arrays), MetricRecord(dict(metrics))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask all clients to evaluate the global model, in the rounds that are due."""
        self._connect(grid)
        absolute = server_round + self._offset
        self.evaluation = None
        due = self.evaluate_every and (
            absolute % self.evaluate_every == 0 or absolute == self._last_round
        )
        if not due:
            return []
        exchange = self.evaluation_exchange(from_record(arrays), self._link().clients())
        self._round, self._attempt = absolute, 0
        return self._link().prepare(exchange, self._message_config(dict(config)), self.versions.of)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Keep what every client measured and return the means, weighted by num-examples."""
        record = None
        messages = list(replies)
        if messages:
            try:
                self.evaluation = self._link().collect(messages)
                metrics = self.evaluation.evaluation_metrics()
                self.history.evaluate[self._round] = metrics
                record = MetricRecord(dict(metrics))
            except RoundFailedError as failure:
                logger.warning("round %s, evaluation failed: %s", self._round, failure)
        if not self._evaluate_fn:
            self._after_round(server_round + self._offset)
        return record

    # ---- the round under way -------------------------------------------------------------------

    def _begin(self, attempt: int) -> list[Message]:
        """Start the program; a program that ends before its first exchange sends nothing."""
        self._attempt = attempt
        self._state_before = copy.deepcopy(self.state)
        self._remembering: set[int] = set()
        self._program = self.round(self._round, self._global)
        self._returned: tuple[Arrays, Metrics] | None = None
        try:
            self._asked = next(self._program)
        except StopIteration as end:
            self._returned = end.value
            return []
        return self._prepare(self._asked)

    def _prepare(self, exchange: Exchange) -> list[Message]:
        """Return the messages of an exchange of the round under way."""
        config = self._message_config(self._config)
        return self._link().prepare(exchange, config, self.versions.of)

    def _finish(self, messages: Iterable[Message]) -> tuple[Arrays, Metrics]:
        """Send the program its replies, exchange by exchange, until it returns."""
        while self._returned is None:
            replies = self._link().collect(messages)
            if self._asked.stateful:
                self._remembering |= set(replies.clients)
            try:
                self._asked = self._program.send(replies)
            except StopIteration as end:
                self._returned = end.value
            else:
                asked = self._prepare(self._asked)
                messages = self._link().grid.send_and_receive(asked, timeout=self._timeout)
        arrays, metrics = self._returned
        problem = misfit(arrays, self._global)
        if problem:
            raise RoundFailedError(f"the new global model is no good: {problem}")
        return arrays, metrics

    def _message_config(self, config: Config) -> Config:
        """Return the app's settings and what every message names."""
        return {
            **config,
            "server-round": self._round,
            "run": self.run_name,
            "population": self.population,
            "seed": self.seed,
            "attempt": self._attempt,
        }

    def _link(self) -> Transport:
        if self._transport is None:
            raise RuntimeError("the strategy is not connected to a grid: call start()")
        return self._transport

    def _connect(self, grid: Grid) -> None:
        """Make the link to the grid once a run; refuse wrappers that would see half a round."""
        if self._transport is not None and self._transport.grid is grid:
            return
        if not self._started and not self.wrappable:
            raise SettingsError(
                f"{type(self).__name__} cannot run inside a wrapper such as Flower's "
                "DifferentialPrivacy, which takes a round for one exchange answered by models: use "
                "client-side mods instead (allowed inside a wrapper: FedAvg, FedProx)"
            )
        self._transport = Transport(
            grid, self._timeout, self.min_nodes, self.min_replies, self.population
        )

    def _evaluate_on_server(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Call the user's `evaluate_fn` with absolute rounds, not again before a resumed one."""
        absolute = server_round + self._offset
        if self._evaluate_fn is None or (server_round == 0 and self._offset):
            return None
        metrics = self._evaluate_fn(absolute, arrays)
        if metrics is not None:
            self.history.server[absolute] = dict(metrics)
        if server_round:
            self._after_round(absolute)
        return metrics

    # ---- hooks, checkpoint, resume -------------------------------------------------------------

    def _call_hooks(self, server_round: int, hooks: Sequence[Hook]) -> None:
        report = RoundReport(
            round=server_round,
            num_rounds=self._last_round,
            arrays=self._global,
            metrics=self.history.of_round(server_round),
            evaluation=self.evaluation,
            seconds=time.monotonic() - self._round_began,
        )
        for hook in hooks:
            hook(report)

    def _checkpoint(self, server_round: int) -> Checkpoint:
        return Checkpoint(
            server_round,
            self._global,
            self.state,
            self.history,
            self.options(),
            self.versions.committed,
        )

    def _restore(
        self, path: str | Path | None, resume: bool, initial: Arrays, num_rounds: int
    ) -> None:
        """Start from `initial`, or from the checkpoint if the run resumes and there is one."""
        kept = continue_from(path, resume, initial, self.options(), num_rounds)
        self._global, self._offset = kept.arrays, kept.round
        self.history, self.state = kept.history, kept.state
        self.versions = Versions(dict(kept.versions), dict(kept.versions))


RUN_OPTIONS = tuple(f.name for f in fields(RoundStrategy) if f.name != "participants")
"""Options that are the run's: they hold for every strategy of it."""
