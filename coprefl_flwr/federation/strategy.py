"""The base of all strategies: a round is a program that yields exchanges.

Flower's `Strategy.start` knows one train and one evaluate exchange a round. Here a round is a
generator: it yields an `Exchange`, is sent the combined `Replies`, and returns the new arrays with
the round's metrics.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from coprefl_flwr.arrays import from_record
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import wrapped
from coprefl_flwr.federation.flower import plain_log, refuse_old_style
from coprefl_flwr.federation.messages import check_free
from coprefl_flwr.federation.options import DRAWN
from coprefl_flwr.federation.program import RoundProgram
from coprefl_flwr.federation.robust import AGGREGATION
from coprefl_flwr.federation.run import EvaluateFn, Hook, Run, RunResult, Stop
from coprefl_flwr.options import Option

__all__ = [
    *("ROUNDS", "RUN_OPTIONS", "EvaluateFn", "Hook", "Round", "RoundContext", "RoundReport"),
    *("RoundStrategy", "RunResult"),
]

ROUNDS = Option("rounds", "rounds", 1, (int,), "a number of rounds", minimum=1)
STEPS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
"""What Flower's own loop, and its wrappers, call in a round; `start` calls none of them."""


@dataclass(kw_only=True, eq=False)
class RoundStrategy(RoundProgram, Strategy):
    """A federated method whose round is a program of exchanges, as a strategy of Flower's.

    A method is a subclass that writes `round`. Its options are fields made by `option`, which are
    checked when it is made; what else a study must know, it says in its class attributes.
    """

    def summary(self) -> None:
        """Log the strategy's options, as part of Flower's own account of the start."""
        flower = logging.getLogger("flwr")
        options = [f"{name} = {value!r}" for name, value in self.options().items()]
        for line in options[:-1]:
            flower.info("\t├── %s", line)
        flower.info("\t└── %s", options[-1])

    initialize_parameters = refuse_old_style

    @plain_log()
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
        stop: Stop | None = None,
    ) -> RunResult:
        """Run rounds up to `num_rounds`; what Flower's `start` takes, and the following.

        The file `checkpoint` keeps the run's state after every `checkpoint_every` rounds and the
        last, and CHECKPOINT.rounds.jsonl beside it the rounds' metrics, a line of JSON each; a
        checkpoint that exists is not overwritten unless the run resumes from it. `resume` continues
        after the checkpoint's round; without a file, it starts anew and says so. `hooks` are called
        after every round, evaluations included, before the checkpoint is written. A round for which
        `stop` is true is the last, for the hooks too; what is evaluated after the last round alone
        is not then. The result is Flower's, and has the `history` of all rounds.

        Raises a RunFailedError if a round failed `max_failed_rounds` times or the clients' program
        is to blame, and a SettingsError if the options do not fit the clients, the checkpoint is of
        another run or model, or a config has a key that messages have themselves.
        """
        check_free("train_config", train_config or {})
        check_free("evaluate_config", evaluate_config or {})
        ROUNDS.checked(checkpoint_every, "checkpoint_every")
        self._refuse_own_steps()
        run = Run(
            self,
            grid,
            from_record(initial_arrays, copy=False),
            num_rounds,
            timeout,
            train_config or ConfigRecord(),
            evaluate_config or ConfigRecord(),
            evaluate_fn,
            checkpoint,
            checkpoint_every,
            resume,
            hooks,
            stop,
        )
        flower = logging.getLogger("flwr")
        flower.info("Starting %s strategy:", type(self).__name__)
        flower.info("\t├── Number of rounds: %d", num_rounds)
        self.summary()
        return run.all_rounds()

    def _refuse_own_steps(self) -> None:
        """Raise a SettingsError for a subclass that overrides what `start` does not call."""
        for name in STEPS:
            if getattr(type(self), name) is not getattr(RoundStrategy, name):
                raise SettingsError(
                    f"{type(self).__name__} overrides {name}, which start() does not call: a round "
                    "here may have several exchanges; override `round` (docs/how-to/method.md)"
                )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round inside one of Flower's wrappers."""
        return wrapped.configure_train(self, server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Return the new model and the metrics of a round inside one of Flower's wrappers."""
        return wrapped.aggregate_train(self, server_round, replies)

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Return the messages of an evaluation inside one of Flower's wrappers."""
        return wrapped.configure_evaluate(self, server_round, arrays, config)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the means of an evaluation inside one of Flower's wrappers."""
        return wrapped.aggregate_evaluate(self, server_round, replies)


RUN_OPTIONS: tuple[str, ...] = tuple(
    one.name for one in fields(RoundStrategy) if one.name not in (*DRAWN, *AGGREGATION)
)
"""Options that are the run's: they hold for every strategy of it."""


def of_run(strategy: RoundStrategy) -> dict[str, Any]:
    """Return the options of the run that a strategy was made with, by name."""
    return {name: getattr(strategy, name) for name in RUN_OPTIONS}
