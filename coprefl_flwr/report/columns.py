"""What can stand in a column: the metrics, their titles, and which way is better."""

from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower"] | None  # which values are marked as best; None: neither


@dataclass(frozen=True)
class Heading:
    """How a metric is shown."""

    title: str  # as a heading, with the unit
    better: Better = "higher"
    decimals: int = 2  # shown after the point
    tested: bool = True  # a quality whose differences are tested, not a cost or a count


STD_CLIENTS = "std-clients"
SENT = ("weights-sent", "numbers-sent")
ACCURACY_OF = "accuracy@"

COLUMNS = {
    "accuracy": Heading("Accuracy %"),
    "variance": Heading("Variance %²", "lower"),
    **{f"worst-{percent}%": Heading(f"Worst {percent} %") for percent in (10, 20, 30, 40)},
    "best-10%": Heading("Best 10 %"),
    STD_CLIENTS: Heading("Std over clients %", "lower"),
    "final": Heading("Final %"),
    "best": Heading("Best %"),
    "best-round": Heading("Best at round", None, 1, tested=False),
    "catches-up": Heading("Plain's best by", "lower", 1, tested=False),
    "models": Heading("Models sent", "lower", 0, tested=False),
    "megabytes": Heading("MB sent", "lower", 1, tested=False),
    "weights-sent": Heading("Weights sent", "lower", 0, tested=False),
    "numbers-sent": Heading("Numbers sent", "lower", 0, tested=False),
}
"""What can be shown of the tasks (`statistics.METRICS`), of the pre-training, and of what is sent.

`std-clients` is what FedPCL calls variance (Tables 12 and 13). What is sent is by one client in one
round.
"""


def is_column(metric: str) -> bool:
    """Tell whether a metric can stand in a column."""
    return metric in COLUMNS or metric.startswith(ACCURACY_OF)


def column(metric: str) -> Heading:
    """Return how a metric is shown: one of `COLUMNS`, or accuracy@DATASET, that of its clients."""
    if metric.startswith(ACCURACY_OF):
        return Heading(f"{metric.removeprefix(ACCURACY_OF)} %")
    return COLUMNS[metric]
