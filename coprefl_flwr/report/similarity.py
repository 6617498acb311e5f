"""The heat map of FedPCL's Figure 3, which `figures.similarity` measures and draws."""

from coprefl_flwr.report.figures.similarity import LOCAL as LOCAL
from coprefl_flwr.report.figures.similarity import main as main
from coprefl_flwr.report.figures.similarity import similarities as similarities
from coprefl_flwr.report.figures.similarity import similarity as similarity
