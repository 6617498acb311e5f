"""A study that runs in a few seconds."""

from coprefl_flwr.studies.settings import Settings

SETTINGS = {
    "clients": 6,
    "partition": "iid",
    "min-samples": 4,
    "model": "tests.common.networks:network",
    "rounds": 3,
    "participants": 3,
    "local-steps": 2,
    "batch-size": 8,
    "learning-rate": 0.05,
    "tasks": 2,
    "task-classes": 2,
    "task-clients": 3,
    "task-partition": "iid",
    "task-rounds": 2,
    "task-local-steps": 2,
    "task-learning-rate": 0.05,
}
"""6 clients to pre-train and two tasks of 3 clients; dataset and classes are not set."""


def tiny_study(images, folder):
    """Return the settings of a study of three starts, with 5 classes for pre-training."""
    more = {
        "run-name": "tiny",
        "output-dir": str(folder / "outputs"),
        "dataset": str(images),
        "downstream-classes": "3",
        "method": "random fedavg coprefl:gamma=0.25",
        "checkpoint-every": 1,
    }
    return Settings.from_config(SETTINGS | more)


def start_named(study, name):
    """Return the stage that makes a starting model."""
    return next(stage for stage in study.stages if stage.start == name)
