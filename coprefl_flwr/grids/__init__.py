"""Grids of this package, which send messages to nodes and can replace Flower's grids."""

from coprefl_flwr.grids.local import LocalGrid as LocalGrid
from coprefl_flwr.grids.ray import RayGrid as RayGrid
