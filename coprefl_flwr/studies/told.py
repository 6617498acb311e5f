"""What a reader of a study's results must be told: what did not learn, and who was left out."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from coprefl_flwr.report.columns import START_LOSS
from coprefl_flwr.report.learnt import Trouble
from coprefl_flwr.studies.kept import is_done, read_result
from coprefl_flwr.studies.measurements import StartLoss
from coprefl_flwr.studies.stage import Stage, Store
from coprefl_flwr.studies.study import Study

logger = logging.getLogger("flwr.coprefl")


def trouble_in(study: Study, store: Store, stage: Stage) -> Trouble | None:
    """Return what is wrong with what a stage came to; None also where it is not done."""
    if not is_done(store.folder(stage)):
        return None
    measured = [
        store.folder(one)
        for one in study.stages
        if isinstance(one, StartLoss) and one.made is stage and is_done(store.folder(one))
    ]
    if not measured:
        return stage.trouble(store.folder(stage))
    loss = read_result(measured[0])["rounds"][0][START_LOSS]
    return stage.trouble(store.folder(stage), math.nan if loss is None else float(loss))


def left_out(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Say how many replies were left out of some rounds, "" for none; the log named each."""
    some = [row for row in rounds if row.get("replies-left-out")]
    if not some:
        return ""
    lost, asked = (
        sum(int(row.get(f"replies-{of}") or 0) for row in some) for of in ("left-out", "asked")
    )
    of = f"{len(some)} of the {len(rounds)} rounds"
    return f"{lost} of {asked} replies were left out in {of}"


def told(study: Study, store: Store) -> dict[str, str]:
    """Log which stages diverged or did not learn, and how many replies were left out.

    Returns what is wrong with each start, or method, with which something is.
    """
    found: dict[str, list[str]] = {}
    for stage in study.stages:
        trouble = trouble_in(study, store, stage)
        if trouble:
            logger.warning("%s: %s", stage.title, trouble)
            what = "" if stage.task is None else f"task {stage.task}: "
            found.setdefault(stage.start, []).append(f"{what}{trouble}")
        lost = left_out(read_result(store.folder(stage))["rounds"])
        if lost:
            logger.warning("%s: %s", stage.title, lost)
    return {start: "; ".join(lines) for start, lines in found.items()}
