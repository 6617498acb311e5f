"""The Python interface: functions that make a study from Python objects and run it.

`partition` and `tasks` make clients from a dataset, `pretrain` makes a starting model, and
`evaluate_starts` compares starting models. Recipes and `flwr run` use the same stages, store and
driver.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy
from torch import nn

from coprefl_flwr.data.partition import NATURAL, Scheme, Spread
from coprefl_flwr.data.user_data import Collate, Pick
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.run import Hook
from coprefl_flwr.models.copies import copied
from coprefl_flwr.models.weights import load_start
from coprefl_flwr.options import checked_options, declared
from coprefl_flwr.report import frames
from coprefl_flwr.report.starts_result import StartsResult
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.architecture import checked_network
from coprefl_flwr.studies.measurements import MetricLike
from coprefl_flwr.studies.method import FRESH, START
from coprefl_flwr.studies.own_method import (
    downstream_of,
    pretraining_of,
    read_method,
    settings_of,
    starts_of,
)
from coprefl_flwr.studies.populations import Clients, LoadedSource
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.results import about, gather
from coprefl_flwr.studies.running import WORKERS, finished
from coprefl_flwr.studies.stage import RunOptions
from coprefl_flwr.studies.store import Layout
from coprefl_flwr.studies.study import Study
from coprefl_flwr.studies.task_data import CLASS, Tasks
from coprefl_flwr.studies.tasks import architecture_of_tasks, comparison


def partition(
    dataset: Any,
    clients: int | None = None,
    scheme: Scheme | None = None,
    *,
    alpha: float = 0.5,
    classes_per_client: int = 2,
    min_samples: int = 10,
    server_reserve: float = 0.0,
    only: Sequence[int | str] | None = None,
    relabel: bool = False,
    batch: Pick | None = None,
    columns: str | Sequence[str] = (),
    collate: Collate | None = None,
    groups: Any = None,
    seed: int = 0,
) -> Clients:
    """Partition a dataset over the clients of a pre-training.

    Parameters
    ----------
    dataset : a torch or Hugging Face Dataset, a DataLoader, or a dataset of this package
        The samples, of classes or of other targets: floats, or arrays of one shape (see the page on
        data). The dataset is read once and kept in memory, so random augmentations are drawn
        once (see `coprefl_flwr.data.as_dataset`). Of a DatasetDict, only the split "train" is used.
        Images in uint8 become floats in 0..1, as with torchvision's ToTensor. Other values do not
        change, except that float64 becomes float32.
    clients : int, optional
        Number of clients. Default: 100, for "natural" all groups with `min_samples` samples, and
        for a partitioner object its number of partitions.
    scheme : str, function, or flwr_datasets.partitioner.Partitioner, optional
        How the samples are partitioned. Default: "natural" if `groups` are given, else "dirichlet".
        Allowed are the name of a scheme: "iid", "dirichlet",
        "pathological", "natural" (each client is one writer or speaker), a class of flwr-datasets
        with its arguments, and others (see `coprefl_flwr.data.partition`); a function of
        (labels (n,), clients, rng) that returns a list of sample indices for each client; or a
        partitioner object of flwr-datasets. Without classes, ten bins of the targets are used as
        classes, and a function gets the targets (n, *shape).
    alpha : float
        Concentration of the Dirichlet distribution from which "dirichlet" draws the proportions of
        each class. A small value gives clients very different classes.
    classes_per_client : int
        Number of classes that each client has, for "pathological".
    min_samples : int
        Minimum number of samples of a client.
    server_reserve : float
        Fraction of the samples that is reserved for the server, 0 to 0.9. The samples are drawn at
        random, and no client has them.
    only : sequence of int or str, optional
        The classes that are used, by number or name. The used classes are then numbered from 0 in
        ascending order. Default: all classes.
    relabel : bool
        Whether labels with gaps, such as 0, 5, 10, are numbered 0, 1, 2.
    batch : function, optional
        Function that returns (input, label) of an item, or of a DataLoader's batch. Default: the
        item is an (input, label) pair, or a dict such as {"img": ..., "label": ...}.
    columns : str or sequence of str, optional
        The key of the input in items that are dicts (the column of a Hugging Face Dataset); or the
        keys of several inputs, such as ["input_ids", "attention_mask"], with which the model is
        called by name. Default: an input with a usual name, and all columns of several numbers
        each, except the label.
    collate : function, optional
        Function that makes a batch of a list of items, as the `collate_fn` of a DataLoader. It is
        called once with all items, and pads token ids, masks and labels to one length.
    groups : array, list or str, optional
        The group of each sample, such as its writer, patient or site: a name or number for each
        sample, or the key of the group in items that are dicts (the column of a Hugging Face
        Dataset). With "natural", each client is one group.
    seed : int
        Seed of all random draws. A study with the same settings has the same clients.

    Raises
    ------
    SettingsError
        If `dataset` is not a dataset, or the partition is not possible.

    Examples
    --------
    >>> import coprefl_flwr as cp
    >>> cp.partition(cp.load_dataset("glyphs"), clients=4, scheme="iid", only=range(10))
    <4 clients, 300 to 300 samples each, 10 classes>
    """
    options = {"seed": seed, "server_reserve": server_reserve}
    drawn = checked_options(options, declared(Clients))  # Before the dataset is read.
    scheme = scheme or ("dirichlet" if groups is None else NATURAL)
    spread = _spread(clients, scheme, alpha, classes_per_client, min_samples)
    how = {"relabel": relabel, "batch": batch, "columns": columns, "collate": collate}
    result = Clients(LoadedSource.of(dataset, only, groups=groups, **how), spread, **drawn)
    _ = result.population  # Raises an error now if the partition is not possible.
    return result


def tasks(
    dataset: Any,
    number: int | None = None,
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
    columns: str | Sequence[str] = (),
    collate: Collate | None = None,
    groups: Any = None,
    by: str = CLASS,
    seed: int = 0,
) -> Tasks:
    """Draw downstream tasks from a dataset.

    Each task draws some classes and partitions their samples over its clients. `tasks + others`
    joins tasks, which may be of other datasets, and of other numbers of classes and clients.

    Parameters
    ----------
    dataset : a torch or Hugging Face Dataset, a DataLoader, or a dataset of this package
        The samples, read as in `partition`.
    number : int, optional
        Number of tasks. Default: 3, or for another `by` than "class" as many as are possible.
    classes : int
        Number of classes that each task draws from the dataset, or from `only`: at least 2. It is
        not used for targets that are no classes.
    clients : int
        Number of clients of each task.
    scheme : str, function, or flwr_datasets.partitioner.Partitioner
        How the samples of a task are partitioned over its clients, as in `partition`.
    alpha, classes_per_client, min_samples : float, int, int
        Arguments of the scheme, and the minimum number of samples of a client, as in `partition`.
    train_fraction : float
        Fraction of each client's samples that is its training set, above 0 and at most 0.99. The
        rest is its test set.
    only, relabel, batch, columns, collate, groups : as in `partition`
        The classes that tasks may draw, and how the dataset is read.
    by : str
        "class": each task draws its classes among all samples. "group" or "domain": each task has
        the samples of one group or domain, and draws its classes among theirs. The groups, of
        those with enough classes, are drawn too. Without classes, each task has all samples of a
        domain or group, and "class" means "domain" if the dataset has domains, else "group".
    seed : int
        Seed of all random draws. All starting models are tested on the same tasks.

    Raises
    ------
    SettingsError
        If `dataset` is not a dataset, or a task is not possible.

    Examples
    --------
    >>> import coprefl_flwr as cp
    >>> cp.tasks(cp.load_dataset("glyphs"), number=2, classes=5, clients=3, scheme="iid")
    <2 tasks of 5 classes and 3 clients>
    """
    if number == 0:
        raise SettingsError("number = 0: at least one task is needed")
    options = {"classes": classes, "train_fraction": train_fraction, "seed": seed, "by": by}
    options["number"] = number or 0
    drawn = checked_options(options, declared(Tasks))  # Before the dataset is read.
    spread = _spread(clients, scheme, alpha, classes_per_client, min_samples)
    how = {"relabel": relabel, "batch": batch, "columns": columns, "collate": collate}
    result = Tasks(LoadedSource.of(dataset, only, groups=groups, **how), spread, **drawn)
    if number is None:
        result.number = 3 if result.kind == CLASS else len(result.eligible)
    for task in range(len(result)):
        _ = result[task]  # Raises an error now if the task is not possible.
    return result


def pretrain(
    method: Strategy | str,
    model: nn.Module,
    clients: Clients | Sequence[Any],
    rounds: int = 50,
    *,
    workers: int = 1,
    checkpoint: str | Path | None = None,
    quiet: bool = False,
    history: bool = False,
    hooks: Sequence[Hook] = (),
    **options: Any,
) -> Any:
    """Return a copy of `model`, pre-trained by a method across clients.

    Parameters
    ----------
    method : Strategy or str
        A strategy such as `CoPreFL(gamma=0.5, participants=20)`, your own class, one of Flower's
        (see `of_flower`), or a string as in recipes: "coprefl:gamma=0.5",
        "cyclic:rounds=5+fedavg". All random choices depend on the strategy's `seed`, or, if the
        method is a string, on `seed` in `options`.
    model : nn.Module
        The network with its first weights. This object is not changed.
    clients : Clients, or a list of datasets (one per client)
        The clients: the result of `partition`, or your own.
    rounds : int
        Number of pre-training rounds T. For "A+B" it is the number of rounds of each phase that
        does not set its own. A Schedule states the rounds of each phase, so `rounds` is not used.
    workers : int
        Number of processes that run the clients. With 1, the clients run in this process. With
        more, they run in Ray processes with one thread each (see `grids.RayGrid`). The results are
        the same except for rounding.
    checkpoint : path of a folder, optional
        Folder that stores the run's state and the model. `evaluate_starts` can read the model. If
        the run was interrupted, the same call continues it with the same results. With more
        `rounds`, a finished run continues too. With another method, another model or other clients
        the run starts again, and the earlier files are moved to the subfolder `earlier-N`. The code
        of your own networks, strategies and clients counts. The metrics of all rounds are in
        checkpoint.safetensors.rounds.jsonl.
    quiet : bool
        Whether only warnings are logged.
    history : bool
        Whether to return (nn.Module, DataFrame): the model, and a DataFrame with the metrics and
        the traffic of each round in a row. `plot_history` draws this DataFrame.
    hooks : list of functions
        Functions that are called after each round with its `RoundReport`: the round, the arrays of
        the global model, and the metrics. What a hook returns is not used. An exception of a hook
        ends the run.
    **options
        `keep={"metric": "accuracy", "patience": 20}` keeps the model of the best round, and ends
        after 20 rounds without a better one (see `federation.keep.Keep`). Options of local
        training, such as `local_steps=5`, `local_epochs`, `learning_rate=0.05`,
        `batch_size`, `precision="bf16"`, `loss=torch.nn.functional.mse_loss`,
        `client_wrapper="attackers.py:SignFlip", client_wrapper_share=0.3`; and options of the
        method's client, such as CoPreFL's `support_fraction`. If the method is a string, its
        client's options are in the string.

    Raises
    ------
    SettingsError
        If an argument is wrong. It is raised before training starts.
    RunFailedError
        If a round failed too often.

    Examples
    --------
    >>> import coprefl_flwr as cp, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 100))
    >>> clients = cp.partition(cp.load_dataset("glyphs"), clients=20)
    >>> method = cp.CoPreFL(gamma=0.5, participants=5)
    >>> start = cp.pretrain(method, model, clients, rounds=2, quiet=True)
    """
    usage = "cp.pretrain(method, model, clients)"
    chosen = read_method(method, usage)
    network = checked_network("model", model, usage)
    WORKERS.checked(workers, "workers")
    stage = pretraining_of(chosen, network, clients, rounds, options)
    stage.open_ended = checkpoint is not None
    with finished(Study([stage]), checkpoint, Layout.SINGLE, quiet, workers, hooks) as store:
        start = load_start(copied(model, "model"), store.root)
        metrics = frames.frame(store.result(stage)["rounds"])
    return (start, metrics) if history else start


def evaluate_starts(
    starts: Mapping[str, nn.Module | str | Path],
    tasks: Tasks,
    rounds: int = 50,
    *,
    method: str | RoundStrategy = "fedavg",
    head: str = str(FRESH),
    network: Callable[[int], nn.Module] | None = None,
    client_metrics: MetricLike | Sequence[MetricLike] = (),
    evaluate_every: int = 1,
    diagnostics: bool = False,
    seed: int | None = None,
    workers: int = 1,
    checkpoint: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> StartsResult:
    """Run the same tasks from every starting model, and compare the results of their clients.

    Parameters
    ----------
    starts : mapping of name to module, or to a file or folder of weights
        The starting models, all of one architecture. A file is a `.safetensors` file or a saved
        state_dict. A folder is one that this package wrote.
    tasks : Tasks
        The result of `tasks`.
    rounds : int
        Number of rounds R of a task. All clients of the task take part in each round.
    method : str or RoundStrategy
        Algorithm of the tasks, such as "fedprox:mu=0.1", `FedProx(mu=0.1)` or your own
        strategy whose `roles` contain "task".
    head : str
        The last layer at the beginning of a task. "fresh": a new layer, the same for every starting
        model; "keep": the last layer of the starting model; "ncm", "ridge",
        "fedcgs", "fedcof": a layer that is computed from the clients' features.
    network : function of the number of classes, optional
        Function that returns the network of a task. Without classes, it gets the number of outputs:
        k for targets (n, k), 1 for (n,), and for images their channels or classes. Default: a copy
        of the starting models' network with a new last layer. The outputs of this network must come
        from the `nn.Linear` that it calls last.
    client_metrics : function, module:NAME, or a list of these, optional
        Your own metrics: functions of (logits (n, C), labels (n,)) that return a number, with C the
        number of classes of the task; of outputs and targets if the targets are no classes. A class
        is called first, and its object is the function. Every client computes the metrics on its
        test samples. They are columns of `rows` and `summary()` ("metric:NAME") and of the table.
    evaluate_every : int
        Number of rounds between evaluations. 0: evaluate only after the last round.
    diagnostics : bool
        Whether to measure, for each starting model and task, properties of the model that may
        explain its accuracy, such as gradient diversity. They are in `rounds` of the result.
    seed : int, optional
        Seed of the new last layers and of the training in the tasks. Default: the seed of `tasks`,
        which draws the tasks' classes and clients.
    workers : int
        Number of processes that run the clients, as in `pretrain`.
    checkpoint, quiet : path of a folder, bool
        As in `pretrain`, except that tasks start again if `rounds` is another number.
    **options
        Options of local training in the tasks, such as `learning_rate`, `local_steps` or
        `local_epochs`, `batch_size`, `precision`, `loss`; and, if `method` is a strategy, options
        of its client.

    Raises
    ------
    SettingsError
        If an argument is wrong. It is raised before training starts.

    Examples
    --------
    >>> import coprefl_flwr as cp, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 100))
    >>> tasks = cp.tasks(cp.load_dataset("glyphs"), number=1, clients=2, scheme="iid")
    >>> result = cp.evaluate_starts({"random": model}, tasks, rounds=1, quiet=True)
    >>> result.summary().index.tolist()
    ['random']
    """
    WORKERS.checked(workers, "workers")
    options |= {"method": method, "head": head, "client_metrics": client_metrics}
    options |= {"evaluate_every": evaluate_every, "diagnostics": diagnostics}
    how = downstream_of(tasks, rounds, **options)
    weights, keeps = starts_of(starts), how.keeps_head
    seed, draw = (tasks.seed, None) if seed is None else (seed, tasks.seed)
    of_run = RunOptions(seed=seed)
    architecture = architecture_of_tasks(weights, network, tasks, seed, keeps_head=keeps)
    stages = [
        Pretraining(START, None, architecture, of_run, name=name, weights=given, keeps_head=keeps)
        for name, given in weights.items()
    ]
    study = Study(comparison(stages, tasks, how))
    with finished(study, checkpoint, Layout.PATH, quiet, workers) as store:
        rows, of_rounds = gather(study, store)
        shown = about(study, store, of_run.seed, draw) | {"settings": settings_of(tasks, how, head)}
    return StartsResult(frames.accuracies(rows), of_rounds, shown)


def _spread(
    clients: int | None, scheme: Scheme, alpha: float, classes: int, samples: int
) -> Spread:
    """Return the rule that partitions samples: `classes` and at least `samples` for each client."""
    limits: Any = {"alpha": alpha, "classes_per_client": classes, "min_samples": samples}
    if clients is None and scheme != NATURAL and not hasattr(scheme, "load_partition"):
        clients = declared(Spread)["clients"].default
    return Spread(clients=clients, partition=scheme, **limits)
