"""The Python interface of a choice: `choose_start` names the best of several starting models."""

import copy
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy
from torch import nn

from coprefl_flwr.api import evaluate_starts, pretrain
from coprefl_flwr.errors import RunFailedError, SettingsError, unknown, wrong_type
from coprefl_flwr.federation import of_flower
from coprefl_flwr.files import expanded, own
from coprefl_flwr.methods import RANDOM
from coprefl_flwr.named import folder_of
from coprefl_flwr.report.frames import frame, measure_of
from coprefl_flwr.report.columns import ACCURACY
from coprefl_flwr.report.training_checks import problem_of
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.choice import DRAWS, FEWEST, Cell, Result, carry_out, read_budget, result_of
from coprefl_flwr.studies.chosen import Chosen
from coprefl_flwr.studies.costs import cost
from coprefl_flwr.studies.own_method import pretraining_of, read_method
from coprefl_flwr.studies.populations import Clients
from coprefl_flwr.studies.task_data import Tasks

Candidate = str | Path | Strategy | nn.Module
