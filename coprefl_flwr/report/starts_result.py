"""Results of the Python interface: tables that print themselves, and their figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from coprefl_flwr.errors import wrong_type
from coprefl_flwr.federation.checkpoint import History
from coprefl_flwr.files import expanded, own
from coprefl_flwr.report import figures, frames, text_tables
from coprefl_flwr.report.outcome import Outcome, report_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = History | pd.DataFrame
"""The metrics of a pre-training's rounds."""


@dataclass(frozen=True, eq=False)
class StartsResult:
    """The results of starting models in downstream tasks; `print` shows the table.

    Attributes
    ----------
    rows : DataFrame
        A row per start, task and client: `start` (str), `task` and `client` (int, from 0),
        `accuracy` in percent, `correct` of `n` test samples, and `loss`, the mean loss. If the
        targets are no classes, there is neither `accuracy` nor `correct`.
    rounds : DataFrame
        A row per start, task and round, with the round's metrics and traffic.
    about : Mapping[str, Any]
        Further content of the report, such as the seed of the tasks, problems and versions.
    """

    rows: pd.DataFrame
    rounds: pd.DataFrame
    about: Mapping[str, Any] = field(default_factory=dict)

    def summary(self, metrics: Sequence[str] = ()) -> pd.DataFrame:
        """Return a row per start: the mean over tasks of each metric, and its sample deviation.

        `metrics` are the columns, such as "loss:worst-10%" (see the recipes' columns). By default
        they are the clients' mean accuracy (%), the variance of their accuracies (%²), the
        variance without the part due to the number of test samples, and the mean accuracy of the
        worst 10, 20 and 30 % of the clients. The second variance is an unbiased estimate. It is
        below 0 if the accuracies differ less than the number of test samples alone explains. If the
        targets are no classes, they are the same of your first metric, or else of the loss.
        """
        outcome = self.outcome
        return frames.summary(outcome.rows, outcome.headings, metrics).set_index("start")

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return a figure of the clients' accuracies, a panel per start; also save it to `path`.

        The ending of `path` sets the format, such as .png.
        """
        outcome = self.outcome
        return saved(figures.accuracy_figure(outcome.rows, outcome.headings), path)

    def curves(self, path: str | Path | None = None) -> "Figure":
        """Return a figure of accuracy and loss over the tasks' rounds; also save it to `path`."""
        return saved(figures.learning_figure(self.rounds, self.outcome.measure), path)

    def report(self, folder: str | Path) -> Path:
        """Write rows, rounds and a report into a folder; return its page, report/report.html.

        `coprefl report FOLDER` writes the page again. Raises a SettingsError if another program
        wrote files into the folder.
        """
        own(expanded(folder), f"folder = {folder}")
        return self.outcome.write(expanded(folder))

    def __str__(self) -> str:
        return text_tables(report_of([self.outcome]).comparisons[0])

    __repr__ = __str__

    @property
    def outcome(self) -> Outcome:
        """The rows, the rounds and what a report shows besides, as a report reads them."""
        return Outcome(self.rows.drop(columns="accuracy", errors="ignore"), self.rounds, self.about)


def plot_history(history: Curve | Mapping[str, Curve], path: str | Path | None = None) -> "Figure":
    """Return a figure of a pre-training over its rounds; also save it to `path`.

    The figure shows the training loss, or the accuracy if the `evaluate_fn` of a Flower app
    measures "accuracy", or the test loss if it only measures "loss". In a chain such as Cyclic's,
    the training loss is measured while the model passes from client to client. This loss cannot be
    compared with the loss of another method.

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
        If a history has another type, or no rounds.

    Examples
    --------
    >>> import coprefl_flwr as cp, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 100))
    >>> clients = cp.partition(cp.load_dataset("glyphs"), clients=20)
    >>> start, history = cp.pretrain("fedavg", model, clients, 2, history=True, quiet=True)
    >>> figure = cp.plot_history(history)
    """
    histories = history if isinstance(history, Mapping) else {"": history}
    of_each = [_rows(str(name), curve) for name, curve in histories.items()]
    return saved(figures.learning_figure(pd.concat(of_each, ignore_index=True)), path)


def _rows(name: str, history: Curve) -> pd.DataFrame:
    """Return a row per round, for a start with this name."""
    what = f"history {name!r}" if name else "history"
    if isinstance(history, History):
        rounds = history.rounds().items()
        history = pd.DataFrame([{"round": number, **metrics} for number, metrics in rounds])
    if not isinstance(history, pd.DataFrame):
        example = "`start, history = cp.pretrain(..., history=True)`"
        raise wrong_type(what, history, "the metrics of a pre-training's rounds", example)
    return history.assign(phase="pretraining", start=name or "pre-training", task=None)


def saved(figure: "Figure", path: str | Path | None) -> "Figure":
    """Save a figure to `path`, unless it is None; return the figure."""
    if path is not None:
        figures.save(figure, expanded(path))
    return figure
