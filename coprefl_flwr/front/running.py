"""Running the stages of a study in this process, in a folder of its own or the caller's."""

import contextlib
import hashlib
import io
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from coprefl_flwr.clients import client_app
from coprefl_flwr.cores import MOST_WORKERS
from coprefl_flwr.data import Samples
from coprefl_flwr.errors import SettingsError, one_line, short
from coprefl_flwr.federation.flower import without_colours
from coprefl_flwr.federation.progress import Progress, quiet_flower
from coprefl_flwr.files import (
    check_own,
    expanded,
    own,
    read_json,
    remove_unfinished,
    write_atomically,
)
from coprefl_flwr.grids import LocalGrid, RayGrid
from coprefl_flwr.models import as_array, computing
from coprefl_flwr.studies.stage import Stage, check_folders, run_stage
from coprefl_flwr.studies.study import Study, StudyFolder, check_place

ABOUT = "run.json"
"""What a caller's folder was made for, as hashes."""

_FINGERPRINT = 64
"""Samples of a dataset that its hash takes, evenly spaced, besides all labels."""


def run(study: Study, stages: Sequence[Stage], folder: Path, *, quiet: bool) -> StudyFolder:
    """Run stages in `folder`, but for those that are done there; return it as a store."""
    store = StudyFolder(folder)
    study.root = store.base
    check_folders(stages, store)
    app = client_app(study.client_of_message)
    with shown(stages, quiet) as progress:
        for stage in stages:
            run_stage(stage, LocalGrid(app, 1), store, progress)
    return store


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
def folder_for(
    checkpoint: str | Path | None, resume: bool, about: Mapping[str, Any]
) -> Iterator[Path]:
    """Give the folder that a run keeps its state in: the caller's, or one that is deleted after.

    `about` is what a resumed run must have in common with the one that it goes on with.

    Raises a SettingsError if the folder holds a run that is not resumed, or another one.
    """
    if not isinstance(checkpoint, str | Path | None):
        given = short(repr(checkpoint))
        raise SettingsError(f"checkpoint = {given}: must be the path of a folder")
    if checkpoint is None:
        if resume:
            raise SettingsError("resume = True: needs the checkpoint folder of the run")
        with tempfile.TemporaryDirectory(prefix="coprefl-") as temporary:
            yield Path(temporary)
        return
    folder = expanded(checkpoint).resolve()
    check_place("checkpoint", folder)
    check_own(folder, f"checkpoint = {checkpoint}")
    kept, text = folder / ABOUT, json.dumps(about, indent=1, sort_keys=True)
    if kept.exists() and not resume:
        line = f"checkpoint = {checkpoint}: the folder holds a run"
        raise SettingsError(f"{line}; set resume=True to go on with it, or name another folder")
    if kept.exists():
        before = read_json(kept, dict)
        other = [key for key in about if json.loads(text)[key] != before.get(key)]
        if other:
            line = f"checkpoint = {checkpoint}: the run there has other {' and '.join(other)}"
            raise SettingsError(f"{line}; name another folder, or give what it had")
    own(folder, f"checkpoint = {checkpoint}")
    remove_unfinished(folder)
    write_atomically(kept, text.encode())
    yield folder


# ---- what a run depends on ----------------------------------------------------------------------


def hash_of_samples(held: Sequence[Samples]) -> str:
    """Return a hash of which samples with which labels are whose, and of some of their inputs."""
    made = hashlib.sha256()
    for samples in held:
        made.update(samples.indices.tobytes() + samples.labels.tobytes())
        some = np.linspace(0, len(samples) - 1, min(len(samples), _FINGERPRINT)).astype(np.int64)
        inputs, _ = samples.batch(some, torch.device("cpu"))
        made.update(as_array(inputs.contiguous(), "an input").tobytes())
    return made.hexdigest()


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
