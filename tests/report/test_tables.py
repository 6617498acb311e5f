import csv
import io
import math
from typing import Any

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from coprefl_flwr.report import Measured, text_tables
from coprefl_flwr.report.comparing import numbers, overviews, table, units
from coprefl_flwr.report.comparison import Comparison
from coprefl_flwr.report.forms import latex, markdown
from coprefl_flwr.report.table import NONE, Line, Number, Part
from tests.report.made_up import NASTY, UNITS, comparison, measured, one_unit

METRICS = ["accuracy", "variance"]  # those of the made-up comparison
# fedavg less coprefl: -5, -3, -6, -6: mean -5, std √2, t = -5 / (√2 / 2) = -7.07 with 3 degrees.
P_ACCURACY = 0.0058


def entry(of: Comparison, row: str, metric: str) -> Any:
    """The numbers of a row's metric."""
    found = numbers(of)
    (one,) = found[(found["label"] == row) & (found["metric"] == metric)].to_dict("records")
    return one


def cell(line: Line, metric: str, part: Part = "here") -> Number:
    return line.number(METRICS.index(metric), part)


def is_marked(line: Line) -> bool:
    return any(shown.best for cells in line.cells for shown in cells.values())


def as_lines(found: pd.DataFrame) -> list[dict[str, str]]:
    """What a reader of the CSV file sees."""
    return list(csv.DictReader(io.StringIO(found.to_csv(index=False))))


def test_numbers_of_a_row() -> None:
    """fedavg: 70 to 76, mean 73, std √(20 / 3) = 2.58; p is Holm's over two tested rows.

    The failed row less coprefl is 15, 10, 8: mean 11, variance 13, t = 11 / √(13 / 3), whose
    distribution with 2 degrees is closed.
    """
    t = 11 / (13 / 3) ** 0.5
    fedavg, coprefl, _, fedmeta = table(comparison()).lines
    of_fedavg = entry(comparison(), "fedavg", "accuracy")
    assert cell(fedavg, "accuracy").text == "73.00 ± 2.58"
    assert of_fedavg["p"] == pytest.approx(P_ACCURACY, abs=5e-5)
    failed = entry(comparison(), NASTY, "accuracy")
    assert failed["p"] == pytest.approx(1 - (t**2 / (t**2 + 2)) ** 0.5)
    assert of_fedavg["p-holm"] == pytest.approx(2 * P_ACCURACY, abs=1e-4)
    assert cell(fedavg, "accuracy", "paper").text == "78.90 ± 2.98"
    assert cell(fedavg, "variance", "paper").text == "64.80"
    assert cell(coprefl, "accuracy", "p").text == ""
    assert cell(fedmeta, "accuracy").text == NONE
    assert cell(fedmeta, "accuracy", "paper").text == "82.45 ± 2.61"


def test_a_row_that_lacks_units_is_not_best() -> None:
    _, coprefl, failed, _ = table(comparison()).lines
    for metric in METRICS:
        assert cell(coprefl, metric).best
        assert not cell(failed, metric).best
        assert entry(comparison(), NASTY, metric)["n"] == 3


def test_where_all_are_equal_none_is_best() -> None:
    rows = [measured(name, [70.001] * 4, [1.0] * 4) for name in ("a", "coprefl")]
    found = table(comparison(measured=rows))
    assert not any(map(is_marked, found.lines))


def test_costs_are_not_tested_and_never_is_a_word() -> None:
    rows = [
        Measured("fedavg", "", {"models": [1e4, 2e4], "catches-up": [math.nan, math.nan]}),
        Measured("coprefl", "", {"models": [3e4, 5e4], "catches-up": [math.inf, 3.0]}),
    ]
    found = table(
        comparison(
            metrics=["models", "catches-up"], units=["seed 0", "seed 1"], measured=rows, paper={}
        )
    )
    first, second = found.lines
    assert first.cells[0]["here"] == Number("15,000", "7,071", best=True)
    assert second.cells[1]["here"].text == "never"
    assert found.parts == [["here"], ["here"]]


def test_markdown_shows_every_character() -> None:
    """Rendered by a CommonMark reader, the labels come out as they went in."""
    text = markdown(table(comparison()))
    html = MarkdownIt().enable("table").render(text)
    shown = NASTY.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert f'<td style="text-align:left">{shown}</td>' in html
    assert html.count("<tr>") == 5
    assert "<strong>78.00 ± 3.56</strong>" in html
    head, _, fedavg = text.splitlines()[2:5]
    assert head == "| Method | Chosen | Accuracy % | paper | p | Variance %² | paper | p |"
    assert fedavg.startswith("| fedavg |  | 73.00 ± 2.58 | 78.90 ± 2.98 | 0.012 | 55.00 ± 12.91 |")
    assert f"<li>{shown}, seed 0, task 1: client 3 sent a NaN</li>" in html


def test_the_note_says_what_was_tested() -> None:
    note = markdown(table(comparison())).splitlines()[9].replace("\\", "")
    assert "over 4 tasks of 2 seeds; accuracies in %" in note
    assert f"{NASTY.replace(chr(92), '')} has 3 of 4 values, and is not marked best." in note
    assert "paired t-test against coprefl:gamma=0.5 over the tasks that both rows have" in note
    assert "Holm-corrected" in note
    assert "tasks of one seed share a pre-trained model" in note
    assert "paper: CoPreFL, AAAI text, Table 1(a)." in note


def test_the_note_counts_what_is_of_the_pretraining() -> None:
    """Once a seed beside tasks; a start that is not pre-trained lacks it without having failed."""
    nan = math.nan
    rows = [
        Measured("random", "", {"accuracy": [1.0, 2.0, 3.0, 4.0], "final": [nan] * 4}),
        Measured("coprefl", "", {"accuracy": [2.0, 4.0, 6.0, 8.0], "final": [50.0, nan, 52, nan]}),
    ]
    text = markdown(table(comparison(metrics=["accuracy", "final"], measured=rows, paper={})))
    assert "Final %: 2 values a row." in text
    assert "not marked best" not in text
    assert "| coprefl | **5.00 ± 2.58** |  | 51.00 ± 1.41 |" in text


def test_one_unit_has_no_deviation_and_no_test() -> None:
    found = table(one_unit())
    text = markdown(found)
    assert "| Method | Accuracy % | Variance %² |" in text
    assert "| fedavg | 70.00 | 40.00 |" in text
    assert "Values of 1 task of 1 seed" in text
    assert "One unit: no standard deviation and no test." in text
    assert "Holm" not in text
    assert numbers(one_unit())["p-holm"].isna().all()


def test_latex_escapes_everything() -> None:
    text = latex(table(comparison()))
    assert r"a\textbar{}b\_c\%d\&e\textless{}f\textgreater{}\{g\}\#\$\textasciitilde{}" in text
    assert r"\textasciicircum{}\textbackslash{}* &  & 90.00 $\pm$ 0.00 & 1.00 $\pm$ 0.00 \\" in text
    assert r"coprefl & gamma=0.5 & \textbf{78.00 $\pm$ 3.56} &" in text
    assert r"\quad paper &  & 78.90 $\pm$ 2.98 & 64.80 \\" in text
    assert r"\quad p &  & 0.012 &" in text
    assert text.isascii()
    cells = [line.count(" & ") for line in text.splitlines() if line.endswith(r"\\")]
    assert set(cells) == {3}


def test_text_is_at_most_100_wide() -> None:
    assert max(map(len, text_tables(comparison()).splitlines())) <= 100
    metrics = ["accuracy", "variance", *(f"worst-{k}%" for k in (10, 20, 30, 40)), "best-10%"]
    long = "coprefl " + "learning-rate=0.001 " * 6
    rows = [
        Measured(name, "", {metric: [0.0, 100.0, 0.0, 100.0] for metric in metrics})
        for name in ("fedavg", long)
    ]
    text = text_tables(comparison(metrics=metrics, measured=rows, reference=long))
    assert max(map(len, text.splitlines())) <= 100
    titles = ["Accuracy %", "Variance %²", "Worst 10 %", "Worst 40 %", "Best 10 %"]
    assert all(title in text for title in titles)


def test_text_says_nothing_of_what_it_does_not_show() -> None:
    text = text_tables(comparison())
    assert "78.00 ± 3.56*" in text
    assert "t-test" not in text
    assert "Table 1(a)" not in text


def test_results_csv() -> None:
    lines = as_lines(numbers(comparison()))
    assert len(lines) == 8
    fedavg = lines[0]
    assert [fedavg[key] for key in ("comparison", "row", "metric", "mean", "n", "pairs")] == [
        "participants-20", "fedavg", "accuracy", "73.0", "4", "4",
    ]  # fmt: skip
    assert float(fedavg["std"]) == pytest.approx(math.sqrt(20 / 3))
    assert float(fedavg["difference"]) == -5
    assert float(fedavg["p"]) == pytest.approx(P_ACCURACY, abs=5e-5)
    assert float(fedavg["p-holm"]) == pytest.approx(2 * P_ACCURACY, abs=1e-4)
    assert [fedavg[key] for key in ("paper-mean", "paper-std")] == ["78.9", "2.98"]
    assert fedavg["source"] == "CoPreFL, AAAI text, Table 1(a)"
    assert [lines[1][key] for key in ("paper-mean", "paper-std")] == ["64.8", ""]
    assert [lines[2][key] for key in ("row", "label", "chosen", "p", "paper-mean", "source")] == [
        "coprefl:gamma=0.5", "coprefl", "gamma=0.5", "", "", "",
    ]  # fmt: skip
    assert [lines[6][key] for key in ("row", "mean", "n", "paper-mean")] == [
        "fedmeta", "", "0", "82.45",
    ]  # fmt: skip


def test_units_csv() -> None:
    lines = as_lines(units(comparison()))
    assert len(lines) == 12
    assert [line["unit"] for line in lines[:4]] == UNITS
    assert [line["accuracy"] for line in lines[8:]] == ["90.0", "", "90.0", "90.0"]
    assert lines[8]["row"] == NASTY


def test_overview_has_a_column_a_comparison() -> None:
    other = comparison(
        name="b", title="participants = 30", measured=comparison().measured[:2], paper={}
    )
    both = [comparison(), other]
    accuracy, variance = overviews(both, [table(one) for one in both])
    assert accuracy.title == "Accuracy %, all tables"
    assert variance.title == "Variance %², all tables"
    assert accuracy.titles == ["participants = 20", "participants = 30"]
    lines = {line.names[0]: [line.number(at, "here").text for at in (0, 1)]
             for line in accuracy.lines}  # fmt: skip
    assert lines["coprefl"] == ["78.00 ± 3.56"] * 2
    assert lines[NASTY] == ["90.00 ± 0.00", NONE]
    assert "| coprefl | **78.00 ± 3.56** | **78.00 ± 3.56** |" in markdown(accuracy)
    assert overviews([other], [table(other)]) == []
