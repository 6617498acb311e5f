"""The loss landscape around a starting model of the store, measured once."""

import io
import logging

import numpy as np

from coprefl_flwr import seeds
from coprefl_flwr.files import write_atomically
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.recipes.store import Run, Store
from coprefl_flwr.report.figures import Landscape, landscape
from coprefl_flwr.studies.populations import clients_samples
from coprefl_flwr.studies.runs import Setup

logger = logging.getLogger("flwr.coprefl")

POINTS, SPAN, SAMPLES = 21, 1.0, 500
"""Grid points a side, half its side in lengths of the filters, samples the loss is a mean over."""


def loss_around(store: Store, run: Run) -> Landscape:
    """Return the training loss around a run's model, over a sample of all clients' data."""
    folder = store.folder(run)
    file = folder / "landscape.npz"
    if file.exists():
        with np.load(file) as kept:
            return Landscape(kept["steps"], kept["losses"])
    logger.info("measuring the loss around %s at %s points", run.start.name, POINTS**2)
    samples = clients_samples(run.settings)
    rng = seeds.generator(run.settings.seed, "landscape-samples")
    drawn = rng.permutation(len(samples))[:SAMPLES]
    data = ServerData(Setup.of(run.settings).network(), samples.take(np.sort(drawn)))
    arrays, _ = load_saved_model(folder)
    found = landscape(lambda at: data.evaluate(at)["loss"], arrays, span=SPAN, points=POINTS)
    content = io.BytesIO()
    np.savez(content, steps=found.steps, losses=found.losses)
    write_atomically(file, content.getvalue())
    return found
