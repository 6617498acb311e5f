"""What a client does, one algorithm a file, and the ClientApp around them."""

from coprefl_flwr.clients.app import client_app, query_reply
from coprefl_flwr.clients.coprefl import CoPreFLClient
from coprefl_flwr.clients.feddyn import FedDynClient
from coprefl_flwr.clients.fedmeta import FedMetaClient
from coprefl_flwr.clients.fedpcl import FedPCLClient
from coprefl_flwr.clients.fedproto import FedProtoClient
from coprefl_flwr.clients.fedprox import FedProxClient
from coprefl_flwr.clients.fedrep import FedRepClient
from coprefl_flwr.clients.moon import MOONClient
from coprefl_flwr.clients.per_fedavg import PerFedAvgClient
from coprefl_flwr.clients.pfedme import PFedMeClient
from coprefl_flwr.clients.qffl import QFFLClient
from coprefl_flwr.clients.scaffold import SCAFFOLDClient
from coprefl_flwr.clients.solo import SoloClient
from coprefl_flwr.clients.stateful import StatefulClient
from coprefl_flwr.clients.torch_client import TorchClient

__all__ = [
    "CoPreFLClient",
    "FedDynClient",
    "FedMetaClient",
    "FedPCLClient",
    "FedProtoClient",
    "FedProxClient",
    "FedRepClient",
    "MOONClient",
    "PFedMeClient",
    "PerFedAvgClient",
    "QFFLClient",
    "SCAFFOLDClient",
    "SoloClient",
    "StatefulClient",
    "TorchClient",
    "client_app",
    "query_reply",
]
