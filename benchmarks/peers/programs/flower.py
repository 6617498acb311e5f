"""Flower's own FedAvg in its own simulation, on two workers."""

import functools
import logging
import os
from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.peers.workloads import TASKS, Task

WORKERS = 2
client = ClientApp()


@functools.cache
def _task_of(name: str) -> tuple[Task, nn.Module, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return a workload with its network and data, which a worker keeps between messages."""
    torch.set_num_threads(1)
    task = TASKS[name]
    return task, task.model(), *task.shares()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train the client of this node from the arrays that were sent."""
    task, model, inputs, labels = _task_of(os.environ["PEERS_TASK"])
    own = int(str(context.node_config["partition-id"]))
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    for rows in torch.randperm(task.samples).split(task.batch):
        optimiser.zero_grad()
        loss = cross_entropy(model(inputs[own][rows]), labels[own][rows])
        torch.autograd.backward(loss)
        optimiser.step()
    content = RecordDict({"arrays": ArrayRecord(model.state_dict())})
    content["metrics"] = MetricRecord({"num-examples": task.samples})
    return Message(content, reply_to=message)


def run(task: Task, rounds: int, after_round: Callable[[], None]) -> nn.Module:
    """Run the rounds on a simulated node for each client."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.environ |= {"PEERS_TASK": task.name, "FLWR_TELEMETRY_ENABLED": "0"}
    model, server = task.model(), ServerApp()

    def clock(server_round: int, _: ArrayRecord) -> None:
        if server_round:  # Flower also evaluates before the first round.
            after_round()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        strategy = FedAvg(
            fraction_train=task.participants / task.clients,
            fraction_evaluate=0.0,
            min_train_nodes=task.participants,
            min_available_nodes=task.clients,
        )
        first = ArrayRecord(model.state_dict())
        result = strategy.start(grid, first, num_rounds=rounds, evaluate_fn=clock)
        model.load_state_dict(result.arrays.to_torch_state_dict())

    run_simulation(
        server,
        client,
        num_supernodes=task.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": WORKERS, "log_to_driver": False},
        },
    )
    return model
