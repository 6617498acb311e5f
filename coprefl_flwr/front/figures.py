"""Figures of the Python interface: returned, and written where a path is given."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.checkpoint import History
from coprefl_flwr.report import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = History | pd.DataFrame
"""The metrics of a pre-training's rounds."""


def plot_history(history: Curve | Mapping[str, Curve], path: str | Path | None = None) -> "Figure":
    """Return the curve of a pre-training over its rounds; also written to `path`.

    It is the training loss, or in an app of your own whose `evaluate_fn` measures "accuracy" that
    accuracy. The loss of a chain such as Cyclic's is that of a model on its way from client to
    client, no mean over the round's clients: do not compare it with another method's.

    Parameters
    ----------
    history : DataFrame, History, or mapping of name to these
        That of `cp.pretrain(..., history=True)`, or of what a strategy's `start` returns; of
        several, a line each.
    path : path of a file, optional
        Its ending says the format, .png for example.

    Raises
    ------
    SettingsError
        If something else is given, or a history without rounds.
    """
    histories = history if isinstance(history, Mapping) else {"": history}
    frames = [_rows(name, one) for name, one in histories.items()]
    return written(figures.learning_figure(pd.concat(frames, ignore_index=True)), path)


def _rows(name: str, history: Curve) -> pd.DataFrame:
    """Return a row a round, of a start of that name."""
    of = f" {name!r}" if name else ""
    if isinstance(history, History):
        rounds = history.rounds().items()
        history = pd.DataFrame([{"round": number, **found} for number, found in rounds])
    if not isinstance(history, pd.DataFrame):
        needed = "needed is that of `start, history = cp.pretrain(..., history=True)`"
        raise SettingsError(f"history{of} is of type {type(history).__name__}; {needed}")
    if history.empty:
        raise SettingsError(f"history{of} has no rounds: the strategy has not run")
    return history.assign(phase="pretraining", start=name or "pre-training", task=None)


def written(made: "Figure", path: str | Path | None) -> "Figure":
    """Return a figure, which is written to `path` if there is one."""
    if path is not None:
        figures.save(made, Path(path))
    return made
