# %% [markdown]
# # Who gains from pre-trained adapters
#
# A small transformer predicts the next character of a text. Clients fine-tune adapters (LoRA) of
# it. Each client is one speaker of Shakespeare's plays. Which adapters should they begin with, and
# does every speaker gain?
#
# The functions below are those of
# [examples/text/speakers.py](../../examples/text/speakers.py), which also trains the model and
# saves it: run `python ../text/speakers.py TEXT.txt` in the notebook's folder first, and set the
# variable `TEXT` to the path of the text.

# %%
# %matplotlib inline
import os
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from transformers import AutoModelForCausalLM

import coprefl_flwr as cp

sys.path.append("../text")
import speakers

file = Path(os.environ.get("TEXT", "shakespeare.txt"))
texts, characters = speakers.read(file)
third = len(texts) // 3
print(texts[third][:200])

# %% [markdown]
# The model has read a third of the speakers, in only 400 steps. 20 others are the clients of the
# pre-training. Each task has ten new speakers.

# %%
asked, new = texts[third : third + 20], texts[third + 20 :]
clients = cp.partition(speakers.samples(asked, characters), scheme="natural")
whole_tasks = speakers.samples(new[: len(new) // 10 * 10], characters)
tasks = cp.tasks(whole_tasks, scheme="natural", clients=10)
print(clients, tasks, sep="\n")

# %%
model = AutoModelForCausalLM.from_pretrained("speakers-model-400")
model = speakers.with_adapters(model)
model.print_trainable_parameters()

# %% [markdown]
# A new adapter changes nothing, because its B is 0. FedAvg and CoPreFL train adapters across
# clients:

# %%
how = {"loss": "next-token", "optimiser": "adam", "learning_rate": 3e-3}
how |= {"batch_size": 16, "quiet": True}
starts = {"new adapters": model}
for name, method in {
    "FedAvg's": cp.FedAvg(participants=10),
    "CoPreFL's": cp.CoPreFL(participants=10),
}.items():
    starts[name] = cp.pretrain(method, model, clients, rounds=15, **how)

# %%
result = cp.evaluate_starts(
    starts,
    tasks,
    rounds=3,
    client_metrics=speakers.percent_correct,
    head="keep",
    evaluate_every=0,
    **how,
)
metric = "metric:percent_correct"
columns = [metric, f"{metric}:worst-10%", f"{metric}:variance"]
result.summary(columns)[columns].round(2)

# %% [markdown]
# The figure shows the gain of each of the 50 speakers over new adapters, in percentage points. The
# speakers are in the order of their gain from CoPreFL's adapters.

# %%
of_speakers = result.rows.pivot_table(metric, ["task", "client"], "start")
gains = of_speakers.sub(of_speakers["new adapters"], axis=0)
gains = gains.sort_values("CoPreFL's", ignore_index=True)
figure, place = plt.subplots(figsize=(8, 3), layout="constrained")
for name, colour in {"FedAvg's": "#0072B2", "CoPreFL's": "#D55E00"}.items():
    place.plot(gains[name], "o", color=colour, markersize=4, label=name)
place.axhline(0, color="#A3A3A3", linewidth=1)
place.set_xlabel("speaker")
place.set_ylabel("gain in points")
_ = place.legend()

# %%
for name in ("FedAvg's", "CoPreFL's"):
    gain = gains[name]
    print(f"{name}: {(gain > 0).sum()} gain, {(gain < 0).sum()} lose")
