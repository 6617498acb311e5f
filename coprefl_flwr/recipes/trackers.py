"""Where metrics go while a run is under way, besides its files.

A tracker is a function: a stage -> hooks of `RoundStrategy.start`, called after every round; a
hook's method `close`, if it has one, is called when its stage ends, whatever ended it. Trackers go
to workers, so they hold nothing that is open.
"""

import hashlib
import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.run import Hook
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.study import Track

OpenRun = tuple[Callable[[dict[str, float], int], object], Callable[[bool], object]]
"""How to write metrics of a round into an open run, and how to end it, finished or not."""


def tracker_of(option: str, place: str, out: Path) -> Track:
    """Return the tracker of an option of `coprefl run`, such as "mlflow", and of its value.

    `out` is the recipe's folder. Raises a SettingsError if a package or a key is missing, or if
    there is no such tracker of the user's own.
    """
    if option == "tracker":
        place = plugins.resolved(place, Path.cwd())
        plugins.find("tracker", place)
        return partial(_own, place, out)
    if importlib.util.find_spec(option) is None:
        package = f"pip install 'coprefl-flwr[{option}]'"
        raise SettingsError(f"--{option} needs the package: {package}")
    if option == "wandb":
        _check_key()
        return partial(_follow, partial(_wandb, place, out))
    place = place if "://" in place else str(Path(place).resolve())
    return partial(_follow, partial(_mlflow if option == "mlflow" else _tensorboard, place))


@contextmanager
def followed(stage: Stage, tracker: Track | None) -> Iterator[Sequence[Hook]]:
    """Give the hooks that follow a stage, and close those that can be closed at its end."""
    hooks = tracker(stage) if tracker else ()
    try:
        yield hooks
    finally:
        for hook in hooks:
            if close := getattr(hook, "close", None):
                close()


def _own(place: str, out: Path, stage: Stage) -> Sequence[Hook]:
    """Return the hooks of a user's own tracker, which every process looks for anew."""
    track = plugins.call(place, plugins.find("tracker", place), (out,))
    if not callable(track):
        problem = "a tracker is a function of a folder, which returns a function of a stage"
        raise SettingsError(f"{place}: {problem}")
    return tuple(track(stage))


def _follow(open_run: Callable[[str], OpenRun], stage: Stage) -> Sequence[Hook]:
    return (Follower(open_run, stage.key),)


@dataclass
class Follower:
    """Opens a stage's run in its first round, and writes each round's metrics into it."""

    open_run: Callable[[str], OpenRun]
    key: str
    run: OpenRun | None = None
    finished: bool = False

    def __call__(self, report: RoundReport) -> None:
        """Write a round."""
        self.run = self.run or self.open_run(self.key)
        self.run[0]({name: float(one) for name, one in report.metrics.items()}, report.round)
        self.finished = report.round == report.num_rounds

    def close(self) -> None:
        """End the run; one that is not finished is marked as failed, and can go on."""
        if self.run:
            self.run[1](self.finished)


def _tensorboard(place: str, key: str) -> OpenRun:
    """Open event files in a folder for the stage."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(Path(place, key)))

    def write(metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # A process that is killed loses no round.

    return write, lambda _: writer.close()


def _mlflow(place: str, key: str) -> OpenRun:
    """Open the stage's run in the experiment `coprefl`, at an address or in a folder."""
    # MLflow prefers a database; a folder is all that is needed here.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException

    client = MlflowClient(place if "://" in place else Path(place).as_uri())
    with suppress(MlflowException):  # It exists, perhaps since a moment ago, by another worker.
        client.create_experiment("coprefl")
    experiment: Any = client.get_experiment_by_name("coprefl")
    of = experiment.experiment_id
    known = client.search_runs([of], f"tags.stage = '{key}'")
    run = known[0] if known else client.create_run(of, None, {"stage": key}, key)
    run_id = run.info.run_id
    client.update_run(run_id, status="RUNNING")

    def write(metrics: dict[str, float], step: int) -> None:
        at, refused = int(1000 * time.time()), r"[^\w\-. /]"
        named = {re.sub(refused, "_", name): value for name, value in metrics.items()}
        client.log_batch(run_id, [Metric(name, value, at, step) for name, value in named.items()])

    return write, lambda done: client.set_terminated(run_id, "FINISHED" if done else "FAILED")


def _check_key() -> None:
    """Raise a SettingsError if Weights & Biases would ask for a key once runs are under way."""
    import wandb

    quiet = os.environ.get("WANDB_MODE") in ("offline", "disabled")
    if not quiet and not wandb.login(verify=False, prompt=False):
        raise SettingsError("--wandb has no key: run `wandb login`, or set WANDB_MODE=offline")


def _wandb(place: str, out: Path, key: str) -> OpenRun:
    """Open the stage's run in the project `place`; offline it lies in `out`/wandb."""
    import wandb

    mode: Any = os.environ.get("WANDB_MODE")  # As it is now, not as wandb first found it.
    out.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project=place,
        mode=mode,
        dir=out,
        id=hashlib.sha256(key.encode()).hexdigest()[:16],
        name=key,
        group=key.partition("/")[0],
        resume="allow",
        reinit="create_new",  # Others may be open in this process.
        settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
    )
    return run.log, lambda finished: run.finish(exit_code=0 if finished else 1)
