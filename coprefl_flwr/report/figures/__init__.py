"""The figures, each returned as a Matplotlib figure to `save`.

Matplotlib is imported when a figure is drawn, and never through pyplot: no backend is chosen for
the program that calls, and none of its settings change.
"""

from coprefl_flwr.report.figures.accuracies import accuracy_figure as accuracy_figure
from coprefl_flwr.report.figures.against import gamma_figure as gamma_figure
from coprefl_flwr.report.figures.against import p1_rounds_figure as p1_rounds_figure
from coprefl_flwr.report.figures.curves import learning_figure as learning_figure
from coprefl_flwr.report.figures.curves import smoothing_window as smoothing_window
from coprefl_flwr.report.figures.curves import switch_figure as switch_figure
from coprefl_flwr.report.figures.explained import explained_figure as explained_figure
from coprefl_flwr.report.figures.landscapes import Landscape as Landscape
from coprefl_flwr.report.figures.landscapes import landscape as landscape
from coprefl_flwr.report.figures.landscapes import landscape_figure as landscape_figure
from coprefl_flwr.report.figures.noised import Noised as Noised
from coprefl_flwr.report.figures.noised import noised_figure as noised_figure
from coprefl_flwr.report.figures.objective import objective_figure as objective_figure
from coprefl_flwr.report.figures.similarity import Similarity as Similarity
from coprefl_flwr.report.figures.similarity import similarity_figure as similarity_figure
from coprefl_flwr.report.figures.style import FORMATS as FORMATS
from coprefl_flwr.report.figures.style import colours as colours
from coprefl_flwr.report.figures.style import content_of as content_of
from coprefl_flwr.report.figures.style import save as save
