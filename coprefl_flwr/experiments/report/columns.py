"""What can stand in a column: the metrics, their titles, and which way is better."""

from dataclasses import dataclass
from typing import Literal

from coprefl_flwr import fairness


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


COLUMNS = {
    **{metric: _of_task(metric) for metric in fairness.METRICS},
    "final": Column("Final %"),
    "best": Column("Best %"),
    "best-round": Column("Best at round", None, 1, tested=False),
    "catches-up": Column("Plain's best by", "lower", 1, tested=False),
    "models": Column("Models sent", "lower", 0, tested=False),
    "megabytes": Column("MB sent", "lower", 1, tested=False),
}
"""The metrics of the downstream tasks (`fairness.METRICS`) and of the pre-training itself."""
