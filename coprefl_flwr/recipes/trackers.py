"""Where metrics go while a run is under way, besides its files.

A tracker is a function of a stage, for `studies.study.run`: a context in which hooks of
`RoundStrategy.start` are called after every round. Trackers go to workers, so they hold nothing
that is open: what they write to is opened in the first round.
"""

import hashlib
import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.run import Hook
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.study import Followed

Write = Callable[[Mapping[str, float], int], object]
"""Writes the metrics of a round."""


def untracked(_: Stage) -> AbstractContextManager[Sequence[Hook]]:
    """Follow a stage with no hooks."""
    return nullcontext(())


def tracker_of(option: str, place: str, out: Path) -> Followed:
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
        return partial(_followed, partial(_wandb, place, out))
    place = place if "://" in place else str(Path(place).resolve())
    return partial(_followed, partial(_mlflow if option == "mlflow" else _tensorboard, place))


@contextmanager
def _own(place: str, out: Path, stage: Stage) -> Iterator[Sequence[Hook]]:
    """Give the hooks of a user's own tracker, which every process looks for again.

    A hook's method `close`, if it has one, is called when its stage ends, whatever ended it.
    """
    track = plugins.call(place, plugins.find("tracker", place), (out,))
    if not callable(track):
        problem = "a tracker is a function of a folder, which returns a function of a stage"
        raise SettingsError(f"{place}: {problem}")
    hooks = tuple(track(stage))
    try:
        yield hooks
    finally:
        for hook in hooks:
            if close := getattr(hook, "close", None):
                close()


@contextmanager
def _followed(
    opened: Callable[[str], AbstractContextManager[Write]], stage: Stage
) -> Iterator[Sequence[Hook]]:
    """Give a hook that opens the stage's run in its first round, and writes each round into it."""
    with ExitStack() as stack:
        writes: list[Write] = []

        def hook(report: RoundReport) -> None:
            if not writes:
                writes.append(stack.enter_context(opened(stage.key)))
            writes[0]({name: float(one) for name, one in report.metrics.items()}, report.round)

        yield (hook,)


@contextmanager
def _tensorboard(place: str, key: str) -> Iterator[Write]:
    """Open event files in a folder for the stage."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(Path(place, key)))

    def write(metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # A process that is killed loses no round.

    try:
        yield write
    finally:
        writer.close()


@contextmanager
def _mlflow(place: str, key: str) -> Iterator[Write]:
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

    def write(metrics: Mapping[str, float], step: int) -> None:
        at, refused = int(1000 * time.time()), r"[^\w\-. /]"
        named = {re.sub(refused, "_", name): value for name, value in metrics.items()}
        client.log_batch(run_id, [Metric(name, value, at, step) for name, value in named.items()])

    status = "FAILED"
    try:
        yield write
        status = "FINISHED"
    finally:
        client.set_terminated(run_id, status)


@contextmanager
def _wandb(place: str, out: Path, key: str) -> Iterator[Write]:
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
    status = 1
    try:
        yield lambda metrics, step: run.log(dict(metrics), step)
        status = 0
    finally:
        run.finish(exit_code=status)


def _check_key() -> None:
    """Raise a SettingsError if Weights & Biases would ask for a key once runs are under way."""
    import wandb

    quiet = os.environ.get("WANDB_MODE") in ("offline", "disabled")
    if not quiet and not wandb.login(verify=False, prompt=False):
        raise SettingsError("--wandb has no key: run `wandb login`, or set WANDB_MODE=offline")
