"""--scale small: what is cut, and what stays."""

import pytest

from coprefl_flwr.recipes.reading import read_recipe
from tests.common.recipes import write_recipe

RECIPE = {
    "title": "Large",
    "settings": {
        "dataset": "CIFAR100",
        "data-dir": "data",
        "model": "resnet18",
        "rounds": 50,
        "participants": [15, 20, 25, 30],
        "local-epochs": 5,
        "partition": ["iid", "dirichlet"],
        "momentum": 0.9,
        "tasks": 10,
        "task-rounds": 50,
        "task-local-epochs": 5,
        "task-clients": 10,
    },
    "methods": [
        "random",
        "fedavg",
        {"fedmeta": {"variant": ["maml", "fomaml", "meta-sgd"], "meta-learning-rate": [0.1, 0.2]}},
        {"long": {"method": "cyclic:rounds=20,participants=35+fedavg:rounds=30"}},
        {"centralised": {"rounds": 25}},
        {"coprefl": {"gamma": [0.0, 0.5, 1.0], "learning-rate": [0.1, 0.2]}},
    ],
    "search": {"learning-rate": [0.1, 0.01], "support-fraction": [0.5, 0.6, 0.7]},
    "seeds": [3, 4, 5],
    "validation-tasks": 2,
    "reference": "coprefl",
    "small": {"task-classes": 4},
    "paper": {
        "columns": ["accuracy"],
        "tables": [
            {
                "table": f"{participants} {partition}",
                "where": {"participants": participants, "partition": partition},
                "rows": {"fedavg": f"{participants}.5±1", "coprefl": 60},
            }
            for participants in (15, 20, 25, 30)
            for partition in ("iid", "dirichlet")
        ],
    },
}


@pytest.fixture
def cut(tmp_path):
    """Return a recipe at small scale, with some of its keys changed."""

    def read(changes=(), **keys):
        content = {**RECIPE, **keys}
        content = {key: value for key, value in content.items() if value is not None}
        return read_recipe(write_recipe(tmp_path / "large.yaml", content), changes, "small")

    return read


def test_what_is_cut(cut):
    recipe = cut()
    settings = {key: values[0] for key, values in recipe.settings.items() if len(values) == 1}
    assert settings == {
        "dataset": "glyphs",
        "data-dir": "",
        "model": "femnist-cnn",
        "downstream-classes": "20",
        "pretraining-classes": "",
        "clients": 20,
        "rounds": 6,
        "test-every": 0,
        "local-epochs": "",
        "local-steps": 5,
        "learning-rate": 0.1,
        "momentum": 0.0,
        "weight-decay": 0.0,
        "tasks": 2,
        "task-rounds": 5,
        "task-clients": 5,
        "task-local-epochs": "",
        "task-local-steps": 5,
        "task-learning-rate": 0.05,
        "task-classes": 4,  # The recipe's own.
    }
    # A fifth of the clients, a fifth of the participants.
    assert recipe.settings["participants"] == (3, 4, 5, 6)
    assert recipe.settings["partition"] == ("iid", "dirichlet")
    assert recipe.seeds == (3,)


def test_methods_are_cut_alike(cut):
    starts = {row.label: [str(one.start) for one in row.candidates()] for row in cut().entrants}
    assert starts["random"] == ["random"]
    assert starts["fedavg"] == ["fedavg"]
    # 20 and 30 of 50 rounds are 2.4 and 3.6 of 6; 35 of 100 clients are 7 of 20, not 7.000000001.
    assert starts["long"] == ["cyclic:rounds=3,participants=7+fedavg:rounds=4"]
    assert starts["centralised"] == ["centralised:rounds=3"]
    # The first two values of what is searched; what the cuts replace is not searched.
    assert starts["coprefl"] == [
        f"coprefl:gamma={gamma},support-fraction={fraction}"
        for gamma in (0.0, 0.5)
        for fraction in (0.5, 0.6)
    ]
    variants = {start.partition(":")[2].partition(",")[0] for start in starts["fedmeta"]}
    assert variants == {"variant=maml", "variant=fomaml"}


def test_a_search_of_what_is_replaced_ends(cut):
    recipe = cut(search={"learning-rate": [0.1, 0.01]})
    assert [len(row.candidates()) for row in recipe.entrants] == [1, 1, 4, 1, 1, 2]


def test_the_papers_figures_stay_beside_their_tables(cut):
    recipe = cut()
    found = {
        (combination["participants"], combination["partition"]): recipe.paper_table(combination)
        for combination in recipe.combinations()
    }
    assert {where: table.table for where, table in found.items()} == {
        (small, partition): f"{large} {partition}"
        for small, large in ((3, 15), (4, 20), (5, 25), (6, 30))
        for partition in ("iid", "dirichlet")
    }
    assert found[4, "iid"].rows["fedavg"] == {"accuracy": (20.5, 1.0)}


def test_a_table_of_what_is_replaced_stays(cut):
    """What the data of a table were is not asked for any more."""
    paper = {
        "columns": ["accuracy"],
        "tables": [{"table": 9, "where": {"dataset": "CIFAR100"}, "rows": {"fedavg": 1}}],
    }
    recipe = cut(paper=paper)
    assert {recipe.paper_table(one).table for one in recipe.combinations()} == {"9"}


def test_rows_that_were_cut_away_are_not_printed(cut):
    paper = {
        "columns": ["accuracy"],
        "tables": [{"rows": {"coprefl:gamma=0.5": 1, "coprefl:gamma=1.0": 2}}],
    }
    keys = {"select": "all", "search": None, "methods": [{"coprefl": {"gamma": [0.0, 0.5, 1.0]}}]}
    recipe = cut(paper=paper, reference="coprefl:gamma=1.0", **keys)
    assert list(recipe.paper[0].rows) == ["coprefl:gamma=0.5"]
    assert recipe.reference == "coprefl:gamma=0.5"  # The last that is left.


def test_it_says_what_it_did(cut, tmp_path):
    recipe = cut()
    (note,) = recipe.notes
    assert note.startswith(
        "Cut down (--scale small): glyphs in the place of the paper's data, femnist-cnn, 6 rounds, "
        "20 clients, 3, 4, 5, 6 of them a round, 2 tasks of 5 rounds on 5 clients, one seed"
    )
    kept = tmp_path / "kept.yaml"
    kept.write_text(recipe.to_yaml())
    again = read_recipe(kept)
    assert again.to_yaml() == recipe.to_yaml()
    assert (again.settings, again.notes, again.paper) == (
        recipe.settings,
        recipe.notes,
        recipe.paper,
    )


def test_changes_come_after_the_cuts(cut):
    recipe = cut(["rounds=9", "seeds=[1, 2]", "participants=5", "model=lenet5"])
    assert recipe.settings["rounds"] == (9,)
    assert recipe.settings["model"] == ("lenet5",)
    assert recipe.seeds == (1, 2)
    assert [table.table for table in recipe.paper] == ["25 iid", "25 dirichlet"]


def test_what_is_small_stays(cut):
    settings = {"clients": 10, "participants": 5, "rounds": 4, "tasks": 1, "task-rounds": 3}
    recipe = cut(settings=settings, methods=["fedavg"], reference=None, search=None, paper=None)
    for key, value in settings.items():
        assert recipe.settings[key] == (value,)
    assert recipe.settings["task-clients"] == (5,)
