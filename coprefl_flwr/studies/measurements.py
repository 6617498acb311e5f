"""Stages that measure a starting model, without training it: its loss, and a user's own."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coprefl_flwr import plugins
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError, concerning, short
from coprefl_flwr.federation.progress import TASK_KIND
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.report.columns import START_LOSS
from coprefl_flwr.studies.identity import hash_of
from coprefl_flwr.studies.method import folder_of
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.stage import Making, Stage, Store
from coprefl_flwr.studies.stage_files import write_result

MEASUREMENT = "measurement"
"""The kind of plugin that a user's own measurement is."""

RESERVED = {
    *("pretraining", "downstream", "personalised", "diagnosis", START_LOSS),
    *("starts", "tasks", "diagnoses", "methods", "features", "report"),
}
"""Names of phases and folders that a user's measurement cannot have."""

StageOf = Callable[[Pretraining], Stage]
"""Makes a stage of the pre-training whose model it measures."""


class Measurement(Stage):
    """A stage that computes a few numbers about a starting model, where the server runs."""

    @abstractmethod
    def measure(self, store: Store) -> Mapping[str, float | None]:
        """Return the numbers by name; None for an unknown number."""

    def make(self, making: Making) -> None:
        """Measure, and write the numbers as the one row of rounds.

        Raises a SettingsError for a value that is not a number, or a reserved name.
        """
        making.progress.note(self.title)
        about = {"phase": self.phase, "start": self.start, "task": self.task, "round": 0}
        numbers = self.measure(making.store)
        for name, value in numbers.items():
            if name in about or not isinstance(value, int | float | None):
                problem = f"{type(self).__name__}.measure returned {name} = {short(repr(value))}"
                allowed = f"a number, of a name other than {', '.join(about)}"
                raise SettingsError(f"{problem}; allowed is {allowed}")
        write_result(making.folder, [], [{**about, **numbers}])


class StartMeasurement(Measurement):
    """A measurement of one starting model.

    A subclass sets `phase`, its name in rows and folders, and writes `measure`. Its result depends
    on the model and on the text of the file that defines the subclass:

    ```python
    class WorstClient(StartMeasurement):
        phase = "worst-client"

        def measure(self, store):
            arrays, every = self.model(store), self.made.clients.samples
            return {"worst-loss": max(self.made.evaluate(arrays, own)["loss"] for own in every)}
    ```

    With the setting `measurements: "worst.py:WorstClient"` a report has a column
    `measured:worst-loss`.

    Parameters
    ----------
    made : Pretraining
        The stage that makes the starting model.
    """

    kind = TASK_KIND

    def __init__(self, made: Pretraining) -> None:
        title, path = f"{self.phase} of {made.name}", f"{self.phase}/{folder_of(made.name)}"
        super().__init__(title, path, made.start)
        self.made = made

    def model(self, store: Store) -> Arrays:
        """Return the arrays of the starting model."""
        return load_saved_model(store.folder(self.made))[0]

    def identity(self) -> Mapping[str, Any]:
        """Return what the result depends on: the model, and the text of a user's own class."""
        kind, text = type(self), ""
        if kind.__module__ != __name__:
            module = inspect.getmodule(kind)  # A notebook's has no file.
            text = inspect.getsource(module if module and module.__file__ else kind)
        return {"start": hash_of(self.made.identity()), "text": hash_of({"text": text})}

    @property
    def key(self) -> str:
        """Return the model's key, the measurement's name and a hash."""
        return f"{self.made.key}/{self.phase}-{hash_of(self.identity())}"


class StartLoss(StartMeasurement):
    """The mean loss of a starting model, with its own head, over all pre-training clients.

    Every training sample of every client counts once, in eval mode. It is computed where the
    server's program runs: a view of the experimenter's, which no server of a real federation has.
    Local steps report another loss, that of models which have just been fitted to a client's data.
    """

    phase = START_LOSS

    def measure(self, store: Store) -> Mapping[str, Any]:
        """Return the loss."""
        samples = self.made.clients.samples_of("clients")
        return {START_LOSS: self.made.evaluate(self.model(store), samples)["loss"]}


@concerning("measurements")
def own_measurements(text: str) -> Sequence[StageOf]:
    """Return the user's own measurements at these places, separated by spaces.

    Raises a SettingsError where a place holds no class of stages.
    """
    found: list[StageOf] = []
    for place in text.split():
        kind = plugins.find(MEASUREMENT, place)
        if not (isinstance(kind, type) and issubclass(kind, Stage)):
            needed = "a class of studies.stage.Stage, made of a start's pre-training, is needed"
            raise SettingsError(f"measurements: {place} is a {type(kind).__name__}; {needed}")
        phase = getattr(kind, "phase", None)
        if not isinstance(phase, str) or phase in RESERVED or folder_of(phase) != phase:
            problem = f"measurements: {place}: phase = {short(repr(phase))}"
            raise SettingsError(f"{problem}: must be a new name, such as 'worst-client'")
        found.append(kind)
    return found
