"""`coprefl choose`: which runs of a recipe it needs, and what it writes."""

import json

import pytest
import yaml

from coprefl_flwr.cli import main
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.recipes.choose import check_choice, choose_recipe
from coprefl_flwr.recipes.execute import executor
from coprefl_flwr.studies.store import Store
from tests.common.checks import Killed, files
from tests.common.recipes import keep, tiny_recipe, write_recipe

METHODS = ["random", "fedavg", {"fedprox": {"mu": 0.1}}, "cyclic"]
RECIPE_KEYS = {"methods": METHODS, "reference": "fedavg", "choose": {"draws": 6}}
VALUES = {
    "random": [30, 31, 32, 30, 32, 33],
    "fedavg": [50, 51, 52, 50, 52, 53],
    "fedprox": [60, 62, 62, 60, 64, 65],
    "cyclic": [55, 56, 57, 55, 57, 58],
}
"""Accuracies by method and draw."""


class Maker:
    """Stores made-up accuracies instead of running; dies after `most` runs."""

    def __init__(self, store, most=1000, diverged=()):
        self.store, self.most, self.diverged, self.made = store, most, diverged, []

    def __call__(self, runs):
        for run in runs:
            if self.store.done(run.study.stages):
                continue
            if len(self.made) == self.most:
                raise Killed
            draw = run.settings.draw
            self.made.append((run.label, draw))
            losses = [1.0, None if (run.label, draw) in self.diverged else 1.0]
            keep(self.store, run, [VALUES[run.label][draw]] * 2, losses=losses[: run.main.rounds])
        return {}


def test_runs_that_are_needed(recipe_of, store, tmp_path):
    """Two draws of four methods; two finalists (of four, two remain); then they and fedavg."""
    maker, out = Maker(store), tmp_path / "out"
    chosen = choose_recipe(recipe_of(), store, maker, out)
    finalists = ("fedprox", "cyclic")
    assert sorted(maker.made) == sorted(
        [(name, draw) for name in VALUES for draw in (0, 1)]
        + [(name, 2) for name in finalists]
        + [(name, draw) for name in (*finalists, "fedavg") for draw in (3, 4, 5)]
    )
    assert chosen.name == "fedprox"
    # Differences from cyclic 5, 7, 7; from fedavg 10, 12, 12.
    assert chosen.answer.startswith(
        "Use `fedprox`: +6.3 [3.5, 9.2] points against `cyclic` over 3 draws"
    )
    assert "+11.3 [8.5, 14.2] points against `fedavg`" in chosen.answer
    assert chosen.left[:2] == [
        f"`{name}` left after 2 draws: behind" for name in ("fedavg", "random")
    ]
    assert chosen.table["difference"]["cyclic"] == pytest.approx(-19 / 3)
    assert chosen.table["difference"]["random"] == -30.5
    assert load_saved_model(out / "start")[1]["start"] == "fedprox, seed 0"
    chosen.report(out / "report")
    page = (out / "report" / "report.html").read_text()
    assert "Use `fedprox`" in page
    assert (out / "report" / "figures" / "comparison-differences.png").exists()


def test_starts_that_diverge_are_out(recipe_of, store, tmp_path):
    maker = Maker(store, diverged=[("fedprox", 1)])
    chosen = choose_recipe(recipe_of(), store, maker, tmp_path / "out")
    assert chosen.name == "cyclic"
    assert "`fedprox` left after 2 draws: failed (seed 1: diverged: loss not finite)" in chosen.left


def test_killed_choice_continues(recipe_of, store, tmp_path):
    """It is killed after each run in turn, and starts no run twice."""
    recipe, made = recipe_of(), []
    whole = choose_recipe(
        recipe, Store(tmp_path / "whole"), Maker(Store(tmp_path / "whole")), tmp_path / "a"
    )
    for _ in range(40):
        maker = Maker(store, most=1)
        try:
            answer = choose_recipe(recipe, store, maker, tmp_path / "b").answer
        except Killed:
            made += maker.made
            continue
        break
    assert answer == whole.answer
    assert len(made) == len(set(made)) == 19 - 1


def test_rounds_of_a_time_are_stored(recipe_of, store, tmp_path):
    """The stored number decides, not the clock: it is enough for 2 x 4 + 2 cells and 2 x 3 more."""
    recipe, out = recipe_of(choose={"draws": 6, "budget": "1 hour"}), tmp_path / "out"
    each = sum(run.rounds for run in check_choice(recipe)) / len(METHODS)
    out.mkdir()
    stored = {"budget": "1 hour", "rounds": 16.5 * each}
    (out / "choice.json").write_text(json.dumps(stored))
    maker = Maker(store)
    choose_recipe(recipe, store, maker, out)
    assert {draw for _, draw in maker.made} == set(range(5))


def test_draws_begin_with_the_first_seed(recipe_of, store, tmp_path):
    """`coprefl run` with these seeds finds the same runs."""
    recipe = recipe_of(seeds={"data": [7], "training": [1]})
    assert {run.settings.draw for run in check_choice(recipe)} == {7}
    assert {run.settings.seed for run in check_choice(recipe)} == {7}


def test_searched_values_are_chosen_before(recipe_of, store, tmp_path):
    """The validation draw has the validation seed; its runs are in no draw."""
    recipe = recipe_of(methods=["random", {"fedprox": {"mu": [0.1, 0.2]}}], reference="random")
    searched = [run for run in check_choice(recipe) if run.settings.draw == 100]
    assert len(searched) == 4  # Two values, a quarter of the rounds, then to the end.
    searched = [run for run in check_choice(recipe) if run.settings.draw in (100, 101)]
    with executor(store) as make:
        chosen = choose_recipe(recipe, store, make, tmp_path / "out")
    assert set(chosen.table.index) == {"random", "fedprox"}
    assert any(store.done(run.study.stages) for run in searched)
    assert chosen.left[-2].startswith("Values that the search chose: `fedprox` mu=0.")
    assert chosen.left[-1].startswith("Rounds that were run after the search: ")


def test_search_has_the_classes_of_the_draws(recipe_of):
    settings = {"pretraining-classes": "list:0,1", "downstream-classes": "list:3,4"}
    recipe = recipe_of(
        methods=["random", {"fedprox": {"mu": [0.1, 0.2]}}], reference="random", settings=settings
    )
    of_runs = [run.settings for run in check_choice(recipe)]
    assert {run.draw for run in of_runs} == {0, 100, 101}
    assert {(run.pretraining_classes, run.downstream_classes) for run in of_runs} == {
        ("list:0,1", "list:3,4")
    }


def test_value_that_diverges_on_a_validation_draw_is_out(recipe_of, store, tmp_path):
    """Of two values, the better one diverges on the second of the two validation draws."""
    recipe = recipe_of(methods=["random", {"fedprox": {"mu": [0.1, 0.2]}}], reference="random")

    def make(runs):
        for run in runs:
            value = 90 if "0.2" in run.label else 60
            lost = "0.2" in run.label and run.settings.draw == 101
            losses = [None if lost else 1.0] * run.main.rounds
            keep(store, run, [value] * len(run.client_stages), losses=losses)
        return {}

    choose_recipe(recipe, store, make, tmp_path / "out")
    tried = [run for run in check_choice(recipe) if run.settings.draw == 0]
    done = {str(run.settings.method) for run in tried if store.done(run.study.stages)}
    assert done == {"random", "fedprox:mu=0.1"}


def test_screens_drop_the_worst_fifth(recipe_of, store, tmp_path):
    """Of six methods, the one whose mean rank in three screens is worst is never trained whole."""
    methods = [*METHODS, "fedavgm", "fedadam"]
    screened = {
        "random": 10,
        "fedavg": 50,
        "fedprox": 40,
        "cyclic": 30,
        "fedavgm": 20,
        "fedadam": 5,
    }
    made = []

    def make(runs):
        for run in runs:
            tasks = run.settings
            made.append((run.label, tasks.draw, str(tasks.head), tasks.task_rounds))
            is_screen = (str(tasks.head), tasks.task_rounds) != ("fresh", 2)
            # The first screen prefers fedadam, the two others do not.
            value = screened[run.label] + 90 * (str(tasks.head) == "ridge") * (
                run.label == "fedadam"
            )
            value = min(value, 100) if is_screen else VALUES.get(run.label, [20] * 6)[tasks.draw]
            keep(store, run, [value] * 2)
        return {}

    recipe = recipe_of(methods=methods, settings={"task-rounds": 2})
    chosen = choose_recipe(recipe, store, make, tmp_path / "out")
    kinds = {(head, rounds) for _, _, head, rounds in made}
    assert kinds == {("ridge", 0), ("ncm", 0), ("fresh", 1), ("fresh", 2)}
    assert chosen.left[0] == "`random` left after the screens: behind"
    assert [kind for name, *kind in made if name == "random"] == [
        [0, "ridge", 0],
        [0, "ncm", 0],
        [0, "fresh", 1],
    ]
    assert chosen.name == "fedprox"
    assert chosen.table["rounds-run"]["random"] == 2 * (1 + 1 + 1)
    assert chosen.table["difference"].isna().to_dict()["random"]


def test_command_writes_and_repeats(tiny_images, tmp_path, capsys):
    content = tiny_recipe(
        tiny_images, {"tasks": 1, "rounds": 1}, methods=["random", "fedavg"], reference="fedavg",
        choose={"draws": 5, "budget": "1 hour"},
    )  # fmt: skip
    path, out = write_recipe(tmp_path / "tiny.yaml", content), tmp_path / "out"
    assert main(["choose", str(path), "--out", str(out), "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert "2 draws that did not choose" in printed
    assert load_saved_model(out / "start")
    before = files(out)
    assert main(["choose", str(path), "--out", str(out), "--workers", "1"]) == 0
    assert files(out) == before
    assert json.loads((out / "choice.json").read_text())["rounds"] > 5
    assert main(["report", str(out)]) == 1


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"methods": ["fedavg"], "reference": "fedavg"}, "two methods or more"),
        ({"choose": {"draws": 4}}, "greater than or equal to 5"),
        ({"choose": {"budgt": "1 hour"}}, "budget"),
        ({"choose": {"budget": "an hour"}}, "5000 rounds"),
        ({"settings": {"tasks": 0}}, "tasks"),
        ({"settings": {"participants": [2, 3]}}, "participants: one value"),
        (
            {
                "seeds": [98],
                "methods": ["random", {"fedprox": {"mu": [0.1, 0.2]}}],
                "reference": "random",
            },
            "validation-seed = 100, 101: the draws have the seeds 98 to 103",
        ),
    ],
)
def test_wrong_choices_are_refused_in_one_line(keys, named, tiny_images, refused):
    settings = keys.get("settings", {})
    others = {key: value for key, value in keys.items() if key != "settings"}
    content = tiny_recipe(tiny_images, settings, **{**RECIPE_KEYS, **others})
    line = refused(yaml.safe_dump(content, sort_keys=False), "choose", "recipe.yaml")
    assert named in line
    assert line.startswith("recipe.yaml") or "recipe" in line
