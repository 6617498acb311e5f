"""Overlays: protocols and `small`, the effective recipe, equal budgets and losses."""

import json
import math

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from coprefl_flwr.cli import main
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes.collect import collect
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.overlays import merge, with_whole_paths
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import check_runs, table_rows
from coprefl_flwr.studies.store import RESULT, Store
from tests.common.recipes import tiny_recipe, write_recipe

METHODS = [
    "random",
    "fedavg",
    "coprefl",
    {"strong": {"method": "coprefl", "gamma": 1.0, "meta-learning-rate": 0.05}},
    "cyclic:rounds=1+fedmeta:inner-learning-rate=0.01",
    "fedavg-refined",
]


def protocols(**of):
    """Return protocols, each with a reason."""
    return {
        name.replace("_", "-"): {"because": "a reason", **overlay} for name, overlay in of.items()
    }


@pytest.fixture
def recipe_of(tiny_images, tmp_path):
    """Return a function that makes a tiny recipe under a protocol."""

    def read(of, name="", settings=None, **keys):
        keys = {"methods": METHODS, "reference": "fedavg", **keys}
        content = tiny_recipe(tiny_images, settings, protocols=of, **keys)
        return read_recipe(write_recipe(tmp_path / "recipe.yaml", content), protocol=name)

    return read


def starts(recipe):
    return {row.label: [str(trial.method) for trial in row.trials()] for row in recipe.rows}


# ---- what they change ----------------------------------------------------------------------------


def test_overlay_is_merged_key_by_key():
    tree = {"a": {"b": 1, "c": [1, 2]}, "d": 5}
    overlay = {"a": {"b": None, "c": [3], "e": {"f": None, "g": 0}}, "d": None, "h": "i"}
    assert merge(tree, overlay) == {"a": {"c": [3], "e": {"g": 0}}, "h": "i"}
    assert tree == {"a": {"b": 1, "c": [1, 2]}, "d": 5}
    assert merge(tree, {"d": {"x": 1}}) == {**tree, "d": {"x": 1}}


def test_protocol_replaces_keys_of_the_recipe(recipe_of):
    overlay = {
        "settings": {"local-epochs": 2, "local-steps": None, "task-learning-rate": 0.3},
        "methods": {"strong": {"gamma": 0.25, "meta-learning-rate": None}},
        "search": {"meta-learning-rate": [0.5, 0.6]},
        "select": "test",
        "seeds": [3, 4],
    }
    recipe = recipe_of(protocols(all=overlay), "all", methods=["fedavg", METHODS[3]])
    assert recipe.settings["local-epochs"] == (2,)
    assert "local-steps" not in recipe.settings
    assert recipe.settings["task-learning-rate"] == (0.3,)
    assert (recipe.select, recipe.seeds) == ("test", (3, 4))
    assert starts(recipe) == {
        "fedavg": ["fedavg"],
        "strong": [
            "coprefl:gamma=0.25,meta-learning-rate=0.5",
            "coprefl:gamma=0.25,meta-learning-rate=0.6",
        ],
    }
    fewer = recipe_of(protocols(all={"methods": {"random": None, "fedavg": {"mu": None}}}))
    assert list(starts(fewer)) == ["fedavg", "coprefl", "strong", *METHODS[4:]]


def test_effective_recipe_has_its_protocol_applied_once(recipe_of, tmp_path):
    of = protocols(printed={}, ratio={"settings": {"learning-rate": 5.0}})
    for name in ("printed", "ratio"):
        recipe = recipe_of(of, name)
        assert recipe.protocol == recipe.effective["protocol"] == name
        assert list(recipe.effective["protocols"]) == [name]
        path = tmp_path / "effective.yaml"
        path.write_text(recipe.to_yaml())
        for protocol in ("", name):
            again = read_recipe(path, protocol=protocol)
            assert again.to_yaml() == recipe.to_yaml()
            assert (again.settings, starts(again)) == (recipe.settings, starts(recipe))
        with pytest.raises(SettingsError, match="unknown protocol 'another': known are "):
            read_recipe(path, protocol="another")


def test_files_in_options_are_found_from_the_recipes_folder(tmp_path):
    text = "module:Outer:strategy=own.py:Mine"
    whole = f"module:Outer:strategy={tmp_path}/own.py:Mine"
    assert with_whole_paths({"a": [text, 1]}, tmp_path) == {"a": [whole, 1]}


# ---- small ---------------------------------------------------------------------------------------

LARGE = """\
title: Large
settings:
  dataset: CIFAR100
  rounds: 50
  participants: [15, 20, 25]
  partition: [iid, dirichlet]
  tasks: 3
methods:
  - random
  - fedavg
  - long: {method: "cyclic:rounds=20+fedavg:rounds=30"}
  - coprefl: {gamma: [0.0, 0.5, 1.0], learning-rate: [0.1, 0.2]}
search: {learning-rate: [0.1, 0.01], support-fraction: [0.5, 0.6, 0.7]}
seeds: [3, 4, 5]
reference: coprefl
small:
  settings: {dataset: glyphs, data-dir: "", rounds: 6, participants: [3, 4, 5], clients: 20,
             learning-rate: 0.1}
  methods:
    long: {method: "cyclic:rounds=3+fedavg:rounds=4"}
    coprefl: {gamma: [0.0, 0.5], learning-rate: null}
  search: {learning-rate: null}
  seeds: [3]
paper:
  columns: [accuracy]
  tables:
    - {table: 1, where: {participants: 15, partition: iid}, rows: {fedavg: 15.5±1, coprefl: 60}}
"""


@pytest.fixture
def cut(tmp_path):
    """Return a function that makes a recipe at small scale, with some of its keys changed."""

    def read(changes=(), protocol="", **keys):
        content = {
            key: value
            for key, value in {**yaml.safe_load(LARGE), **keys}.items()
            if value is not None
        }
        path = write_recipe(tmp_path / "large.yaml", content)
        return read_recipe(path, changes, "small", protocol)

    return read


def test_small_is_merged_over_the_recipe(cut):
    recipe = cut()
    assert recipe.settings == {
        "dataset": ("glyphs",),
        "rounds": (6,),
        "participants": (3, 4, 5),
        "partition": ("iid", "dirichlet"),
        "tasks": (3,),
        "data-dir": ("",),
        "clients": (20,),
        "learning-rate": (0.1,),
    }
    assert recipe.seeds == (3,)
    methods = starts(recipe)
    assert methods["long"] == ["cyclic:rounds=3+fedavg:rounds=4"]
    assert methods["fedavg"] == ["fedavg"]
    assert methods["coprefl"] == [
        f"coprefl:gamma={gamma},support-fraction={fraction}"
        for gamma in (0.0, 0.5)
        for fraction in (0.5, 0.6, 0.7)
    ]
    # The paper's numbers belong to other settings.
    assert recipe.paper == ()
    assert "paper" not in recipe.effective
    assert "The paper's numbers are left out" in recipe.scale
    assert cut(paper=None).scale == "Cut down (--scale small)."


def test_small_of_a_protocol_is_merged_over_the_protocol(cut):
    of = protocols(
        long={"settings": {"tasks": 7}, "small": {"settings": {"tasks": 2}, "seeds": [9]}},
        plain={"settings": {"rounds": 60}},
    )
    recipe = cut(protocol="long", protocols=of)
    assert (recipe.settings["tasks"], recipe.settings["rounds"]) == ((2,), (6,))
    assert recipe.seeds == (9,)
    assert recipe.effective["protocols"] == {"long": {"because": "a reason"}}
    plain = cut(protocol="plain", protocols=of)
    assert (plain.settings["tasks"], plain.settings["rounds"]) == ((3,), (6,))


# ---- equal step sizes ----------------------------------------------------------------------------


def reported(recipe):
    """Return {name of a row: the `method` settings of its runs}."""
    return {
        f"{row.row.label}:{c.chosen}".rstrip(":"): [
            str(*r.settings.method) for r in row.reported(c)
        ]
        for row in table_rows(recipe)
        for c in row.trials()
    }


def test_equal_step_size_sets_the_nearest_number_of_rounds(recipe_of):
    """FedAvg takes 3 rounds of 2 steps of 0.05, in total 0.3; three clients take part."""
    methods = [
        "random",
        "fedavg",
        {"coprefl": {"gamma": [0.0, 0.5, 1.0], "meta-learning-rate": 0.05}},
        {"slow": {"method": "fedavg", "learning-rate": 0.03}},
        {"after": {"method": "cyclic:rounds=1+fedavg:rounds=9,learning-rate=0.01"}},
        {"momentum": {"method": "fedavgm", "server-momentum": 0.5}},
    ]
    of = protocols(equal={"equal": "step-size"})
    recipe = recipe_of(of, methods=methods, select="all")
    zeta = "meta-learning-rate=0.05"
    assert reported(recipe) == {
        "random": ["random"],
        "fedavg": ["fedavg"],
        "coprefl:gamma=0.0": [f"coprefl:gamma=0.0,{zeta},rounds=3"],
        # 0.1 + 0.05 x 0.5 x 3 = 0.175 a round: 0.35 is nearer than 0.175.
        "coprefl:gamma=0.5": [f"coprefl:gamma=0.5,{zeta},rounds=2"],
        # 0.1 + 0.15: 0.25 is nearer than 0.5.
        "coprefl:gamma=1.0": [f"coprefl:gamma=1.0,{zeta},rounds=1"],
        # 0.06 a round: 5 rounds are 0.3.
        "slow": ["fedavg:learning-rate=0.03,rounds=5"],
        # A chain of three clients already reaches 0.3; the last phase needs at least one round.
        "after": ["cyclic:rounds=1+fedavg:rounds=1,learning-rate=0.01"],
        # Rounds of 0.1, 0.15 and 0.175: 0.25 is nearer to 0.3 than 0.425.
        "momentum": ["fedavgm:server-momentum=0.5,rounds=2"],
    }
    assert recipe.metrics[-3:] == ("rounds", "step-size", "gradients")


def test_equal_step_size_with_the_same_rounds_is_the_same_run(recipe_of):
    recipe = recipe_of(protocols(equal={"equal": "step-size"}), methods=["fedavg", "fedprox"])
    keys = [run.key for row in table_rows(recipe) for run in row.reported(row.trials()[0])]
    config = recipe.combinations()[0]
    assert keys == [Run.of(config, name, 0).key for name in ("fedavg", "fedprox")]


def test_equal_step_size_is_refused_where_no_number_of_rounds_reaches_it(recipe_of):
    of = protocols(equal={"equal": "step-size"})
    message = "fedadam is not known, so no number of rounds reaches the reference's"
    with pytest.raises(SettingsError, match=message):
        check_runs(recipe_of(of, methods=["fedavg", "fedadam"]))
    for name in ("random", "fedadam"):
        recipe = recipe_of(of, methods=["fedavg", name], reference=name)
        with pytest.raises(SettingsError, match=f"the reference, {name}, is (0|nan): name "):
            check_runs(recipe)
    fading = {"fading": {"method": "fedavg", "schedule": "exponential:factor=0.5"}}
    with pytest.raises(SettingsError, match=r"factor=0.5 never reaches the reference's 0.3"):
        check_runs(recipe_of(of, methods=["fedavg", fading]))


# ---- equal losses --------------------------------------------------------------------------------


def loss_of(run, folder):
    """Return the mean cross-entropy over all samples of all clients, in one pass."""
    module = run.main.architecture.make()
    module.load_state_dict(load_file(folder / "model.safetensors"))
    module.eval()
    datasets = [client.train for client in run.main.population.clients]
    batches = [samples.batch(slice(None), torch.device("cpu")) for samples in datasets]
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with torch.no_grad():
        return float(cross_entropy(module(inputs).double(), targets))


@pytest.fixture(scope="module")
def never(tiny_images, tmp_path_factory):
    """A finished recipe of 6 rounds whose losses are checked, but are never low enough to stop."""
    folder = tmp_path_factory.mktemp("never")
    stop = {"metric": "start-loss", "stop-at": 0.0001, "every": 2, "model": "last"}
    protocol = {"settings": {"rounds": 6, "learning-rate": 0.1, "start-loss": True, "keep": stop}}
    content = tiny_recipe(
        tiny_images, {"tasks": 1}, methods=["random", "fedavg", {"meta": {"method": "coprefl"}}],
        reference="fedavg", protocols=protocols(never=protocol),
    )  # fmt: skip
    path = write_recipe(folder / "tiny.yaml", content)
    out = folder / "out"
    assert main(["run", str(path), "--out", str(out)]) == 0
    return path, out


class Finished:
    """A finished recipe: its report, {row: {metric: the value}}, and its runs by row."""

    def __init__(self, out):
        recipe, self.store = read_recipe(out / "recipe.yaml"), Store(out.parent / "models")
        self.report = collect(recipe, self.store, {})
        rows = self.report.comparisons[0].rows
        self.values = {row.label: row.values.iloc[0].to_dict() for row in rows}
        by_row = {row.row.label: row.reported(row.trials()[0]) for row in table_rows(recipe)}
        self.runs = {label: runs[0] for label, runs in by_row.items()}

    def folder(self, label):
        return self.store.folder(self.runs[label].main)

    def losses(self, label):
        """Return {round: the loss that was checked} and the number of rounds."""
        rounds = json.loads((self.folder(label) / RESULT).read_text())["rounds"]
        key = "server-start-loss"
        return {row["round"]: row[key] for row in rounds if key in row}, len(rounds)


def test_checked_loss_is_that_of_all_samples_of_all_clients(never):
    whole = Finished(never[1])
    for label, run in whole.runs.items():
        direct = loss_of(run, whole.folder(label))
        assert whole.values[label]["start-loss"] == pytest.approx(direct, rel=1e-5)
    losses, rounds = whole.losses("fedavg")
    assert (list(losses), rounds) == ([2, 4, 6], 6)
    assert losses[6] == whole.values["fedavg"]["start-loss"]
    # The loss never falls to the limit.
    assert whole.values["fedavg"]["stopped-at"] == math.inf
    assert math.isnan(whole.values["random"]["stopped-at"])
    assert whole.report.notes == ["Protocol never: a reason."]


def test_run_ends_at_the_first_checked_loss_below_the_limit(never, tmp_path):
    path, out = never
    losses, _ = Finished(out).losses("fedavg")
    assert losses[2] > losses[4] > losses[6]
    below = (losses[2] + losses[4]) / 2
    text = path.read_text().replace("stop-at: 0.0001", f"stop-at: {below}")
    (tmp_path / "tiny.yaml").write_text(text)
    assert main(["run", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "out")]) == 0
    stopped = Finished(tmp_path / "out")
    assert stopped.losses("fedavg") == ({2: losses[2], 4: losses[4]}, 4)
    values = stopped.values["fedavg"]
    assert (values["stopped-at"], values["start-loss"]) == (4, losses[4])
    # Four rounds were executed, each with two steps of 0.1.
    assert values["step-size"] == pytest.approx(0.8)
    assert "fedavg" not in " ".join(stopped.report.notes)


# ---- the command ---------------------------------------------------------------------------------


def test_each_protocol_has_a_folder_of_results(tiny_images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of = protocols(printed={}, fast={"settings": {"rounds": 1, "learning-rate": 0.1}})
    content = tiny_recipe(tiny_images, {"tasks": 0}, methods=["fedavg"], reference=None,
                          metrics=["models"], protocols=of)  # fmt: skip
    write_recipe(tmp_path / "tiny.yaml", content)
    assert main(["run", "tiny.yaml", "--protocol", "fast"]) == 0
    out = tmp_path / "outputs" / "tiny-fast"
    assert "Protocol fast: a reason." in (out / "report" / "report.html").read_text()
    before = (out / "report" / "results.csv").read_bytes()
    # One round has two steps of 0.1.
    assert b",step-size,0.2," in before
    assert main(["report", "outputs/tiny-fast"]) == 0
    assert (out / "report" / "results.csv").read_bytes() == before
    assert main(["run", "tiny.yaml"]) == 0
    assert (tmp_path / "outputs" / "tiny-printed" / "recipe.yaml").exists()
