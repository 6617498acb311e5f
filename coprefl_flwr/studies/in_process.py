"""A study that a Python program runs: in its own process or on Ray, in a folder that it names."""

import io
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flwr.clientapp import ClientApp

from coprefl_flwr.cores import MOST_WORKERS
from coprefl_flwr.errors import wrong_type
from coprefl_flwr.federation.flower import without_colours
from coprefl_flwr.federation.progress import Progress, quiet_flower
from coprefl_flwr.files import expanded
from coprefl_flwr.grids import LocalGrid, RayGrid
from coprefl_flwr.options import Option
from coprefl_flwr.studies.store import Layout, Store
from coprefl_flwr.studies.study import Study, check_place, run

WORKERS = Option("workers", "workers", 1, (int,), "processes", minimum=1, maximum=MOST_WORKERS)


@contextmanager
def shown(quiet: bool) -> Iterator[Progress]:
    """Give the progress that a program shows; if `quiet`, only warnings are logged inside."""
    without_colours()
    progress = Progress()
    with ExitStack() as silent:
        silent.enter_context(quiet_flower())
        if quiet:
            progress.stream = io.StringIO()
            silent.enter_context(quiet_flower("flwr.coprefl"))
        yield progress


@contextmanager
def finished(
    study: Study,
    app: ClientApp,
    folder: str | Path | None,
    layout: Layout,
    progress: Progress,
    nodes: int = 1,
    workers: int = 1,
) -> Iterator[Store]:
    """Run a study, and give the store of its results.

    Parameters
    ----------
    app : ClientApp
        The clients.
    folder : path, optional
        Where the results are stored; not set: a temporary folder that is deleted at the end.
    nodes, workers : int
        Nodes of the app, and processes that run them: 1 is this process, more are on Ray.

    Raises a SettingsError before any work, and a RunFailedError if clients failed too often.
    """
    study.check()
    with _store(folder, layout) as store:
        study.root = store.base
        progress.add((stage.kind, stage.rounds) for stage in study.stages)
        if workers == 1:
            run(study, LocalGrid(app, nodes), store, progress)
        else:
            with RayGrid(app, nodes, workers=workers) as grid:
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
