"""Search by Optuna: what it asks for, what is run and chosen, and how it is told."""

import sys

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes.plan import plan_of
from coprefl_flwr.recipes.sampling import asked
from coprefl_flwr.recipes.sweep import check_runs, choose, contests, run_recipe
from coprefl_flwr.studies.store import Store
from tests.common.checks import Killed, files
from tests.common.recipes import Witness, keep, run, tiny_recipe, write_recipe

GAMMAS = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]
RATES = [0.001, 0.003, 0.01, 0.03, 0.1]
MANY = {"coprefl": {"gamma": GAMMAS, "meta-learning-rate": RATES}}
RECIPE_KEYS = {"search_by": "optuna"}


def options(start):
    pairs = [pair.split("=") for pair in str(start).partition(":")[2].split(",")]
    return {key: float(value) for key, value in pairs}


def accuracy(given):
    """Return what values come to: best at gamma = 0.3 and a rate of 0.03."""
    far = abs(given["gamma"] - 0.3), abs(given["meta-learning-rate"] - 0.03)
    return round(90 - 50 * far[0] - 500 * far[1])


def maker(store, made, fails=()):
    """Return what puts runs into the store, but for some."""

    def make(runs):
        failed = {}
        for one in runs:
            if store.done(one.study.stages):
                continue
            given = options(str(one.settings.method))
            made.append((one.settings.seed, given))
            if given["gamma"] in fails:
                failed[one.key] = "it broke"
            else:
                keep(store, one, [accuracy(given)] * one.settings.tasks)
        return failed

    return make


def test_it_tries_so_many_and_the_best_is_chosen(recipe_of, tmp_path):
    recipe = recipe_of(methods=[MANY], search_trials=12)
    store, made = Store(tmp_path / "models"), []
    assert run_recipe(recipe, store, maker(store, made)) == {}
    trials = [given for seed, given in made if seed == recipe.validation_seed]
    assert len({tuple(given.items()) for given in trials}) == 12
    (contest,) = contests(recipe)
    best = max(trials, key=accuracy)
    assert made[-1] == (0, best)
    chosen = choose(store, contest)
    assert chosen in contest.entrant.candidates()
    assert (
        str(chosen.start)
        == f"coprefl:gamma={best['gamma']},meta-learning-rate={best['meta-learning-rate']}"
    )
    # From the store the same is found again.
    assert [str(one.start) for one in contest.judged(store)] == list(
        dict.fromkeys(f"coprefl:{','.join(f'{k}={v}' for k, v in one.items())}" for one in trials)
    )
    # Its runs are those of a search of all values, by their keys.
    whole = recipe_of(methods=[MANY], search_by="all")
    assert {run.keys for run in check_runs(recipe)} == {run.keys for run in check_runs(whole)}


def test_seeded_and_each_once(recipe_of):
    recipe = recipe_of(methods=[MANY])
    (row,) = recipe.entrants

    def order(seed, trials=55):
        found = asked(row, trials, seed, lambda one: len(str(one.start)) % 7)
        return [str(one.start) for one in found]

    assert order(1, 10) == order(1, 10) != order(2, 10)
    assert sorted(order(1)) == sorted(str(one.start) for one in row.candidates())
    words = recipe_of(
        methods=[{"fedavg": {"learning-rate": [0.1]}}, {"moon": {"mu": [1, 0.5]}}], reference="moon"
    )
    assert len(list(asked(words.entrants[1], 10, 0, lambda _: 1.0))) == 2


def test_it_goes_to_where_scores_are_high(recipe_of):
    (row,) = recipe_of(methods=[MANY]).entrants

    def tried(sign):
        """Return what 20 trials come to, of which the first 5 are drawn at random."""
        worth = {one: accuracy(options(one.start)) for one in row.candidates()}
        return [worth[one] for one in asked(row, 20, 0, lambda one: sign * worth[one])]

    high, low = tried(1), tried(-1)
    assert high[:5] == low[:5]
    assert sum(high) > sum(low) + 20


def test_what_fails_is_left_out_and_not_tried_twice_in_a_run(recipe_of, tmp_path):
    recipe = recipe_of(methods=[MANY], search_trials=8)
    store, made = Store(tmp_path / "models"), []
    first = next(asked(recipe.entrants[0], 8, recipe.validation_seed, lambda _: 0.0))
    gamma = float(first.chosen.split(",")[0].partition("=")[2])
    failed = run_recipe(recipe, store, maker(store, made, fails=[gamma]))
    trials = [tuple(given.items()) for seed, given in made if seed == 100]
    assert failed
    assert len(set(trials)) == 8
    assert [trials.count(one) for one in trials if dict(one)["gamma"] == gamma] == [1] * len(failed)
    (contest,) = contests(recipe)
    assert f"gamma={gamma}" not in choose(store, contest).chosen.split(",")


def test_a_plan_counts_the_trials(recipe_of, tmp_path):
    recipe = recipe_of(methods=[MANY], search_trials=7, seeds=[0, 1])
    (row,) = plan_of(recipe, Store(tmp_path / "models")).rows
    assert (row.deciding, row.reported) == (7, 2)


def test_without_the_package_it_is_refused(recipe_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SettingsError, match=r"line \d+: search-by: optuna needs the package: pip"):
        recipe_of()
    assert recipe_of(search_by="all").search_trials == 10


def test_one_run_and_killed_on_the_way(tiny_images, tmp_path, monkeypatch):
    settings = {"rounds": 2, "task-rounds": 1, "tasks": 1}
    methods = [{"coprefl": {"gamma": [0, 0.5, 1]}}]
    content = tiny_recipe(
        tiny_images, settings, methods=methods, search_by="optuna", search_trials=2
    )
    path = write_recipe(tmp_path / "tiny.yaml", content)

    whole = Witness()
    assert run(path, tmp_path / "whole" / "out", whole, monkeypatch) == 0
    # Two trials of three, then the one that is reported.
    assert len(whole.rounds()) == 3 * (2 + 1)
    table = (tmp_path / "whole/out/report/tables/table-search.md").read_text()
    assert table.count("gamma=") == 2
    page = (tmp_path / "whole/out/report/report.html").read_text()
    assert "Searched by Optuna" in page
    killed = whole.rounds()[4]
    with pytest.raises(Killed):
        run(path, tmp_path / "killed" / "out", Witness(("train", *killed)), monkeypatch)
    assert run(path, tmp_path / "killed" / "out", Witness(), monkeypatch) == 0
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
