"""A workload as a Flower app of this package: clients, strategies, ServerApp."""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.serverapp import Grid, ServerApp
from torch import nn

from benchmarks.processes import Stopwatch, child_of
from benchmarks.workloads import MEAN, POPULATION, SEED, STD, WIDTH, WORKLOADS, Workload, data
from coprefl_flwr.arrays import Arrays, to_record
from coprefl_flwr.clients import CoPreFLClient, FedPCLClient, TorchClient, client_app
from coprefl_flwr.data import Dataset, ImageDataset, Samples, TensorDataset
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.federation.run import Hook, RoundReport
from coprefl_flwr.federation.strategy import RoundStrategy
from coprefl_flwr.learning.optimisers import ADAM, SGD
from coprefl_flwr.learning.prototypes import no_prototypes
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import build_model, model_arrays
from coprefl_flwr.models.networks import lightweight_model, projection_head
from coprefl_flwr.strategies import CoPreFL, FedAvg, FedPCL

STRATEGIES: dict[str, type[RoundStrategy]] = {
    "fedavg": FedAvg,
    "coprefl": CoPreFL,
    "fedpcl": FedPCL,
}
CLIENTS: dict[str, type[TorchClient]] = {
    "fedavg": TorchClient,
    "coprefl": CoPreFLClient,
    "fedpcl": FedPCLClient,
}


def network(workload: Workload, method: str) -> nn.Module:
    """Return the package's network, with the same weights in every process."""
    if method == "fedpcl":
        return projection_head(workload.shape[0])
    if workload.heads:
        return lightweight_model(workload.shape[0], workload.num_classes)
    return build_model(workload.model, workload.num_classes, workload.shape)


@functools.cache
def shared_model(workload: Workload, method: str) -> nn.Module:
    """Return the network that all clients of this process use."""
    return network(workload, method)


@functools.cache
def initial(workload: Workload, method: str) -> Arrays:
    """Return the network's initial weights."""
    return model_arrays(network(workload, method))


@functools.cache
def dataset(workload: Workload) -> Dataset:
    """Return the data of all clients."""
    inputs, labels = data(workload)
    names = tuple(map(str, range(workload.num_classes)))
    if workload.heads:
        return TensorDataset(inputs, labels=labels.numpy(), classes=names)
    channels = workload.shape[0]
    mean, std = (torch.full((channels,), value) for value in (MEAN, STD))
    return ImageDataset(inputs, mean, std, labels=labels.numpy(), classes=names)


def samples(workload: Workload, client: int) -> Samples:
    """Return a client's samples: consecutive rows, the same number for each client."""
    whole, n = dataset(workload), workload.samples_per_client
    rows = torch.arange(client * n, (client + 1) * n).numpy()
    return Samples(whole, rows, whole.labels[rows])


def training(workload: Workload) -> LocalTraining:
    """Return the settings of local training."""
    return LocalTraining(
        optimiser=ADAM if workload.heads else SGD,
        weight_decay=1e-4 if workload.heads else 0.0,
        local_steps=workload.local_steps,
        batch_size=workload.batch_size,
        learning_rate=workload.learning_rate,
    )


def client_fn(context: Context, client_id: int) -> NumPyClient:
    """Return a client of the method and the workload that the run-config names."""
    config = context.run_config
    workload, method = WORKLOADS[str(config["workload"])], str(config["method"])
    model, more = shared_model(workload, method), dict[str, Any]()
    if method == "fedpcl":
        more = {"state": ClientState(str(config["states"])), "initial": initial(workload, method)}
    return CLIENTS[method](
        model,
        samples(workload, client_id),
        training=training(workload),
        device=torch.device(str(config["device"])),
        **more,
    )


client = client_app(client_fn)
server = ServerApp()


def run_config(
    workload: Workload, method: str, device: str = "cpu", states: str = ""
) -> dict[str, str]:
    """Return the run-config of clients; `states` is the folder of FedPCL's client states."""
    return {"workload": workload.name, "method": method, "device": device, "states": states}


def run_rounds(
    grid: Grid, workload: Workload, method: str, rounds: int, nodes: int, hook: Hook
) -> None:
    """Run a method's rounds on a grid of `nodes` nodes and call `hook` after each."""
    own: dict[str, Any] = {"meta_learning_rate": workload.meta_rate} if method == "coprefl" else {}
    strategy = STRATEGIES[method](
        participants=workload.participants,
        seed=SEED,
        population=POPULATION,
        min_available_nodes=nodes,
        clients=workload.clients,
        evaluate_every=0,
        **own,
    )
    first = initial(workload, method)
    if method == "fedpcl":
        first = no_prototypes(workload.num_classes, WIDTH)
    strategy.start(grid, to_record(first), num_rounds=rounds, hooks=[hook])


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Write (wall, CPU) seconds of every round, from hook to hook, to the run-config's `report`."""
    config = context.run_config
    seconds: list[tuple[float, float]] = []
    watch = Stopwatch(child_of(int(config["measured-by"])))

    def hook(_: RoundReport) -> None:
        seconds.append(watch.seconds())
        watch.start()

    workload = WORKLOADS[str(config["workload"])]
    rounds, nodes = int(config["rounds"]), int(config["nodes"])
    watch.start()
    run_rounds(grid, workload, str(config["method"]), rounds, nodes, hook)
    Path(str(config["report"])).write_text(json.dumps(seconds), encoding="utf-8")
