"""The study of a second that a method is checked in: its data, its settings, one for each role."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coprefl_flwr.data.glyphs import SAMPLES_PER_CLASS, glyphs
from coprefl_flwr.methods import HEAD, PERSONALISED, PRETRAINING, TASK
from coprefl_flwr.options import Value
from coprefl_flwr.studies.settings import Settings

RUN_NAME = "checked"

ROUNDS, CHECKPOINT_EVERY = 4, 2

CLIENTS, PARTICIPANTS = 5, 4
"""Of a pre-training: on 4 nodes every participant is alone on one."""

SAMPLES, CLASSES = 40, 6

COMMON: Mapping[str, Value] = {
    "run-name": RUN_NAME,
    "checkpoint-every": CHECKPOINT_EVERY,
    "min-samples": 4,
    "rounds": ROUNDS,
    "batch-size": 8,
    "learning-rate": 0.05,
}
OF_STARTS: Mapping[str, Value] = {
    "clients": CLIENTS,
    "participants": PARTICIPANTS,
    "downstream-classes": "2",
    "server-reserve": 0.2,
    "local-steps": 2,
    "tasks": 0,
}
OF_TASKS: Mapping[str, Value] = {
    **OF_STARTS,
    "method": "random",
    "tasks": 1,
    "task-classes": 2,
    "task-clients": 4,
    "task-rounds": ROUNDS,
    "task-local-steps": 2,
    "task-learning-rate": 0.05,
    "task-evaluate-every": 2,
}
OF_ROLES: Mapping[str, Mapping[str, Value]] = {
    PRETRAINING: OF_STARTS,
    HEAD: {**OF_TASKS, "task-rounds": 0},
    TASK: OF_TASKS,
    PERSONALISED: {
        "study": "personalised",
        "personal-clients": 4,
        "train-per-class": 4,
        "test-per-class": 4,
        "test-every": 2,
    },
}
"""Settings by role; those of methods' clients differ in how many samples they hold."""

NAMED_BY = {TASK: "task-method", HEAD: "head"}
"""The setting that names a method, where that is not `method`."""


def write_data(path: Path) -> None:
    """Write some of the embedded glyphs, at half their height and width, into an .npz file."""
    drawn = glyphs()
    chosen = [label * SAMPLES_PER_CLASS + n for label in range(CLASSES) for n in range(SAMPLES)]
    images = drawn.images[chosen, 0].numpy().astype(float)
    halved = images.reshape(len(images), 14, 2, 14, 2).mean(axis=(2, 4))
    np.savez(path, images=halved.astype(np.uint8), labels=drawn.labels[chosen])


def settings_of(
    place: str, role: str, data: Path, outputs: Path, network: str = "plain"
) -> Settings:
    """Return the settings of the small study of a method, with its options, in a role.

    `network` is one of `coprefl_flwr.checking.networks`; a personalised study trains it in place of
    its own head only where it is not "plain".
    """
    config: dict[str, Any] = {**COMMON, **OF_ROLES[role], "dataset": str(data)}
    config["output-dir"] = str(outputs)
    config["model"] = f"coprefl_flwr.checking.networks:{network}"
    config[NAMED_BY.get(role, "method")] = place
    if role == PERSONALISED and network != "plain":
        config["backbones"] = "scratch"
    return Settings.from_config(config)
