"""Running a study in its own folder: for `flwr run`, or for a Python program.

A program's study runs in its own process or on Ray, in a folder that it names or a temporary one.
"""

import contextlib
import io
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import wrong_type
from coprefl_flwr.federation.flower import without_colours
from coprefl_flwr.federation.machine import MOST_WORKERS
from coprefl_flwr.federation.progress import Progress, quiet_flower
from coprefl_flwr.files import expanded, remove_named, write_atomically
from coprefl_flwr.grids import LocalGrid, RayGrid
from coprefl_flwr.options import Option
from coprefl_flwr.studies.personal_data import FEATURE_FILE
from coprefl_flwr.studies.results import write_results
from coprefl_flwr.studies.stage import check_folders
from coprefl_flwr.studies.store import Layout, Store
from coprefl_flwr.studies.study import SETTINGS, Study, check_place, run

logger = logging.getLogger("flwr.coprefl")

WORKERS = Option("workers", "workers", 1, (int,), "processes", minimum=1, maximum=MOST_WORKERS)


def run_study(grid: Grid, study: Study) -> Path:
    """Run a study of settings in the folder of its run, and return that.

    Raises a SettingsError before any work, if something set cannot be used.
    Raises a RunFailedError if the clients failed a round too often; what was finished stays, and
    can be resumed.
    """
    name = study.config["run-name"]
    study.check()
    store = Store(study.root / name, Layout.PATH)
    check_place("output-dir", store.root)
    check_folders(study.stages, store)
    with store.owned(f"run-name = {name}"):
        write_atomically(store.root / SETTINGS, yaml.safe_dump(dict(study.config)).encode())
        logger.info("results go to %s", store.root)
        run(study, grid, store, run_name=name)
        for key in {stage.features() for stage in study.stages} - {""}:
            remove_named(store.shared(key), FEATURE_FILE)
            with contextlib.suppress(OSError):  # It holds others, of settings before these.
                store.shared(key).parent.rmdir()
        write_results(study, store)
        return store.root


@contextmanager
def finished(
    study: Study,
    folder: str | Path | None,
    layout: Layout,
    quiet: bool,
    app: ClientApp | None = None,
    *,
    nodes: int = 1,
    workers: int = 1,
) -> Iterator[Store]:
    """Run a study, and give the store of its results.

    Parameters
    ----------
    folder : path, optional
        Where the results are stored; not set: a temporary folder that is deleted at the end.
    quiet : bool
        Whether only warnings are logged.
    app : ClientApp, optional
        The clients; not set: those of the study.
    nodes, workers : int
        Nodes of the app, and processes that run them: 1 is this process, more are on Ray.

    Raises a SettingsError before any work, and a RunFailedError if clients failed too often.
    """
    without_colours()
    with ExitStack() as entered:
        progress = Progress(stream=io.StringIO() if quiet else sys.stderr)
        if quiet:
            entered.enter_context(quiet_flower("flwr.coprefl"))
        study.check()
        store = entered.enter_context(_store(folder, layout))
        study.root = store.base
        progress.add((stage.title, stage.kind, stage.rounds) for stage in study.stages)
        app = app or client_app(study.client)
        grid: Grid = LocalGrid(app, nodes)
        if workers > 1:
            grid = entered.enter_context(RayGrid(app, nodes, workers=workers))
        run(study, grid, store, progress)
        yield store


@contextmanager
def _store(folder: str | Path | None, layout: Layout) -> Iterator[Store]:
    """Give the store in a folder of this process alone, or in a temporary one."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="coprefl-") as temporary:
            yield Store(Path(temporary).resolve(), layout, checkpoints=False)
        return
    if not isinstance(folder, str | Path):
        raise wrong_type("checkpoint", folder, "the path of a folder", "'runs/first'")
    store = Store(expanded(folder).resolve(), layout)
    check_place("checkpoint", store.root)
    with store.owned(f"checkpoint = {folder}"):
        yield store
