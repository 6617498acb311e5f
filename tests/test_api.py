"""The examples in docstrings, and the results of a pre-training: history, curve, checkpoint."""

import doctest
import threading

import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.checkpoint import History
from coprefl_flwr.models import load_saved_model, model_arrays
from tests.common.checks import refusal
from tests.common.data import images
from tests.common.networks import Perceptron

SMALL = {"local_steps": 2, "batch_size": 8, "learning_rate": 0.1, "quiet": True}


@pytest.fixture
def clients():
    return cp.partition(images(), clients=4, scheme="iid")


@pytest.fixture
def tasks():
    return cp.tasks(images(), number=1, classes=3, clients=2, scheme="iid")


def bytes_of(model):
    return {name: array.tobytes() for name, array in model_arrays(model).items()}


def losses_of(history):
    return dict(zip(history["round"], history["loss"], strict=True))


@pytest.mark.parametrize(
    "function",
    [cp.partition, cp.tasks, cp.pretrain, cp.evaluate_starts, cp.plot_history],
    ids=lambda function: function.__name__,
)
def test_example_of_a_docstring_runs(function):
    [example] = doctest.DocTestFinder(recurse=False).find(function, globs={})
    results = doctest.DocTestRunner().run(example)
    assert results.attempted > 1
    assert results.failed == 0


def test_history_has_every_round(clients):
    method = cp.CoPreFL(gamma=0.5, participants=2)
    model, history = cp.pretrain(method, Perceptron(), clients, 3, history=True, **SMALL)
    assert history["round"].tolist() == [1, 2, 3]
    assert (history[["loss", "models-down"]] > 0).all(axis=None)
    assert bytes_of(model) == bytes_of(cp.pretrain(method, Perceptron(), clients, 3, **SMALL))


def test_history_is_drawn_as_a_line_for_each_run(clients, tmp_path):
    (_, plain), (_, near) = (
        cp.pretrain(method, Perceptron(), clients, rounds=2, history=True, **SMALL)
        for method in (cp.FedAvg(), cp.FedProx(mu=1.0))
    )
    cp.plot_history(plain, tmp_path / "one.png")
    drawn = cp.plot_history({"plain": plain, "near": near}, tmp_path / "two.pdf")
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("one.png", "two.pdf"))
    lines = [list(line.get_ydata()) for line in drawn.axes[0].lines]
    assert lines == [history["loss"].tolist() for history in (plain, near)]
    for wrong, problem in (
        (History(), "the figure has no data"),
        (cp.FedAvg(), "history: got an object of type FedAvg"),
    ):
        with pytest.raises(SettingsError, match=problem):
            cp.plot_history(wrong)


@pytest.mark.parametrize(
    "method_of",
    [
        lambda _: cp.SCAFFOLD(participants=2),  # Its clients keep a state.
        lambda rounds: cp.Schedule(
            [(cp.Cyclic(participants=2), 2), (cp.CoPreFL(participants=2), rounds - 2)]
        ),
    ],
    ids=["scaffold", "schedule"],
)
def test_finished_run_continues_with_more_rounds(method_of, clients, tmp_path):
    options = {"checkpoint": tmp_path / "run", "history": True, **SMALL}
    expected, all_eight = cp.pretrain(
        method_of(8), Perceptron(), clients, rounds=8, history=True, **SMALL
    )
    _, first_five = cp.pretrain(method_of(5), Perceptron(), clients, rounds=5, **options)
    model, again = cp.pretrain(method_of(8), Perceptron(), clients, rounds=8, **options)
    assert bytes_of(model) == bytes_of(expected)
    assert losses_of(again) == losses_of(all_eight)
    assert losses_of(first_five) == dict(list(losses_of(all_eight).items())[:5])
    with pytest.raises(SettingsError, match="already has 8 rounds"):
        cp.pretrain(method_of(4), Perceptron(), clients, rounds=4, **options)


def test_checkpoint_of_another_method_is_moved_aside(clients, tmp_path, caplog):
    options = {"checkpoint": tmp_path / "run", **SMALL}
    text = "cyclic:rounds=2,participants=2+moon:participants=2"
    whole = cp.pretrain(text, Perceptron(), clients, rounds=6, **SMALL)
    cp.pretrain(text, Perceptron(), clients, rounds=2, **options)
    model = cp.pretrain(text, Perceptron(), clients, rounds=6, **options)
    assert bytes_of(model) == bytes_of(whole)
    other = text.replace("rounds=2", "rounds=3")
    cp.pretrain(other, Perceptron(), clients, rounds=6, **{**options, "quiet": False})
    aside = tmp_path / "run" / "earlier-1"
    line = f"is run again (changed: method); the earlier results are moved to {aside}"
    assert line in caplog.text
    arrays, _ = load_saved_model(aside)
    assert all((arrays[name] == array).all() for name, array in model_arrays(whole).items())


def test_finished_run_returns_its_history_and_its_model(clients, tasks, tmp_path):
    options = {"rounds": 2, "checkpoint": tmp_path / "run", "history": True, **SMALL}
    method = cp.FedAvg(participants=2)
    model, history = cp.pretrain(method, Perceptron(), clients, **options)
    same, again = cp.pretrain(method, Perceptron(), clients, **options)
    assert bytes_of(same) == bytes_of(model)
    pd.testing.assert_frame_equal(again, history)
    starts = {"returned": model, "stored": tmp_path / "run"}
    rows = cp.evaluate_starts(starts, tasks, rounds=1, **SMALL).rows
    losses, other = (rows[rows["start"] == name]["loss"].tolist() for name in starts)
    assert losses == other


def test_model_has_the_classes_of_all_clients(tmp_path):
    """The model's file names classes that the first client's dataset does not know."""
    inputs, labels = torch.rand(24, 1, 6, 6), torch.arange(24) % 3
    of_each = [labels < 2, labels > 0]
    datasets = [TensorDataset(inputs[some], labels[some]) for some in of_each]
    cp.pretrain(cp.FedAvg(), Perceptron(), datasets, rounds=1, checkpoint=tmp_path, **SMALL)
    assert load_saved_model(tmp_path)[1]["classes"] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("strategy", "other"),
    [
        (lambda _: cp.FedAvg(), lambda _: cp.FedAvg(fraction_train=0.5)),
        (lambda of: refined(of[0], steps=1), lambda of: refined(of[0], steps=9)),
        (lambda of: refined(of[0]), lambda of: refined(of[1])),
        (lambda of: refined(of[0]), lambda of: refined(of[0], loss=doubled)),
    ],
    ids=["who takes part", "steps of a refinement", "data at the server", "loss at the server"],
)
def test_checkpoint_of_a_strategy_with_other_options_is_not_continued(
    strategy, other, clients, tmp_path
):
    """Earlier, the finished run of another strategy was returned."""
    options = {"rounds": 1, "checkpoint": tmp_path / "run", **SMALL}
    cp.pretrain(strategy(clients), Perceptron(), clients, **options)
    model = cp.pretrain(other(clients), Perceptron(), clients, **options)
    expected = cp.pretrain(other(clients), Perceptron(), clients, rounds=1, **SMALL)
    assert bytes_of(model) == bytes_of(expected)
    assert (tmp_path / "run" / "earlier-1" / "model.safetensors").exists()


def refined(samples, steps=5, **of_server):
    server = cp.ServerData(Perceptron(), samples, **of_server)
    return cp.ServerRefined(cp.FedAvg(), server, steps=steps)


def doubled(outputs, targets):
    return 2 * cross_entropy(outputs, targets)


def test_participants_are_an_option_of_a_text(clients):
    """Earlier, `participants` was an unknown option, although a text could contain it."""
    by_option = cp.pretrain("fedavg", Perceptron(), clients, rounds=1, participants=2, **SMALL)
    by_text = cp.pretrain("fedavg:participants=2", Perceptron(), clients, rounds=1, **SMALL)
    assert bytes_of(by_option) == bytes_of(by_text)
    with pytest.raises(SettingsError, match="unknown option 'participants'"):
        cp.pretrain(cp.FedAvg(), Perceptron(), clients, rounds=1, participants=2, **SMALL)


def test_options_head_and_seed_change_results_of_tasks():
    def losses(seed=0, **options):
        tasks = cp.tasks(images(), number=1, classes=8, clients=2, scheme="iid")
        assert len(tasks[0].clients) == 2  # The clients are drawn now, with seed 0.
        tasks.seed = seed
        result = cp.evaluate_starts({"a": Perceptron()}, tasks, rounds=1, **SMALL, **options)
        return tuple(result.rows["loss"])

    keep = {"head": "keep"}
    found = {losses(), losses(momentum=0.9), losses(**keep), losses(**keep, seed=1)}
    assert len(found) == 4


def test_results_of_a_start_do_not_depend_on_the_other_starts(tasks, tmp_path):
    """The first network gives the architecture of all starts, but is not part of their results."""
    start, other = Perceptron(), Perceptron(seed=1)
    for starts in ({"one": start, "other": other}, {"other": other, "one": start}):
        cp.evaluate_starts(starts, tasks, rounds=1, checkpoint=tmp_path, **SMALL)
    assert not list(tmp_path.rglob("earlier-*"))


@pytest.mark.parametrize(
    ("function", "wrong", "problem"),
    [
        (cp.partition, {"server_reserve": 0.95}, "server_reserve = 0.95: .*between 0 and 0.9"),
        (cp.tasks, {"number": -1}, "number = -1: .*at least 0"),
        (cp.tasks, {"train_fraction": 1.0}, "train_fraction = 1.0: .*at most 0.99"),
    ],
)
def test_argument_out_of_range_is_refused_before_the_data_is_read(function, wrong, problem):
    class Unread:
        def __getattr__(self, name):
            pytest.fail("the dataset was read")

    with pytest.raises(SettingsError, match=problem):
        function(Unread(), **wrong)


def test_argument_of_evaluate_starts_out_of_range_is_refused(tasks):
    for wrong, problem in (
        ({"rounds": "5"}, "rounds = '5': must be a whole number"),
        ({"rounds": 0}, "rounds = 0: needs .*ncm or ridge"),
        ({"evaluate_every": -1}, "evaluate_every = -1"),
        ({"diagnostics": 1}, "diagnostics = 1: must be true or false"),
        ({"workers": 0}, "workers = 0"),
    ):
        with pytest.raises(SettingsError, match=problem):
            cp.evaluate_starts({"a": Perceptron()}, tasks, **wrong)


WRAPPERS = {
    "compiled": lambda network: torch.compile(network, backend="eager"),
    "compiled DataParallel": lambda network: torch.compile(nn.DataParallel(network)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_wrapped_network_is_trained_as_the_network_inside(wrap, clients, tasks, tmp_path):
    """Before, its result had "no nn.Linear", and its file had names that no network has."""
    plain = cp.pretrain("fedavg", Perceptron(), clients, 1, **SMALL)
    start = cp.pretrain("fedavg", wrap(Perceptron()), clients, 1, checkpoint=tmp_path, **SMALL)
    assert type(start) is type(wrap(Perceptron()))
    saved, wrapped = tmp_path / "model.safetensors", tmp_path / "wrapped.pt"
    torch.save(start.state_dict(), wrapped)
    starts = {"plain": plain, "wrapped": start, "its folder": tmp_path, "its file": wrapped}
    assert bytes_of(plain) == {name: a.tobytes() for name, a in load_file(saved).items()}
    for more in ({}, {"network": lambda classes: wrap(Perceptron(classes=classes))}):
        rows = cp.evaluate_starts(starts, tasks, rounds=1, **more, **SMALL).rows
        losses = rows.groupby("start")["loss"].sum()
        assert len(losses) == 4
        assert losses.nunique() == 1


class Counting(nn.Linear):
    """A layer that cannot be copied."""

    def __init__(self):
        super().__init__(36, 8)
        self.lock = threading.Lock()


def test_network_that_cannot_be_copied_is_refused_before_any_work(clients, tasks):
    network = nn.Sequential(nn.Flatten(), Counting())
    line = "(define __deepcopy__): TypeError: cannot pickle '_thread.lock' object"
    assert line in refusal(cp.pretrain, "fedavg", network, clients, **SMALL)
    assert line in refusal(cp.evaluate_starts, {"a": network}, tasks, **SMALL)
    assert line in refusal(cp.evaluate_starts, {"a": "x"}, tasks, network=lambda _: network)


def test_hooks_see_every_round_in_order(clients):
    seen = []
    hooks = [lambda report: seen.append(report.round), lambda report: seen.append(report.metrics)]
    start = cp.pretrain(cp.FedAvg(participants=2), Perceptron(), clients, 2, hooks=hooks, **SMALL)
    assert seen[::2] == [1, 2]
    assert all("loss" in metrics for metrics in seen[1::2])
    assert bytes_of(start) == bytes_of(
        cp.pretrain(cp.FedAvg(participants=2), Perceptron(), clients, 2, **SMALL)
    )


def test_clients_are_the_groups_if_groups_are_given():
    data, groups = images(), [f"site {number % 3}" for number in range(len(images()))]
    assert [len(samples) for samples in cp.partition(data, groups=groups)] == [
        groups.count(f"site {number}") for number in range(3)
    ]
    with pytest.raises(SettingsError, match="in Python groups= names them"):
        cp.partition(data, scheme="natural")


def test_seed_of_evaluate_starts_draws_heads_and_training_alone():
    """Not set, it is the seed of the tasks, with the same numbers."""
    tasks = cp.tasks(images(), number=1, classes=4, clients=2, scheme="iid", seed=3)

    def result(**options):
        return cp.evaluate_starts({"a": Perceptron()}, tasks, rounds=1, **SMALL, **options)

    plain, same, other = result(), result(seed=3), result(seed=4)
    assert plain.rows.equals(same.rows)
    assert "costs" not in str(plain)  # Those of given starts are not known.
    assert plain.rows["n"].equals(other.rows["n"])
    assert not plain.rows["loss"].equals(other.rows["loss"])
    assert (plain.about["seed"], "data-seed" in plain.about) == (3, False)
    assert (other.about["seed"], other.about["data-seed"]) == (4, 3)
    with pytest.raises(SettingsError, match="seed = -1: must be at least 0"):
        result(seed=-1)
