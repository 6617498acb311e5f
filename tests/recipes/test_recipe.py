"""Recipes: the values read from a file, and a one-line error message for each mistake."""

from pathlib import Path

import pytest
import yaml

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.notes import provenance
from coprefl_flwr.recipes.search import table_rows
from coprefl_flwr.studies.store import Store

BUDGETS = ("step-size", "gradients")
"""Columns of the tables of every recipe of starts."""

TEXT = """\
title: A recipe
source: A paper, Table 1
settings:
  rounds: 3
  clients: 10
  participants: [2, 4]
  learning-rate: 0.1
methods:
  - random
  - fedavg
  - q-FFL: {method: qffl, q: [1, 3]}
  - Cyclic+FedAvg: {method: "cyclic:rounds=2,participants=3 + fedavg"}
  - coprefl: {gamma: [0, 1], learning-rate: 0.2}
search:
  learning-rate: [0.1, 0.01]
  resplit: [true, false]
select: test
reference: fedavg
seeds: [0, 1]
metrics: [accuracy, variance]
figures: [accuracies]
paper:
  columns: [accuracy, variance]
  tables:
    - table: 1(a)
      where: {participants: 2}
      rows:
        fedavg: 78.96±2.98 64
        q-FFL: "- 1.5 ± 0.5"
    - table: 1(b)
      where: {participants: 4}
      rows: {coprefl: -1 2}
"""


def test_recipe_has_the_values_of_its_file(read):
    recipe = read()
    assert (recipe.title, recipe.source) == ("A recipe", "A paper, Table 1")
    assert recipe.settings == {
        "rounds": (3,),
        "clients": (10,),
        "participants": (2, 4),
        "learning-rate": (0.1,),
    }
    assert recipe.compared == ("participants",)
    assert (recipe.select, recipe.reference, recipe.seeds) == ("test", "fedavg", (0, 1))
    assert (recipe.validation_tasks, recipe.validation_seed) == (2, (100,))
    assert recipe.metrics == ("accuracy", "variance", "rounds", *BUDGETS)  # For the cyclic row.
    assert recipe.figures == ("accuracies",)
    assert recipe.scale == ""
    first, second = (recipe.paper_table(table) for table in recipe.combinations())
    assert (first.table, dict(first.where)) == ("1(a)", {"participants": 2})
    assert first.rows == {
        "fedavg": {"accuracy": (78.96, 2.98), "variance": (64.0, None)},
        "q-FFL": {"variance": (1.5, 0.5)},
    }
    assert second.rows == {"coprefl": {"accuracy": (-1.0, None), "variance": (2.0, None)}}


def test_row_has_a_trial_for_every_combination_of_searched_values(read):
    trials = {row.label: [(str(c.method), c.chosen) for c in row.trials()] for row in read().rows}
    assert list(trials) == ["random", "fedavg", "q-FFL", "Cyclic+FedAvg", "coprefl"]
    assert trials["random"] == [("random", "")]
    assert trials["fedavg"] == [
        ("fedavg:learning-rate=0.1", "learning-rate=0.1"),
        ("fedavg:learning-rate=0.01", "learning-rate=0.01"),
    ]
    assert trials["q-FFL"] == [
        (f"qffl:q={q},learning-rate={rate}", f"q={q},learning-rate={rate}")
        for q in (1.0, 3.0)
        for rate in (0.1, 0.01)
    ]
    # Both phases have the learning rate.
    assert trials["Cyclic+FedAvg"][1][0] == (
        "cyclic:rounds=2,participants=3,learning-rate=0.01+fedavg:learning-rate=0.01"
    )
    # The row's own learning rate is not searched, although all other rows search it.
    assert trials["coprefl"] == [
        (f"coprefl:gamma={g},learning-rate=0.2,resplit={r}", f"gamma={g},resplit={r}")
        for g in (0.0, 1.0)
        for r in ("true", "false")
    ]


def test_search_keeps_options_that_a_methods_text_sets(read):
    """Before, the searched values replaced the values in the text."""
    text = """\
title: T
settings: {rounds: 1}
methods:
  - random
  - fedavg:learning-rate=0.05
  - cyclic:rounds=5,learning-rate=0.01+fedavg
  - both: {method: "fedavg:learning-rate=0.05", learning-rate: [0.3, 0.4]}
search: {learning-rate: [0.1, 0.2]}
"""
    assert [[str(trial.method) for trial in row.trials()] for row in read(text).rows] == [
        ["random"],
        ["fedavg:learning-rate=0.05"],
        [
            f"cyclic:rounds=5,learning-rate=0.01+fedavg:learning-rate={rate}"
            for rate in ("0.1", "0.2")
        ],
        # An option of a row next to the text comes after the text.
        ["fedavg:learning-rate=0.3", "fedavg:learning-rate=0.4"],
    ]


def test_recipe_has_a_table_for_every_combination_of_compared_settings(read):
    text = TEXT[: TEXT.index("    - table: 1(b)")].replace("rounds: 3", "rounds: [3, 5]")
    recipe = read(text)
    settings = [(table["rounds"], table["participants"]) for table in recipe.combinations()]
    assert settings == [(3, 2), (3, 4), (5, 2), (5, 4)]
    papers = [recipe.paper_table(table) for table in recipe.combinations()]
    assert [paper and paper.table for paper in papers] == ["1(a)", None] * 2


def test_recipe_without_optional_keys_has_defaults(read):
    recipe = read("title: T\nsettings: {rounds: 1}\nmethods: [fedavg, random]\n")
    assert (recipe.select, recipe.reference, recipe.seeds) == ("validation", "random", (0,))
    clients = ("variance", "variance-beyond", "worst-10%", "worst-20%", "worst-30%")
    assert recipe.metrics == ("accuracy", *clients, *BUDGETS)
    assert (recipe.source, recipe.figures, recipe.paper) == ("", ("accuracies", "curves"), ())
    untested = read("title: T\nsettings: {tasks: 0}\nmethods: [fedavg]\n")
    assert untested.metrics == ("final", "best", "best-round", "models", *BUDGETS)


REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())["texts"]


@pytest.mark.parametrize(("old", "new", "number", "named"), REFUSED, ids=range(len(REFUSED)))
def test_mistake_is_refused_with_its_line(old, new, number, named, refused):
    assert TEXT.count(old) == 1
    line = refused(TEXT.replace(old, new))
    assert line.startswith(f"recipe.yaml, line {number}: " if number else "recipe.yaml")
    assert [str(word) for word in named if str(word) not in line] == [], line


def test_select_all_makes_each_searched_value_a_row(read):
    text = TEXT.replace("select: test", "select: all").replace(
        "        fedavg: 78.96±2.98 64\n", ""
    )
    text = text.replace("reference: fedavg", "reference: coprefl:gamma=1.0,resplit=true")
    recipe = read(text.replace('q-FFL: "', 'q-FFL:q=3.0,learning-rate=0.1: "'))
    assert recipe.reference == "coprefl:gamma=1.0,resplit=true"
    assert list(recipe.paper[0].rows) == ["q-FFL:q=3.0,learning-rate=0.1"]
    with pytest.raises(SettingsError, match=r"unknown value 'coprefl:gamma=2\.0"):
        read(text.replace("gamma=1.0,resplit=true", "gamma=2.0"))


def test_recipe_without_figures_has_those_that_fit_its_results(read):
    text = TEXT.replace("figures: [accuracies]\n", "")
    assert read(text, ["tasks=0"]).figures == ("curves",)
    personal = "title: T\nsettings: {study: personalised, rounds: 1}\nmethods: [fedpcl]\n"
    assert read(personal).figures == ("accuracies",)
    assert read(text + "figures: []\n").figures == ()


def test_rounds_are_a_column_where_rows_differ_in_rounds(read):
    """Before, rounds = 20 and cyclic:rounds=5+fedavg trained 25 rounds, and no column showed it."""
    text = "title: T\nsettings: {rounds: 20}\nmethods: [fedavg, METHOD]\nmetrics: [accuracy]\n"
    for method in ("'cyclic:rounds=5+fedavg'", "'coprefl:rounds=7'", "{coprefl: {rounds: 7}}"):
        assert read(text.replace("METHOD", method)).metrics == ("accuracy", "rounds", *BUDGETS)
    assert read(text.replace("METHOD", "coprefl")).metrics == ("accuracy", *BUDGETS)


# ---- --set ---------------------------------------------------------------------------------------


def test_set_changes_settings_keys_and_lists(read):
    changes = ["rounds=7", "title=Another", "alpha=[0.1, 1]", "seeds=[4, 5]", "local-steps="]
    recipe = read(changes=changes)
    assert recipe.settings["rounds"] == (7,)
    assert recipe.settings["alpha"] == (0.1, 1.0)
    assert recipe.settings["local-steps"] == ("",)
    assert (recipe.title, recipe.seeds) == ("Another", (4, 5))
    assert read(changes=["rounds=7", "rounds=8"]).settings["rounds"] == (8,)


def test_classes_may_be_a_count_or_a_list(read):
    def settings(*changes):
        return read(changes=changes).settings

    # Before, the error was "downstream-classes = 20: must be a text".
    assert settings("downstream-classes=20")["downstream-classes"] == ("20",)
    assert settings("downstream-classes=['2', '4']")["downstream-classes"] == ("2", "4")
    lists = settings("downstream-classes=[[8, 9], 2]", "downstream-domains=[[art, photo]]")
    assert lists["downstream-classes"] == ("list:8,9", "2")
    assert lists["downstream-domains"] == ("art photo",)
    in_file = TEXT.replace("rounds: 3", "rounds: 3\n  downstream-classes: [[8, 9]]")
    assert read(in_file).settings["downstream-classes"] == ("list:8,9",)


def test_columns_of_a_users_metric_measure_it_in_every_table(read, tmp_path):
    """Before, two values of `client-metrics` ended in a traceback."""
    (tmp_path / "own.py").write_text("def one(outputs, targets):\n    return 1.0\n\n\ntwo = one\n")
    one, two = (f"{tmp_path}/own.py:{name}" for name in ("one", "two"))
    changes = [f"client-metrics=[{one}, {two}]", f"metrics=[accuracy, {one}]"]
    assert read(changes=changes).settings["client-metrics"] == (one, f"{two} {one}")


def test_papers_tables_of_combinations_that_remain_are_kept(read, tmp_path):
    recipe = read(changes=["participants=4"])
    assert [table.table for table in recipe.paper] == ["1(b)"]
    fewer = read(changes=["methods=[random, fedavg]", "search={learning-rate: [0.1]}"])
    assert {table.table: list(table.rows) for table in fewer.paper} == {"1(a)": ["fedavg"]}
    other = read(changes=["participants=3"])
    assert other.paper == ()
    # The recipe stored with the results can be read again.
    for variant in (recipe, fewer, other):
        (tmp_path / "kept.yaml").write_text(variant.to_yaml())
        assert read_recipe(tmp_path / "kept.yaml").paper == variant.paper


def test_set_of_methods_drops_options_of_the_others(read):
    """The file's options for methods that are left out cause no error for the other methods."""
    text = TEXT.replace("search:", "search:\n  inner-learning-rate: 0.001")
    text = text.replace("methods:", "methods:\n  - per-fedavg", 1)
    assert read(text).effective["search"]["inner-learning-rate"] == 0.001
    assert str(read(text).rows[0].trials()[0].method).startswith("per-fedavg:inner-learning-rate=")
    assert "inner-learning-rate" not in read(text, ["methods=[fedavg]"]).effective["search"]


def test_method_in_an_unused_overlay_is_written_as_its_text(read):
    """Before, writing the recipe of a run at full scale ended in a traceback."""
    text = "title: A\nsettings: {rounds: 2}\nmethods: [{both: {method: cyclic+fedavg}}]\n"
    recipe = read(f"{text}small: {{methods: {{both: {{method: cyclic:rounds=1+fedavg}}}}}}\n")
    small = yaml.safe_load(recipe.to_yaml())["small"]
    assert small == {"methods": {"both": {"method": "cyclic:rounds=1+fedavg"}}}
    assert read(recipe.to_yaml()).effective == recipe.effective


@pytest.mark.parametrize(
    ("methods", "reserve"),
    [(["fedavg", "coprefl"], set()), (["fedavg", "coprefl-hybrid"], {0.05})],
)
def test_rows_have_the_same_clients_if_one_of_them_uses_the_servers_data(methods, reserve, read):
    """Each row is a study of its own, and the reserve of a study depends on its methods."""
    recipe = read(yaml.safe_dump({"title": "Rows", "methods": methods, "settings": {"rounds": 1}}))
    rows = [run for row in table_rows(recipe) for run in row.reported(row.trials()[0])]
    found = {run.main.clients.server_reserve for run in rows}
    assert found == (reserve or {0.0})
    assert {*recipe.settings.get("server-reserve", ())} == reserve


@pytest.mark.parametrize(
    ("seeds", "pairs", "shown"),
    [
        ("[4, 2]", [{"seed": 4}, {"seed": 2}], "4, 2"),
        (
            "{data: 2, training: [3, 7]}",
            [{"data-seed": draw, "seed": seed} for draw in (0, 1) for seed in (3, 7)],
            "data [0, 1], training [3, 7]",
        ),
        ("{data: [5]}", [{"data-seed": 5, "seed": 0}], "data [5], training [0]"),
        (
            "{training: 2}",
            [{"data-seed": 0, "seed": n} for n in (0, 1)],
            "data [0], training [0, 1]",
        ),
    ],
)
def test_seeds_of_data_and_of_training_are_crossed(read, seeds, pairs, shown, tmp_path):
    recipe = read(TEXT.replace("seeds: [0, 1]", f"seeds: {seeds}"))
    assert recipe.pairs == pairs
    assert provenance(recipe, Store(tmp_path / "models"), [])["seeds"] == shown
    again = read(recipe.to_yaml())
    assert again.pairs == pairs


def test_seeds_are_changed_by_the_command_line_and_merged_key_by_key(read):
    """An overlay may change one of the two; a list replaces both."""
    small = "small: {seeds: {data: 3}}\n"
    text = TEXT.replace("seeds: [0, 1]", "seeds: {data: 10, training: 2}") + small
    path = read(text).places.name
    assert len(read(text).pairs) == 20
    assert len(read_recipe(Path(path), scale="small").pairs) == 6
    assert read(text, ["seeds=[4]"]).pairs == [{"seed": 4}]
    assert len(read(text, ["seeds={data: [3, 9]}"]).pairs) == 2
