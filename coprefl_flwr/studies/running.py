"""Run a study and store its results in a folder: for `flwr run`, or for a Python program.

A study of a Python program runs in the program's process or on Ray. The results are stored in a
folder that the program names, or else in a temporary folder.
"""

import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TextIO

import yaml
from flwr.serverapp import Grid

from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import logger
from coprefl_flwr.federation.flower import without_colours
from coprefl_flwr.federation.progress import Part, Progress, quiet_flower
from coprefl_flwr.federation.run import Hook
from coprefl_flwr.files import expanded, remove_named, write_atomically
from coprefl_flwr.grids import LocalGrid, RayGrid
from coprefl_flwr.named import as_file_name
from coprefl_flwr.options import Option
from coprefl_flwr.studies.personal_data import FEATURE_FILE
from coprefl_flwr.studies.results import write_results
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.store import Layout, Store, finalise
from coprefl_flwr.studies.study import Study

SETTINGS = "settings.yaml"

Followed = Callable[[Stage], AbstractContextManager[Sequence[Hook]]]
"""A function from a stage to a context manager. The context manager gives the hooks that are called
after each round of the stage. On exit it closes the trackers or files that the hooks write to."""


def unfollowed(_: Stage) -> AbstractContextManager[Sequence[Hook]]:
    """Follow a stage with no hooks."""
    return nullcontext(())


WORKERS = Option("workers", "workers", 1, (int,), "processes", minimum=1)


def run_study(grid: Grid, study: Study) -> Path:
    """Run a study that was built from settings, and return the folder of its results.

    Raises a SettingsError before any training if a setting cannot be used.
    Raises a RunFailedError if clients failed in the same round too often. Finished stages and
    checkpoints are kept, and the next run continues from them.
    """
    name = study.config["run-name"]
    study.check()
    folder = as_file_name(name, "._-").lstrip(".") or "run"
    store = Store(study.root / folder, Layout.PATH, run_name=name)
    with store.owned(f"run-name = {name}"):
        write_atomically(store.root / SETTINGS, yaml.safe_dump(dict(study.config)).encode())
        logger.info("results go to %s", store.root)
        with progress_of(study) as progress:
            run(study, grid, store, followed=partial(shown, progress, unfollowed))
        remove_named(store.root / "features", FEATURE_FILE)
        write_results(study, store)
        return store.root


@contextmanager
def finished(
    study: Study,
    folder: str | Path | None,
    layout: Layout,
    quiet: bool,
    workers: int = 1,
    hooks: Sequence[Hook] = (),
) -> Iterator[Store]:
    """Context manager: run a study, then yield the store that has its results.

    Parameters
    ----------
    folder : path, optional
        The folder of the results. If it is None, a temporary folder is used and deleted on exit.
    quiet : bool
        Whether to log only warnings and to show no progress.
    workers : int
        The number of processes that run the clients: with 1, this process; with more, Ray's.
    hooks : Sequence[Hook]
        Functions that are called after each round of each stage.

    Raises a SettingsError before any training if a setting cannot be used, and a RunFailedError if
    clients failed in the same round too often.
    """
    without_colours()
    with ExitStack() as entered:
        if quiet:
            entered.enter_context(quiet_flower("flwr.coprefl"))
        study.check()
        if folder is None:
            temporary = entered.enter_context(tempfile.TemporaryDirectory(prefix="coprefl-"))
            store = Store(Path(temporary).resolve(), layout, checkpoints=False)
        else:
            store = Store(expanded(folder).resolve(), layout)
            entered.enter_context(store.owned(f"checkpoint = {folder}"))
        study.root = store.base
        app = client_app(study.client)
        grid: Grid = LocalGrid(app)
        if workers > 1:
            grid = entered.enter_context(RayGrid(app, workers, workers=workers))
        progress = entered.enter_context(progress_of(study, io.StringIO() if quiet else None))
        followed = partial(shown, progress, lambda _: nullcontext(hooks))
        run(study, grid, store, followed=followed)
        yield store


# ---- the driver ----------------------------------------------------------------------------------


@contextmanager
def shown(display: Progress | Part, followed: Followed, stage: Stage) -> Iterator[Sequence[Hook]]:
    """Context manager: give the hooks of `followed` for a stage, and one that shows its rounds."""
    with followed(stage) as hooks, display.part(stage.title, stage.rounds) as hook:
        yield [*hooks, hook]


def progress_of(study: Study, stream: TextIO | None = None) -> Progress:
    """Return the display of a study's stages."""
    return Progress(len(study.stages), sum(stage.rounds for stage in study.stages), stream)


def run(study: Study, grid: Grid, store: Store, *, followed: Followed = unfollowed) -> None:
    """Run the stages of a study, except stages whose results the store already holds.

    An interrupted stage continues from its last checkpoint. If a stored result was computed from
    other inputs, it is moved into a folder `earlier-N`; the log lists such stages before any
    training.

    Parameters
    ----------
    followed : function, optional
        A function that gives hooks for a stage (see `Followed`).

    Raises a RunFailedError if clients failed in the same round too often. Finished stages and
    checkpoints are kept.
    """
    store.prepare(study.stages)
    with quiet_flower():
        for stage in study.stages:
            with store.locked(stage), followed(stage) as hooks:
                run_stage(stage, grid, store, hooks)


def run_stage(stage: Stage, grid: Grid, store: Store, hooks: Sequence[Hook] = ()) -> None:
    """Run a stage that is not done, and write its folder."""
    folder = store.folder(stage)
    if finalise(stage, folder):
        return
    stage.make(grid, store, hooks)
    if stage.rounds and (problem := stage.problem(folder)):
        logger.warning("%s: %s", stage.title, problem)
    if not stage.open_ended:  # It may have ended early, with fewer rounds.
        finalise(stage, folder)
