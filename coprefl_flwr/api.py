"""The Python interface: the caller's objects make a study, which runs as every other study does.

`partition` and `tasks` make clients from a dataset, `pretrain` makes a starting model, and
`evaluate_starts` compares starting models. The stages, the store and the driver are those of
recipes and of `flwr run`.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from torch import nn

from coprefl_flwr.data.partition import Scheme
from coprefl_flwr.data.user_data import Pick
from coprefl_flwr.errors import SettingsError, short, wrong_type
from coprefl_flwr.models import load_arrays, load_saved_model
from coprefl_flwr.models.weights import FILE
from coprefl_flwr.options import checked_options, declared
from coprefl_flwr.report import frames
from coprefl_flwr.report.starts_result import StartsResult
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.architecture import Architecture, check_network, copies_of
from coprefl_flwr.studies.measurements import ClientMetrics, MetricLike
from coprefl_flwr.studies.method import FRESH, KEEP, Method, folder_of
from coprefl_flwr.studies.own_method import (
    AppPretraining,
    pretraining_options,
    read_method,
    start_of_method,
    task_options,
    task_phase,
)
from coprefl_flwr.studies.phases import TrainingOptions, head_phase
from coprefl_flwr.studies.populations import Clients, LoadedSource, Spread
from coprefl_flwr.studies.pretraining import Pretraining, Start
from coprefl_flwr.studies.results import gather
from coprefl_flwr.studies.running import WORKERS, finished
from coprefl_flwr.studies.stage import RunOptions
from coprefl_flwr.studies.store import Layout
from coprefl_flwr.studies.study import Study
from coprefl_flwr.studies.tasks import (
    TASK_RATE,
    Downstream,
    Tasks,
    architecture_of_tasks,
    comparison,
)


def partition(
    dataset: Any,
    clients: int | None = None,
    scheme: Scheme = "dirichlet",
    *,
    alpha: float = 0.5,
    classes_per_client: int = 2,
    min_samples: int = 10,
    server_reserve: float = 0.0,
    only: Sequence[int | str] | None = None,
    relabel: bool = False,
    batch: Pick | None = None,
    seed: int = 0,
) -> Clients:
    """Spread a dataset over the clients of a pre-training.

    Parameters
    ----------
    dataset : a torch or Hugging Face Dataset, a DataLoader, or a dataset of this package
        Read once and kept in memory, so random augmentations are drawn once (see
        `coprefl_flwr.data.as_dataset`). Bytes of images become floats in 0..1, as by
        torchvision's ToTensor; other values do not change.
    clients : int, optional
        Number of clients. Default: 100, or as many as a partitioner object makes.
    scheme : str, function, or flwr_datasets.partitioner.Partitioner
        "iid", "dirichlet", "pathological", "natural" (a client is a writer or speaker), a class of
        flwr-datasets with its arguments, and others (see `coprefl_flwr.data.partition`); a function
        of (labels (n,), clients, rng) that returns a list of positions for each client; or a
        partitioner object of flwr-datasets.
    alpha : float
        Concentration of the Dirichlet distribution from which "dirichlet" draws the proportions of
        each class. A small value gives clients very different classes.
    classes_per_client : int
        Number of classes that each client has, for "pathological".
    min_samples : int
        Fewest samples a client may have.
    server_reserve : float
        Part of the samples, drawn at random, that the server has and no client: 0 to 0.9.
    only : sequence of int or str, optional
        The classes that are used, by number or name. Labels are then their positions in ascending
        order. Default: all.
    relabel : bool
        Whether labels with gaps, such as 0, 5, 10, are numbered 0, 1, 2.
    batch : function, optional
        Returns (input, label) of an item, or of a DataLoader's batch. Default: the item is that
        pair, or a dict such as {"img": ..., "label": ...}.
    seed : int
        Seed of all draws. A study of the same settings has the same clients.

    Raises
    ------
    SettingsError
        For something that is not a dataset, or a partition that is not possible.

    Examples
    --------
    >>> import coprefl_flwr as cp
    >>> cp.partition(cp.load_dataset("glyphs"), clients=4, scheme="iid", only=range(10))
    <4 clients, 300 to 300 samples each, 10 classes>
    """
    options = {"seed": seed, "server_reserve": server_reserve}
    drawn = checked_options(options, declared(Clients))
    spread = _spread(clients, scheme, alpha, classes_per_client, min_samples)
    result = Clients(LoadedSource.of(dataset, only, relabel, batch), spread, **drawn)
    _ = result.population  # Raises an error now, if there is no such partition.
    return result


def tasks(
    dataset: Any,
    number: int = 3,
    classes: int = 5,
    clients: int = 10,
    scheme: Scheme = "dirichlet",
    *,
    alpha: float = 0.5,
    classes_per_client: int = 2,
    min_samples: int = 10,
    train_fraction: float = 0.8,
    only: Sequence[int | str] | None = None,
    relabel: bool = False,
    batch: Pick | None = None,
    seed: int = 0,
) -> Tasks:
    """Draw downstream tasks from a dataset.

    Each task draws some classes and spreads their samples over its clients.

    Parameters
    ----------
    dataset : a torch or Hugging Face Dataset, a DataLoader, or a dataset of this package
        As in `partition`.
    number : int
        Number of tasks.
    classes : int
        Number of classes that each task draws from the dataset, or from `only`: at least 2.
    clients : int
        Number of clients of each task.
    scheme : str, function, or flwr_datasets.partitioner.Partitioner
        How a task's samples are spread over its clients, as in `partition`.
    alpha, classes_per_client, min_samples : float, int, int
        Arguments of the scheme, and the fewest samples of a client, as in `partition`.
    train_fraction : float
        Part of each client's samples to train on, above 0 and at most 0.99. The client is tested on
        the rest.
    only, relabel, batch : sequence of int or str, bool, function
        Classes that tasks may draw, and how the dataset is read, as in `partition`.
    seed : int
        Seed of all draws. All starts meet the same tasks.

    Raises
    ------
    SettingsError
        For something that is not a dataset, or a task that is not possible.

    Examples
    --------
    >>> import coprefl_flwr as cp
    >>> cp.tasks(cp.load_dataset("glyphs"), number=2, classes=5, clients=3, scheme="iid")
    <2 tasks of 5 classes and 3 clients>
    """
    if number == 0:
        raise SettingsError("number = 0: at least one task is needed")
    options = {"number": number, "classes": classes, "train_fraction": train_fraction, "seed": seed}
    drawn = checked_options(options, declared(Tasks))
    spread = _spread(clients, scheme, alpha, classes_per_client, min_samples)
    result = Tasks(LoadedSource.of(dataset, only, relabel, batch), spread, **drawn)
    for task in range(len(result)):
        _ = result[task]  # Raises an error now, if there is no such task.
    return result


def pretrain(
    method: Strategy | str,
    model: nn.Module,
    clients: Clients | Sequence[Any] | ClientApp,
    rounds: int = 50,
    *,
    nodes: int = 0,
    workers: int = 1,
    checkpoint: str | Path | None = None,
    quiet: bool = False,
    history: bool = False,
    **options: Any,
) -> Any:
    """Return a copy of `model` that a method has pre-trained across clients.

    Parameters
    ----------
    method : Strategy or str
        A strategy such as `CoPreFL(gamma=0.5, participants=20)`, your own class, one of Flower's
        (see `of_flower`), or a text as in recipes: "coprefl:gamma=0.5", "cyclic:rounds=5+fedavg".
        All random choices depend on the strategy's `seed`; for a text, on `seed` in `options`.
    model : nn.Module
        The network and its first weights. It is not changed.
    clients : Clients, a list of datasets (one per client), or a Flower ClientApp
        The clients that `partition` returns, or your own. A ClientApp runs on `nodes` nodes.
    rounds : int
        Pre-training rounds T; of each phase of "A+B". A Schedule has its own.
    nodes : int
        Number of nodes of a ClientApp; not for other clients.
    workers : int
        Number of processes that run the clients. 1 is this process; more are processes of one
        thread each on Ray (see `grids.RayGrid`), with the same numbers up to rounding.
    checkpoint : path of a folder, optional
        Stores the run's state and the model, which `evaluate_starts` can read. After a stop, the
        same call continues with the same numbers; with more `rounds`, a finished run continues too.
        For another method, model or other clients the run begins again, and the earlier files move
        to a folder `earlier-N` in it. checkpoint.safetensors.rounds.jsonl has the rounds' metrics.
    quiet : bool
        Whether only warnings are logged.
    history : bool
        Whether to return (nn.Module, DataFrame): the model, and a row per round with its metrics
        and traffic, which `plot_history` draws.
    **options
        Local training, such as `local_steps=5`, `local_epochs`, `learning_rate=0.05`, `batch_size`,
        `precision="bf16"`, `client_wrapper="attackers.py:SignFlip", client_wrapper_share=0.3`; and
        options of the method's client, such as CoPreFL's `support_fraction`.

    Raises
    ------
    SettingsError
        Before any work, for an argument that is wrong.
    RunFailedError
        If the clients failed a round too often.

    Examples
    --------
    >>> import coprefl_flwr as cp, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 100))
    >>> clients = cp.partition(cp.load_dataset("glyphs"), clients=20)
    >>> method = cp.CoPreFL(gamma=0.5, participants=5)
    >>> start = cp.pretrain(method, model, clients, rounds=2, quiet=True)
    """
    usage = "cp.pretrain(method, model, clients)"
    method = read_method(method, usage)
    check_network("model", model, usage)
    WORKERS.checked(workers, "workers")
    stage: AppPretraining | Pretraining
    app: ClientApp | None = None
    if isinstance(clients, ClientApp):
        if isinstance(method, str):
            raise wrong_type("method", method, "a strategy for a ClientApp", "cp.FedAvg()")
        if options:
            raise SettingsError(f"{', '.join(options)}: set these in the code of the ClientApp")
        stage, app = AppPretraining(method, model, rounds, nodes), clients
    else:
        stage, nodes = _pretraining(method, model, clients, rounds, options), workers
    stage.open_ended = checkpoint is not None
    grid = {"nodes": nodes, "workers": workers}
    with finished(Study([stage]), checkpoint, Layout.SINGLE, quiet, app, **grid) as store:
        arrays, _ = load_saved_model(store.root)
        metrics = frames.frame(store.result(stage)["rounds"])
    start = copy.deepcopy(model)
    load_arrays(start, arrays)
    return (start, metrics) if history else start


def evaluate_starts(
    starts: Mapping[str, nn.Module | str | Path],
    tasks: Tasks,
    rounds: int = 50,
    *,
    method: str | RoundStrategy | type[RoundStrategy] = "fedavg",
    head: str = str(FRESH),
    network: Callable[[int], nn.Module] | None = None,
    client_metrics: MetricLike | Sequence[MetricLike] = (),
    evaluate_every: int = 1,
    diagnostics: bool = False,
    checkpoint: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> StartsResult:
    """Run the same tasks from every starting model, and compare the clients' results.

    Parameters
    ----------
    starts : mapping of name to module, or to a file or folder of weights
        All of one architecture; `.safetensors`, a state_dict, or a folder of this package.
    tasks : Tasks
        The tasks that `tasks` returns.
    rounds : int
        Rounds R of a task. All its clients take part in each.
    method : str, RoundStrategy or a class of such
        Algorithm of the tasks, such as "fedprox:mu=0.1", `FedProx(mu=0.1)` or your own class whose
        `roles` have "task". Its seed is that of the tasks.
    head : str
        The last layer at the beginning of a task. "fresh": a new one, the same for every start;
        "keep": the start's own; "ncm", "ridge": computed from the clients' features.
    network : function of the number of classes, optional
        Makes the network of a task. Default: a copy of the starts' network with a new last layer,
        whose outputs must come from an `nn.Linear` that is called last.
    client_metrics : function, module:NAME, or a list of such, optional
        Your own metrics: functions of (logits (n, C), labels (n,)) that return a number, which
        every client computes on its test samples; C is the task's number of classes. They are
        columns of `rows` and `summary()` ("metric:NAME") and of the printed table.
    evaluate_every : int
        Rounds between evaluations; 0: only after the last round.
    diagnostics : bool
        Whether `rounds` also has measurements that explain the worth of each start.
    checkpoint, quiet : path of a folder, bool
        As in `pretrain`. Tasks of another number of `rounds` begin again.
    **options
        Local training of the tasks, such as `learning_rate`, `local_steps` or `local_epochs`,
        `batch_size`, `precision`; and options of the client of a method that is a strategy.

    Raises
    ------
    SettingsError
        Before any work, for an argument that is wrong.

    Examples
    --------
    >>> import coprefl_flwr as cp, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 100))
    >>> tasks = cp.tasks(cp.load_dataset("glyphs"), number=1, clients=2, scheme="iid")
    >>> result = cp.evaluate_starts({"random": model}, tasks, rounds=1, quiet=True)
    >>> result.summary().index.tolist()
    ['random']
    """
    usage = "cp.evaluate_starts(starts, tasks)"
    if not isinstance(tasks, Tasks):
        raise wrong_type("tasks", tasks, "the tasks that cp.tasks(dataset) returns", usage)
    method = read_method(method, f"{usage[:-1]}, method=cp.FedProx(mu=0.1))", classes=True)
    how_made, chosen = _starts(starts), checked_options(options, task_options(method))
    numbers = {"rounds": rounds, "evaluate_every": evaluate_every, "diagnostics": diagnostics}
    of_tasks = checked_options(numbers, declared(Downstream))
    training = _local_training(
        chosen,
        rounds=max(of_tasks["rounds"], 1),
        participants=len(tasks[0].clients),
        learning_rate=TASK_RATE,
    )
    trained = task_phase(method, training, chosen)
    trained.check_aggregation("method", training.participants)
    layer, metrics = Method.parse(head), ClientMetrics(client_metrics)
    computed, keeps = head_phase(layer, training, {}), layer == KEEP
    how = Downstream(trained, head=computed, keeps_head=keeps, metrics=metrics, **of_tasks)
    architecture = architecture_of_tasks(starts.values(), network, tasks, keeps_head=keeps)
    of_run = RunOptions(seed=tasks.seed)
    stages = [
        Pretraining(start, None, architecture, of_run, keeps_head=keeps) for start in how_made
    ]
    study = Study(comparison(stages, tasks, how))
    with finished(study, checkpoint, Layout.PATH, quiet) as store:
        rows, of_rounds = gather(study, store)
    return StartsResult(frames.accuracies(rows), of_rounds, {"seed": tasks.seed})


def _spread(
    clients: int | None, scheme: Scheme, alpha: float, classes: int, samples: int
) -> Spread:
    """Return how samples are spread: `classes` per client, at least `samples` samples each."""
    limits: Any = {"alpha": alpha, "classes_per_client": classes, "min_samples": samples}
    return Spread(clients=clients, scheme=scheme, **limits)


def _pretraining(
    method: RoundStrategy | str,
    model: nn.Module,
    clients: Clients | Sequence[Any],
    rounds: int,
    options: Mapping[str, Any],
) -> Pretraining:
    """Return the pre-training of a network on clients of this package."""
    if not isinstance(clients, Clients):
        if not isinstance(clients, Sequence) or isinstance(clients, str) or not len(clients):
            needed = "the clients that cp.partition returns, or a list of a dataset per client"
            raise wrong_type("clients", clients, needed, "cp.partition(dataset, clients=100)")
        clients = Clients.of_datasets(clients)
    chosen, number = checked_options(options, pretraining_options(method)), len(clients)
    training = _local_training(chosen, rounds=rounds, participants=number)
    seed = chosen.get("seed", 0) if isinstance(method, str) else method.seed
    architecture = Architecture(type(model).__name__, copies_of(model), clients.source, seed)
    architecture.check("model", clients[0])
    start = start_of_method(method, training, chosen, number)
    return Pretraining(start, clients, architecture, RunOptions(seed=seed))


def _local_training(options: Mapping[str, Any], **defaults: Any) -> TrainingOptions:
    """Return local training with those of the options that belong to it, instead of defaults."""
    known = {option.name for option in declared(TrainingOptions).values()}
    chosen = {name: value for name, value in options.items() if name in known}
    return TrainingOptions(**{**defaults, **chosen})


def _starts(starts: Any) -> list[Start]:
    """Return starts of networks or files, or raise a SettingsError for something else."""
    if not isinstance(starts, Mapping) or not starts:
        example = "{'random': Net(), 'coprefl': start}"
        raise wrong_type("starts", starts, "a mapping of names to networks or files", example)
    names = {name: folder_of(name) if isinstance(name, str) else "" for name in starts}
    for name, folder in names.items():
        if not folder.strip("-") or list(names.values()).count(folder) > 1:
            problem = f"start {short(repr(name))}: a name must be a text"
            raise SettingsError(f"{problem}, and names must differ in letters and digits")
        if not isinstance(starts[name], str | Path):
            check_network(f"start {name!r}", starts[name], "Net() or 'model.safetensors'")
    return [
        Start(name, name, weights=start if isinstance(start, nn.Module) else f"{FILE}{start}")
        for name, start in starts.items()
    ]
