"""Where metrics go while a run is under way, besides its files.

A tracker is a function: a stage -> hooks of `RoundStrategy.start`, called after every round; a hook
with a method `close` is told when its stage ends, whatever ended it. A user's own is a function of
the recipe's folder that returns one, named by its place. Trackers go to workers, so they hold
nothing that is open.
"""

import hashlib
import importlib.util
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.rounds.strategy import Hook
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.study import Track


@dataclass(frozen=True)
class Tracked:
    """A tracker of the user's own, found anew in every process: a function of the folder `out`."""

    place: str
    out: Path

    def __call__(self, stage: Stage) -> Sequence[Hook]:
        """Return the hooks that it gives for a stage."""
        track = plugins.call(self.place, plugins.find("tracker", self.place), (self.out,))
        if not callable(track):
            raise SettingsError(
                f"{self.place}: a tracker is a function of a folder, which returns "
                "a function of a stage"
            )
        return tuple(track(stage))


@contextmanager
def followed(stage: Stage, tracker: Track | None) -> Iterator[Sequence[Hook]]:
    """Give the hooks that follow a stage, and tell those that keep something open of its end."""
    hooks = tracker(stage) if tracker else ()
    try:
        yield hooks
    finally:
        for hook in hooks:
            if close := getattr(hook, "close", None):
                close()


def tensorboard(folder: Path) -> Track:
    """Return a tracker that writes every metric of every round for TensorBoard.

    Raises a SettingsError if TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise _missing("tensorboard") from error

    def track(stage: Stage) -> Sequence[Hook]:
        def write(report: RoundReport) -> None:
            # Opened for each round: a writer left open when a run fails would lose its last rounds.
            with SummaryWriter(str(folder / stage.key)) as writer:
                for name, value in report.metrics.items():
                    writer.add_scalar(name, value, report.round)

        return (write,)

    return track


def _missing(extra: str) -> SettingsError:
    return SettingsError(f"--{extra} needs the package: pip install 'coprefl-flwr[{extra}]'")


# ---- MLflow --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MLflow:
    """A tracker with an MLflow run for each stage, in the experiment `coprefl`.

    `place` is a folder, which need not exist, or an address that MLflow takes. Raises a
    SettingsError if MLflow is not installed.
    """

    place: str

    def __post_init__(self) -> None:
        """Check that there is MLflow."""
        if importlib.util.find_spec("mlflow") is None:
            raise _missing("mlflow")

    @classmethod
    def at(cls, place: str) -> "MLflow":
        """Return the tracker for a folder, which counts from here, or for an address."""
        return cls(place if "://" in place else Path(place).resolve().as_uri())

    def __call__(self, stage: Stage) -> Sequence[Hook]:
        """Return the hook that follows a stage."""
        return (_MLflowRun(self.place, stage.key),)


class _MLflowRun:
    """Writes a stage's rounds into its run, which a stage that goes on finds again."""

    def __init__(self, place: str, key: str) -> None:
        self.place, self.key = place, key
        self.client: Any = None
        self.run = ""
        self.ended = False

    def __call__(self, report: RoundReport) -> None:
        from mlflow.entities import Metric

        if not self.client:
            self.open()
        at, step = int(1000 * time.time()), report.round
        entries = report.metrics.items()
        found = [Metric(_mlflow_name(name), float(value), at, step) for name, value in entries]
        self.client.log_batch(self.run, found)
        self.ended = report.round == report.num_rounds

    def open(self) -> None:
        """Find the stage's run, or begin it."""
        # MLflow wants a database, and its makers do no more for folders, which are all we need.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        self.client = MlflowClient(self.place)
        experiment = _experiment(self.client)
        wanted = f"tags.stage = '{self.key}'"
        known = self.client.search_runs([experiment], wanted)
        name, tags = self.key, {"stage": self.key}
        run = known[0] if known else self.client.create_run(experiment, run_name=name, tags=tags)
        self.run = run.info.run_id
        self.client.update_run(self.run, status="RUNNING")

    def close(self) -> None:
        """Say that the stage ended, or that it did not come to its end."""
        if self.run:
            self.client.set_terminated(self.run, "FINISHED" if self.ended else "FAILED")


def _experiment(client: Any) -> str:
    """Return the id of the experiment that all stages are runs of."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name("coprefl")
    if found is None:
        try:
            return str(client.create_experiment("coprefl"))
        except MlflowException:  # Another worker was first.
            found = client.get_experiment_by_name("coprefl")
    return str(found.experiment_id)


def _mlflow_name(name: str) -> str:
    """Return a metric's name with nothing in it that MLflow refuses."""
    return re.sub(r"[^\w\-. /]", "_", name)


# ---- Weights & Biases ----------------------------------------------------------------------------


WANDB_QUIET = ("offline", "disabled")
"""What WANDB_MODE can say so that nothing is sent."""


@dataclass(frozen=True)
class WandB:
    """A tracker with a run of Weights & Biases for each stage, in `project`.

    With WANDB_MODE=offline nothing is sent: the runs lie in `folder`/wandb, for `wandb sync`.
    Raises a SettingsError if wandb is not installed, or has no key and is not offline.
    """

    project: str
    folder: Path

    def __post_init__(self) -> None:
        """Check that there is wandb, and that it has nothing to ask once runs are under way."""
        if importlib.util.find_spec("wandb") is None:
            raise _missing("wandb")
        if os.environ.get("WANDB_MODE", "online") in WANDB_QUIET:
            return
        import wandb

        if not wandb.login(verify=False, prompt=False):
            raise SettingsError("--wandb has no key: run `wandb login`, or set WANDB_MODE=offline")

    def __call__(self, stage: Stage) -> Sequence[Hook]:
        """Return the hook that follows a stage."""
        return (_WandBRun(self, stage.key),)


class _WandBRun:
    """Writes a stage's rounds into its run, which is open while the stage is under way."""

    def __init__(self, of: WandB, key: str) -> None:
        self.of, self.key = of, key
        self.run: Any = None
        self.ended = False

    def __call__(self, report: RoundReport) -> None:
        self.run = self.run or self.open()
        self.run.log(dict(report.metrics), step=report.round)
        self.ended = report.round == report.num_rounds

    def open(self) -> Any:
        """Begin the stage's run, or go on with it: its id is that of the stage."""
        import wandb

        mode: Any = os.environ.get("WANDB_MODE")  # As it is now, not as wandb first found it.
        self.of.folder.mkdir(parents=True, exist_ok=True)
        quiet = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
        return wandb.init(
            project=self.of.project,
            mode=mode,
            dir=self.of.folder,
            id=hashlib.sha256(self.key.encode()).hexdigest()[:16],
            name=self.key,
            group=self.key.partition("/")[0],
            resume="allow",
            reinit="create_new",  # Others may be open in this process.
            settings=quiet,
        )

    def close(self) -> None:
        """End the run; one that did not come to its end can go on."""
        if self.run:
            self.run.finish(exit_code=0 if self.ended else 1)
