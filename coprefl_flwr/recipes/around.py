"""What a figure shows around a run of the store besides its results; made once, and kept there."""

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr import seeds
from coprefl_flwr.data.readers import arrays_in
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import write_atomically
from coprefl_flwr.learning import ServerData
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.report.figures import Landscape, Noised, landscape
from coprefl_flwr.studies.personal_data import noised_image
from coprefl_flwr.studies.personalised import PersonalStage
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.store import Store

logger = logging.getLogger("flwr.coprefl")

POINTS, SPAN, SAMPLES = 21, 1.0, 500
"""Grid points a side, half its side in lengths of the filters, samples the loss is a mean over."""


def loss_around(store: Store, run: Run) -> Landscape | None:
    """Return the training loss around a run's model, over a sample of all clients' data.

    None for a personalised method, which leaves no model of everybody.
    """
    made, folder = run.main, store.folder(run.main)
    if not isinstance(made, Pretraining):
        return None
    file = folder / "landscape.npz"
    if file.exists():
        kept = _kept(file, "steps", "losses")
        steps, losses = kept["steps"], kept["losses"]
        if steps.ndim != 1 or len(steps) < 2 or losses.shape != steps.shape * 2:
            raise _damaged(file, f"it has losses of shape {losses.shape}")
        return Landscape(steps, losses)
    logger.info("measuring the loss around %s at %s points", run.name, POINTS**2)
    samples = made.clients.samples_of("clients")
    rng = seeds.generator(made.run.seed, "landscape-samples")
    drawn = rng.permutation(len(samples))[:SAMPLES]
    data = ServerData(made.architecture.make(), samples.take(np.sort(drawn)))
    arrays, _ = load_saved_model(folder)
    found = landscape(lambda at: data.evaluate(at)["loss"], arrays, span=SPAN, points=POINTS)
    _save(file, steps=found.steps, losses=found.losses)
    return found


def image_with_noise(store: Store, run: Run) -> Noised | None:
    """Return an image that a personalised method is trained on, without and with its noise."""
    stage, file = run.main, store.folder(run.main) / "noised.npz"
    if not isinstance(stage, PersonalStage):
        return None
    if file.exists():
        kept = _kept(file, "before", "after")
        before, after = kept["before"], kept["after"]
        if before.ndim not in (2, 3) or after.shape != before.shape:
            raise _damaged(file, f"it has images of shapes {before.shape} and {after.shape}")
        return Noised(before, after)
    found = noised_image(stage.data)
    if not found:
        return None
    _save(file, before=found[0], after=found[1])
    return Noised(*found)


def _kept(file: Path, *names: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of numbers that a file must have."""
    try:
        found = arrays_in(file)
    except SettingsError as error:
        raise SettingsError(f"{error}; it is damaged: remove it, and it is made again") from error
    for name in names:
        if name not in found or found[name].dtype.kind not in "iuf":
            raise _damaged(file, f"it has no numbers {name!r}")
    return found


def _damaged(file: Path, why: str) -> SettingsError:
    return SettingsError(f"{file} is damaged: {why}; remove it, and it is made again")


def _save(file: Path, **arrays: npt.NDArray[Any]) -> None:
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_atomically(file, content.getvalue())
