"""The Python interface: objects in, objects out, on the same studies as recipes and `flwr run`.

A study here is made of what the caller holds, a torch Dataset, a module, a strategy, in the place
of settings that name them.
"""

from coprefl_flwr.front.evaluation import StartsResult as StartsResult
from coprefl_flwr.front.evaluation import evaluate_starts as evaluate_starts
from coprefl_flwr.front.figures import plot_history as plot_history
from coprefl_flwr.front.held import partition as partition
from coprefl_flwr.front.held import tasks as tasks
from coprefl_flwr.front.pretraining import pretrain as pretrain
from coprefl_flwr.studies.populations import Clients as Clients
from coprefl_flwr.studies.populations import Tasks as Tasks
