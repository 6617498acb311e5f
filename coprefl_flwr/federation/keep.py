"""Keep the model of the best round of a run, and end a run early."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import check_name, prefixed, wrong_type
from coprefl_flwr.named import parse, with_options
from coprefl_flwr.options import Checked, checked_options, declared, option
from coprefl_flwr.plugins import METRIC

START_LOSS, SERVER, EVALUATE = "start-loss", "server-", "evaluate-"
BEST, LAST = "best", "last"


@dataclass(frozen=True, eq=False)
class Best:
    """The best round of a run so far: its number, the value of the metric, and the global arrays.

    The arrays are read-only. Of rounds with equal values, the first is the best.
    """

    round: int
    value: float
    arrays: Arrays


@dataclass(frozen=True, kw_only=True)
class Keep(Checked):
    """The choice of the best round of a run, and when the run ends early.

    The choice is written METRIC:key=value,key=value, or as a mapping of `metric` and the options.
    A value that is not finite is never the best. A round in which the metric was not measured,
    because no evaluation was due or the evaluation failed, is never the best and ends no run.

    Parameters
    ----------
    metric : str
        A metric of the clients' evaluation, such as "accuracy" (a fraction), "loss" or
        "metric:NAME"; "server-NAME", a metric that `evaluate_fn` returns. In a study it is
        "accuracy", "loss" or "start-loss", the mean loss, in float32, over all training samples of
        all clients.
    mode : str, optional
        Whether the largest value is the best ("max") or the smallest ("min"). Default: "min" for a
        metric whose name ends with loss, else "max".
    patience : int, optional
        The run ends after a measured round if the best round is this many rounds before it.
    stop_at : float, optional
        The run ends when the metric reaches this value or a better one.
    every : int
        Number of rounds between measurements. Only in a study: other runs measure the metric at
        each evaluation.
    share : float
        Fraction of each client's samples on which clients measure the metric. These samples are
        never trained on. Only in a study, and not for "start-loss".
    model : str
        The model that a study keeps: "best", or "last", of the last round.
    """

    metric: str = option("accuracy", "metric by which rounds are compared")
    mode: str | None = option(None, "which value is the best", choices=("max", "min"))
    patience: int | None = option(None, "rounds without a better value", unit="rounds", minimum=1)
    stop_at: float | None = option(None, "value of the metric at which the run ends")
    every: int = option(1, "rounds between measurements", unit="rounds", minimum=1)
    share: float = option(0.1, "fraction of a client's samples", above=0, maximum=0.5)
    model: str = option(BEST, "model that a study keeps", choices=(BEST, LAST))

    @classmethod
    def read(cls, value: Any) -> "Keep":
        """Return a Keep from a Keep, a text or a mapping.

        Raises a SettingsError for a wrong option, or any other type.
        """
        if isinstance(value, Keep):
            return value
        if isinstance(value, str):
            metric, options = parse(value.strip())
            value = {"metric": metric, **options}
        if not isinstance(value, Mapping):
            raise wrong_type("keep", value, "a text or a mapping", '{"metric": "accuracy"}')
        chosen = {str(key).replace("-", "_"): entry for key, entry in value.items()}
        with prefixed("keep", "keep"):
            return cls(**checked_options(chosen, declared(cls)))

    def __str__(self) -> str:
        """Return the text of the metric and of the options that are not defaults."""
        options = [o for o in declared(Keep).values() if getattr(self, o.name) != o.default]
        chosen = [(o.key, getattr(self, o.name)) for o in options if o.name != "metric"]
        return with_options(self.metric, chosen)

    @property
    def column(self) -> str:
        """The name of the metric among the metrics of a round."""
        kind = SERVER if self.metric == START_LOSS else EVALUATE
        return self.metric if self.metric.startswith(SERVER) else f"{kind}{self.metric}"

    @property
    def of_clients(self) -> bool:
        """Whether clients measure the metric."""
        return self.column.startswith(EVALUATE)

    def check(self, measured: Collection[str]) -> None:
        """Raise a SettingsError if the metric is not one of these."""
        check_name("metric", self.metric, measured, "keep", "keep")

    def ranked(self, value: float) -> float:
        """Return the value with the sign with which a larger one is better."""
        largest = self.mode == "max" if self.mode else not self.metric.endswith("loss")
        return value if largest else -value

    def reached(self, value: float) -> bool:
        """Return whether a value is `stop_at` or better; False if that is not set."""
        return self.stop_at is not None and self.ranked(value) >= self.ranked(self.stop_at)

    def after(
        self, server_round: int, metrics: Mapping[str, float], arrays: Arrays, best: Best | None
    ) -> tuple[Best | None, bool]:
        """Return the best round so far, and whether the run ends after this round.

        `metrics` and `arrays` are those of this round; `best` is the best round before it. Raises a
        SettingsError if clients evaluated and reported only other metrics.
        """
        names = [name.removeprefix(EVALUATE) for name in metrics if name.startswith(EVALUATE)]
        # A user's metric may be undefined for all clients in a round.
        if names and self.of_clients and not self.metric.startswith(METRIC):
            self.check(names)
        value = metrics.get(self.column)
        if value is None:
            return best, False
        if math.isfinite(value) and (best is None or self.ranked(value) > self.ranked(best.value)):
            best = Best(server_round, value, arrays)
        waited = server_round - (best.round if best else 0)
        return best, self.reached(value) or waited >= (self.patience or math.inf)
