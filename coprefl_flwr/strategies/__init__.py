"""The strategies of the built-in methods, one line each, and the classes to write a strategy with.

A strategy defines what the server does in a round. Each strategy has its own file.
"""

from coprefl_flwr.federation.exchange import Exchange as Exchange
from coprefl_flwr.federation.exchange import Replies as Replies
from coprefl_flwr.federation.exchange import Round as Round
from coprefl_flwr.federation.run import RoundReport as RoundReport
from coprefl_flwr.federation.strategy import RoundStrategy as RoundStrategy
from coprefl_flwr.strategies.centralised import Centralised as Centralised
from coprefl_flwr.strategies.centralised import CentralisedHybrid as CentralisedHybrid
from coprefl_flwr.strategies.coprefl import CoPreFL as CoPreFL
from coprefl_flwr.strategies.coprefl_std import CoPreFLStd as CoPreFLStd
from coprefl_flwr.strategies.cyclic import Cyclic as Cyclic
from coprefl_flwr.strategies.fedadam import FedAdam as FedAdam
from coprefl_flwr.strategies.fedavg import FedAvg as FedAvg
from coprefl_flwr.strategies.fedavgm import FedAvgM as FedAvgM
from coprefl_flwr.strategies.fedbabu import FedBABU as FedBABU
from coprefl_flwr.strategies.fedcgs import FedCGS as FedCGS
from coprefl_flwr.strategies.fedcof import FedCOF as FedCOF
from coprefl_flwr.strategies.feddyn import FedDyn as FedDyn
from coprefl_flwr.strategies.fedetf import FedETF as FedETF
from coprefl_flwr.strategies.fedmeta import FedMeta as FedMeta
from coprefl_flwr.strategies.fedpcl import FedPCL as FedPCL
from coprefl_flwr.strategies.fedproto import FedProto as FedProto
from coprefl_flwr.strategies.fedprox import FedProx as FedProx
from coprefl_flwr.strategies.fedrep import FedRep as FedRep
from coprefl_flwr.strategies.fedyogi import FedYogi as FedYogi
from coprefl_flwr.strategies.frl import FRL as FRL
from coprefl_flwr.strategies.hybrid_coprefl import HybridCoPreFL as HybridCoPreFL
from coprefl_flwr.strategies.linear_head import LinearHead as LinearHead
from coprefl_flwr.strategies.moon import MOON as MOON
from coprefl_flwr.strategies.ncm import NCM as NCM
from coprefl_flwr.strategies.per_fedavg import PerFedAvg as PerFedAvg
from coprefl_flwr.strategies.pfedme import PFedMe as PFedMe
from coprefl_flwr.strategies.qffl import QFFL as QFFL
from coprefl_flwr.strategies.ridge import Ridge as Ridge
from coprefl_flwr.strategies.scaffold import SCAFFOLD as SCAFFOLD
from coprefl_flwr.strategies.schedule import Schedule as Schedule
from coprefl_flwr.strategies.server_refined import ServerRefined as ServerRefined
from coprefl_flwr.strategies.solo import Solo as Solo
