"""A tiny run of every method in every role, and the recorded figures of these runs.

Results are stored under a method's `version`. So the figures of a method and version never change:
`python -m tests.records.methods` (or `make tables`) adds the figures of new methods and versions,
and leaves all other figures as they are.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

from coprefl_flwr import client_app
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.methods import VERSIONS
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.known_methods import METHODS
from coprefl_flwr.studies.results import gather
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.store import Layout, Store
from tests.common.data import write_images
from tests.common.studies import SETTINGS

FILE = Path(__file__).with_suffix(".json")
CASES = [(name, role) for name, method in METHODS.items() for role in method.roles]

TINY = SETTINGS | {
    "run-name": "tiny",
    "downstream-classes": "3",
    "server-reserve": 0.2,
    "rounds": 2,
    "local-steps": "",
}
OF_METHODS = dict.fromkeys(
    ("meta-learning-rate", "inner-learning-rate", "server-learning-rate"), 0.001
)
"""Set for methods with these options, as in the recorded runs: versions exclude defaults."""

PERSONAL = {
    "study": "personalised",
    "personal-clients": 3,
    "train-per-class": 4,
    "learning-rate": 0.001,
}
"""Settings of the personalised study, which trains with Adam: its steps have the same size, however
small the gradient is. At Adam's usual rate, 0.001, figures differ by 1e-6 between AVX512, AVX2 and
SSE4; at 0.05 they differed by up to 94 %."""


def settings(name, role, folder):
    """Return the settings of a method's tiny run."""
    write_images(folder / "tiny.npz")
    places = {"dataset": str(folder / "tiny.npz"), "output-dir": str(folder / "outputs")}
    if role == "personalised":
        kept = ("run-name", "min-samples", "rounds", "batch-size")
        config = {key: TINY[key] for key in kept} | PERSONAL | {"method": name}
    elif role == "head":
        config = TINY | {"method": "random", "head": name, "tasks": 1}
    elif role == "task":
        config = TINY | {"method": "random", "task-method": name, "tasks": 1}
    else:
        has = METHODS[name].keys(role)
        own = [f"{key}={rate}" for key, rate in OF_METHODS.items() if key in has]
        config = TINY | {"method": f"{name}:{','.join(own)}".rstrip(":"), "tasks": 0}
    return Settings.from_config(config | places)


def measured(name, role, folder):
    """Return the figures of a method's tiny run: the losses, and the norm of the model.

    The run uses one thread, as the recorded runs did, because more threads round differently.
    """
    torch.set_num_threads(1)
    chosen = settings(name, role, folder)
    root = run_study(LocalGrid(client_app.app, 1, chosen.to_config()), build(chosen))
    rows, rounds = gather(build(chosen), Store(root, Layout.PATH))
    found = {"loss": [float(loss) for loss in rounds["loss"].dropna()]}
    if not rows.empty:
        found["client losses"] = [float(loss) for loss in rows["loss"]]
    for path in sorted([*root.rglob("model.safetensors"), *root.rglob("global.safetensors")]):
        arrays = load_file(path).values()
        found["norm"] = float(np.sqrt(sum(np.square(a.astype(float)).sum() for a in arrays)))
    return found


def key(name, role):
    """Return the name under which figures are recorded; each version has its own name."""
    return f"{name}, {role}, version {VERSIONS.get(name, 1)}"


def main():
    """Record the figures of every method and version without recorded figures."""
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name, role in CASES:
        if key(name, role) not in recorded:
            with tempfile.TemporaryDirectory() as folder:
                recorded[key(name, role)] = measured(name, role, Path(folder))
            print(f"recorded {key(name, role)}")
    FILE.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
