"""The recipe of attacks: every method without attackers and with two shares of them."""

from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.sweep import check_runs
from tests.simulation import ROOT

FILE = ROOT / "examples" / "attacks.yaml"


def test_it_can_be_read_and_would_run():
    recipe = read_recipe(FILE)
    assert len(recipe.seeds) == 3
    shares = {}
    for row in recipe.entrants:
        (share,) = row.options.get("attack-share", (0.0,))
        label, _, more = row.label.partition(", ")
        assert more == (f"{100 * share:g} % attackers" if share else "")
        shares.setdefault(label, []).append(share)
    assert {"fedavg", "coprefl"} <= shares.keys()
    assert all(found == [0.0, 0.1, 0.3] for found in shares.values())
    runs = check_runs(read_recipe(FILE, (), "small"))
    assert len({run.key for run in runs}) == len(recipe.entrants)
