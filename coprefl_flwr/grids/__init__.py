"""Where the exchanges run; Flower's own grids need no code here."""

from coprefl_flwr.grids.local import LocalGrid

__all__ = ["LocalGrid"]
