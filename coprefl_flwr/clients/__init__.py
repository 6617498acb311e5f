"""The clients of the methods, one file per algorithm, and the ClientApp that runs them.

The client classes are loaded at first use. An app whose clients do not use torch then does not
import torch. That import takes seconds, and in a deployment it would be repeated for every message.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from coprefl_flwr.clients.query import gradient_reply as gradient_reply
from coprefl_flwr.clients.query import query_reply as query_reply
from coprefl_flwr.federation.client_app import client_app as client_app
from coprefl_flwr.federation.client_app import roster_reply as roster_reply
from coprefl_flwr.federation.flower import NumPyClient as NumPyClient

if TYPE_CHECKING:
    from coprefl_flwr.clients.coprefl import CoPreFLClient as CoPreFLClient
    from coprefl_flwr.clients.features import FeaturesClient as FeaturesClient
    from coprefl_flwr.clients.feddyn import FedDynClient as FedDynClient
    from coprefl_flwr.clients.fedetf import FedETFClient as FedETFClient
    from coprefl_flwr.clients.fedmeta import FedMetaClient as FedMetaClient
    from coprefl_flwr.clients.fedpcl import FedPCLClient as FedPCLClient
    from coprefl_flwr.clients.fedproto import FedProtoClient as FedProtoClient
    from coprefl_flwr.clients.fedprox import FedProxClient as FedProxClient
    from coprefl_flwr.clients.fedrep import FedRepClient as FedRepClient
    from coprefl_flwr.clients.frl import FRLClient as FRLClient
    from coprefl_flwr.clients.moon import MOONClient as MOONClient
    from coprefl_flwr.clients.per_fedavg import PerFedAvgClient as PerFedAvgClient
    from coprefl_flwr.clients.pfedme import PFedMeClient as PFedMeClient
    from coprefl_flwr.clients.qffl import QFFLClient as QFFLClient
    from coprefl_flwr.clients.scaffold import SCAFFOLDClient as SCAFFOLDClient
    from coprefl_flwr.clients.solo import SoloClient as SoloClient
    from coprefl_flwr.clients.torch_client import StatefulClient as StatefulClient
    from coprefl_flwr.clients.torch_client import TorchClient as TorchClient


def __getattr__(name: str) -> Any:
    """Return the class `name` from the submodule that defines it."""
    for module in pkgutil.iter_modules(__path__):
        members = vars(importlib.import_module(f"{__name__}.{module.name}"))
        if name in members and not name.startswith("_"):
            return members[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
