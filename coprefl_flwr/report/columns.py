"""What can stand in a column: the metrics, their titles, and which way is better."""

from dataclasses import dataclass
from typing import Literal

from coprefl_flwr.report import fairness


@dataclass(frozen=True)
class Column:
    """How a metric is shown.

    Parameters
    ----------
    title : str
        As a heading, with the unit.
    better : "higher", "lower" or None
        Which values are marked as best; None: neither.
    decimals : int
        Shown after the point.
    tested : bool
        Whether it is a quality whose differences are tested, not a cost or a count.
    """

    title: str
    better: Literal["higher", "lower"] | None = "higher"
    decimals: int = 2
    tested: bool = True


def _of_task(metric: str) -> Column:
    if metric == "variance":
        return Column("Variance %²", "lower")
    which, _, share = metric.removesuffix("%").partition("-")
    return Column(f"{which.capitalize()} {share} %" if share else f"{which.capitalize()} %")


STD_CLIENTS = "std-clients"
SENT = ("weights-sent", "numbers-sent")
ACCURACY_OF = "accuracy@"

COLUMNS = {
    **{metric: _of_task(metric) for metric in fairness.METRICS},
    STD_CLIENTS: Column("Std over clients %", "lower"),
    "final": Column("Final %"),
    "best": Column("Best %"),
    "best-round": Column("Best at round", None, 1, tested=False),
    "catches-up": Column("Plain's best by", "lower", 1, tested=False),
    "models": Column("Models sent", "lower", 0, tested=False),
    "megabytes": Column("MB sent", "lower", 1, tested=False),
    "weights-sent": Column("Weights sent", "lower", 0, tested=False),
    "numbers-sent": Column("Numbers sent", "lower", 0, tested=False),
}
"""The metrics of the downstream tasks (`fairness.METRICS`), of the pre-training, of what is sent.

`std-clients` is FedPCL's "variance" (Tables 12 and 13); what is sent is a client's, in a round.
"""


def is_column(metric: str) -> bool:
    """Tell whether a metric can stand in a column."""
    return metric in COLUMNS or metric.startswith(ACCURACY_OF)


def column(metric: str) -> Column:
    """Return how a metric is shown: one of `COLUMNS`, or accuracy@DATASET, that of its clients."""
    if metric.startswith(ACCURACY_OF):
        return Column(f"{metric.removeprefix(ACCURACY_OF)} %")
    return COLUMNS[metric]
