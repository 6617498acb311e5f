"""Federation: the base class of strategies, and the transport of their exchanges to clients.

The code of a method needs only the names that this module exports.
"""

from coprefl_flwr.federation.aggregation import Chain as Chain
from coprefl_flwr.federation.aggregation import LossMoments as LossMoments
from coprefl_flwr.federation.aggregation import Mean as Mean
from coprefl_flwr.federation.aggregation import MetricsOnly as MetricsOnly
from coprefl_flwr.federation.aggregation import PerClient as PerClient
from coprefl_flwr.federation.aggregation import Total as Total
from coprefl_flwr.federation.budget import Budget as Budget
from coprefl_flwr.federation.budget import Work as Work
from coprefl_flwr.federation.context import RoundContext as RoundContext
from coprefl_flwr.federation.exchange import Exchange as Exchange
from coprefl_flwr.federation.exchange import Replies as Replies
from coprefl_flwr.federation.exchange import Round as Round
from coprefl_flwr.federation.flower_strategies import of_flower as of_flower
from coprefl_flwr.federation.run import RoundReport as RoundReport
from coprefl_flwr.federation.strategy import HeadLayer as HeadLayer
from coprefl_flwr.federation.strategy import RoundStrategy as RoundStrategy
from coprefl_flwr.federation.validation import Bounds as Bounds
