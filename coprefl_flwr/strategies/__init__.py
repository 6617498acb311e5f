"""What the server does in a round, one algorithm a file."""

from coprefl_flwr.rounds.exchange import Exchange, Replies
from coprefl_flwr.rounds.strategy import Round, RoundReport, RoundStrategy
from coprefl_flwr.strategies.centralised import Centralised
from coprefl_flwr.strategies.coprefl import CoPreFL
from coprefl_flwr.strategies.cyclic import Cyclic
from coprefl_flwr.strategies.fedavg import FedAvg
from coprefl_flwr.strategies.feddyn import FedDyn
from coprefl_flwr.strategies.fedmeta import FedMeta
from coprefl_flwr.strategies.fedpcl import FedPCL
from coprefl_flwr.strategies.fedproto import FedProto
from coprefl_flwr.strategies.fedprox import FedProx
from coprefl_flwr.strategies.fedrep import FedRep
from coprefl_flwr.strategies.hybrid_coprefl import HybridCoPreFL
from coprefl_flwr.strategies.moon import MOON
from coprefl_flwr.strategies.per_fedavg import PerFedAvg
from coprefl_flwr.strategies.pfedme import PFedMe
from coprefl_flwr.strategies.qffl import QFFL
from coprefl_flwr.strategies.scaffold import SCAFFOLD
from coprefl_flwr.strategies.schedule import Schedule
from coprefl_flwr.strategies.server_refined import ServerRefined
from coprefl_flwr.strategies.solo import Solo

__all__ = [
    "MOON",
    "QFFL",
    "SCAFFOLD",
    "Centralised",
    "CoPreFL",
    "Cyclic",
    "Exchange",
    "FedAvg",
    "FedDyn",
    "FedMeta",
    "FedPCL",
    "FedProto",
    "FedProx",
    "FedRep",
    "HybridCoPreFL",
    "PFedMe",
    "PerFedAvg",
    "Replies",
    "Round",
    "RoundReport",
    "RoundStrategy",
    "Schedule",
    "ServerRefined",
    "Solo",
]
