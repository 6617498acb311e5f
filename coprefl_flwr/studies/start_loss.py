"""The stage that measures how much a starting model has learnt: its loss on all clients' data."""

from collections.abc import Mapping
from typing import Any

from coprefl_flwr.federation.progress import TASK_KIND
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.report.columns import START_LOSS
from coprefl_flwr.studies.method import folder_of
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.stage import Measurement, Store


class StartLoss(Measurement):
    """The mean loss of a starting model, with its own head, over all pre-training clients.

    Every training sample of every client counts once, in eval mode. It is computed where the
    server's program runs: a view of the experimenter's, which no server of a real federation has.
    Local steps report another loss, that of models which have just been fitted to a client's data.
    """

    kind, phase = TASK_KIND, START_LOSS

    def __init__(self, made: Pretraining) -> None:
        title, path = f"pre-training loss of {made.name}", f"start-losses/{folder_of(made.name)}"
        super().__init__(title, path, made.start)
        self.made = made

    def measure(self, store: Store) -> Mapping[str, Any]:
        """Return the loss."""
        arrays, _ = load_saved_model(store.folder(self.made))
        return {START_LOSS: self.made.loss(arrays)}

    def identity(self) -> Mapping[str, Any]:
        """Return what the loss depends on: the model, which says what its clients hold."""
        return self.made.identity()

    @property
    def key(self) -> str:
        """Return the model's key, which says what its clients hold, and a name."""
        return f"{self.made.key}/{START_LOSS}"
