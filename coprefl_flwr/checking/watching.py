"""Watching a method at work: what its clients and its rounds are given, change and return."""

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coprefl_flwr.arrays import BATCH_NORM, Arrays, mismatch, other_dtype
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.clients.hosting import named
from coprefl_flwr.rounds import Chain, Exchange, PerClient, Round, RoundStrategy
from coprefl_flwr.rounds.traffic import size

ANSWERS = ("fit", "query", "evaluate")
"""The methods by which clients of a study answer messages."""


@dataclass(frozen=True)
class Fault:
    """A client that raises in a round's first attempt: `late` after its work, else before it."""

    client: int
    round: int
    answer: str
    late: bool


@dataclass(frozen=True)
class Cost:
    """What a participant is sent and sends in a round: how many arrays, and their bytes."""

    exchanges: int = 0
    arrays_down: float = 0.0
    bytes_down: float = 0.0
    arrays_up: float = 0.0
    bytes_up: float = 0.0
    chained: bool = False


@dataclass(frozen=True)
class Call:
    """A client's answer, in a round's first attempt."""

    round: int
    answer: str
    client: int


@dataclass
class Seen:
    """What was seen of a run; the lists hold a sentence for each thing that is wrong.

    `buffers` has by name how far one of BatchNorm's statistics was off at most.
    """

    calls: list[Call] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    buffers: dict[str, float] = field(default_factory=dict)
    has_buffers: bool = False
    cost: Cost = Cost()


@dataclass
class _Answered:
    """An exchange, and by client what was returned: (num_examples, arrays), in this order."""

    exchange: Exchange
    by: dict[int, tuple[int, Arrays]] = field(default_factory=dict)


class Watch:
    """Watches a run in one process, and has the clients of `faults` raise."""

    def __init__(self, faults: tuple[Fault, ...] = ()) -> None:
        self.seen, self.faults = Seen(), faults
        self._answered: list[_Answered] = []
        self._only_sums = self._robust = False

    # ---- clients -------------------------------------------------------------------------------

    def client(self, client: TorchClient) -> TorchClient:
        """Return a client whose answers are watched."""
        for name in ANSWERS:
            if callable(answer := getattr(client, name, None)):
                setattr(client, name, functools.partial(self._answer, name, answer))
        return client

    def _answer(
        self,
        name: str,
        answer: Callable[..., Any],
        parameters: list[np.ndarray[Any, Any]],
        config: dict[str, Any],
    ) -> Any:
        client, server_round = int(config["client"]), int(config["server-round"])
        if not config.get("attempt"):
            self.seen.calls.append(Call(server_round, name, client))
        self._raise_if(client, server_round, name, config, late=False)
        extra = config.get("extra", {})
        before = _digests(parameters), {label: _digests(one) for label, one in extra.items()}
        returned = answer(parameters, config)
        after = _digests(parameters), {label: _digests(one) for label, one in extra.items()}
        if before != after:
            self._add(self.seen.changed, f"the client's {name} changes the arrays it is sent")
        if name != "evaluate":
            self._keep(name, client, parameters, returned)
        self._raise_if(client, server_round, name, config, late=True)
        return returned

    def _raise_if(
        self, client: int, server_round: int, answer: str, config: Mapping[str, Any], late: bool
    ) -> None:
        if not config.get("attempt") and Fault(client, server_round, answer, late) in self.faults:
            raise ArithmeticError("this client fails, to see what is left of it")

    def _keep(self, name: str, client: int, parameters: list[Any], returned: Any) -> None:
        """Keep what a client returned, and say what is wrong with it."""
        exchange = self._answered[-1].exchange
        if not exchange.combine.sums:
            return
        sent: Arrays = dict(zip(exchange.arrays, map(np.asarray, parameters), strict=True))
        # A copy: what is returned may be the model that the next client trains.
        arrays = {key: array.copy() for key, array in named(returned[0], sent).items()}
        problem = mismatch(arrays, sent, subset=exchange.combine.partial)
        problem = problem or other_dtype(arrays, sent)
        if problem:
            self._add(self.seen.other, f"what the client's {name} returns: {problem}")
        self._answered[-1].by[client] = int(returned[1]), arrays

    # ---- the strategy --------------------------------------------------------------------------

    def strategy(self, strategy: RoundStrategy) -> RoundStrategy:
        """Return a strategy whose rounds are watched; of a refined method they are the inner's."""
        watched = getattr(strategy, "inner", strategy)
        setattr(watched, "round", functools.partial(self._round, watched.round))  # noqa: B010
        self._only_sums, self._robust = watched.needs_only_sums, watched.robust is not None
        return strategy

    def _round(
        self, program: Callable[[int, Arrays], Round], server_round: int, arrays: Arrays
    ) -> Round:
        """Run a round, looking at its arrays before and after every step."""
        # Copies, as a run's own arrays cannot be written into: an error that would end the check.
        arrays = {name: array.copy() for name, array in arrays.items()}
        before, running, replies = _digests(arrays), program(server_round, arrays), None
        self._answered = []
        while True:
            try:
                exchange = next(running) if replies is None else running.send(replies)
            except StopIteration as end:
                returned, metrics = end.value
                break
            self._answered.append(_Answered(exchange))
            if self._only_sums and isinstance(exchange.combine, PerClient | Chain):
                of = f"an exchange asks for arrays by '{exchange.combine}'"
                self._add(self.seen.other, f"needs_only_sums is true, but {of}")
            replies = yield exchange
            answered = self._answered[-1].by
            for client in set(answered) - set(replies.clients):
                del answered[client]
        if _digests(arrays) != before:
            self._add(self.seen.changed, "the strategy's round changes the arrays it is given")
        self._look_at(arrays, returned)
        return returned, metrics

    def _look_at(self, arrays: Arrays, returned: Arrays) -> None:
        """Look at a round's end: BatchNorm's statistics, and what was sent."""
        for name in returned:
            # Of a robust aggregation they are no means.
            if name.rpartition(".")[2] in BATCH_NORM and name in arrays and not self._robust:
                self.seen.has_buffers = True
                expected = _expected(name, arrays[name], self._answered)
                found = np.asarray(returned[name], np.float64)
                if not np.allclose(found, expected, rtol=1e-5, atol=1e-6):
                    off = float(np.max(np.abs(found - expected)))
                    self.seen.buffers[name] = max(off, self.seen.buffers.get(name, 0.0))
        self.seen.cost = _cost(self._answered)

    @staticmethod
    def _add(sentences: list[str], sentence: str) -> None:
        if sentence not in sentences:
            sentences.append(sentence)


def _digests(arrays: Any) -> list[tuple[Any, ...]]:
    """Return the content of arrays, a mapping or a list, in a few bytes each."""
    each = list(arrays.values()) if isinstance(arrays, Mapping) else list(arrays)
    return [(one.dtype, one.shape, hashlib.sha256(one.tobytes()).digest()) for one in each]


def _expected(name: str, before: Any, answered: list[_Answered]) -> np.ndarray[Any, Any]:
    """Return a statistic as it must be after a round.

    It is the mean of what clients returned last, weighted by their numbers of samples; under a
    chain the last client's; where nobody returned it, what it was.
    """
    for one in reversed(answered):
        held = {client: each for client, each in one.by.items() if name in each[1]}
        if held and isinstance(one.exchange.combine, Chain):
            return np.asarray(list(held.values())[-1][1][name], np.float64)
        if held:
            weights = [n for n, _ in held.values()]
            mean = np.average([arrays[name] for _, arrays in held.values()], 0, weights)
            whole = np.asarray(before).dtype.kind != "f"
            return np.asarray(np.rint(mean) if whole else mean, np.float64)
    return np.asarray(before, np.float64)


def _cost(answered: list[_Answered]) -> Cost:
    """Return what a participant of a round is sent and sends, in the mean."""
    exchanges = [one.exchange for one in answered]
    down = [[one.arrays, *one.extra.values()] for one in exchanges]
    up = [[arrays for _, arrays in one.by.values()] or [{}] for one in answered]
    return Cost(
        len(exchanges),
        float(sum(len(arrays) for each in down for arrays in each)),
        float(sum(size(arrays) for each in down for arrays in each)),
        float(sum(np.mean([len(arrays) for arrays in each]) for each in up)),
        float(sum(np.mean([size(arrays) for arrays in each]) for each in up)),
        any(isinstance(one.combine, Chain) for one in exchanges),
    )
