"""The data of figures that a run's results do not hold: measured once, and stored next to them.

The loss around a model is measured in two filter-normalised directions: Li et al., Visualizing the
Loss Landscape of Neural Nets, NeurIPS 2018, Section 4. https://arxiv.org/abs/1712.09913
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from coprefl_flwr.arrays import Arrays, weights_of
from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.files import write_atomically
from coprefl_flwr.learning import ServerData
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.seeds import generator
from coprefl_flwr.studies.personal_data import noised_image
from coprefl_flwr.studies.personalised import LOCAL, PersonalStage
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.store import Store

logger = logging.getLogger("flwr.coprefl")

Floats = npt.NDArray[np.float64]

POINTS, SPAN, SAMPLES = 21, 1.0, 500
"""Grid points a side, half its side in lengths of the filters, samples the loss is a mean over."""


def loss_around(store: Store, run: Run) -> pd.DataFrame | None:
    """Return the training loss around a run's model, over a sample of all clients' data.

    None for a personalised method, which leaves no model of everybody.
    """
    stage, folder = run.main, store.folder(run.main)
    if not isinstance(stage, Pretraining):
        return None

    def measure() -> list[Floats]:
        logger.info("measuring the loss around %s at %s points", run.name, POINTS**2)
        samples = stage.clients.samples_of("clients")
        rng = generator(stage.run_options.seed, "landscape-samples")
        drawn = rng.permutation(len(samples))[:SAMPLES]
        data = ServerData(stage.architecture.make(), samples.take(np.sort(drawn)))
        arrays, _ = load_saved_model(folder)
        losses = landscape(lambda at: data.evaluate(at)["loss"], arrays, span=SPAN, points=POINTS)
        return [losses.to_numpy()]

    file = folder / "landscape.safetensors"
    (losses,) = _stored(file, ["losses"], measure)
    if losses.ndim != 2 or len({*losses.shape}) > 1 or len(losses) < 3:
        raise _damaged(file, f"it has losses of shape {losses.shape}")
    steps = _steps(SPAN, len(losses))
    return pd.DataFrame(losses, steps, steps)


def image_with_noise(store: Store, run: Run) -> tuple[Floats, Floats] | None:
    """Return an image that a personalised method is trained on, without and with its noise."""
    stage, file = run.main, store.folder(run.main) / "noised.safetensors"
    if not isinstance(stage, PersonalStage):
        return None
    arrays = _stored(file, ["before", "after"], lambda: noised_image(stage.data) or ())
    if not arrays:
        return None
    before, after = arrays
    if before.ndim not in (2, 3) or after.shape != before.shape:
        raise _damaged(file, f"it has images of shapes {before.shape} and {after.shape}")
    return before, after


def _stored(
    file: Path, names: Sequence[str], make: Callable[[], Sequence[Floats]]
) -> Sequence[Floats]:
    """Return the arrays of these names in a file; if it is not there, make and write them first.

    Nothing is written where there is nothing to make.
    """
    if not file.exists():
        if arrays := make():
            # safetensors stores the memory of an array as it lies: in C order.
            ordered = map(np.ascontiguousarray, arrays)
            write_atomically(file, save(dict(zip(names, ordered, strict=True))))
        return arrays
    try:
        content = load_file(file)
        return [content[name] for name in names]
    except (SafetensorError, KeyError) as error:
        raise _damaged(file, one_line(error)) from error


def _damaged(file: Path, why: str) -> SettingsError:
    return SettingsError(f"{file} is damaged: {why}; remove it, and it is made again")


# ---- the loss around a model ---------------------------------------------------------------------


def landscape(
    loss: Callable[[Arrays], float],
    arrays: Arrays,
    *,
    seed: int = 0,
    span: float = 1.0,
    points: int = 25,
) -> pd.DataFrame:
    """Return f(a, b) = L(θ + a δ + b η) on a grid (Li et al., Equation 1), by a and by b.

    δ and η are functions of `seed` and of the arrays' names and shapes, before each is normalised
    to the filters of θ: models of one network are looked at in the same two directions.

    `arrays` are θ with its buffers, which no direction changes. `span` is half the side of the
    square, `points` the grid points along a side: an odd number, so that θ itself is one of them.
    """
    first, second = (direction(arrays, seed, which) for which in ("first", "second"))
    steps = _steps(span, points)

    def moved(a: float, b: float) -> Arrays:
        moving = {
            name: (arrays[name] + a * first[name] + b * second[name]).astype(arrays[name].dtype)
            for name in first
        }
        return arrays | moving

    losses = np.array([[loss(moved(a, b)) for b in steps] for a in steps], dtype=np.float64)
    return pd.DataFrame(losses, steps, steps)


def _steps(span: float, points: int) -> Floats:
    # Whole numbers divided, not linspace: the middle one is 0 itself.
    return span * np.arange(1 - points, points, 2) / (points - 1)


def direction(arrays: Arrays, seed: int, which: str) -> Arrays:
    """Return a random direction, normalised filter by filter, without the arrays it leaves alone.

    Those are the buffers and what has one dimension (biases, normalisation weights).
    """
    return {
        name: filter_normalised(
            generator(seed, "landscape", which, name).standard_normal(array.shape), array
        )
        for name, array in weights_of(arrays).items()
        if array.ndim > 1
    }


def filter_normalised(random: Floats, weights: npt.NDArray[Any]) -> Floats:
    """Return d_i / ||d_i|| * ||θ_i|| for every filter i, of either array's first axis.

    A filter is what makes one output: (in, height, width) of a convolution, a row of a matrix.
    """
    inner = tuple(range(1, weights.ndim))
    wanted = np.sqrt(np.sum(np.square(weights, dtype=np.float64), axis=inner, keepdims=True))
    norms = np.sqrt(np.sum(np.square(random), axis=inner, keepdims=True))
    return np.asarray(random * (wanted / np.where(norms > 0, norms, 1.0)))


# ---- how much each backbone is in what several are fused to --------------------------------------


def similarities(alone: Sequence[Arrays], fused: Arrays) -> Floats:
    """Return the normalised similarity scores, (backbones, clients); a client's add up to 1.

    A score is the inner product of a client's prototypes under one backbone and under all (section
    5.5), the mean over classes. The heads of two runs begin apart, so it also holds by how much
    training has brought them together. `alone` (a backbone each) and `fused` (all of them) are
    every client's prototypes, (C, d) by client.
    """
    for prototypes in alone:
        if {n: a.shape for n, a in prototypes.items()} != {n: a.shape for n, a in fused.items()}:
            raise SettingsError("the runs are not of the same clients and classes")
    clients = sorted(fused, key=int)
    scores = np.array(
        [
            [np.sum(np.float64(prototypes[c]) * fused[c], axis=1).mean() for c in clients]
            for prototypes in alone
        ]
    )
    return np.asarray(scores / scores.sum(axis=0))


def similarity(
    folders: Sequence[Path], backbones: Sequence[str], clients: Sequence[str]
) -> pd.DataFrame:
    """Return the scores of finished FedPCL runs: of each backbone alone, and last of all."""
    *alone, fused = [load_file(folder / LOCAL) for folder in folders]
    return pd.DataFrame(similarities(alone, fused), list(backbones), list(clients))
