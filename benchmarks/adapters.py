"""Rounds of FedAvg over adapters (LoRA) next to a plain loop with peft.

`python -m benchmarks.adapters` runs both in turns, each in a separate process with one thread, and
prints the CPU seconds of a round, the memory, and their ratios. CPU seconds are the work, on a busy
machine too. 20 clients train the adapters of a small transformer. A client has as many samples as a
batch, so that both programs train on the same batches.
"""

import argparse
import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.residents import Pause, Resident
from benchmarks.workloads import WORKLOADS

CLIENTS, STEPS, BATCH, LENGTH, TOKENS = 20, 5, 16, 64, 65
RATE, GOAL, ENDLESS = 1e-3, 1.1, 1_000_000


def network() -> Any:
    """Return a transformer of 103,000 weights with 9,472 of adapters, the same in every process."""
    import peft
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    widths: Any = {"hidden_size": 64, "intermediate_size": 160, "max_position_embeddings": LENGTH}
    layers: Any = {"num_hidden_layers": 2, "num_attention_heads": 4, "use_cache": False}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=TOKENS, **widths, **layers))
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear"))


def texts() -> Any:
    """Return random token ids, int64 (CLIENTS, BATCH, LENGTH)."""
    import torch

    return torch.randint(
        TOKENS, (CLIENTS, BATCH, LENGTH), generator=torch.Generator().manual_seed(0)
    )


def plain(pause: Pause) -> None:
    """Run the plain loop until `pause` raises; it gets the adapters, {name: tensor}."""
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks.bare import settle

    settle()
    model, data = network(), texts()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weights = {name: p.detach().clone() for name, p in trained.items()}
    while True:
        sums = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        for ids in data:
            with torch.no_grad():
                for name, tensor in weights.items():
                    trained[name].copy_(tensor)
            model.train()
            optimiser = torch.optim.Adam(trained.values(), lr=RATE)
            for _ in range(STEPS):
                optimiser.zero_grad()
                logits = model(ids).logits[:, :-1].flatten(0, 1)
                torch.autograd.backward(cross_entropy(logits, ids[:, 1:].flatten()))
                optimiser.step()
            for name, tensor in trained.items():
                sums[name].add_(tensor.detach())
        weights = {name: total / CLIENTS for name, total in sums.items()}
        pause(weights)


def packaged(pause: Pause) -> None:
    """Run `cp.pretrain` until `pause` raises; it gets the adapters, {name: array}."""
    import numpy as np
    import torch

    import coprefl_flwr as cp
    from coprefl_flwr.data import make_dataset

    torch.set_num_threads(1)
    ids, groups = texts().flatten(0, 1), np.arange(CLIENTS).repeat(BATCH)
    data = make_dataset("texts", ids, ids.numpy(), groups=groups)
    options: Any = {"participants": CLIENTS, "loss": "next-token", "quiet": True}
    options |= {"optimiser": "adam", "learning_rate": RATE}
    options |= {"local_steps": STEPS, "batch_size": BATCH}
    hooks = [lambda report: pause(report.arrays)]
    clients = cp.partition(data, scheme="natural")
    cp.pretrain("fedavg", network(), clients, ENDLESS, hooks=hooks, **options)


PROGRAMS = {"plain loop with peft": plain, "cp.pretrain": packaged}


def resident(_workload: Any, program: str, _workers: int, _device: str, pause: Pause) -> None:
    """Run a program in a process of `Resident`."""
    PROGRAMS[program](pause)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Measure, print a table, and return the ratios of CPU seconds and memory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds (default 20)")
    rounds = parser.parse_args(argv).rounds
    os.environ["OMP_NUM_THREADS"] = "1"
    residents = {name: Resident(resident, WORKLOADS["tiny"], name, 1, "cpu") for name in PROGRAMS}
    seconds: dict[str, list[float]] = {name: [] for name in residents}
    for one in residents.values():
        one.begin()
    for _ in range(rounds):
        for name, one in residents.items():
            seconds[name].append(one.round()[1])
    for name, one in residents.items():
        one.close()
        print(
            f"{name:22} {median(seconds[name]):7.3f} CPU s/round  {one.peak.bytes / 2**20:6.0f} MiB"
        )
    base, ours = residents
    ratios = {
        "CPU": median(seconds[ours]) / median(seconds[base]),
        "memory": residents[ours].peak.bytes / residents[base].peak.bytes,
    }
    print(", ".join(f"{what} {ratio:.3f}" for what, ratio in ratios.items()), f"(goal {GOAL})")
    return ratios


if __name__ == "__main__":
    main()
