# ruff: noqa: RUF001  The dash that means a missing number.
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.report import ResultRow, text_tables
from coprefl_flwr.report.columns import column
from coprefl_flwr.report.comparison import Comparison, SearchEntry, numbers, of_clients
from coprefl_flwr.report.formats import latex, markdown
from coprefl_flwr.report.tables import NONE, search_table, table, tables
from coprefl_flwr.report.variance import variance_parts
from tests.common.comparisons import (
    NASTY,
    comparison,
    loss_row,
    losses,
    one_unit,
    result_row,
    row,
)

METRICS = ["accuracy", "variance"]  # the metrics of the made-up comparison
SEEDS = [f"seed {seed}" for seed in range(4)]  # as units: enough for significant differences
# fedavg minus coprefl: -5, -3 in seed 0 and -6, -6 in seed 1. The seeds' means are -4 and -6: mean
# -5, std √2, t = -5 with 1 degree of freedom, whose distribution is the Cauchy distribution.
P_ACCURACY = 1 - 2 / math.pi * math.atan(5)


def entry(of: Comparison, row: str, metric: str) -> Any:
    """Return the numbers of one metric of a row."""
    data = numbers(of)
    (record,) = data[(data["label"] == row) & (data["metric"] == metric)].to_dict("records")
    return record


def cell(of: Comparison, line: int, metric: str, part: str = "here") -> str:
    """Return the text of a cell."""
    text = table(of).cells[column(metric).title, part].iloc[line]
    assert isinstance(text, str)
    return text


def best(of: Comparison, metric: str) -> list[bool]:
    """Return which lines are marked as best."""
    marks = table(of).best
    assert marks is not None
    return [bool(mark) for mark in marks[column(metric).title, "here"]]


def test_row_has_means_deviations_and_p_values() -> None:
    """fedavg: 70 to 76, mean 73, std √(20 / 3) = 2.58; Holm's p is for two tested rows.

    The failed row minus coprefl is 15 in seed 0 (one task is missing), 10 and 8 in seed 1: means 15
    and 9, mean 12, std √18, t = 12 / 3 = 4 with 1 degree of freedom.
    """
    fedavg, coprefl = 0, 1
    names = [of_row[0] for of_row in table(comparison()).names]
    assert names == ["fedavg", "coprefl", NASTY]
    of_fedavg = entry(comparison(), "fedavg", "accuracy")
    assert cell(comparison(), fedavg, "accuracy") == "73.00 ± 2.58"
    assert of_fedavg["p"] == pytest.approx(P_ACCURACY)
    failed = entry(comparison(), NASTY, "accuracy")
    assert (failed["difference"], failed["pairs"]) == (12, 2)
    assert failed["p"] == pytest.approx(1 - 2 / math.pi * math.atan(4))
    assert of_fedavg["p-holm"] == pytest.approx(2 * P_ACCURACY)
    assert cell(comparison(), fedavg, "accuracy", "paper") == "78.90 ± 2.98"
    assert cell(comparison(), fedavg, "variance", "paper") == "64.80"
    assert cell(comparison(), coprefl, "accuracy", "p (Holm)") == NONE


def test_only_significant_differences_are_bold() -> None:
    """Two seeds give no significant difference here; four do, whichever row is the reference."""
    for metric in METRICS:
        assert best(comparison(), metric) == [False] * 3
        assert best(comparison(units=SEEDS[:1] * 4), metric) == [False] * 3
        decided = comparison(units=SEEDS, rows=comparison().rows[:2])
        assert best(decided, metric) == [False, True]
    others = comparison(units=SEEDS, rows=comparison().rows[:2], reference="fedavg")
    assert best(others, "accuracy") == [False, True]
    note = "bold: best, and significantly different from coprefl:gamma=0.5 (p < 0.05)."
    assert note in markdown(table(comparison(units=SEEDS))).replace("\\", "")
    assert "bold" not in markdown(table(comparison()))
    assert "| coprefl | gamma=0.5 | **78.00 ± 3.56** |" in markdown(table(decided))
    line = f"CoPreFL:gamma=0.5  78.00 ± 3.56*         {NONE}   35.00 ± 5.77*"
    assert line in text_tables(decided)
    assert r"coprefl & gamma=0.5 & \textbf{78.00 $\pm$ 3.56} &" in latex(table(decided))
    close = result_row("fedprox", [74.0, 76.0, 79.0, 81.5], [31.0, 29.0, 41.0, 39.5])
    third = comparison(units=SEEDS, rows=[*comparison().rows[:2], close])
    assert best(third, "accuracy") == [False] * 3  # FedProx is not significantly worse.


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([3.0, 4.0, math.inf, 6.0], "median 5.0 (never: 1 of 4)"),
        ([3.0, math.inf, math.nan, 5.0], "median 5.0 (never: 1 of 3)"),
        ([3.0, math.inf, math.inf, math.inf], "(never: 3 of 4)"),
        ([math.inf] * 4, "never"),
        ([3.0, 4.0, 5.0, 6.0], "4.5 ± 1.3"),
    ],
)
def test_metric_with_some_infinite_values_shows_the_median_and_their_number(values, text) -> None:
    """An infinite mean would hide that most units reached the target."""
    rows = [ResultRow("coprefl", "", pd.DataFrame({"rounds-to-50%": values}))]
    shown = table(comparison(metrics=["rounds-to-50%"], units=SEEDS, rows=rows, paper={}))
    assert shown.cells.iloc[0, 0] == text


def test_note_counts_pretraining_values_once_per_seed() -> None:
    """Metrics of the pre-training have one value per seed, not one per task.

    A start that is not pre-trained has no value, but that is not a failure.
    """
    nan = math.nan
    rows = [
        ResultRow(
            "random", "", pd.DataFrame({"accuracy": [1.0, 2.0, 3.0, 4.0], "final": [nan] * 4})
        ),
        ResultRow(
            "coprefl",
            "",
            pd.DataFrame({"accuracy": [2.0, 4.0, 6.0, 8.0], "final": [50.0, nan, 52, nan]}),
        ),
    ]
    text = markdown(table(comparison(metrics=["accuracy", "final"], rows=rows, paper={})))
    assert "Final accuracy %: 2 values per row." in text
    assert "not marked best" not in text
    assert "| coprefl | 5.00 ± 2.58 | – | 51.00 ± 1.41 |" in text


def test_one_unit_has_no_deviation_and_no_test() -> None:
    single = table(one_unit())
    text = markdown(single)
    assert "| fedavg | 70.00 | 40.00 |" in text
    assert "Only one seed: no significance test." in text
    assert "Holm" not in text
    assert numbers(one_unit())["p-holm"].isna().all()


def test_tasks_of_one_seed_give_no_significance_test() -> None:
    """However many tasks there are, they share the pre-trained model that is compared."""
    of_one_seed = [f"seed 0, task {task}" for task in range(4)]
    same_seed = comparison(units=of_one_seed)
    assert numbers(same_seed)["p"].isna().all()
    text = markdown(table(same_seed))
    assert "Only one seed, and its tasks share a pre-trained model: no significance test." in text
    assert "t-test" not in text


def test_latex_escapes_special_characters() -> None:
    text = latex(table(comparison(units=SEEDS)))
    assert r"a\textbar{}b\_c\%d\&e\textless{}f\textgreater{}\{g\}\#\$\textasciitilde{}" in text
    assert r"\quad paper &  & 78.90 $\pm$ 2.98 & 64.80 \\" in text
    assert text.isascii()
    cells = [line.count(" & ") for line in text.splitlines() if line.endswith(r"\\")]
    assert set(cells) == {3}


def test_costs_have_their_table() -> None:
    """Costs have one value per seed, not per task; a start without pre-training has none."""
    nan = math.nan
    rows = [
        ResultRow(
            "random", "", pd.DataFrame({"accuracy": [1.0, 2.0, 3.0, 4.0], "models": [nan] * 4})
        ),
        ResultRow(
            "coprefl",
            "",
            pd.DataFrame({"accuracy": [2.0, 4.0, 6.0, 8.0], "models": [6e3, nan, 8e3, nan]}),
        ),
    ]
    with_costs = comparison(metrics=["models", "accuracy"], rows=rows, paper={}, title="T")
    accuracy, costs = tables(with_costs)
    assert (accuracy.title, accuracy.label) == ("T", "participants-20")
    assert (costs.title, costs.label) == ("T: training and costs", "participants-20-costs")
    assert list(costs.cells) == [("Models sent", "here")]  # Without p-values.
    assert costs.cells.iloc[:, 0].tolist() == [NONE, "7,000 ± 1,414"]
    notes = " ".join(costs.sentences("*"))
    assert notes.startswith("Mean ± sample standard deviation over 2 seeds.")
    assert "random: nothing was trained." in notes
    assert [each.label for each in tables(comparison())] == ["participants-20"]


def test_results_csv_has_the_numbers_and_their_source() -> None:
    fedavg, of_variance, coprefl, *_ = numbers(comparison()).to_dict("records")
    assert [fedavg[key] for key in ("comparison", "row", "metric", "mean", "n", "pairs")] == [
        "participants-20", "fedavg", "accuracy", 73.0, 4, 2,
    ]  # fmt: skip
    assert fedavg["std"] == pytest.approx(math.sqrt(20 / 3))
    assert fedavg["difference"] == -5
    assert (fedavg["paper-mean"], fedavg["paper-std"]) == (78.9, 2.98)
    assert fedavg["source"] == "CoPreFL, AAAI text, Table 1(a)"
    assert (of_variance["metric"], of_variance["paper-mean"]) == ("variance", 64.8)
    assert [coprefl[key] for key in ("row", "label", "chosen")] == [
        "coprefl:gamma=0.5", "coprefl", "gamma=0.5",
    ]  # fmt: skip
    assert math.isnan(coprefl["p"])


def flagged() -> Comparison:
    """Return a comparison: the most even row diverged, the most accurate row did not learn."""
    rows = [
        result_row("fedavg", [70.0, 71.0, 72.0, 71.0], [50.0, 52.0, 51.0, 50.0]),
        result_row("coprefl", [75.0] * 4, [40.0] * 4),
        result_row("burst", [1.0] * 4, [0.0] * 4, problems=["seed 0: diverged: loss 1.96e+31"]),
        result_row("idle", [99.0] * 4, [60.0] * 4, problems=["seed 1: did not learn: loss 4.38"]),
    ]
    return comparison(units=SEEDS, rows=rows, paper={})


def test_diverged_or_unlearned_row_is_never_best() -> None:
    """Earlier, a row with a loss of 1.96e31 had the best variance, because no client learned."""
    assert [best(flagged(), metric) for metric in METRICS] == [[False, True, False, False]] * 2
    for text in (markdown(table(flagged())), text_tables(flagged())):
        assert "burst †" in text
        assert "idle †" in text
        assert "edavg †" not in text.lower()
        notes = " ".join(text.split())
        assert (
            "†: never marked as best. burst: seed 0: diverged: loss 1.96e+31. idle: seed 1" in notes
        )
    assert r"burst \textdagger{} & 1.00" in latex(table(flagged()))


def test_row_worse_than_the_reference_is_never_best() -> None:
    """Before, the best of the other rows was bold, if the reference could not be the best."""
    low = [50.0, 51.0, 49.0, 50.5]
    for lacking, problems in (([*low[:3], math.nan], []), (low, ["seed 0: diverged"])):
        high = [value + 30 + at % 2 for at, value in enumerate(lacking)]
        rows = [
            result_row("fedavg", high, lacking, problems=problems),
            result_row("qffl", low, [value + 30 + at % 2 for at, value in enumerate(low)]),
            result_row("moon", [value - 9 for value in low], [value + 99 for value in low]),
        ]
        compared = comparison(units=SEEDS, rows=rows, paper={}, reference="fedavg")
        assert entry(compared, "qffl", "accuracy")["p-holm"] < 0.05
        assert [best(compared, metric) for metric in METRICS] == [[False] * 3] * 2


def test_search_table_marks_the_chosen_value() -> None:
    tried = [
        SearchEntry("coprefl", "gamma=0.0", 61.5, chosen=False, problem="seed 100: diverged"),
        SearchEntry("coprefl", "gamma=1.0", 63.25, chosen=True),
        SearchEntry("qffl", "q=1", math.nan, chosen=False),
    ]
    text = markdown(search_table(comparison(search_entries=tried)))
    assert "| coprefl † | gamma=0.0 | 61.50 | no |" in text
    assert "| coprefl | gamma=1.0 | 63.25 | **chosen** |" in text
    assert "| qffl | q=1 | – | no |" in text
    assert "† coprefl with gamma=0.0: seed 100: diverged" in text


def test_note_describes_the_significance_test() -> None:
    note = markdown(table(comparison())).replace("\\", "")
    assert "over 4 tasks of 2 seeds; accuracies in %" in note
    assert (
        "paired t-test against coprefl:gamma=0.5 over the seeds that both rows have, each" in note
    )
    assert "paper: numbers printed in CoPreFL, AAAI text, Table 1(a)." in note


def of_draws(draws: int, problems: tuple[str, ...] = ()) -> Comparison:
    """Return three rows over draws with two seeds and two tasks of two clients each."""
    units = [f"draw {d}, seed {s}, task {t}" for d in range(draws) for s in (0, 1) for t in (0, 1)]
    rng, rows = np.random.default_rng(0), []
    for at, label in enumerate(("random", "fedavg", "coprefl")):
        correct = rng.integers(20 * at, 20 * at + 9, (len(units), 2))
        clients = [
            row(label, u, c, int(correct[u, c]), 100) for u in range(len(units)) for c in (0, 1)
        ]
        values = correct.mean(axis=1).tolist()
        has = problems if label == "fedavg" else ()
        client_rows = pd.DataFrame(clients)
        rows.append(result_row(label, values, values, client_rows=client_rows, problems=has))
    return comparison(units=units, rows=rows, reference="fedavg", paper={}, failed=[])


def test_parts_of_the_variance_have_a_table() -> None:
    shown = of_draws(6)
    *_, parts = tables(shown)
    assert parts.title == "Where the differences come from"
    trained = of_clients(shown).query("start != 'random'")
    expected = variance_parts(trained, "value")
    shares, stds, intervals = (parts.cells[column] for column in parts.columns)
    assert shares.tolist() == [f"{share:.0f}" for share in expected["share"]]
    assert stds.tolist() == [f"{std:.2f}" for std in expected["std"]]
    first = expected.loc["start x draw"]
    assert intervals["method x draw"] == f"{first['low']:.2f} to {first['high']:.2f}"
    assert [head for head, _ in parts.columns][1] == "Standard deviation, points"
    assert "Rows: fedavg, coprefl." in parts.notes[1]
    differ = expected["share"][["start x draw", "start x seed", "start x task", "rest"]]
    most = str(differ.idxmax()).replace("start", "method")
    assert parts.above.startswith(f"{differ.sum():.0f} % of the variance of accuracy differs")
    assert parts.above.endswith(f"by method, mostly {most}.")
    for page in (text_tables(shown), markdown(parts), latex(parts).replace("\\%", "%")):
        assert parts.above in " ".join(page.split())
    # A row with a problem does not count; the untrained row does if it is needed.
    assert "Rows: random, fedavg, coprefl." in tables(of_draws(6, ("diverged",)))[-1].notes[1]


def test_parts_of_draws_with_one_seed_are_those_of_both() -> None:
    shown = of_draws(6)
    one = replace(shown, units=[unit.replace("draw", "seed", 1) for unit in shown.units])
    one = replace(one, units=[f"seed {at}, task 0" for at in range(len(shown.units))])
    names = ["draw and seed", "method x draw and seed"]
    assert tables(one)[-1].cells.index.tolist() == names


def test_one_draw_has_no_parts_of_the_variance() -> None:
    assert [table.label for table in tables(of_draws(1))] == ["participants-20"]


def test_few_draws_behind_the_best_row_give_a_warning() -> None:
    warning = "Warning: only 4 draws behind {mark}; others may have another best row."
    four, five = (table(of_draws(draws)) for draws in (4, 5))
    assert four.best.any(axis=None)
    assert five.best.any(axis=None)
    assert warning in four.notes
    assert not any("Warning" in note for note in five.notes)


def test_lowest_loss_is_bold_with_enough_decimals() -> None:
    assert [best(losses(), metric) for metric in ("loss", "loss:variance")] == [[False, True]] * 2
    assert best(losses(reference="coprefl"), "loss") == [False, True]
    text = markdown(table(losses())).replace("\\", "")
    assert "| coprefl | **0.0318 ± 0.0017** |" in text
    assert "| Variance: Loss |" in text
    assert "variance over the clients of a task; bold" in text
    assert "accuracies in %" not in text
    high = [*losses().rows, loss_row("moon", [0.09, 0.1, 0.11, 0.1])]
    assert best(losses(rows=high), "loss") == [False, True, False]


def test_search_table_of_losses() -> None:
    tried = [
        SearchEntry("coprefl", "gamma=0.0", 0.0415, chosen=True, short_score=0.08),
        SearchEntry("coprefl", "gamma=1.0", math.nan, chosen=False, short_score=0.09),
    ]
    text = markdown(search_table(losses(search_entries=tried)))
    assert "| Method | Values | After a quarter | Loss | Chosen |" in text
    assert "| coprefl | gamma=0.0 | 0.0800 | 0.0415 | **chosen** |" in text
    assert "Mean loss on the tasks that choose a value" in text
