"""The ClientApp that `flwr run` loads.

The app runs clients of the population and the method that a message names. The modules of studies,
and torch, are imported at the first message, because they are not needed to start the app.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app import Context
from flwr.client import NumPyClient

from coprefl_flwr.clients import client_app
from coprefl_flwr.federation.flower import without_colours


def client_fn(context: Context, client_id: int, config: Mapping[str, Any]) -> NumPyClient:
    """Return a client of the method that the message `config` names, such as a task's method.

    The run-config describes the study. Clients keep their files in the folder `state-dir` of the
    node-config. If `state-dir` is not set, as in a simulation, clients keep their files in the
    folder `output-dir` of the run-config.
    """
    from coprefl_flwr.studies.build import build
    from coprefl_flwr.studies.settings import Settings

    without_colours()
    run_config = dict(context.run_config)
    if own := context.node_config.get("state-dir"):
        run_config["output-dir"] = str(own)
    return build(Settings.from_config(run_config)).client(context, client_id, config)


app = client_app(client_fn)
