"""The ClientApp that `flwr run` loads: clients of the population and the method a message names.

Studies, and torch with them, are loaded by the first message: who only starts the app needs none.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.client import NumPyClient

from coprefl_flwr.clients import client_app
from coprefl_flwr.federation.flower import without_colours
from coprefl_flwr.options import Value

if TYPE_CHECKING:
    from coprefl_flwr.studies.build import Builder
    from coprefl_flwr.studies.settings import Settings
    from coprefl_flwr.studies.study import Study


@functools.cache
def _builder() -> "Builder":
    from coprefl_flwr.studies.build import Builder

    without_colours()  # Once in every process.
    return Builder()


@functools.lru_cache(maxsize=4)
def _settings(config: tuple[tuple[str, Value], ...]) -> "Settings":
    from coprefl_flwr.studies.settings import Settings

    return Settings.from_config(dict(config))


def study_of(context: Context) -> "Study":
    """Return the study of a run, built once per process.

    Its clients keep files in the folder that the node names itself: its node-config's `state-dir`,
    or the run-config's `output-dir` where that is not set, as in a simulation.
    """
    config = dict(context.run_config)
    if own := context.node_config.get("state-dir"):
        config["output-dir"] = str(own)
    return _builder().study(_settings(tuple(sorted(config.items()))))


def client_fn(context: Context, client_id: int, config: Mapping[str, Any]) -> NumPyClient:
    """Return a client of the method the message is about: a phase of a start, a task's, ..."""
    return study_of(context).client(context, client_id, config)


app = client_app(client_fn)
