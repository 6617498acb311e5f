"""The columns of tables: metrics with their titles, formats and better directions.

The *measure* of a study is the accuracy if the targets are classes, or else the first metric that
the user names, or else the loss.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from coprefl_flwr.errors import check_name
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.report.statistics import BEYOND, METRICS

Better = Literal["higher", "lower"] | None  # the direction that is marked best; None: no mark


@dataclass(frozen=True)
class ColumnSpec:
    """A metric's column: its heading, the format of its values, and texts for notes."""

    title: str  # the heading, with the unit
    better: Better = "higher"
    decimals: int | None = 2  # number of shown decimals; None: see `places`
    tested: bool = True  # whether differences are tested; False for costs and counts
    meaning: str = ""  # description of the quantity, if the title is not enough
    missing: str = "its runs failed, or are not finished yet"  # why a row has no value
    metric: str = field(default="", compare=False)  # its name in `metrics`

    @property
    def name(self) -> str:
        """The title in a sentence: "accuracy" for "Accuracy %", "worst 10 %" for "Worst 10 %"."""
        name = re.sub(r"(?<!\d) %²?$", "", self.title)
        return name[:1].lower() + name[1:] if name[1:2].islower() else name

    @property
    def unit(self) -> str:
        """The unit as it follows a number, " %" or " %²"; "" if the title has no unit."""
        return next((unit for unit in (" %", " %²") if self.title.endswith(unit)), "")

    @property
    def axis(self) -> str:
        """The title as the label of an axis: "Accuracy (%)"."""
        return self.title.removesuffix(self.unit) + f" ({self.unit.strip()})" * bool(self.unit)

    def quality(self, value: float) -> float:
        """Return the value, or the negative value if lower is better."""
        return -value if self.better == "lower" else value

    def places(self, values: Iterable[float]) -> int:
        """Return the number of decimals for these values: by default three digits of the largest.

        It is at least 2, as in the papers.
        """
        if self.decimals is not None:
            return self.decimals
        largest = max((abs(value) for value in values if 0 < abs(value) < math.inf), default=1)
        return max(2, 2 - math.floor(math.log10(largest)))


Headings = Mapping[str, Sequence[str]]
"""Title and better direction of each metric of the user's, by its column: "metric:NAME"."""
NO_HEADINGS: Headings = MappingProxyType({})

LOSS = "loss"
STD_CLIENTS = "std-clients"
STATISTICS = (*list(METRICS)[1:], STD_CLIENTS)
"""Columns of the clients' accuracies in addition to their mean. `loss:variance` and
`metric:NAME:variance` are the same statistic of the loss and of a user's metric."""
SENT = ("weights-sent", "numbers-sent")
ACCURACY_OF = "accuracy@"
SECONDS = "seconds"

STEP_SIZE = "step-size"
BUDGETS = (STEP_SIZE, "gradients")
"""Columns with a start's pre-training costs, which every table of starts has."""
START_LOSS, STOPPED = "start-loss", "stopped-at"
KEPT, KEPT_BY = "kept-round", "kept-by"
"""Columns with the round of the model that was kept, and the metric that chose it."""

TO_REACH = re.compile(r"(rounds|megabytes)-to-(\d+(?:\.\d+)?)%")
DIAGNOSTICS = {
    "gradient-diversity": "Gradient diversity",
    "hessian": "Top eigenvalue",
    "barrier": "Barrier",
    "probe": "Linear probe %",
}
"""Titles of the diagnostics, measured at a start before each task if `diagnostics` is set."""

_UNTRAINED = "nothing was trained"
_UNTESTED = "the initial model was not trained, or test-every is not set"
_NOT_PHASED = "only for methods A+B, if B is also a row and test-every is set"
_NO_ACCURACY = "its runs failed or are not finished, or the targets are no classes"
_NOT_TIMED = "only for personalised methods of two rounds or more"
_UNKNOWN_LOSS = "set start-loss = true to measure it; not finite after a diverged training"
_NOT_STOPPED = "keep is not set, or the initial model was not trained"
_STEP_SIZES = "the sum of the learning rates of all steps that move the global model"
_GRADIENTS = "gradients of one sample's loss, over all clients and the server"
_UNKNOWN_COST = "its cost is not known"

COLUMNS = {
    "accuracy": ColumnSpec("Accuracy %"),
    "variance": ColumnSpec("Variance %²", "lower"),
    "variance-beyond": ColumnSpec("Variance beyond sampling %²", "lower"),
    **{f"worst-{percent}%": ColumnSpec(f"Worst {percent} %") for percent in (10, 20, 30, 40)},
    "best-10%": ColumnSpec("Best 10 %"),
    STD_CLIENTS: ColumnSpec("Std over clients %", "lower"),
    LOSS: ColumnSpec("Loss", "lower", None),
    "final": ColumnSpec("Final accuracy %", missing=_UNTESTED),
    "best": ColumnSpec("Best accuracy %", missing=_UNTESTED),
    "final-loss": ColumnSpec("Final loss", "lower", None, missing=_UNTESTED),
    "best-loss": ColumnSpec("Best loss", "lower", None, missing=_UNTESTED),
    "best-round": ColumnSpec("Best at round", None, 1, tested=False, missing=_UNTESTED),
    "catches-up": ColumnSpec("Reaches B's best", "lower", 1, tested=False, missing=_NOT_PHASED),
    "models": ColumnSpec("Models sent", "lower", 0, False, "both directions", missing=_UNTRAINED),
    "megabytes": ColumnSpec("MB sent", "lower", 1, tested=False, missing=_UNTRAINED),
    "weights-sent": ColumnSpec("Weights sent", "lower", 0, tested=False),
    "numbers-sent": ColumnSpec("Numbers sent", "lower", 0, tested=False),
    SECONDS: ColumnSpec("Seconds a round", "lower", tested=False, missing=_NOT_TIMED),
    START_LOSS: ColumnSpec("Pre-training loss", None, 3, tested=False, missing=_UNKNOWN_LOSS),
    STOPPED: ColumnSpec("Stopped at round", None, 1, tested=False, missing=_NOT_STOPPED),
    KEPT: ColumnSpec("Model of round", None, 1, tested=False, missing=_NOT_STOPPED),
    "rounds": ColumnSpec("Rounds", None, 1, tested=False, missing=_UNTRAINED),
    STEP_SIZE: ColumnSpec("Summed step size", None, 3, False, _STEP_SIZES, missing=_UNKNOWN_COST),
    "gradients": ColumnSpec("Million gradients", None, 3, False, _GRADIENTS, missing=_UNKNOWN_COST),
    **{
        name: ColumnSpec(title, None, tested=False, missing="set diagnostics = true to measure it")
        for name, title in DIAGNOSTICS.items()
    },
}
"""The columns of metrics of tasks, of the pre-training, and of the traffic.

`std-clients` is the metric that FedPCL calls variance (Tables 12 and 13). `models` and `megabytes`
are the traffic of a deployment. `weights-sent` and `numbers-sent` are counts per client and round.
`seconds` is the duration of a personalised method's median round, on the machine that ran it.
`step-size` and `gradients` are totals of the whole pre-training. `start-loss` is the loss of the
start over all training samples of all pre-training clients.
"""


MEASURED = "measured:"
"""Prefix of the column of a number from a user's measurement."""


TESTS = {
    "server-accuracy": ColumnSpec("Test accuracy %"),
    "server-loss": ColumnSpec("Test loss", "lower", None),
}
"""The columns of rounds in which the server tested the model: the first that there is counts."""


def of_measure(names: Iterable[str], measure: str) -> list[str]:
    """Return columns; those of the accuracy become those of the study's measure."""
    if measure == "accuracy":
        return list(names)
    other = {"accuracy": measure, "final": "final-loss", "best": "best-loss"}
    other |= {statistic: f"{measure}:{statistic}" for statistic in STATISTICS}
    return list(dict.fromkeys(other.get(name, name) for name in names if name != BEYOND))


def column(metric: str, headings: Headings = NO_HEADINGS) -> ColumnSpec:
    """Return the column of a metric. `headings` has the titles and directions of user metrics.

    A metric is a key of `COLUMNS`; accuracy@DATASET, the accuracy of the clients of a dataset;
    rounds-to-60% and megabytes-to-60%, the cost to reach a mean accuracy; metric:NAME, the mean
    over clients of a user metric; loss:STATISTIC and metric:NAME:STATISTIC, another of the
    `STATISTICS` over clients; and measured:NAME, a number from a user's measurement. Raises a
    SettingsError for another metric.
    """
    if metric.startswith(MEASURED):
        missing = "set measurements to measure it"
        return ColumnSpec(metric.removeprefix(MEASURED), None, 3, tested=False, missing=missing)
    measure, _, statistic = metric.rpartition(":")
    if measure == LOSS or measure.startswith(METRIC):
        check_name("statistic", statistic, STATISTICS, metric)
        of_accuracy, mean = COLUMNS[statistic], column(measure, headings)
        title = f"{of_accuracy.name.capitalize()}: {mean.title}"
        title += "²" * (statistic == "variance" and mean.unit == " %")
        directed = of_accuracy if of_accuracy.better == "lower" else mean
        return replace(mean, title=title, better=directed.better, metric=metric)
    if metric.startswith(METRIC):
        title, better = headings.get(metric, (metric.removeprefix(METRIC), "higher"))
        return ColumnSpec(title, "lower" if better == "lower" else "higher", None, metric=metric)
    if reached := TO_REACH.fullmatch(metric):
        what = {"rounds": "Rounds", "megabytes": "MB"}[reached[1]]
        title = f"{what} to {reached[2]} %"
        return ColumnSpec(title, "lower", 1, tested=False, missing=_NO_ACCURACY)
    if metric.startswith(ACCURACY_OF):
        return ColumnSpec(f"{metric.removeprefix(ACCURACY_OF)} %")
    check_name("column", metric, COLUMNS)
    return replace(COLUMNS[metric], metric=metric)


ACCURACY = column("accuracy")
