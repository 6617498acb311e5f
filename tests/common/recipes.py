"""A recipe that runs in a few seconds, a record of the messages it sends, and made-up results."""

import yaml

from coprefl_flwr.cli import main
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.models import save_model
from coprefl_flwr.recipes import execute
from coprefl_flwr.studies.store import RESULT, Store, write_result
from tests.common import studies
from tests.common.checks import Killed

SETTINGS = {"downstream-classes": "2", **studies.SETTINGS}


def tiny_recipe(images, settings=None, **keys):
    """Return a recipe: pre-training on 6 classes, two tasks of the other 2 classes, no figures.

    Keys whose value is None are left out.
    """
    recipe = {
        "title": "A tiny comparison",
        "source": "Nobody, 2026, Table 1(a)",
        "settings": {"dataset": str(images), **SETTINGS, **(settings or {})},
        "methods": ["random", "fedavg", {"coprefl": {"gamma": [0.0, 1.0]}}],
        "validation-tasks": 1,
        "reference": "coprefl",
        "metrics": ["accuracy", "variance"],
        "figures": [],
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }
    return {key: value for key, value in recipe.items() if value is not None}


def write_recipe(path, content):
    """Write a recipe and return its path."""
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return path


def run(path, out, witness, monkeypatch):
    """Run a recipe on the command line; return the exit status. `witness` replaces `LocalGrid`."""
    monkeypatch.setattr(execute, "LocalGrid", witness)
    return main(["run", str(path), "--out", str(out)])


class Witness:
    """Replaces `LocalGrid`: records every message of a round, and raises an error at one of them.

    Parameters
    ----------
    at : tuple, optional
        (message type, first characters of the run's name, population, round) of the message before
        which `error` is raised.
    """

    def __init__(self, at=None, error=Killed):
        self.at, self.error, self.seen = at, error, []

    def __call__(self, app):
        witness = self

        class Grid(LocalGrid):
            def _handle(self, message):
                witness.note(message)
                return super()._handle(message)

        return Grid(app)

    def note(self, message):
        config = message.content.get("config", {})
        if "server-round" not in config:
            return
        kind, run = message.metadata.message_type, config["run"]
        self.seen.append((kind, run, config["population"], config["server-round"]))
        if (
            self.at
            and run.startswith(self.at[1])
            and self.seen[-1] == (self.at[0], run, *self.at[2:])
        ):
            raise self.error

    def rounds(self):
        """Return (run, population, round) of every round, without repetitions."""
        return list(dict.fromkeys(entry[1:] for entry in self.seen))


def result_file(store: Store, run, number=None):
    """Return the result file of a task of a run, or of the stage before the tasks."""
    stage = run.main if number is None else run.client_stages[number]
    return store.folder(stage) / RESULT


def keep(store: Store, run, accuracies=(), tested=(), models=4.0, losses=()):
    """Store a run whose tasks have these accuracies (%, the same for two clients).

    `losses` are the losses of the pre-training rounds; None means that a loss was not finite.
    """
    about = {"phase": "pretraining", "start": "x", "task": None, "models-down": models}
    rounds = [
        about | {"round": number, "server-accuracy": accuracy}
        for number, accuracy in enumerate(tested, 1)
    ]
    rounds += [about | {"round": at, "loss": loss} for at, loss in enumerate(losses, 1)]
    folder = result_file(store, run).parent
    made = {"num-classes": 6, "versions": {"torch": "2.0"}, "machine": "An engine, 2 cores"}
    save_model(folder, {}, made | {"start": f"{run.label}, {run.seeds}"})
    write_result(folder, [], rounds)
    for number, accuracy in enumerate(accuracies):
        keep_task(store, run, number, accuracy)


def keep_task(store: Store, run, number, accuracy):
    """Store one task of a run."""
    rows = [
        {"start": "x", "task": number, "client": c, "n": 100, "correct": accuracy, "loss": 1.0}
        for c in (0, 1)
    ]
    curve = {"phase": "downstream", "start": "x", "task": number, "round": 1}
    rounds = [{**curve, "loss": 1.0, "accuracy": float(accuracy)}]
    write_result(result_file(store, run, number).parent, rows, rounds)


def keep_losses(store: Store, run, losses=(), tested=(), metric=None):
    """Store a run whose tasks have these losses, the same for two clients, and no classes.

    `metric` is the value of the metric "mae" of all clients. `tested` are the losses of tests.
    """
    keep(store, run)
    rounds = [
        {"phase": "pretraining", "round": at, "server-loss": of} for at, of in enumerate(tested)
    ]
    write_result(result_file(store, run).parent, [], rounds)
    for number, loss in enumerate(losses):
        own = {} if metric is None else {"metric:mae": metric}
        about = {"start": "x", "task": number}
        rows = [{**about, "client": c, "n": 100, "loss": loss, **own} for c in (0, 1)]
        curve = {"phase": "downstream", **about, "round": 1, "loss": 1.0}
        write_result(result_file(store, run, number).parent, rows, [curve])
