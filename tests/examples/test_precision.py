"""The recipe of precisions: the same pre-training twice, and a report that shows the precision."""

from coprefl_flwr.recipes import notes
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.search import table_rows
from tests.common.simulation import ROOT


def test_it_would_run_and_its_report_tells_the_precision():
    recipe = read_recipe(ROOT / "examples" / "precision.yaml", (), "small")
    methods = []
    for table_row in table_rows(recipe):
        [trial] = table_row.trials()
        methods.append(notes.phases(table_row.reported(trial)[0].main))
    plain, short = methods
    assert ", precision = float32, " in plain
    assert ", precision = bf16, " in short
    assert notes.left_alone(recipe)["precision"] == "float32"
