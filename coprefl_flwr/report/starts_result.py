"""Results of the Python interface: tables that print themselves, and their figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from coprefl_flwr.errors import SettingsError, wrong_type
from coprefl_flwr.federation.checkpoint import History
from coprefl_flwr.report import figures, results
from coprefl_flwr.report.forms import plain
from coprefl_flwr.report.starts import summary_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = History | pd.DataFrame
"""The metrics of a pre-training's rounds."""


@dataclass(frozen=True, eq=False)
class StartsResult:
    """The worth of starting models in downstream tasks; `print` shows the table.

    Attributes
    ----------
    rows : DataFrame
        A row per start, task and client: `start` (str), `task` and `client` (int, from 0),
        `accuracy` in percent, `correct` of `n` test samples, and `loss`, the mean cross-entropy.
    rounds : DataFrame
        A row per start, task and round, with the round's metrics and traffic.
    """

    rows: pd.DataFrame
    rounds: pd.DataFrame

    def summary(self) -> pd.DataFrame:
        """Return a row per start: the mean over tasks of each metric, and its sample deviation.

        The metrics are the clients' mean accuracy (%), the variance of their accuracies (%²), the
        part of it that the number of test samples does not explain, and the mean accuracy of the
        worst 10, 20 and 30 % of the clients.
        """
        return results.summary(self._counted).set_index("start")

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return a figure of the clients' accuracies, a panel per start; also save it to `path`.

        The ending of `path` sets the format, such as .png.
        """
        return _saved(figures.accuracy_figure(self._counted), path)

    def curves(self, path: str | Path | None = None) -> "Figure":
        """Return a figure of accuracy and loss over the tasks' rounds; also save it to `path`."""
        return _saved(figures.learning_figure(self.rounds), path)

    def __str__(self) -> str:
        return plain(summary_table(self._counted))

    __repr__ = __str__

    @property
    def _counted(self) -> pd.DataFrame:
        return self.rows.drop(columns="accuracy")


def plot_history(history: Curve | Mapping[str, Curve], path: str | Path | None = None) -> "Figure":
    """Return a figure of a pre-training over its rounds; also save it to `path`.

    It shows the training loss, or the accuracy where the `evaluate_fn` of a Flower app measures
    "accuracy". The loss of a chain such as Cyclic's is measured as the model moves from client to
    client: it is not a mean over the round's clients, and cannot be compared with another method's.

    Parameters
    ----------
    history : DataFrame, History, or mapping of name to these
        From `cp.pretrain(..., history=True)`, or from the result of a strategy's `start`; a mapping
        gives a line for each name.
    path : path of a file, optional
        Its ending sets the format, such as .png.

    Raises
    ------
    SettingsError
        For a history of another type, or one without rounds.

    Examples
    --------
    >>> import coprefl_flwr as cp, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 100))
    >>> clients = cp.partition(cp.load_dataset("glyphs"), clients=20)
    >>> start, history = cp.pretrain("fedavg", model, clients, 2, history=True, quiet=True)
    >>> figure = cp.plot_history(history)
    """
    histories = history if isinstance(history, Mapping) else {"": history}
    frames = [_rows(name, one) for name, one in histories.items()]
    return _saved(figures.learning_figure(pd.concat(frames, ignore_index=True)), path)


def _rows(name: str, history: Curve) -> pd.DataFrame:
    """Return a row a round, of a start of that name."""
    what = f"history {name!r}" if name else "history"
    if isinstance(history, History):
        rounds = history.rounds().items()
        history = pd.DataFrame([{"round": number, **metrics} for number, metrics in rounds])
    if not isinstance(history, pd.DataFrame):
        example = "that of `start, history = cp.pretrain(..., history=True)`"
        raise wrong_type(what, history, "the metrics of a pre-training's rounds", example)
    if history.empty:
        raise SettingsError(f"{what} has no rounds: the strategy has not run")
    return history.assign(phase="pretraining", start=name or "pre-training", task=None)


def _saved(figure: "Figure", path: str | Path | None) -> "Figure":
    """Return a figure, which is saved to `path` if there is one."""
    if path is not None:
        figures.save(figure, Path(path))
    return figure
