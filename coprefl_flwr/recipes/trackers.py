"""Where metrics go while a run is under way, besides its files.

A tracker is a function: a stage -> hooks of `RoundStrategy.start`, called after every round. A
user's own is a function of the recipe's folder that returns one, named by its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coprefl_flwr import places
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.rounds.strategy import Hook
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.study import Track


@dataclass(frozen=True)
class Tracked:
    """A tracker of the user's own, found anew in every process: a function of the folder `out`."""

    place: str
    out: Path

    def __call__(self, stage: Stage) -> Sequence[Hook]:
        """Return the hooks that it gives for a stage."""
        track = places.call(self.place, places.find("tracker", self.place), (self.out,))
        if not callable(track):
            raise SettingsError(
                f"{self.place}: a tracker is a function of a folder, which returns "
                "a function of a stage"
            )
        return tuple(track(stage))


def tensorboard(folder: Path) -> Track:
    """Return a tracker that writes every metric of every round for TensorBoard.

    Raises a SettingsError if TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SettingsError(
            "--tensorboard needs the package: pip install 'coprefl-flwr[tensorboard]'"
        ) from error

    def track(stage: Stage) -> Sequence[Hook]:
        def write(report: RoundReport) -> None:
            # Opened for each round: a writer left open when a run fails would lose its last rounds.
            with SummaryWriter(str(folder / stage.key)) as writer:
                for name, value in report.metrics.items():
                    writer.add_scalar(name, value, report.round)

        return (write,)

    return track
