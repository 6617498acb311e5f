r"""Adapters of a small transformer as starts, for speakers that it has not read.

python examples/text/speakers.py TEXT.txt [STEPS]

The text has several speakers, as Shakespeare's plays do: blocks between empty lines, whose first
line is `NAME:`. A transformer of two layers predicts the next character. First it is trained as a
whole on a third of the speakers for STEPS steps (400 if it is not given), and saved: it takes the
place of a public model. 20 other speakers are the clients of a pre-training. The speakers of the
tasks are in neither part, and each is a client. Clients train and send either adapters (LoRA) of
the model, or the whole model.
"""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import peft
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import coprefl_flwr as cp
from coprefl_flwr.data import TensorDataset, make_dataset

WINDOW, FEWEST = 64, 1500
"""Characters of a sample; fewest characters of a speaker (others are left out)."""

CLIENTS, PARTICIPANTS, OF_TASK = 20, 10, 10
"""Clients of the pre-training, those that take part in a round, and the clients of a task."""

RATES = {"adapters": 3e-3, "whole model": 1e-3}
"""What clients train, and their learning rate."""

HOW = {"loss": "next-token", "quiet": True}


def main(
    file: Path, folder: Path, steps: int = 400, rounds: int = 15, task_rounds: int = 3
) -> pd.DataFrame:
    """Train the model unless its folder exists, pre-train what is sent, and compare the starts.

    Returns a row per start: the mean over the clients of the tasks, that over the worst tenth, and
    the kB that a client sends in a round.
    """
    texts, characters = read(file)
    third = len(texts) // 3
    new = texts[third + CLIENTS :]
    if not folder.exists():
        trained(len(characters), samples(texts[:third], characters), steps).save_pretrained(folder)
    clients = cp.partition(samples(texts[third:][:CLIENTS], characters), scheme="natural")
    of_tasks = samples(new[: len(new) // OF_TASK * OF_TASK], characters)
    tasks = cp.tasks(of_tasks, scheme="natural", clients=OF_TASK)
    tables = {}
    for kind, rate in RATES.items():
        model = AutoModelForCausalLM.from_pretrained(folder)
        starts = {"as given": with_adapters(model) if kind == "adapters" else model}
        how = {"optimiser": "adam", "learning_rate": rate, "batch_size": 16, **HOW}
        sent = {}
        for method in ("fedavg", "coprefl"):
            starts[method], history = cp.pretrain(
                *(method, starts["as given"], clients, rounds),
                **{"participants": PARTICIPANTS, "history": True, **how},
            )
            sent[method] = history["client-bytes-up"].mean() / PARTICIPANTS
        own = {"client_metrics": percent_correct, "head": "keep", "evaluate_every": 0}
        result = cp.evaluate_starts(starts, tasks, task_rounds, **own, **how)
        tables[kind] = table(result, sent)
    return pd.concat(tables, names=["trained"])


def table(result: cp.StartsResult, sent: dict[str, float]) -> pd.DataFrame:
    """Return the table of one kind; `sent` are the bytes of a client in the pre-training."""
    metric = f"metric:{percent_correct.__name__}"
    summary = result.summary([metric, f"{metric}:worst-10%"])
    of_tasks = result.rounds.groupby("start")["client-bytes-up"].mean() / OF_TASK
    columns = {
        "correct %": summary[metric],
        "worst tenth %": summary[f"{metric}:worst-10%"],
        "kB, pre-training": pd.Series(sent) / 1000,
        "kB, task": of_tasks / 1000,
    }
    return pd.DataFrame(columns, index=summary.index)


def read(file: Path) -> tuple[list[str], str]:
    """Return the texts of the speakers in random order, and the alphabet."""
    said: dict[str, list[str]] = {}
    whole = file.read_text(encoding="utf-8")
    for block in re.split(r"\n\s*\n", whole.strip()):
        name, _, speech = block.partition("\n")
        said.setdefault(name, []).append(speech)
    texts = [text for text in map("\n".join, said.values()) if len(text) >= FEWEST]
    order = np.random.default_rng(0).permutation(len(texts))
    return [texts[number] for number in order], "".join(sorted(set(whole)))


def samples(texts: list[str], characters: str) -> TensorDataset:
    """Return windows of the texts: token ids (n, WINDOW), which are also the targets.

    A group is a speaker. A domain has as many speakers as a task has clients.
    """
    ids = [torch.tensor([characters.index(one) for one in text]) for text in texts]
    windows = [own[: len(own) // WINDOW * WINDOW].view(-1, WINDOW) for own in ids]
    speakers = np.repeat(np.arange(len(texts)), [len(own) for own in windows])
    inputs = torch.cat(windows)
    targets = inputs.numpy().copy()
    targets[:, 0] = -100  # Nothing comes before it.
    return make_dataset("texts", inputs, targets, groups=speakers, domains=speakers // OF_TASK)


def percent_correct(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Return how many of the next characters are those that the model finds likeliest."""
    return 100 * float((outputs[:, :-1].argmax(dim=-1) == targets[:, 1:]).float().mean())


def trained(tokens: int, known: TensorDataset, steps: int) -> Any:
    """Return a transformer of about 100,000 weights, trained on all samples together."""
    torch.manual_seed(0)
    widths = {"hidden_size": 64, "intermediate_size": 160, "max_position_embeddings": WINDOW}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "use_cache": False}
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = LlamaConfig(vocab_size=tokens, **widths, **layers, **ends)
    return cp.pretrain(
        *("centralised", AutoModelForCausalLM.from_config(config)),
        *(cp.partition(known, scheme="natural"), 1),
        **{"optimiser": "adamw", "schedule": "cosine:over=steps,warm-up=100", "batch_size": 32},
        **{"learning_rate": 3e-3, "local_steps": steps, **HOW},
    )


def with_adapters(model: Any) -> Any:
    """Return the model, frozen, with adapters at its layers; B is 0, so they change nothing yet."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
    return peft.get_peft_model(model, config)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    steps = int(sys.argv[2]) if len(sys.argv) == 3 else 400
    result = main(Path(sys.argv[1]), Path(f"speakers-model-{steps}"), steps)
    print(result.to_string(float_format="{:.1f}".format, na_rep=""))
