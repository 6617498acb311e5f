"""What the server does in a round, one algorithm a file."""

from coprefl_flwr.strategies.base import Round, RoundReport, RoundStrategy
from coprefl_flwr.strategies.coprefl import CoPreFL
from coprefl_flwr.strategies.exchange import Exchange, Replies
from coprefl_flwr.strategies.fedavg import FedAvg
from coprefl_flwr.strategies.hybrid_coprefl import HybridCoPreFL
from coprefl_flwr.strategies.server_refined import ServerRefined

__all__ = [
    "CoPreFL",
    "Exchange",
    "FedAvg",
    "HybridCoPreFL",
    "Replies",
    "Round",
    "RoundReport",
    "RoundStrategy",
    "ServerRefined",
]
