"""The stages of a comparison of starting models: pre-train each, then the same tasks from it."""

import itertools
from collections.abc import Sequence

from coprefl_flwr.studies.measurements import StageOf
from coprefl_flwr.studies.populations import Tasks
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.tasks import Diagnosis, Downstream, Task


def comparison(
    starts: Sequence[Pretraining],
    tasks: Tasks,
    how: Downstream,
    measurements: Sequence[StageOf] = (),
) -> list[Stage]:
    """Return the pre-trainings, the tasks from each of their models, and what is measured besides.

    Parameters
    ----------
    starts : Sequence[Pretraining]
        In the order of the table.
    tasks : Tasks
        What the clients of all tasks hold.
    how : Downstream
        How tasks are run.
    measurements : Sequence[StageOf]
        What is measured of each starting model, in the order of the stages.
    """
    how.metrics.check(tasks.classes)
    stages: list[Stage] = [*starts]
    for number, start in itertools.product(range(len(tasks)), starts):
        task = Task(number, start, tasks, how)
        stages += [task, Diagnosis(task)] if how.diagnostics else [task]
    return stages + [kind(start) for kind in measurements for start in starts]
