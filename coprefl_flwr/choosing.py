"""The Python interface of a choice: `choose_start` names the best of several starting models."""

import copy
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from flwr.serverapp.strategy import Strategy
from torch import nn

from coprefl_flwr.api import evaluate_starts, pretrain
from coprefl_flwr.errors import RunFailedError, SettingsError, unknown, wrong_type
from coprefl_flwr.federation import of_flower
from coprefl_flwr.files import expanded, own
from coprefl_flwr.methods import RANDOM
from coprefl_flwr.models.copies import copied
from coprefl_flwr.models.weights import load_start
from coprefl_flwr.named import folder_of
from coprefl_flwr.options import Option
from coprefl_flwr.report import Report
from coprefl_flwr.report.frames import OF_A_ROUND, task_metrics
from coprefl_flwr.report.outcome import Outcome, report_of
from coprefl_flwr.report.training_checks import problem_of
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.architecture import checked_network
from coprefl_flwr.studies.choice import DRAWS, FEWEST, FIRST, Cell, Scores, carry_out, seconds_of
from coprefl_flwr.studies.chosen import Chosen, chosen_of
from coprefl_flwr.studies.costs import cost
from coprefl_flwr.studies.own_method import pretraining_of, read_method
from coprefl_flwr.studies.populations import Clients
from coprefl_flwr.studies.task_data import Tasks

OPTION = Option("draws", "draws", DRAWS, (int,), "largest number of draws", minimum=FEWEST)
Candidate = str | Path | Strategy | nn.Module
Options = Mapping[str, Any]
NO_OPTIONS: Options = MappingProxyType({})


def choose_start(
    candidates: Mapping[str, Candidate] | Sequence[str | Strategy],
    clients: Clients | Sequence[Any],
    tasks: Tasks,
    network: nn.Module,
    rounds: int = 50,
    *,
    draws: int = DRAWS,
    budget: str = "",
    margin: float | None = None,
    reference: str = "",
    pretraining: Options = NO_OPTIONS,
    downstream: Options = NO_OPTIONS,
    workers: int = 1,
    checkpoint: str | Path | None = None,
    quiet: bool = False,
) -> Chosen:
    """Choose one of several starting models by simulated draws of clients and tasks.

    The first draws select two finalists, and further draws compare them (see `studies.choice`).

    Parameters
    ----------
    candidates : mapping of name to candidate, or a list of methods
        A candidate is a method as in `pretrain` (a text such as "cyclic:rounds=5+fedavg", or a
        strategy), "random" for `network` itself, a `Path` of its weights, or a trained network.
    clients : Clients, or a list of datasets (one per client)
        The clients of the pre-trainings. Draw n partitions their samples by their seed plus n. A
        list of datasets is the same in all draws.
    tasks : Tasks
        The result of `tasks`. Draw n draws them by their seed plus n.
    network : nn.Module
        The network with its first weights, which are those of all draws. It is not changed.
    rounds : int
        Number of rounds of a pre-training, as in `pretrain`.
    draws : int
        Largest number of draws, at least 5.
    budget : str
        "30 minutes" or "2 hours", which may limit the number of draws further. The time becomes a
        number of draws after the first draw.
    margin : float, optional
        The smallest difference that matters to you, in points of accuracy, or in the unit of the
        measure. The answer counts the draws that would find it. Default: 1 point of accuracy.
    reference : str
        The candidate with which the chosen one is compared too. Default: the last one.
    pretraining, downstream : Mapping[str, Any]
        Further arguments of `pretrain` and of `evaluate_starts`, such as
        `downstream={"rounds": 20, "learning_rate": 0.01}`.
    workers : int
        Number of processes that run the clients, as in `pretrain`. They are started again for each
        pre-training and evaluation, which takes some seconds.
    checkpoint : path of a folder, optional
        Folder with the results of all draws. The same call continues an interrupted choice.
    quiet : bool
        Whether only warnings are logged.

    Raises
    ------
    SettingsError
        If an argument is wrong.
    RunFailedError
        If the training of all candidates failed.

    Examples
    --------
    >>> import coprefl_flwr as cp, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 100))
    >>> glyphs = cp.load_dataset("glyphs")
    >>> clients = cp.partition(glyphs, clients=5, only=range(80))
    >>> tasks = cp.tasks(glyphs, number=1, clients=2, scheme="iid", only=range(80, 100))
    >>> options = {"draws": 5, "downstream": {"rounds": 1}, "quiet": True}
    >>> starts = ["random", "fedavg"]
    >>> chosen = cp.choose_start(starts, clients, tasks, model, 1, **options)
    >>> len(chosen.table)
    2
    """
    usage = "cp.choose_start(candidates, clients, tasks, network)"
    if not isinstance(tasks, Tasks):
        raise wrong_type("tasks", tasks, "the tasks that cp.tasks(dataset) returns", usage)
    model, named = checked_network("network", network, usage), _named(candidates)
    if len(named) < 2:
        raise SettingsError(f"candidates = {list(named)}: two or more are needed")
    OPTION.checked(draws, "draws")
    if budget:
        seconds_of(budget)
    if reference and reference not in named:
        raise SettingsError(f"reference: {unknown('candidate', reference, named)}")
    reference = reference or list(named)[-1]
    with ExitStack() as entered:
        if checkpoint is None:
            checkpoint = entered.enter_context(tempfile.TemporaryDirectory(prefix="coprefl-"))
        folder = expanded(checkpoint)
        own(folder, f"checkpoint = {checkpoint}")
        of_both = {"workers": workers, "quiet": quiet}
        options = {**of_both, **pretraining}, {**of_both, **downstream}
        cells = _Cells(named, clients, tasks, model, rounds, *options, folder)
        file, names = folder / "choice.json", list(named)
        choice = carry_out(names, cells, file, draws, budget, reference)
        compared = cells.report(choice.names, choice.compared or range(FIRST))
        (comparison,) = compared.comparisons
        if reference in [row.name for row in comparison.rows]:
            comparison = comparison.against(reference)
        compared = replace(compared, comparisons=[replace(comparison, margin=margin)])
        chosen = chosen_of(choice, compared, cells.report(names, range(FIRST)), cells.problems)
        return replace(chosen, start=cells.starts[chosen.name])


def _named(candidates: Any) -> dict[str, Candidate]:
    """Return the candidates by name; a method's name is its text, or the name of its class."""
    if isinstance(candidates, Mapping):
        return {str(name): candidate for name, candidate in candidates.items()}
    if isinstance(candidates, str) or not isinstance(candidates, Sequence):
        needed = "a mapping of names to candidates, or a list of methods"
        raise wrong_type("candidates", candidates, needed, '["fedavg", "coprefl:gamma=0.5"]')
    return {one if isinstance(one, str) else type(one).__name__: one for one in candidates}


@dataclass
class _Cells:
    """Runs cells: pre-trains a candidate on a draw's clients, and evaluates it on its tasks."""

    candidates: Mapping[str, Candidate]
    clients: Any
    tasks: Tasks
    network: nn.Module
    rounds: int
    pretraining: Options
    downstream: Options
    folder: Path
    draws: dict[int, tuple[Any, Tasks]] = field(default_factory=dict)  # clients and tasks
    starts: dict[str, nn.Module] = field(default_factory=dict)  # trained on the first draw
    outcomes: dict[Cell, Outcome] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def __call__(self, cells: Sequence[Cell]) -> tuple[Scores, float]:
        """Return the scores of cells, and the seconds that all of them take (see `Compute`)."""
        scores, seconds = dict[Cell, float](), list[float]()
        for name, draw in cells:
            folder = self.folder / f"draw-{draw}" / folder_of(name)
            is_new, began = not folder.exists(), time.monotonic()
            try:
                scores[name, draw] = self._score(name, draw, folder)
            except RunFailedError as error:
                scores[name, draw], self.problems[name] = math.nan, str(error)
            seconds += [time.monotonic() - began] * is_new
        return scores, len(cells) * sum(seconds) / len(seconds) if seconds else 0.0

    def _score(self, name: str, draw: int, folder: Path) -> float:
        if draw not in self.draws:
            self.draws[draw] = _drawn(self.clients, draw), _drawn(self.tasks, draw)
        clients, tasks = self.draws[draw]
        start, history, gradients = self._start(name, draw, clients, folder / "start")
        if draw == 0:
            self.starts[name] = start
        if "loss" in history and (problem := problem_of(history["loss"].tolist())):
            raise RunFailedError(problem)
        result = evaluate_starts(
            {name: start}, tasks, checkpoint=folder / "tasks", **self.downstream
        )
        if problem := result.about["troubles"].get(name):
            raise RunFailedError(problem)
        rounds = pd.concat([history.assign(start=name), result.rounds], ignore_index=True)
        about = {**result.about, "costs": {name: {"gradients": gradients / 1e6}}}
        outcome = self.outcomes[name, draw] = Outcome(result.outcome.rows, rounds, about)
        tasks_of = task_metrics(outcome.rows, outcome.headings)[outcome.measure.metric]
        return outcome.measure.quality(float(tasks_of.mean()))

    def _start(
        self, name: str, draw: int, clients: Any, folder: Path
    ) -> tuple[nn.Module, pd.DataFrame, float]:
        """Return a candidate, trained on a draw; its rounds; and its number of gradients."""
        candidate, untrained = self.candidates[name], pd.DataFrame(columns=OF_A_ROUND)
        if isinstance(candidate, Path):
            return load_start(copied(self.network, "network"), candidate), untrained, 0.0
        if isinstance(candidate, nn.Module):
            return candidate, untrained, 0.0
        if candidate == RANDOM:
            return self.network, untrained, 0.0
        options = dict(self.pretraining)
        if isinstance(candidate, Strategy):
            is_own = isinstance(candidate, RoundStrategy)
            strategy: Any = copy.copy(candidate) if is_own else of_flower(candidate)
            strategy.seed += draw
            candidate = strategy
        else:
            options["seed"] = options.get("seed", 0) + draw
        how = self.network, clients, self.rounds
        start, history = pretrain(candidate, *how, checkpoint=folder, history=True, **options)
        of_training = {k: v for k, v in options.items() if k not in ("workers", "quiet", "hooks")}
        stage = pretraining_of(read_method(candidate, ""), *how, of_training)
        return start, history, cost(stage).gradients

    def report(self, names: Sequence[str], draws: Sequence[int]) -> Report:
        """Return the report of those candidates that were evaluated on all of these draws."""
        names = [n for n in names if all((n, draw) in self.outcomes for draw in draws)]
        outcomes = []
        for draw in draws:
            parts = [self.outcomes[name, draw] for name in names]
            rows, rounds = (
                pd.concat([getattr(part, kind) for part in parts], ignore_index=True)
                for kind in ("rows", "rounds")
            )
            costs = {name: cost for part in parts for name, cost in part.about["costs"].items()}
            about = {**parts[0].about, "starts": names, "costs": costs}
            outcomes.append(Outcome(rows, rounds, about))
        return report_of(outcomes)


def _drawn(drawn: Any, draw: int) -> Any:
    """Return clients or tasks with seeds that are larger by `draw`; a list of datasets as it is."""
    if not draw or not isinstance(drawn, Clients | Tasks):
        return drawn
    others = getattr(drawn, "others", ())
    more = {"others": tuple(_drawn(one, draw) for one in others)} if others else {}
    changes: dict[str, Any] = {"seed": drawn.seed + draw, **more}
    return replace(drawn, **changes)
