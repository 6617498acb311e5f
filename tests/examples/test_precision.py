"""The recipe of precisions: the same pre-training twice, and a report that tells them apart."""

from coprefl_flwr.recipes import provenance
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.sweep import contests
from tests.common.simulation import ROOT


def test_it_would_run_and_its_report_tells_the_precision():
    recipe = read_recipe(ROOT / "examples" / "precision.yaml", (), "small")
    rows = {}
    for contest in contests(recipe):
        [candidate] = contest.entrant.candidates()
        rows[contest.entrant.label] = contest.reported(candidate)[0]
    plain, short = provenance.of_methods(list(rows.items())).values()
    assert ", precision = float32, " in plain
    assert ", precision = bf16, " in short
    assert provenance.left_alone(recipe)["precision"] == "float32"
