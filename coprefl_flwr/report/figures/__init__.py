"""The figures of a comparison, one kind a module, each returned as a Matplotlib figure to `save`.

Matplotlib is imported when a figure is drawn, and never through pyplot: no backend is chosen for
the program that calls, and none of its settings change.
"""

from coprefl_flwr.report.figures.accuracies import accuracy_figure, accuracy_histogram
from coprefl_flwr.report.figures.curves import (
    PHASES,
    CurveRow,
    learning_curves,
    learning_figure,
)
from coprefl_flwr.report.figures.gamma import GammaPoint, gamma_figure
from coprefl_flwr.report.figures.landscapes import Landscape, landscape, landscape_figure
from coprefl_flwr.report.figures.p1_rounds import P1Point, p1_rounds_figure
from coprefl_flwr.report.figures.similarity import Similarity, similarity_figure
from coprefl_flwr.report.figures.style import FORMATS, colours, save
from coprefl_flwr.report.figures.switch import Run, smoothing_window, switch_figure

__all__ = [
    "FORMATS",
    "PHASES",
    "CurveRow",
    "GammaPoint",
    "Landscape",
    "P1Point",
    "Run",
    "Similarity",
    "accuracy_figure",
    "accuracy_histogram",
    "colours",
    "gamma_figure",
    "landscape",
    "landscape_figure",
    "learning_curves",
    "learning_figure",
    "p1_rounds_figure",
    "save",
    "similarity_figure",
    "smoothing_window",
    "switch_figure",
]
