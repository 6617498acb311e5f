"""Models of transformers, made from a config, in studies in Python."""

import re

import numpy as np
import pytest
import torch

import coprefl_flwr as cp
from coprefl_flwr.data import Samples, TensorDataset
from coprefl_flwr.models import model_arrays, outputs_of
from coprefl_flwr.models.heads import last_linear
from coprefl_flwr.object_code import network_hash
from coprefl_flwr.studies.architecture import with_new_last_layer
from tests.common.federation import CPU
from tests.common.simulation import ROOT

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")

TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
TEXT = {"vocab_size": 30, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"vocab_size": 30, "n_embd": 8, "n_layer": 1, "n_head": 2, "pad_token_id": 0}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
GPT2 |= {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
VIT = {"image_size": 8, "patch_size": 4, "num_channels": 1}
SMALL = {"rounds": 1, "local_steps": 1, "quiet": True}


def made(kind, config, **more):
    """Return a model by the kind of its task, always with the same weights."""
    torch.manual_seed(0)
    factory = getattr(transformers, f"AutoModelFor{kind}")
    return factory.from_config(getattr(transformers, f"{config}Config")(**more)).eval()


def tokens(labels, n=48):
    """Return a dataset of sentences of up to 6 tokens, of four people; `labels` makes labels."""
    rng = np.random.default_rng(0)
    mask = (np.arange(6) < rng.integers(3, 7, (n, 1))).astype(int)
    ids = rng.integers(3, 30, (n, 6)) * mask
    columns = {"input_ids": ids, "attention_mask": mask, "labels": labels(ids)}
    columns = {name: values.tolist() for name, values in columns.items()}
    return datasets.Dataset.from_dict({**columns, "person": [row % 4 for row in range(n)]})


def test_the_program_of_the_page_runs(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "how-to" / "transformers.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", page, re.S)[1], {})
    assert "CoPreFL" in capsys.readouterr().out
    again = transformers.AutoModelForSequenceClassification.from_pretrained("start")
    assert again.config.num_labels == 3


HEADS = [
    ("SequenceClassification", "Bert", TINY | TEXT, "classifier"),
    ("SequenceClassification", "Roberta", TINY | TEXT, "classifier.out_proj"),
    ("SequenceClassification", "GPT2", GPT2, "score"),
    ("TokenClassification", "Bert", TINY | TEXT, "classifier"),
    ("ImageClassification", "ViT", TINY | VIT, "classifier"),
]


@pytest.mark.parametrize(("kind", "config", "more", "layer"), HEADS)
def test_the_classifier_is_found_and_replaced(kind, config, more, layer):
    model, targets = made(kind, config, **more, num_labels=5), None
    inputs = {"input_ids": torch.randint(3, 30, (4, 6))}
    if config == "ViT":
        inputs = {"pixel_values": torch.randn(4, 1, 8, 8)}
    if kind.startswith("Token"):
        targets = torch.zeros(4, 6, dtype=torch.int64)
    labels, classes = np.array([0, 1, 2, 0]), ("",) * 5 if kind.startswith("Token") else ("",) * 3
    dataset = TensorDataset(inputs, labels=labels, classes=classes, targets=targets)
    samples = Samples(dataset, np.arange(4), labels)
    assert last_linear(model, inputs) == layer
    changed = with_new_last_layer("start", model, samples)(7)
    assert outputs_of(changed, inputs).shape[-1] == 7
    assert changed.get_submodule(layer).in_features == model.get_submodule(layer).in_features


def test_model_without_a_classifier_is_refused():
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.BertConfig(**TINY, **TEXT))
    clients = cp.partition(tokens(lambda ids: ids[:, 0] % 3), 2, "iid", columns=["input_ids"])
    with pytest.raises(cp.SettingsError, match=r"model gives BaseModelOutput\w+ for a batch of 2"):
        cp.pretrain("fedavg", model, clients, **SMALL)


def test_computed_head_does_not_fit_a_classifier_of_each_token():
    model = made("SequenceClassification", "GPT2", **GPT2, num_labels=3)
    tasks = cp.tasks(tokens(lambda ids: ids[:, 0] % 3).remove_columns("person"), 1, 3, 2, "iid")
    with pytest.raises(cp.SettingsError, match=r"head: score, .* set head = fresh or keep"):
        cp.evaluate_starts({"random": model}, tasks, 1, head="ncm", quiet=True)


def share_of_correct(outputs, targets):
    counted = targets != -100
    return float((outputs.argmax(dim=-1) == targets)[counted].float().mean())


def test_targets_of_minus_100_do_not_count():
    """The trained weights and all numbers do not depend on what is at such places."""
    model, ends = made("TokenClassification", "Bert", **TINY, **TEXT, num_labels=5), []
    for padding in (0, 29):
        data = tokens(lambda ids: np.where(ids > 0, ids % 5, -100))
        rows = [[one or padding for one in row] for row in data["input_ids"]]
        data = data.remove_columns("input_ids").add_column("input_ids", rows)
        start = cp.pretrain("coprefl", model, cp.partition(data, groups="person"), **SMALL)
        tasks = cp.tasks(data, 1, clients=2, scheme="iid", groups="person", min_samples=4)
        how = {"rounds": 1, "client_metrics": share_of_correct, "quiet": True}
        result = cp.evaluate_starts({"coprefl": start}, tasks, **how)
        ends.append([*model_arrays(start).values(), result.rows["metric:share_of_correct"]])
    for one, other in zip(*ends, strict=True):
        # The token that pads has its own vector, which gets no gradient.
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(ends[0][1], next(iter(model_arrays(model).values())))


@pytest.mark.parametrize("loss", ["cross-entropy", "next-token"])
def test_causal_language_models_predict_the_next_token(loss):
    model = made("CausalLM", "GPT2", **GPT2)
    data = tokens(lambda ids: np.where(ids > 0, ids, -100))
    clients = cp.partition(data, groups="person")
    if loss == "cross-entropy":
        with pytest.raises(cp.SettingsError, match="would only copy; set loss = next-token"):
            cp.pretrain("fedavg", model, clients, **SMALL)
        return
    how = {"local_steps": 1, "batch_size": 100, "learning_rate": 0.5, "quiet": True}
    start = cp.pretrain("fedavg", model, clients, 1, loss=loss, **how)
    # transformers computes the same step by its own loss; dropout draws other numbers.
    # transformers computes the same step with its own loss.
    trained, states = made("CausalLM", "GPT2", **GPT2), []
    for person in range(4):
        own = data.filter(lambda item, p=person: item["person"] == p).remove_columns("person")
        batch = {name: torch.tensor(own[name][:]) for name in own.column_names}
        trained.load_state_dict(model.state_dict())
        trained.eval().zero_grad()
        trained(**batch).loss.backward()
        states.append({n: p - 0.5 * p.grad for n, p in trained.named_parameters()})
    for name, found in start.named_parameters():
        wanted = torch.stack([state[name] for state in states]).mean(dim=0)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_hash_of_a_model_is_the_same_in_every_process():
    """`generation_config` holds a hash of texts, which Python draws for each process."""
    model = made("CausalLM", "GPT2", **GPT2)
    before = network_hash(model)
    model.generation_config._original_object_hash = 1
    assert network_hash(model) == before
    model.config.n_inner = 5
    assert network_hash(model) != before


def test_whole_sets_are_passed_in_batches_of_few_tokens():
    ids, labels = torch.zeros(60, 512, dtype=torch.int64), np.zeros(60, np.int64)
    for inputs, size in (({"input_ids": ids}, 16), (ids, 60)):
        data = TensorDataset(inputs, labels=labels, classes=("a",))
        first, _ = next(Samples(data, np.arange(60), labels).batches(256, CPU))
        assert len(first["input_ids"] if size == 16 else first) == size
