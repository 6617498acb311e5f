"""Recipes: what a file comes to, and a line for whatever is wrong with it."""

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes.reading import read_recipe

BUDGETS = ("step-size", "gradients")
"""Columns of every recipe of starts."""

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


def test_a_recipe_comes_to(read):
    recipe = read()
    assert (recipe.title, recipe.source) == ("A recipe", "A paper, Table 1")
    assert recipe.settings == {
        "rounds": (3,),
        "clients": (10,),
        "participants": (2, 4),
        "learning-rate": (0.1,),
    }
    assert recipe.compared == ("participants",)
    assert [one["participants"] for one in recipe.combinations()] == [2, 4]
    assert (recipe.select, recipe.reference, recipe.seeds) == ("test", "fedavg", (0, 1))
    assert (recipe.validation_tasks, recipe.validation_seed) == (2, 100)
    assert recipe.metrics == ("accuracy", "variance", "rounds", *BUDGETS)  # Of the cyclic row.
    assert recipe.figures == ("accuracies",)
    assert recipe.notes == ()


def test_rows_and_their_candidates(read):
    found = {row.label: [(c.start, c.chosen) for c in row.candidates()] for row in read().entrants}
    assert list(found) == ["random", "fedavg", "q-FFL", "Cyclic+FedAvg", "coprefl"]
    assert found["random"] == [("random", "")]
    assert found["fedavg"] == [
        ("fedavg:learning-rate=0.1", "learning-rate=0.1"),
        ("fedavg:learning-rate=0.01", "learning-rate=0.01"),
    ]
    assert found["q-FFL"] == [
        (f"qffl:q={q},learning-rate={rate}", f"q={q},learning-rate={rate}")
        for q in (1.0, 3.0)
        for rate in (0.1, 0.01)
    ]
    # Both phases have the rate.
    assert found["Cyclic+FedAvg"][1][0] == (
        "cyclic:rounds=2,participants=3,learning-rate=0.01+fedavg:learning-rate=0.01"
    )
    # A setting of its own is not searched, though all others search it.
    assert found["coprefl"] == [
        (f"coprefl:gamma={g},learning-rate=0.2,resplit={r}", f"gamma={g},resplit={r}")
        for g in (0.0, 1.0)
        for r in ("true", "false")
    ]


def test_what_the_paper_printed(read):
    recipe = read()
    first, second = (recipe.paper_table(one) for one in recipe.combinations())
    assert (first.table, dict(first.where)) == ("1(a)", {"participants": 2})
    assert first.rows == {
        "fedavg": {"accuracy": (78.96, 2.98), "variance": (64.0, None)},
        "q-FFL": {"variance": (1.5, 0.5)},
    }
    assert second.rows == {"coprefl": {"accuracy": (-1.0, None), "variance": (2.0, None)}}


def test_a_table_for_every_combination(read):
    text = TEXT.replace("rounds: 3", "rounds: [3, 5]")
    recipe = read(text)
    found = [(one["rounds"], one["participants"]) for one in recipe.combinations()]
    assert found == [(3, 2), (3, 4), (5, 2), (5, 4)]
    assert [recipe.paper_table(one).table for one in recipe.combinations()] == ["1(a)", "1(b)"] * 2
    short = read(TEXT[: TEXT.index("    - table: 1(b)")])
    assert [bool(short.paper_table(one)) for one in short.combinations()] == [True, False]


def test_defaults(read):
    recipe = read("title: T\nsettings: {rounds: 1}\nmethods: [fedavg, random]\n")
    assert (recipe.select, recipe.reference, recipe.seeds) == ("validation", "random", (0,))
    clients = ("variance", "variance-beyond", "worst-10%", "worst-20%", "worst-30%")
    assert recipe.metrics == ("accuracy", *clients, *BUDGETS)
    assert (recipe.source, recipe.figures, recipe.paper) == ("", ("accuracies", "curves"), ())
    untested = read("title: T\nsettings: {tasks: 0}\nmethods: [fedavg]\n")
    assert untested.metrics == ("final", "best", "best-round", "models", *BUDGETS)


def test_it_is_kept_as_it_was_read(read, tmp_path):
    recipe = read(changes=["rounds=5", "seeds=[7]"])
    kept = tmp_path / "kept.yaml"
    kept.write_text(recipe.to_yaml())
    again = read_recipe(kept)
    assert again.to_yaml() == recipe.to_yaml()
    assert (again.settings, again.seeds, again.paper) == (
        recipe.settings,
        recipe.seeds,
        recipe.paper,
    )
    assert "±" in kept.read_text()


# (what of TEXT is replaced, by what, the line of the error, what it says)
WRONG = [
    ("title: A recipe\n", "", None, "there is no 'title'"),
    ("title: A recipe", "title: []", 1, "title must be a text"),
    (
        "reference: fedavg",
        "refrence: fedavg",
        18,
        "unknown key 'refrence': did you mean 'reference'",
    ),
    ("metrics: [accuracy", "methods: [accuracy", 20, "the key 'methods' stands twice"),
    ("  rounds: 3", "  rounds: 3\n  rounds: 4", 5, "the key 'rounds' stands twice"),
    ("rounds: 3", "ronds: 3", 4, "unknown setting 'ronds': did you mean 'rounds'?"),
    ("rounds: 3", "rounds: three", 4, "rounds = 'three': must be a whole number"),
    ("rounds: 3", "rounds: []", 4, "rounds is an empty list"),
    ("rounds: 3", "rounds: {a: 1}", 4, "rounds: must be a plain value"),
    ("rounds: 3", "rounds:", 4, "rounds: must be a plain value"),
    ("rounds: 3", "rounds:\n    - 3\n    - 0", 6, "rounds = 0: must be at least 1"),
    ("participants: [2, 4]", "participants: [2, 2]", 6, "participants names 2 twice"),
    (
        "  participants: [2, 4]",
        "  participants: [2, 4, 40]",
        6,
        "participants = 40: must be at most",
    ),
    ("rounds: 3", "seed: 3", 4, "'seed' is not set here: use seeds"),
    ("rounds: 3", "method: fedavg", 4, "'method' is not set here: use methods"),
    ("rounds: 3", "run-name: x", 4, "'run-name' is not set here: use --out"),
    ("rounds: 3", "mu: 0.1", 4, "mu: no method here has this setting"),
    ("rounds: 3", "task-method: feavg", 4, "unknown method 'feavg': did you mean 'fedavg'?"),
    ("  - fedavg", "  - fedvag", 10, "unknown method 'fedvag': did you mean 'fedavg'?"),
    ("  - coprefl: {", "  - copref: {", 13, "unknown method 'copref': did you mean 'coprefl'?"),
    ("+ fedavg", "+ fedavgg", 12, "unknown method 'fedavgg': did you mean 'fedavg'?"),
    ("  - fedavg", "  - fedavg: 3", 10, "fedavg must be a mapping"),
    ("  - fedavg", "  - {fedavg: , random: }", 10, "a method is one LABEL: {settings}"),
    ("  - fedavg", "  - random", 9, "methods names 'random' twice"),
    ("method: qffl", "method: 'qffl:mu=1'", 11, "qffl has no 'mu' here"),
    ("  - random", "  - random:q=1", 9, "random is not trained and has no settings"),
    ("{gamma: [0", "{gama: [0", 13, "unknown setting 'gama': did you mean 'gamma'?"),
    ("gamma: [0, 1]", "gamma: []", 13, "gamma is an empty list"),
    ("gamma: [0, 1]", "gamma: [0, 2]", 13, "gamma = 2.0: must be between 0 and 1"),
    ("rounds=2,", "rounds=0,", 12, "rounds = 0: must be at least 1"),
    ("resplit: [true, false]", "resplitt: [true]", 16, "unknown setting 'resplitt'"),
    ("resplit: [true, false]", "mu: [0, 1]", 16, "search: mu: no method here has this setting"),
    ("select: test", "select: tests", 17, "select: unknown value 'tests': did you mean 'test'?"),
    ("reference: fedavg", "reference: fedvg", 18, "reference: unknown value 'fedvg'"),
    ("seeds: [0, 1]", "seeds: []", 19, "seeds is an empty list"),
    ("seeds: [0, 1]", "seeds: [0, -1]", 19, "seeds = -1: must be a whole number, at least 0"),
    ("seeds: [0, 1]", "seeds: [0, true]", 19, "seeds = True: must be a whole number"),
    ("seeds: [0, 1]", "seeds: [1, 1]", 19, "seeds names one twice"),
    ("variance]\nfig", "varience]\nfig", 20, "metric: unknown value 'varience'"),
    ("metrics: [accuracy, variance]", "metrics: []", 20, "metrics is an empty list"),
    ("[accuracies]", "[accuraces]", 21, "figure: unknown value 'accuraces'"),
    ("[accuracies]", "", 21, "figure: unknown value 'None'"),
    ("  columns: [accuracy, variance]\n", "", 22, "paper needs 'columns' and 'tables'"),
    ("  columns: [", "  column: [", 23, "unknown key 'column': did you mean 'columns'?"),
    ("  columns: [accuracy", "  columns: [accurcy", 23, "column: unknown value 'accurcy'"),
    ("{participants: 2}", "{participants: 3}", 26, "participants = 3; in the settings it is 2, 4"),
    ("{participants: 2}", "{alpha: 0.5}", 26, "alpha = 0.5; in the settings it is not set"),
    ("78.96±2.98 64", "78.96±2.98", 28, "1 figures for 2 columns"),
    ("78.96±2.98 64", "78.96±2.98 6x", 28, "'6x' is no figure; write 83.29±2.61, 83.29 or -"),
    (
        "        fedavg: 78",
        "        fedvag: 78",
        28,
        "unknown row 'fedvag': did you mean 'fedavg'?",
    ),
    ("      rows: {coprefl: -1 2}", "      row: {}", 32, "unknown key 'row'"),
    ("      rows: {coprefl: -1 2}", "", 30, "a table of the paper needs 'rows'"),
    ("select: test", "validation-seed: 1", 17, "validation-seed = 1 is one of the seeds"),
    ("select: test", "validation-tasks: 0", 17, "validation-tasks = 0: must be a whole number"),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_has_a_line(old, new, line, message, read, tmp_path):
    assert TEXT.count(old) == 1
    with pytest.raises(SettingsError) as caught:
        read(TEXT.replace(old, new))
    problem = str(caught.value)
    assert "\n" not in problem
    place = f"{tmp_path / 'recipe.yaml'}, line {line}: " if line else str(tmp_path / "recipe.yaml")
    assert problem.startswith(place)
    assert message in problem


def test_what_is_searched_needs_something_to_choose_by(read):
    text = TEXT.replace("rounds: 3", "tasks: 0").replace("select: test\n", "")
    with pytest.raises(SettingsError) as caught:
        read(text)
    assert str(caught.value).endswith(
        "line 10: 'fedavg' is searched on validation tasks, and tasks = 0; set select: all, or test"
    )


def test_where_all_values_are_shown_they_are_rows(read):
    text = TEXT.replace("select: test", "select: all").replace(
        "        fedavg: 78.96±2.98 64\n", ""
    )
    text = text.replace("reference: fedavg", "reference: coprefl:gamma=1.0,resplit=true")
    recipe = read(text.replace('q-FFL: "', 'q-FFL:q=3.0,learning-rate=0.1: "'))
    assert recipe.reference == "coprefl:gamma=1.0,resplit=true"
    assert list(recipe.paper[0].rows) == ["q-FFL:q=3.0,learning-rate=0.1"]
    with pytest.raises(SettingsError, match=r"unknown value 'coprefl:gamma=2\.0"):
        read(text.replace("gamma=1.0,resplit=true", "gamma=2.0"))


def test_a_recipe_that_names_no_figures_has_some(read):
    text = TEXT.replace("figures: [accuracies]\n", "")
    assert read(text).figures == ("accuracies", "curves")  # Was none: a report without a picture.
    assert read(text, ["tasks=0"]).figures == ("curves",)
    own = "title: T\nsettings: {study: personalised, rounds: 1}\nmethods: [fedpcl]\n"
    assert read(own).figures == ("accuracies",)
    assert read(text + "figures: []\n").figures == ()
    with pytest.raises(SettingsError, match="unknown value 'bars': known are accuracies"):
        read(text + "figures: [bars]\n")


def test_rows_that_train_other_rounds_say_how_many(read):
    """rounds = 20 and cyclic:rounds=5+fedavg made 25 without a word."""
    text = "title: T\nsettings: {rounds: 20}\nmethods: [fedavg, METHOD]\nmetrics: [accuracy]\n"
    for method in ("'cyclic:rounds=5+fedavg'", "'coprefl:rounds=7'", "{coprefl: {rounds: 7}}"):
        assert read(text.replace("METHOD", method)).metrics == ("accuracy", "rounds", *BUDGETS)
    assert read(text.replace("METHOD", "coprefl")).metrics == ("accuracy", *BUDGETS)


# ---- --set ---------------------------------------------------------------------------------------


def test_a_setting_a_key_and_a_list_can_be_set(read):
    changes = ["rounds=7", "title=Another", "alpha=[0.1, 1]", "seeds=[4, 5]", "mu=", "data-dir=x"]
    recipe = read(changes=changes[:4] + changes[5:])
    assert recipe.settings["rounds"] == (7,)
    assert recipe.settings["alpha"] == (0.1, 1.0)
    assert recipe.settings["data-dir"] == ("x",)
    assert (recipe.title, recipe.seeds) == ("Another", (4, 5))
    assert read(changes=["local-steps="]).settings["local-steps"] == ("",)
    assert read(changes=["rounds=7", "rounds=8"]).settings["rounds"] == (8,)


def test_counts_and_lists_mean_what_they_say(read):
    def settings(*changes):
        return read(changes=changes).settings

    # Was "downstream-classes = 20: must be a text".
    assert settings("downstream-classes=20")["downstream-classes"] == ("20",)
    assert settings("downstream-classes=['2', '4']")["downstream-classes"] == ("2", "4")
    lists = settings("downstream-classes=[[8, 9], 2]", "downstream-domains=[[art, photo]]")
    assert lists["downstream-classes"] == ("list:8,9", "2")
    assert lists["downstream-domains"] == ("art photo",)
    in_file = TEXT.replace("rounds: 3", "rounds: 3\n  downstream-classes: [[8, 9]]")
    assert read(in_file).settings["downstream-classes"] == ("list:8,9",)
    assert (read(changes=["seeds=0"]).seeds, read(changes=["seeds=[2]"]).seeds) == ((0,), (2,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rounds", "--set rounds: write KEY=VALUE"),
        ("ronds=3", "--set ronds=3: unknown setting 'ronds': did you mean 'rounds'?"),
        ("rounds=0", "--set rounds=0: rounds = 0: must be at least 1"),
        ("rounds=[1", "--set rounds=[1, line 1: not YAML: "),
        ("participants=50", "--set participants=50: participants = 50: must be at most clients"),
        ("seeds=[]", "--set seeds=[]: seeds is an empty list"),
        ("seeds=2", "--set seeds=2: seeds = 2: write [0, 1] for 2 seeds, [2] for the seed 2"),
        (
            "downstream-classes=[80, 81]",
            "--set downstream-classes=[80, 81]: downstream-classes = [80, 81]: write [[80, 81]] "
            "for these classes, or ['80', '81'] to compare so many",
        ),
        ("rounds=[[1, 2]]", "--set rounds=[[1, 2]], line 1: rounds: must be a plain value"),
        ("seeds=", "--set seeds=: seeds = : must be a whole number, at least 0"),
        ("methods=[fedvag]", "--set methods=[fedvag], line 1: unknown method 'fedvag'"),
        ("rounds=!!python/name:os.system", "--set rounds=!!python/name:os.system, line 1: tag:"),
    ],
)
def test_a_wrong_change_is_named(change, message, read):
    with pytest.raises(SettingsError) as caught:
        read(changes=[change])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_paper_of_what_is_still_compared_stays(read, tmp_path):
    recipe = read(changes=["participants=4"])
    assert [table.table for table in recipe.paper] == ["1(b)"]
    fewer = read(changes=["methods=[random, fedavg]", "search={learning-rate: [0.1]}"])
    assert {table.table: list(table.rows) for table in fewer.paper} == {"1(a)": ["fedavg"]}
    assert read(changes=["participants=3"]).paper == ()
    # What is kept beside the results can be read again.
    for one in (recipe, fewer, read(changes=["participants=3"])):
        (tmp_path / "kept.yaml").write_text(one.to_yaml())
        assert read_recipe(tmp_path / "kept.yaml").paper == one.paper


def test_a_change_of_the_rows_takes_their_options_along(read):
    """What the file set for methods that are left out is none of the others' errors."""
    text = TEXT.replace("rounds: 3", "rounds: 3\n  inner-learning-rate: 0.001")
    text = text.replace("methods:", "methods:\n  - per-fedavg", 1)
    assert read(text).settings["inner-learning-rate"] == (0.001,)
    assert "inner-learning-rate" not in read(text, ["methods=[fedavg]"]).settings
    with pytest.raises(SettingsError, match="inner-learning-rate: no method here"):
        read(text, ["methods=[fedavg]", "inner-learning-rate=0.1"])
