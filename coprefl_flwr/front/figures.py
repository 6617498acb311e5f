"""Figures of the Python interface: returned, and written where a path is given."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.checkpoint import History
from coprefl_flwr.report import figures, results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_history(
    history: History | Mapping[str, History], path: str | Path | None = None
) -> "Figure":
    """Return the curve of a pre-training over its rounds; also written to `path`.

    It is the training loss, or in an app of your own whose `evaluate_fn` measures "accuracy" that
    accuracy. The loss of a chain such as Cyclic's is that of a model on its way from client to
    client, no mean over the round's clients: do not compare it with another method's.

    Parameters
    ----------
    history : History, or mapping of name to History
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
    for name, one in histories.items():
        of = f" {name!r}" if name else ""
        if not isinstance(one, History):
            needed = "needed is that of `start, history = cp.pretrain(..., history=True)`"
            raise SettingsError(f"history{of} is of type {type(one).__name__}; {needed}")
        if not one.rounds():
            raise SettingsError(f"history{of} has no rounds: the strategy has not run")
    rows = [
        {"phase": "pretraining", "start": name or "pre-training", "task": None, "round": n, **found}
        for name, one in histories.items()
        for n, found in one.rounds().items()
    ]
    return written(figures.learning_figure(results.frame(rows)), path)


def written(made: "Figure", path: str | Path | None) -> "Figure":
    """Return a figure, which is written to `path` if there is one."""
    if path is not None:
        figures.save(made, Path(path))
    return made
