"""A study that a Python program runs: in its own process or on Ray, in a folder that it names."""

import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import wrong_type
from coprefl_flwr.federation.flower import without_colours
from coprefl_flwr.federation.machine import MOST_WORKERS
from coprefl_flwr.federation.progress import Progress, quiet_flower
from coprefl_flwr.files import expanded
from coprefl_flwr.grids import LocalGrid, RayGrid
from coprefl_flwr.options import Option
from coprefl_flwr.studies.store import Layout, Store
from coprefl_flwr.studies.study import Study, check_place, run

WORKERS = Option("workers", "workers", 1, (int,), "processes", minimum=1, maximum=MOST_WORKERS)


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
