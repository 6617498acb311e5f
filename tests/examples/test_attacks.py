"""The recipes of attacks: methods without attackers and with shares of them."""

from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.sweep import check_runs
from tests.simulation import ROOT

FOLDER = ROOT / "examples"
NAMES = ("attacks", "attacks_by_length")


def test_it_can_be_read_and_would_run():
    file = FOLDER / "attacks.yaml"
    recipe = read_recipe(file)
    assert len(recipe.seeds) == 3
    shares = {}
    for row in recipe.entrants:
        (share,) = row.options.get("attack-share", (0.0,))
        label, _, more = row.label.partition(", ")
        assert more == (f"{100 * share:g} % attackers" if share else "")
        shares.setdefault(label, []).append(share)
    assert {"fedavg", "coprefl"} <= shares.keys()
    assert all(found == [0.0, 0.1, 0.3] for found in shares.values())
    runs = check_runs(read_recipe(file, (), "small"))
    assert len({run.key for run in runs}) == len(recipe.entrants)


def test_updates_ten_times_as_long_are_compared_with_the_same_runs_without_attackers():
    plain, *attacked = read_recipe(FOLDER / "attacks_by_length.yaml").entrants
    assert (plain.label, plain.options) == ("coprefl", {})
    assert all(row.options["attack"] == ("scale",) for row in attacked)
    small = [check_runs(read_recipe(FOLDER / f"{name}.yaml", (), "small")) for name in NAMES]
    first, second = ({run.key for run in runs if run.name == "coprefl"} for runs in small)
    assert first == second
