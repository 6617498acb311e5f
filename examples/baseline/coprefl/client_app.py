"""The clients: they train on support sets, and send loss and gradient on query sets.

The clients are in coprefl_flwr/clients; coprefl.py there is CoPreFL's.
"""

from coprefl_flwr.client_app import app

__all__ = ["app"]
