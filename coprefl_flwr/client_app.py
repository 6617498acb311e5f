"""The ClientApp that `flwr run` loads.

The app runs clients of the population and the method that a message names. The modules of studies,
and torch, are imported at the first message, because they are not needed to start the app.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import Context

from coprefl_flwr.clients import client_app
from coprefl_flwr.federation.flower import NumPyClient, without_colours
from coprefl_flwr.options import Value

if TYPE_CHECKING:
    from coprefl_flwr.studies.settings import Settings


@functools.lru_cache(maxsize=8)
def _settings(*run_config: tuple[str, Value]) -> "Settings":
    """Return the settings of a run-config; they are parsed once, not for every message."""
    from coprefl_flwr.studies.settings import Settings

    without_colours()
    return Settings.from_config(dict(run_config))


def client_fn(context: Context, client_id: int, config: Mapping[str, Any]) -> NumPyClient:
    """Return a client of the method that the message `config` names, such as a task's method.

    The run-config describes the study. Clients keep their files in the folder `state-dir` of the
    node-config. If `state-dir` is not set, as in a simulation, clients keep their files in the
    folder `output-dir` of the run-config.
    """
    from coprefl_flwr.studies.build import build

    run_config = dict(context.run_config)
    if own := context.node_config.get("state-dir"):
        run_config["output-dir"] = str(own)
    return build(_settings(*run_config.items())).client(context, client_id, config)


app = client_app(client_fn)
