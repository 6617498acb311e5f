"""The same workload as a Flower app: its clients, its strategies, its ServerApp."""

import functools
import json
import time
from pathlib import Path

import torch
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.serverapp import Grid, ServerApp
from torch import nn

from benchmarks.workloads import POPULATION, SEED, WORKLOADS, Workload, samples
from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import CoPreFLClient, TorchClient, client_app
from coprefl_flwr.models import model_arrays
from coprefl_flwr.rounds.strategy import Hook, RoundReport, RoundStrategy
from coprefl_flwr.strategies import CoPreFL, FedAvg

METHODS: dict[str, type[FedAvg] | type[CoPreFL]] = {"fedavg": FedAvg, "coprefl": CoPreFL}


@functools.cache
def _model(workload: Workload) -> nn.Module:
    """Return the network that this process's clients load their weights into."""
    return workload.build()


def client_fn(context: Context, client_id: int) -> NumPyClient:
    """Return a client of the method and the workload that the run-config names."""
    workload = WORKLOADS[str(context.run_config["workload"])]
    held, training = samples(workload, client_id), workload.training()
    device = torch.device("cpu")
    if context.run_config["method"] == "coprefl":
        return CoPreFLClient(_model(workload), held, training=training, device=device)
    return TorchClient(_model(workload), held, training=training, device=device)


def _clients(context: Context, _population: str) -> int | list[int]:
    """Return how many clients the nodes host, or the one that this node is."""
    if context.run_config["hosting"]:
        return WORKLOADS[str(context.run_config["workload"])].clients
    return [int(str(context.node_config["partition-id"]))]


client = client_app(client_fn, clients=_clients)
server = ServerApp()


def run_rounds(
    grid: Grid, workload: Workload, method: str, rounds: int, min_nodes: int, hook: Hook
) -> None:
    """Run a method's rounds on a grid and call `hook` after each."""
    strategy: RoundStrategy = METHODS[method](
        participants=workload.participants, seed=SEED, population=POPULATION, min_nodes=min_nodes
    )
    initial = to_record(model_arrays(workload.build()))
    strategy.start(grid, initial, num_rounds=rounds, hooks=[hook])


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Write the seconds of every round, from hook to hook, to the file that `report` names."""
    config = context.run_config
    seconds: list[float] = []
    before = time.perf_counter()

    def hook(_: RoundReport) -> None:
        nonlocal before
        now = time.perf_counter()
        seconds.append(now - before)
        before = now

    workload = WORKLOADS[str(config["workload"])]
    rounds, nodes = int(config["rounds"]), int(config["nodes"])
    run_rounds(grid, workload, str(config["method"]), rounds, nodes, hook)
    Path(str(config["report"])).write_text(json.dumps(seconds), encoding="utf-8")
