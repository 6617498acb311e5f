"""Search by halving: what is tried, what goes on, what is chosen, and how it is told."""

import pytest

from coprefl_flwr.recipes.halving import best, quarter, shortened
from coprefl_flwr.recipes.listing import purposes
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.sweep import check_runs, choose, contests, run_recipe
from coprefl_flwr.report.tables import NONE
from coprefl_flwr.studies.store import Store
from tests.common.checks import Killed, files
from tests.common.recipes import Witness, keep, run, tiny_recipe, write_recipe

EIGHT = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1]
HALVED = {"methods": [{"coprefl": {"gamma": [0, 1]}}], "search_by": "halving"}


@pytest.fixture
def recipe_of(tiny_images, tmp_path):
    """Return a tiny recipe of eight rounds, and eight in tasks, with some keys changed."""

    def read(settings=None, **keys):
        rounds = {"rounds": 8, "task-rounds": 8} | (settings or {})
        content = tiny_recipe(tiny_images, rounds, **{"search_by": "halving", **keys})
        return read_recipe(write_recipe(tmp_path / "recipe.yaml", content))

    return read


def test_a_trial_has_a_quarter_of_all_rounds_rounded_up():
    assert [quarter(n) for n in (0, 1, 4, 5, 50)] == [0, 1, 1, 2, 13]
    config = {"rounds": 50, "task-rounds": 9, "clients": 30}
    for method, short in (
        ("coprefl:gamma=0.5", "coprefl:gamma=0.5"),
        ("cyclic:rounds=10+fedavg:learning-rate=0.1,rounds=40",
         "cyclic:rounds=3+fedavg:learning-rate=0.1,rounds=10"),
    ):  # fmt: skip
        trial = shortened(Run.of(config, method, 3)).settings
        assert (str(trial.method), trial.rounds, trial.task_rounds) == (short, 13, 3)
        assert (trial.seed, trial.clients, trial.tasks) == (3, 30, 3)
    personal = {"study": "personalised", "rounds": 30}
    trial = shortened(Run.of(personal, "fedpcl:rounds=20", 0)).settings
    assert str(trial.method) == "fedpcl:rounds=5"


def test_the_best_quarter_goes_on_and_at_least_one():
    nan = float("nan")
    assert best("abcdefgh", [1, 9, 3, nan, 9, 8, 2, 0]) == ["b", "e"]
    assert best("abc", [1, 2, 2]) == ["b"]  # Of equals the first.
    assert best("ab", [nan, nan]) == []
    assert best("abcdefgh", [nan, nan, 5, *[nan] * 5]) == ["c"]


def test_what_leads_after_a_quarter_goes_on_and_the_best_at_the_end_is_chosen(recipe_of, tmp_path):
    recipe = recipe_of(methods=[{"coprefl": {"gamma": EIGHT}}], seeds=[0, 1])
    store, made = Store(tmp_path / "models"), []
    early = dict(zip(EIGHT, [10, 20, 80, 30, 40, 70, 50, 60], strict=True))
    late = {0.2: 55, 0.5: 65}

    def make(runs):
        made.append([])
        for one in runs:
            gamma = float(one.name.partition("=")[2])
            short = one.settings.rounds == 2
            made[-1].append((gamma, one.settings.seed, one.settings.rounds))
            assert one.settings.task_rounds == one.settings.rounds
            keep(store, one, [(early if short else late)[gamma]] * one.settings.tasks)
        return {}

    assert run_recipe(recipe, store, make) == {}
    assert made == [
        [(gamma, 100, 2) for gamma in EIGHT],
        [(0.2, 100, 8), (0.5, 100, 8)],
        [(0.5, 0, 8), (0.5, 1, 8)],
    ]
    (contest,) = contests(recipe)
    assert choose(store, contest).chosen == "gamma=0.5"
    # All that may be run is checked before, and each run is called what it is for.
    runs = check_runs(recipe)
    assert len(runs) == 8 + 8 + 2 * 8
    known = purposes(recipe, runs)
    assert [list(known.values()).count(one) for one in ("trial", "validation", "reported")] == [
        8, 8, 16,
    ]  # fmt: skip


def test_a_trial_that_is_a_reported_run_too_is_called_reported(recipe_of):
    """A quarter of eight rounds is another value's two, and a quarter of one is one."""
    rounds = [{"coprefl": {"gamma": 0.5, "rounds": [1, 2, 8]}}]
    recipe = recipe_of(select="test", methods=rounds, reference=None)
    known = purposes(recipe, check_runs(recipe))
    assert list(known.values()) == ["reported"] * 3
    recipe = recipe_of(select="test", methods=[{"coprefl": {"gamma": 0.5, "rounds": [2, 8]}}])
    known = purposes(recipe, check_runs(recipe))
    assert sorted(known.values()) == ["reported", "reported", "trial"]


def test_chosen_by_test_too_and_what_failed_does_not_go_on(recipe_of, tmp_path):
    recipe = recipe_of(select="test", methods=[{"coprefl": {"gamma": [0, 0.5, 1]}}])
    store, made = Store(tmp_path / "models"), []

    def make(runs):
        made.append([(one.name, one.settings.rounds) for one in runs])
        for one in runs:
            if "gamma=1.0" not in one.name:
                keep(store, one, [90 if "gamma=0.5" in one.name else 10] * 2)
        return {}

    run_recipe(recipe, store, make)
    names = [f"coprefl:gamma={gamma}" for gamma in ("0.0", "0.5", "1.0")]
    assert made == [[(name, 2) for name in names], [(names[1], 8)], [(names[1], 8)]]
    assert [one.chosen for one in contests(recipe)[0].shown(store)] == ["gamma=0.5"]


def test_keys_of_runs_to_the_end_are_the_same(recipe_of):
    """What halving runs to the end is found where a whole search left it."""
    halved, whole = (
        recipe_of(methods=[{"coprefl": {"gamma": [0, 1]}}], search_by=by)
        for by in ("halving", "all")
    )
    keys = [{run.keys for run in check_runs(recipe)} for recipe in (halved, whole)]
    assert keys[1] < keys[0]
    assert len(keys[0] - keys[1]) == 2


def test_one_run_and_killed_on_the_way(tiny_images, tmp_path, monkeypatch, capsys):
    """One of two values goes on: it is chosen, without a validation run to the end."""
    settings = {"rounds": 4, "task-rounds": 4, "tasks": 1}
    content = tiny_recipe(tiny_images, settings, **HALVED)
    path = write_recipe(tmp_path / "tiny.yaml", content)

    whole = Witness()
    assert run(path, tmp_path / "whole" / "out", whole, monkeypatch) == 0
    # Two trials, of one round and one task of one round each, then the one run that is reported.
    assert sorted(number for _, population, number in whole.rounds() if population == "pretrain") \
        == [1, 1, 1, 2, 3, 4]  # fmt: skip
    assert len([one for one in whole.rounds() if one[1] != "pretrain"]) == 2 * 1 + 4
    table = (tmp_path / "whole/out/report/tables/table-search.md").read_text()
    heads, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
    assert [one.strip() for one in heads.strip("|").split("|")] == [
        "Method", "Values", "After a quarter %", "Accuracy %", "Chosen",
    ]  # fmt: skip
    fates = {line.strip("|").split("|")[-1].strip(" *_") for line in rows}
    assert fates == {"chosen", "dropped"}
    assert all(line.strip("|").split("|")[3].strip() == NONE for line in rows)
    assert "Searched by halving" in (tmp_path / "whole/out/report/report.html").read_text()
    # Killed in a trial, and again in what is reported: nothing is done twice, nothing is different.
    for stop in (("train", "coprefl", "task-0", 1), ("train", "coprefl", "pretrain", 3)):
        with pytest.raises(Killed):
            run(path, tmp_path / "killed" / "out", Witness(stop), monkeypatch)
    assert run(path, tmp_path / "killed" / "out", Witness(), monkeypatch) == 0
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    again = Witness()
    assert run(path, tmp_path / "killed" / "out", again, monkeypatch) == 0
    assert again.seen == []
