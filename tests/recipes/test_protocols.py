"""Protocols: what they change, what the effective recipe says, and equal budgets and losses."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from coprefl_flwr.cli import main
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes.collect import collect
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.sweep import check_runs, contests
from coprefl_flwr.studies.stage import RESULT
from coprefl_flwr.studies.store import Store
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
    return {name.replace("_", "-"): {"because": "a reason", **one} for name, one in of.items()}


@pytest.fixture
def recipe_of(tiny_images, tmp_path):
    """Return a tiny recipe under a protocol."""

    def read(of, name="", settings=None, **keys):
        keys = {"methods": METHODS, "reference": "fedavg", **keys}
        content = tiny_recipe(tiny_images, settings, protocols=of, **keys)
        return read_recipe(write_recipe(tmp_path / "recipe.yaml", content), protocol=name)

    return read


def starts(recipe):
    return {one.label: [str(found.start) for found in one.candidates()] for one in recipe.entrants}


# ---- what they change ----------------------------------------------------------------------------


def test_rates_multiply_every_rate_defaults_included(recipe_of):
    recipe = recipe_of(protocols(ratio={"rates": 100}), "ratio", {"global-learning-rate": 2.0},
                       methods=[*METHODS, "scaffold"])  # fmt: skip
    assert recipe.settings["learning-rate"] == (5.0,)
    assert recipe.settings["task-learning-rate"] == (5.0,)
    assert recipe.settings["global-learning-rate"] == (2.0,)
    assert starts(recipe) == {
        "random": ["random"],
        "fedavg": ["fedavg"],
        "coprefl": ["coprefl:meta-learning-rate=5.0"],
        "strong": ["coprefl:gamma=1.0,meta-learning-rate=5.0"],
        "cyclic:rounds=1+fedmeta:inner-learning-rate=0.01": [
            "cyclic:rounds=1+fedmeta:inner-learning-rate=1.0,meta-learning-rate=5.0"
        ],
        "fedavg-refined": ["fedavg-refined:server-learning-rate=5.0"],
        "scaffold": ["scaffold"],
    }


def test_rates_that_are_set_for_all_are_multiplied_once(recipe_of):
    """The short form in the settings, and lists that are searched."""
    recipe = recipe_of(
        protocols(ratio={"rates": 10}),
        "ratio",
        {"meta-learning-rate": 0.07, "participants": [2, 3]},
        methods=["coprefl", {"fedavg": {"learning-rate": [0.1, 0.7]}}],
    )
    assert recipe.settings["meta-learning-rate"] == (0.7,)
    assert recipe.settings["participants"] == (2, 3)
    assert starts(recipe) == {
        "coprefl": ["coprefl"],
        "fedavg": ["fedavg:learning-rate=1.0", "fedavg:learning-rate=7.0"],
    }


def test_settings_methods_search_select_and_seeds_come_over_the_recipes_own(recipe_of):
    one = {
        "rates": 100,
        "settings": {"local-epochs": 2, "local-steps": None, "task-learning-rate": 0.3},
        "methods": {"strong": {"gamma": 0.25, "meta-learning-rate": None}},
        "search": {"meta-learning-rate": [0.5, 0.6]},
        "select": "test",
        "seeds": [3, 4],
    }
    recipe = recipe_of(protocols(all=one), "all", methods=["fedavg", METHODS[3]])
    assert recipe.settings["local-epochs"] == (2,)
    assert recipe.settings["local-steps"] == ("",)
    assert recipe.settings["task-learning-rate"] == (0.3,)  # As it is written.
    assert recipe.settings["learning-rate"] == (5.0,)
    assert (recipe.select, recipe.seeds) == ("test", (3, 4))
    assert starts(recipe)["strong"] == [
        "coprefl:gamma=0.25,meta-learning-rate=0.5",
        "coprefl:gamma=0.25,meta-learning-rate=0.6",
    ]


def test_the_effective_recipe_says_which_it_is_and_is_not_changed_again(recipe_of, tmp_path):
    of = protocols(printed={}, ratio={"rates": 100})
    for name in ("printed", "ratio"):
        recipe = recipe_of(of, name)
        assert recipe.protocol == recipe.effective["protocol"] == name
        assert list(recipe.effective["protocols"]) == [name]
        path = tmp_path / "effective.yaml"
        path.write_text(recipe.to_yaml())
        for given in ("", name):
            again = read_recipe(path, protocol=given)
            assert again.to_yaml() == recipe.to_yaml()
            assert (again.settings, starts(again)) == (recipe.settings, starts(recipe))
        with pytest.raises(SettingsError, match=r"is of the protocol .* already"):
            read_recipe(path, protocol="another")


def test_none_named_is_the_first_and_that_is_said(recipe_of, caplog):
    with caplog.at_level("INFO", "flwr.coprefl"):
        recipe = recipe_of(protocols(printed={}, ratio={"rates": 100}))
    assert recipe.protocol == "printed"
    assert "protocol printed, the first; --protocol takes another: ratio" in caplog.text


def test_the_printed_protocol_makes_the_results_of_a_recipe_without_one(recipe_of):
    plain = {run.key for run in check_runs(recipe_of(None))}
    assert {run.key for run in check_runs(recipe_of(protocols(printed={})))} == plain
    assert {run.key for run in check_runs(recipe_of(protocols(one={"rates": 1})))} == plain


# ---- equal step sizes ----------------------------------------------------------------------------


def reported(recipe):
    """Return {name of a row: its runs' entries of `method`}."""
    return {
        f"{one.entrant.label}:{c.chosen}".rstrip(":"): [
            str(*r.settings.method) for r in one.reported(c)
        ]
        for one in contests(recipe)
        for c in one.entrant.candidates()
    }


def test_rounds_bring_every_row_nearest_to_the_references_step_size(recipe_of):
    """FedAvg: 3 rounds of 2 steps of 0.05 are 0.3; three clients take part."""
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
        # A chain of three is 0.3 at once; of the last phase there must be a round.
        "after": ["cyclic:rounds=1+fedavg:rounds=1,learning-rate=0.01"],
        # 0.1, 0.15, 0.175: 0.25 is nearer than 0.425.
        "momentum": ["fedavgm:server-momentum=0.5,rounds=2"],
    }
    assert recipe.metrics[-3:] == ("rounds", "step-size", "gradients")


def test_the_rounds_that_it_had_make_the_same_model(recipe_of):
    recipe = recipe_of(protocols(equal={"equal": "step-size"}), methods=["fedavg", "fedprox"])
    keys = [
        run.key for one in contests(recipe) for run in one.reported(one.entrant.candidates()[0])
    ]
    config = recipe.combinations()[0]
    assert keys == [Run.of(config, name, 0).key for name in ("fedavg", "fedprox")]


def test_steps_without_a_size_are_refused_before_any_work(recipe_of):
    of = protocols(equal={"equal": "step-size"})
    message = "fedadam is nan a round: no rounds make it equal"
    with pytest.raises(SettingsError, match=message):
        check_runs(recipe_of(of, methods=["fedavg", "fedadam"]))
    for name in ("random", "fedadam"):
        recipe = recipe_of(of, methods=["fedavg", name], reference=name)
        with pytest.raises(SettingsError, match=f"the reference, {name}, has a summed step size"):
            check_runs(recipe)


def test_a_rate_that_decays_may_never_come_to_as_much(recipe_of):
    recipe = recipe_of(
        protocols(equal={"equal": "step-size"}),
        methods=["fedavg", {"fading": {"method": "fedavg", "learning-rate-decay": 0.5}}],
    )
    with pytest.raises(SettingsError, match=r"fedavg:learning-rate-decay=0.5 never comes to 0.3"):
        check_runs(recipe)


# ---- equal losses --------------------------------------------------------------------------------


def loss_of(run, folder):
    """Return the mean cross-entropy over all samples of all clients, in one pass."""
    start = run.main
    module = start.architecture.make()
    module.load_state_dict(load_file(folder / "model.safetensors"))
    module.eval()
    held = [one.train for one in start.population.clients]
    batches = [samples.batch(slice(None), torch.device("cpu")) for samples in held]
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with torch.no_grad():
        return float(cross_entropy(module(inputs).double(), targets))


def run_of(recipe, label):
    (one,) = [one for one in contests(recipe) if one.entrant.label == label]
    return one.reported(one.entrant.candidates()[0])[0]


@pytest.fixture(scope="module")
def never(tiny_images, tmp_path_factory):
    """A recipe of 6 rounds that was run, whose losses are checked and never low enough."""
    folder = tmp_path_factory.mktemp("never")
    settings = {"rounds": 6, "stop-check-every": 2, "learning-rate": 0.1}
    one = {"equal": "start-loss", "below": 0.0001, "settings": settings}
    content = tiny_recipe(
        tiny_images, {"tasks": 1}, methods=["random", "fedavg", {"meta": {"method": "coprefl"}}],
        reference="fedavg", protocols=protocols(never=one),
    )  # fmt: skip
    path = write_recipe(folder / "tiny.yaml", content)
    out = folder / "out"
    assert main(["run", str(path), "--out", str(out)]) == 0
    return path, out


def values(out):
    """Return (recipe, store, {row: {metric: the value}}, the report)."""
    recipe, store = read_recipe(out / "recipe.yaml"), Store(out.parent / "models")
    report = collect(recipe, store, {})
    rows = report.comparisons[0].measured
    return (
        recipe,
        store,
        {row.label: {k: v[0] for k, v in row.values.items()} for row in rows},
        report,
    )


def checks(store, run):
    """Return {round: the loss that was checked} and the number of rounds."""
    rounds = json.loads((store.folder(run.main) / RESULT).read_text())["rounds"]
    key = "server-start-loss"
    return {row["round"]: row[key] for row in rounds if key in row}, len(rounds)


def test_the_loss_is_that_of_all_samples_of_all_clients(never):
    recipe, store, found, _ = values(never[1])
    for label in ("random", "fedavg", "meta"):
        run = run_of(recipe, label)
        direct = loss_of(run, store.folder(run.main))
        assert found[label]["start-loss"] == pytest.approx(direct, rel=1e-5)
    losses, rounds = checks(store, run_of(recipe, "fedavg"))
    assert (list(losses), rounds) == ([2, 4, 6], 6)
    assert losses[6] == found["fedavg"]["start-loss"]


def test_a_start_that_never_comes_there_says_so(never):
    _, _, found, report = values(never[1])
    assert found["fedavg"]["stopped-at"] == math.inf
    assert math.isnan(found["random"]["stopped-at"])
    assert report.notes == [
        "Protocol never: a reason.",
        "fedavg, seed 0: a loss of 0.0001 was not reached in 6 rounds; its figures are those after "
        "all of them.",
        "meta, seed 0: a loss of 0.0001 was not reached in 6 rounds; its figures are those after "
        "all of them.",
    ]
    assert "never" in (never[1] / "report" / "tables" / "table.md").read_text()


def test_it_stops_at_the_first_check_with_the_model_of_as_many_rounds(never, tmp_path):
    path, out = never
    recipe, store, _, _ = values(out)
    losses, _ = checks(store, run_of(recipe, "fedavg"))
    assert losses[2] > losses[4] > losses[6]
    below = (losses[2] + losses[4]) / 2
    text = path.read_text().replace("below: 0.0001", f"below: {below}")
    (tmp_path / "tiny.yaml").write_text(text)
    stopped = tmp_path / "out"
    assert main(["run", str(tmp_path / "tiny.yaml"), "--out", str(stopped)]) == 0
    recipe, store, found, report = values(stopped)
    run = run_of(recipe, "fedavg")
    assert checks(store, run) == ({2: losses[2], 4: losses[4]}, 4)
    assert (found["fedavg"]["stopped-at"], found["fedavg"]["start-loss"]) == (4, losses[4])
    # Two steps of 0.1, in the four rounds that were run.
    assert found["fedavg"]["step-size"] == pytest.approx(0.8)
    # Its model is that of four rounds without a stop.
    four = ["run", str(path), "--out", str(tmp_path / "four"), "--models", str(tmp_path / "models")]
    more = ["--set", "rounds=4", "--set", "methods=[fedavg]"]
    assert main([*four, *more]) == 0
    again = read_recipe(tmp_path / "four" / "recipe.yaml")
    a, b = (
        load_file(store.folder(one.main) / "model.safetensors")
        for one in (run, run_of(again, "fedavg"))
    )
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert "fedavg" not in " ".join(report.notes)


# ---- the command ---------------------------------------------------------------------------------


def test_where_a_protocols_results_go(tiny_images, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    of = protocols(printed={}, fast={"settings": {"rounds": 1}, "rates": 2})
    content = tiny_recipe(tiny_images, {"tasks": 0}, methods=["fedavg"], reference=None,
                          metrics=["models"], protocols=of)  # fmt: skip
    write_recipe(tmp_path / "tiny.yaml", content)
    assert main(["run", "tiny.yaml", "--protocol", "fast"]) == 0
    out = tmp_path / "outputs" / "tiny-fast"
    assert "Protocol fast: a reason." in (out / "report" / "report.html").read_text()
    before = (out / "report" / "results.csv").read_bytes()
    # One round of two steps of 0.05 x 2.
    assert b",step-size,0.2," in before
    assert main(["report", "outputs/tiny-fast"]) == 0
    assert (out / "report" / "results.csv").read_bytes() == before
    assert main(["run", "tiny.yaml"]) == 0
    assert (tmp_path / "outputs" / "tiny-printed" / "recipe.yaml").exists()
    capsys.readouterr()
    assert main(["run", "tiny.yaml", "--out", str(out)]) == 1
    assert "holds results of the protocol fast; give another folder" in capsys.readouterr().err
