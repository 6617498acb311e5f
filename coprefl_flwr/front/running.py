"""Running the stages of a study in this process, in a folder of its own or the caller's."""

import contextlib
import io
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from coprefl_flwr.data import Samples
from coprefl_flwr.errors import SettingsError, one_line, short
from coprefl_flwr.federation.flower import without_colours
from coprefl_flwr.federation.machine import MOST_WORKERS
from coprefl_flwr.federation.progress import Progress, quiet_flower
from coprefl_flwr.files import expanded
from coprefl_flwr.grids import LocalGrid, RayGrid
from coprefl_flwr.models import computing
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.store import Layout, Store
from coprefl_flwr.studies.study import check_place


def check_workers(workers: int) -> None:
    """Raise a SettingsError for a number of processes that cannot be."""
    if not isinstance(workers, int) or isinstance(workers, bool):
        raise SettingsError(f"workers = {short(repr(workers))}: must be a whole number")
    if not 1 <= workers <= MOST_WORKERS:
        allowed = f"must be at least 1 and at most {MOST_WORKERS}"
        raise SettingsError(f"workers = {short(workers)}: {allowed}")


@contextmanager
def grid_of(app: ClientApp, nodes: int, workers: int) -> Iterator[LocalGrid]:
    """Give a grid in this process, or in so many others."""
    if workers == 1:
        yield LocalGrid(app, nodes)
        return
    with RayGrid(app, nodes, workers=workers) as grid:
        yield grid


@contextmanager
def shown(stages: Sequence[Stage], quiet: bool) -> Iterator[Progress]:
    """Give the account of progress; inside, nothing is logged but warnings if it is to be quiet."""
    without_colours()
    progress = Progress()
    progress.add((stage.kind, stage.rounds) for stage in stages)
    with contextlib.ExitStack() as silent:
        silent.enter_context(quiet_flower())
        if quiet:
            progress.stream = io.StringIO()
            silent.enter_context(quiet_flower("flwr.coprefl"))
        yield progress


@contextmanager
def store_for(checkpoint: str | Path | None, layout: Layout) -> Iterator[Store]:
    """Give the store of a run: in the caller's folder, or in one that is deleted after.

    Raises a SettingsError if the folder is not to be written into.
    """
    if not isinstance(checkpoint, str | Path | None):
        given = short(repr(checkpoint))
        raise SettingsError(f"checkpoint = {given}: must be the path of a folder")
    if checkpoint is None:
        with tempfile.TemporaryDirectory(prefix="coprefl-") as temporary:
            yield Store(Path(temporary).resolve(), layout, checkpoints=False)
        return
    store = Store(expanded(checkpoint).resolve(), layout)
    check_place("checkpoint", store.root)
    with store.owned(f"checkpoint = {checkpoint}"):
        yield store


# ---- modules ------------------------------------------------------------------------------------


@torch.no_grad()
def outputs_of(model: nn.Module, name: str, samples: Samples) -> Tensor:
    """Return what a module gives for two samples, (2, classes), in eval mode.

    Raises a SettingsError in which the module is called `name`, if it does not take them.
    """
    inputs, _ = samples.batch(np.zeros(2, np.int64), torch.device("cpu"))
    was_training = model.training
    try:
        with computing(model):
            found = model.eval()(inputs)
    except Exception as error:  # Whatever the caller's own code raises.
        given = f"{str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape)}"
        line = f"{name} does not take the samples, a batch of which is {given}"
        raise SettingsError(f"{line}: {one_line(error)}") from error
    finally:
        model.train(was_training)
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2:
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise SettingsError(f"{name} gives {what} for a batch of 2; (2, classes) is needed")
    return found
