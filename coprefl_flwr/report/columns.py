"""The columns of tables: metrics with their titles, formats and better directions."""

import re
from dataclasses import dataclass
from typing import Literal

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.plugins import METRIC

Better = Literal["higher", "lower"] | None  # the direction that is marked best; None: no mark


@dataclass(frozen=True)
class ColumnSpec:
    """A metric's column: its heading, the format of its values, and texts for notes."""

    title: str  # the heading, with the unit
    better: Better = "higher"
    decimals: int = 2  # number of shown decimals
    tested: bool = True  # whether differences are tested; False for costs and counts
    meaning: str = ""  # description of the quantity, if the title is not enough
    missing: str = "its runs failed, or are not finished yet"  # why a row has no value

    @property
    def name(self) -> str:
        """The title in a sentence: "accuracy" for "Accuracy %", "worst 10 %" for "Worst 10 %"."""
        return re.sub(r"(?<!\d) %²?$", "", self.title).lower()

    @property
    def unit(self) -> str:
        """The unit as it follows a number, " %" or " %²"; "" if the title has no unit."""
        return next((unit for unit in (" %", " %²") if self.title.endswith(unit)), "")


STD_CLIENTS = "std-clients"
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
_NOT_TIMED = "only for personalised methods of two rounds or more"
_UNKNOWN_LOSS = "set start-loss = true to measure it; not finite after a diverged training"
_NOT_STOPPED = "keep is not set, or the initial model was not trained"
_STEP_SIZES = "the sum of the learning rates of all steps that move the global model"
_GRADIENTS = "gradients of one sample's loss, over all clients and the server"
_UNKNOWN_COST = "the method does not state its cost"

COLUMNS = {
    "accuracy": ColumnSpec("Accuracy %"),
    "variance": ColumnSpec("Variance %²", "lower"),
    "variance-beyond": ColumnSpec("Variance beyond sampling %²", "lower"),
    **{f"worst-{percent}%": ColumnSpec(f"Worst {percent} %") for percent in (10, 20, 30, 40)},
    "best-10%": ColumnSpec("Best 10 %"),
    STD_CLIENTS: ColumnSpec("Std over clients %", "lower"),
    "final": ColumnSpec("Final accuracy %", missing=_UNTESTED),
    "best": ColumnSpec("Best accuracy %", missing=_UNTESTED),
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


def column(metric: str, title: str = "", better: str = "higher") -> ColumnSpec:
    """Return the column of a metric. `title` and `better` are those of a user metric.

    A metric is a key of `COLUMNS`; accuracy@DATASET, the accuracy of the clients of a dataset;
    rounds-to-60% and megabytes-to-60%, the cost to reach a mean accuracy; metric:NAME, the mean
    over clients of a user metric; and measured:NAME, a number from a user's measurement. Raises a
    SettingsError for another metric.
    """
    if metric.startswith(MEASURED):
        missing = "set measurements to measure it"
        return ColumnSpec(metric.removeprefix(MEASURED), None, 3, tested=False, missing=missing)
    if metric.startswith(METRIC):
        name = title or metric.removeprefix(METRIC)
        return ColumnSpec(name, "lower" if better == "lower" else "higher")
    if reached := TO_REACH.fullmatch(metric):
        what = {"rounds": "Rounds", "megabytes": "MB"}[reached[1]]
        return ColumnSpec(f"{what} to {reached[2]} %", "lower", 1, tested=False)
    if metric.startswith(ACCURACY_OF):
        return ColumnSpec(f"{metric.removeprefix(ACCURACY_OF)} %")
    if metric not in COLUMNS:
        raise SettingsError(unknown("column", metric, COLUMNS))
    return COLUMNS[metric]
