"""Trackers: send the metrics of rounds to TensorBoard, MLflow, W&B or the user's code during a run.

A tracker takes a stage and returns a context manager of hooks, for `studies.running.run`. The hooks
are called after every round (see `RoundStrategy.start`). Trackers are sent to workers, so they hold
no open files or connections. These are opened in the first round and closed when the stage ends.
"""

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.run import Hook
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.running import Followed, unfollowed
from coprefl_flwr.studies.stage import Stage

Write = Callable[[dict[str, float], int], object]
"""Function that writes the metrics of a round: {name: value}, and the number of the round."""


def tracker_of(name: str | None, out: Path) -> Followed:
    """Return the tracker of this name or place; one without hooks if `name` is None.

    `out` is the recipe's folder. Raises a SettingsError if a package is missing, or if the user's
    tracker is not found.
    """
    if name is None:
        return unfollowed
    if name not in _OPENED:
        place = plugins.resolved(name, Path.cwd())
        plugins.find("tracker", place)
        return partial(_own, place, out)
    if importlib.util.find_spec(name) is None:
        raise SettingsError(f"--tracker {name} needs: pip install 'coprefl-flwr[{name}]'")
    return partial(_followed, _OPENED[name], out)


@contextmanager
def _own(place: str, out: Path, stage: Stage) -> Iterator[Sequence[Hook]]:
    """Yield the hooks of the user's tracker. Every process imports the tracker itself.

    If a hook has a method `close`, it is called when the stage ends, also after an error.
    """
    track = plugins.call(place, plugins.find("tracker", place), (out,))
    hooks = tuple(track(stage))
    with ExitStack() as stack:
        for hook in reversed(hooks):
            if close := getattr(hook, "close", None):
                stack.callback(close)
        yield hooks


Opened = Callable[[Path, str], AbstractContextManager[Write]]
"""Function that opens a tracker's run, given the recipe's folder and a stage key."""


@contextmanager
def _followed(opened: Opened, out: Path, stage: Stage) -> Iterator[Sequence[Hook]]:
    """Yield a hook that opens the tracker's run in the first round, and writes each round."""
    with ExitStack() as stack:
        writes: list[Write] = []

        def hook(report: RoundReport) -> None:
            if not writes:
                writes.append(stack.enter_context(opened(out, stage.key)))
            writes[0]({name: float(value) for name, value in report.metrics.items()}, report.round)

        yield (hook,)


@contextmanager
def _tensorboard(out: Path, key: str) -> Iterator[Write]:
    """Open TensorBoard event files for the stage, in the folder `out`/tensorboard/`key`."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(out / "tensorboard" / key)) as writer:

        def write(metrics: Mapping[str, float], step: int) -> None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)
            writer.flush()  # A process that is killed loses no round.

        yield write


@contextmanager
def _mlflow(out: Path, key: str) -> Iterator[Write]:
    """Open the stage's run in the experiment `coprefl`; without an address, in `out`/mlflow."""
    # MLflow refuses a plain folder without this variable: it prefers a database.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or (out / "mlflow").as_uri())
    mlflow.set_experiment("coprefl")
    known: Any = mlflow.search_runs(filter_string=f"tags.stage = '{key}'", output_format="list")
    before = known[0].info.run_id if known else None
    with mlflow.start_run(run_id=before, run_name=key, tags={"stage": key}):

        def write(metrics: Mapping[str, float], step: int) -> None:
            named = {re.sub(r"[^\w\-. /]", "_", name): value for name, value in metrics.items()}
            mlflow.log_metrics(named, step)

        yield write


@contextmanager
def _wandb(out: Path, key: str) -> Iterator[Write]:
    """Open the stage's run in the project WANDB_PROJECT; offline it is in `out`/wandb."""
    import wandb

    mode: Any = os.environ.get("WANDB_MODE")  # Read now: wandb read it when it was imported.
    out.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "coprefl"),
        mode=mode,
        dir=out,
        id=hashlib.sha256(key.encode()).hexdigest()[:16],
        name=key,
        group=key.partition("/")[0],
        resume="allow",
        reinit="create_new",  # Other runs may be open in this process.
        settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
    )
    status = 1
    try:
        yield run.log
        status = 0
    finally:
        run.finish(exit_code=status)


_OPENED: dict[str, Opened] = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
"""The built-in trackers, by name, which is also that of their package."""
