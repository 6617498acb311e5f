"""The Python interface of a choice: `choose_start` names the best of several starting models."""

import copy
import functools
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from torch import nn

from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import SettingsError, check_name, wrong_type
from coprefl_flwr.federation.progress import quiet_flower
from coprefl_flwr.files import expanded
from coprefl_flwr.methods import PRETRAINING, RANDOM
from coprefl_flwr.models.copies import copied
from coprefl_flwr.models.weights import FILE, load_start
from coprefl_flwr.options import Option, Value
from coprefl_flwr.recipes.choose import CHOICE, Candidates
from coprefl_flwr.recipes.execute import executor
from coprefl_flwr.recipes.recipe import RecipeRow, Trial
from coprefl_flwr.recipes.runs import StudyRun, quarter, quarter_of
from coprefl_flwr.recipes.search import SearchedRow
from coprefl_flwr.report import Report
from coprefl_flwr.report.outcome import report_of
from coprefl_flwr.studies.architecture import checked_network
from coprefl_flwr.studies.choice import DRAWS, FEWEST, SCREENS, Cell, read_budget
from coprefl_flwr.studies.chosen import Chosen
from coprefl_flwr.studies.method import FRESH, START, Method
from coprefl_flwr.studies.own_method import downstream_of, pretraining_of, read_method, settings_of
from coprefl_flwr.studies.populations import Clients
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.results import outcome_of
from coprefl_flwr.studies.stage import RunOptions
from coprefl_flwr.studies.store import Store
from coprefl_flwr.studies.study import Study
from coprefl_flwr.studies.task_data import Tasks
from coprefl_flwr.studies.tasks import architecture_of_tasks, comparison

OPTION = Option("draws", "draws", DRAWS, (int,), "largest number of draws", minimum=FEWEST)
Candidate = str | Path | Strategy | nn.Module
Options = Mapping[str, Any]
NO_OPTIONS: Options = MappingProxyType({})
VALIDATION = (1000, 1001)
"""The draws on which searched values are chosen."""


def default_candidates(rounds: int) -> dict[str, str]:
    """Return the ten candidates of the page "Which start", by name."""
    first = max(rounds // 5, 1)
    return {
        **{name: name for name in ("random", "fedprox", "scaffold", "coprefl", "coprefl-std")},
        "per-fedavg": "per-fedavg",
        "longer step": "fedavgm:server-momentum=0,global-learning-rate=1.5",
        "fedadam": "fedadam:global-learning-rate=0.01",
        "cyclic then fedavg": f"cyclic:rounds={first}+fedavg:rounds={max(rounds - first, 1)}",
        "fedavg": "fedavg",
    }


def choose_start(
    candidates: Mapping[str, Candidate] | Sequence[str | Strategy] | None,
    clients: Clients | Sequence[Any],
    tasks: Tasks,
    network: nn.Module,
    rounds: int = 50,
    *,
    search: Mapping[str, Sequence[Value]] = MappingProxyType({}),
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

    **Experimental since 0.3.** The rule by which draws decide may change.

    The first draws select two finalists, and further draws compare them (see `studies.choice`).

    Parameters
    ----------
    candidates : mapping of name to candidate, or a list of methods
        A candidate is a method as in `pretrain` (a text such as "cyclic:rounds=5+fedavg", or a
        strategy), "random" for `network` itself, a `Path` of its weights, or a trained network.
        None: the ten of `default_candidates`.
    clients : Clients, or a list of datasets (one per client)
        The clients of the pre-trainings. Draw n partitions their samples by their seed plus n. A
        list of datasets is the same in all draws.
    tasks : Tasks
        The result of `tasks`. Draw n draws them by their seed plus n.
    network : nn.Module
        The network with its first weights, which are those of all draws. It is not changed.
    rounds : int
        Number of rounds of a pre-training, as in `pretrain`.
    search : Mapping[str, Sequence]
        Values of options of the pre-trainings, such as `{"learning_rate": [0.1, 0.03, 0.01]}`.
        Each candidate that is a text, and has the option, gets the value that is best for it on
        two further draws. A value that diverges on either is not chosen.
    draws : int
        Largest number of draws, at least 5.
    budget : str
        "30 minutes", "2 hours" or "5000 rounds", which may limit the number of draws further. A
        time becomes a number of rounds after the first draw. It does not include the search.
    margin : float, optional
        The smallest difference that matters to you, in points of accuracy, or in the unit of the
        measure. The answer counts the draws that would find it. Default: 1 point of accuracy.
    reference : str
        The candidate with which the chosen one is compared too. Default: the last one.
    pretraining, downstream : Mapping[str, Any]
        Further arguments of `pretrain` and of `evaluate_starts`, such as
        `downstream={"rounds": 20, "learning_rate": 0.01}`.
    workers : int
        Number of processes, each of which makes runs, as in `coprefl choose`.
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
    named = default_candidates(rounds) if candidates is None else _named(candidates)
    if len(named) < 2:
        raise SettingsError(f"candidates = {list(named)}: two or more are needed")
    OPTION.checked(draws, "draws")
    if budget:
        read_budget(budget)
    reference = reference or list(named)[-1]
    check_name("candidate", reference, named, "reference")
    model = checked_network("network", network, usage)
    options = {"rounds": 50, "head": str(FRESH), "network": None, **downstream}
    how = downstream_of(tasks, **{k: v for k, v in options.items() if k not in NOT_OF_RUNS})
    objects = _Objects(clients, tasks, model, rounds, pretraining, options)
    searched = {key.replace("_", "-"): tuple(values) for key, values in search.items()}
    rows = []
    for name, candidate in named.items():
        given = isinstance(candidate, nn.Module | Path) or candidate == RANDOM
        method = START if given else read_method(candidate, usage)
        values = {} if given or method.instance else searched
        row = RecipeRow(name, method, values, PRETRAINING, frozenset(values))
        rows.append(_Row(row, how.metrics.headings, objects, candidate if given else None))
    phases = [phase for row in rows for phase in row.row.method.trained]
    known = {key for phase in phases for key in phase.keys(PRETRAINING)}
    for key in searched:
        check_name("option", key, known, "search")
    for of_candidate in rows:
        of_candidate.reported(of_candidate.trials()[0])[0].study.check()
    with ExitStack() as entered:
        # Runs in this process have one thread, so that their numbers do not depend on `workers`.
        entered.callback(torch.set_num_threads, torch.get_num_threads())
        if quiet:
            entered.enter_context(quiet_flower("flwr.coprefl"))
        if checkpoint is None:
            checkpoint = entered.enter_context(tempfile.TemporaryDirectory(prefix="coprefl-"))
        store = Store(expanded(checkpoint).resolve())
        entered.enter_context(store.owned(f"checkpoint = {checkpoint}"))
        make = entered.enter_context(executor(store, workers, quiet=quiet))
        file = store.root / CHOICE
        choice = _OfObjects(rows, store, make, file, draws, budget, reference, margin)
        chosen = choice.chosen()
        folder = store.folder(choice.run(Cell(chosen.name, 0)).main)
        return replace(chosen, start=load_start(copied(model, "network"), folder))


def _named(candidates: Any) -> dict[str, Candidate]:
    """Return the candidates by name; a method's name is its text, or the name of its class."""
    if isinstance(candidates, Mapping):
        return {str(name): candidate for name, candidate in candidates.items()}
    if isinstance(candidates, str) or not isinstance(candidates, Sequence):
        raise wrong_type("candidates", candidates, "a mapping or a list", '["fedavg", "random"]')
    names = [one if isinstance(one, str) else type(one).__name__ for one in candidates]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f"candidates: several are {twice[0]}: name them, in a mapping")
    return dict(zip(names, candidates, strict=True))


NOT_OF_RUNS = ("network", "seed")
"""Arguments of `evaluate_starts` that are not options of how tasks are run."""


@dataclass(frozen=True)
class _Objects:
    """The arguments of a choice."""

    clients: Any
    tasks: Tasks
    network: nn.Module
    rounds: int
    pretraining: Options
    downstream: Options


@functools.lru_cache(maxsize=64)
def _drawn(drawn: Any, draw: int) -> Any:
    """Return clients or tasks with seeds that are larger by `draw`."""
    others = getattr(drawn, "others", ())
    more = {"others": tuple(_drawn(one, draw) for one in others)} if others else {}
    changes: dict[str, Any] = {"seed": drawn.seed + draw, **more}
    return replace(drawn, **changes) if draw else drawn


@dataclass(frozen=True, eq=False)
class _Run(StudyRun):
    """A candidate on a draw; `given` is a start that is not trained."""

    name: str
    method: Method
    given: Any
    cell: Cell
    objects: _Objects
    is_short: bool = False

    @property
    def seeds(self) -> str:  # type: ignore[override]
        """The draw."""
        return f"draw {self.cell.draw}"

    def shortened(self) -> "_Run":
        """Return the run with a quarter of the rounds."""
        return replace(self, method=quarter_of(self.method), is_short=True)

    def clients(self, folder: Path) -> ClientApp:
        """Return the ClientApp of the run's clients, which keep their files below `folder`."""
        self.study.root = folder
        return client_app(self.study.client)

    @functools.cached_property
    def study(self) -> Study:  # type: ignore[override]
        """The pre-training and the tasks."""
        objects, draw, part = self.objects, self.cell.draw, quarter if self.is_short else int
        clients, tasks, network = objects.clients, _drawn(objects.tasks, draw), objects.network
        screen = SCREENS.get(self.cell.screen, {})
        options = dict(objects.downstream)
        seed, factory = options.pop("seed", tasks.seed - draw) + draw, options.pop("network")
        options["head"] = screen.get("head", options["head"])
        options["rounds"] = part(screen.get("task-rounds", options["rounds"]))
        how, run = downstream_of(tasks, **options), RunOptions(seed=seed)
        keeps, starts = how.keeps_head, {self.name: network}
        of_tasks = architecture_of_tasks(starts, factory, tasks, seed, keeps_head=keeps)
        how = replace(how, architecture=of_tasks, run_options=run)
        if self.given is not None:
            weights = f"{FILE}{self.given}" if isinstance(self.given, Path) else self.given
            weights = network if weights == RANDOM else weights
            given: Any = {"name": self.name, "weights": weights, "keeps_head": keeps}
            start = Pretraining(START, None, of_tasks, run, **given)
        else:
            method, of_start = self.method, dict(objects.pretraining)
            if method.instance:
                strategy: Any = copy.copy(method.instance)
                strategy.seed += draw
                method = read_method(strategy, "")
            else:
                of_start["seed"] = of_start.get("seed", 0) + draw
            if isinstance(clients, Clients):
                clients = _drawn(clients, draw)
            rounds = part(objects.rounds)
            start = pretraining_of(method, network, clients, rounds, of_start, self.name)
        return Study(comparison([start], tasks, how))


@dataclass(frozen=True)
class _Row(SearchedRow[_Run]):
    """A candidate of `choose_start`; `given` is a start that is not trained."""

    row: RecipeRow
    headings: Any
    objects: _Objects
    given: Any = None
    of_choice = True

    def run(self, trial: Trial, cell: Cell) -> _Run:
        """Return a run of one of the trials."""
        return _Run(cell.candidate, trial.method, self.given, cell, self.objects)

    def reported(self, trial: Trial) -> list[_Run]:
        """Return the run of a trial on the first draw."""
        return [self.run(trial, Cell(self.label, 0))]

    def selection_runs(self, trial: Trial) -> list[_Run]:
        """Return the runs of a trial on the validation draws."""
        return [self.run(trial, Cell(self.label, draw)) for draw in VALIDATION]


@dataclass
class _OfObjects(Candidates):
    """The candidates of `choose_start`."""

    margin: float | None

    def run(self, cell: Cell) -> _Run:
        """Return the run of a cell."""
        row: _Row = self.candidates[cell.candidate]
        return row.run(row.trials()[0], cell)

    def report(self, names: Sequence[str], draws: Sequence[int]) -> Report:
        """Return the report of some candidates on these draws."""
        outcomes = []
        for draw in draws:
            runs = {name: self.run(Cell(name, draw)) for name in names}
            task: Any = runs[names[0]].client_stages[0]
            head = runs[names[0]].objects.downstream["head"]
            content = {
                "title": "Starting models",
                "seed": task.run_options.seed,
                "tasks": len(task.tasks),
                "columns": task.metrics.headings,
                "settings": settings_of(task.tasks, task.how, head),
            }
            starts = {name: run.study for name, run in runs.items()}
            outcomes.append(outcome_of(starts, self.store, content))
        report = report_of(outcomes)
        reference = self.reference if self.reference in names else names[-1]
        compared = report.comparisons[0].against(reference)
        return replace(report, comparisons=[replace(compared, margin=self.margin)])
