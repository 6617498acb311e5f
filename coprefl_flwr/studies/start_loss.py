"""The stage that measures how much a starting model has learnt: its loss on all clients' data."""

from pathlib import Path
from typing import Any

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation.checkpoint import State
from coprefl_flwr.federation.progress import TASK_KIND
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.report.columns import START_LOSS
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.method import folder_of
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.stage import Stage, Store


class StartLoss(Stage):
    """The mean loss of a starting model, with its own head, over all pre-training clients.

    Every training sample of every client counts once, in eval mode. It is computed where the
    server's program runs: a view of the experimenter's, which no server of a real federation has.
    Local steps report another loss, that of models which have just been fitted to a client's data.
    """

    kind, phase, measures = TASK_KIND, START_LOSS, False

    def __init__(self, made: Pretraining) -> None:
        title, path = f"pre-training loss of {made.name}", f"start-losses/{folder_of(made.name)}"
        super().__init__(made.run, title, path, made.start, rounds=0)
        self.made = made

    def strategy(self) -> RoundStrategy:
        """Return no strategy: nothing is trained."""
        raise AssertionError("a loss has no rounds")

    def initial(self, store: Store) -> Arrays:
        """Return the starting model."""
        return load_saved_model(store.folder(self.made))[0]

    def keep(self, folder: Path, arrays: Arrays, state: State) -> dict[str, Any]:
        """Return what was measured."""
        return {START_LOSS: self.made.loss(arrays)}

    @property
    def key(self) -> str:
        """Return the model's key, which says what its clients hold, and a name."""
        return f"{self.made.key}/{START_LOSS}"
