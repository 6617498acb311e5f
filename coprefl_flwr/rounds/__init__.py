"""How a round runs: the base class of strategies, and what brings their exchanges to clients.

A method is written with the names below.
"""

from coprefl_flwr.rounds.bounds import Bounds as Bounds
from coprefl_flwr.rounds.budget import Budget as Budget
from coprefl_flwr.rounds.budget import Work as Work
from coprefl_flwr.rounds.combine import Accumulator as Accumulator
from coprefl_flwr.rounds.combine import Chain as Chain
from coprefl_flwr.rounds.combine import LossMoments as LossMoments
from coprefl_flwr.rounds.combine import Mean as Mean
from coprefl_flwr.rounds.combine import Nothing as Nothing
from coprefl_flwr.rounds.combine import PerClient as PerClient
from coprefl_flwr.rounds.combine import Total as Total
from coprefl_flwr.rounds.context import Listed as Listed
from coprefl_flwr.rounds.context import RoundContext as RoundContext
from coprefl_flwr.rounds.exchange import Exchange as Exchange
from coprefl_flwr.rounds.exchange import Replies as Replies
from coprefl_flwr.rounds.exchange import Round as Round
from coprefl_flwr.rounds.flowers import of_flower as of_flower
from coprefl_flwr.rounds.network import HeadLayer as HeadLayer
from coprefl_flwr.rounds.network import Network as Network
from coprefl_flwr.rounds.protocol import MessageConfig as MessageConfig
from coprefl_flwr.rounds.run import RoundReport as RoundReport
from coprefl_flwr.rounds.strategy import RoundStrategy as RoundStrategy
