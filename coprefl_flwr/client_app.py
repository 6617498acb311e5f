"""The ClientApp that `flwr run` loads.

The app runs clients of the population and the method that a message names. The modules of studies,
and torch, are imported at the first message, because they are not needed to start the app.
"""

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.client import NumPyClient

from coprefl_flwr.clients import client_app
from coprefl_flwr.federation.flower import without_colours
from coprefl_flwr.options import Value

if TYPE_CHECKING:
    from coprefl_flwr.studies.study import Study


@functools.lru_cache(maxsize=8)
def _study(config: tuple[tuple[str, Value], ...], _: str) -> "Study":
    """Return the study of a run-config in a current folder; for a known study no file is read."""
    from coprefl_flwr.studies.build import build
    from coprefl_flwr.studies.settings import Settings

    without_colours()
    return build(Settings.from_config(dict(config)))


def study_of(context: Context) -> "Study":
    """Return the study that the run-config describes. Each study is built once per process.

    Clients keep their files in the folder `state-dir` of the node-config. If `state-dir` is not
    set, as in a simulation, clients keep their files in the folder `output-dir` of the run-config.
    """
    config = dict(context.run_config)
    if own := context.node_config.get("state-dir"):
        config["output-dir"] = str(own)
    return _study(tuple(config.items()), os.getcwd())


def client_fn(context: Context, client_id: int, config: Mapping[str, Any]) -> NumPyClient:
    """Return a client of the method that the message `config` names, such as a task's method."""
    return study_of(context).client(context, client_id, config)


app = client_app(client_fn)
