"""The server: pre-trains a model by each method of the run-config, and runs the tasks from each.

The strategies are in coprefl_flwr/strategies; coprefl.py there is Algorithm 1 of the paper, and
hybrid_coprefl.py is Algorithm 2.
"""

from coprefl_flwr.server_app import app

__all__ = ["app"]
