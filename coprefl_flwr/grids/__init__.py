"""Grids, on which the exchanges run, in addition to Flower's own."""

from coprefl_flwr.grids.local import LocalGrid as LocalGrid
from coprefl_flwr.grids.ray import RayGrid as RayGrid
