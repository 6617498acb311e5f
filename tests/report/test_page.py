import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report import Report, ResultRow, write_report
from coprefl_flwr.report.figures import FIGURES
from tests.common.comparisons import NASTY, client_rows, comparison, one_unit, result_row

VOID = {"meta", "img", "link", "br"}


class Page(HTMLParser):
    """The tags of a page with their attributes, and its texts by tag; every tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._open[-1], data.strip()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def rounds(label: str) -> pd.DataFrame:
    rows = [
        {"phase": "pretraining", "start": label, "task": None, "round": number, "seed": seed,
         "loss": 4 / number, "server-accuracy": 40 + number + seed,
         "meta-sum": 80 / number, "meta-variance": 0.01, "meta-sum-gradient": 20.0,
         "meta-variance-gradient": 0.1}
        for seed in (0, 1)
        for number in range(1, 13)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def with_everything() -> Report:
    heat = pd.DataFrame([[0.75, 0.5], [0.25, 0.5]], ["birds", "planes"], ["a", NASTY])
    steps = [-1.0, 0.0, 1.0]
    grid = pd.DataFrame(np.arange(1.0, 10.0).reshape(3, 3), steps, steps)
    rows = [
        ResultRow(
            "cyclic+fedavg",
            f"gamma={gamma}",
            pd.DataFrame({"accuracy": [70.0 + switch, 71, 72, 73], "variance": [9, 8, 7, 6]}),
            client_rows("x"),
            rounds("x"),
            pd.DataFrame([{"phase": "downstream", "start": "x", "task": 0, "round": 1,
                           "loss": 1.0, "accuracy": 50.0}]),
            switch,
            grid,
            heat,
            float(gamma),
        )
        for gamma, switch in (("0", 3), ("1", 6))
    ]  # fmt: skip
    table = comparison(rows=rows, reference="cyclic+fedavg", failed=[])
    settings = {"dataset": NASTY, "participants": [15, 20], "resume": False, "mu": ""}
    return Report(f"Title {NASTY}", "source", [f"note {NASTY}"], [table], FIGURES, settings)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a report with all parts."""
    return write_report(with_everything(), tmp_path_factory.mktemp("reports") / "new")


def test_report_folder_has_the_documented_files(index: Path) -> None:
    names = {str(path.relative_to(index.parent)) for path in index.parent.rglob("*.*")}
    figures = {f"figures/participants-20-{kind}.{s}" for kind in FIGURES for s in ("png", "pdf")}
    tables = {f"tables/participants-20.{suffix}" for suffix in ("md", "tex")}
    files = {"report.html", "provenance.md", "results.csv", "units.csv"}
    assert names - {".coprefl"} == files | figures | tables


def test_page_needs_no_other_file(index: Path) -> None:
    page = Page(index.read_text(encoding="utf-8"))
    assert len(page.all("figure")) == len(FIGURES)
    assert not page.all("script") + page.all("link")
    pictures = page.all("img")
    assert len(pictures) == len(FIGURES)
    assert all(str(picture["src"]).startswith("data:image/svg+xml") for picture in pictures)
    assert all(str(picture["alt"]).endswith(".") for picture in pictures)


def test_page_escapes_special_characters(index: Path) -> None:
    page = Page(index.read_text(encoding="utf-8"))
    assert ("h1", f"Title {NASTY}") in page.texts
    assert ("li", f"note {NASTY}") in page.texts
    assert ("td", NASTY) in page.texts
    assert {("td", "15, 20"), ("td", "false"), ("td", "not set")} <= set(page.texts)


def test_page_lists_missing_runs_and_figures(tmp_path: Path) -> None:
    report = Report(
        "t", "", ["a note"], [comparison(), replace(one_unit(), name="b", title="b")], ["switch"]
    )
    page = Page(write_report(report, tmp_path).read_text(encoding="utf-8"))
    assert ("h2", "Missing runs") in page.texts
    assert ("li", f"{NASTY}, seed 0, task 1: client 3 sent a NaN") in page.texts
    assert ("li", "No data for the figure switch.") in page.texts
    assert not list(tmp_path.glob("figures/*"))
    links = {str(link["href"]) for link in page.all("a")}
    assert {"#participants-20", "#b", "tables/b.tex"} <= links
    assert {"participants-20", "b"} <= {str(part.get("id")) for part in page.all("section")}


def test_second_report_removes_only_files_of_the_first(tmp_path: Path) -> None:
    """Nothing else is removed: the user's files in the same folder stay."""
    mine = tmp_path / "tables" / "mine.md"
    for name in ("gone", "here"):
        write_report(Report("t", "", [], [replace(comparison(), name=name)]), tmp_path)
        mine.write_text("mine")
    assert {file.stem for file in (tmp_path / "tables").iterdir()} == {"here", "mine"}
    mine.rename(mine.with_name("next.md"))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(SettingsError, match=r"tables/next\.md was not written by coprefl"):
        write_report(Report("t", "", [], [replace(comparison(), name="next")]), tmp_path)
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def test_report_without_any_measurement_has_a_page(tmp_path: Path) -> None:
    """There is a page even if every run failed."""
    rows = [result_row("coprefl", [math.nan] * 4, [math.nan] * 4)]
    report = Report("t", "", [], [comparison(rows=rows, paper={})], FIGURES)
    page = Page(write_report(report, tmp_path).read_text(encoding="utf-8"))
    assert sum("No data for the figure" in text for _, text in page.texts) == len(FIGURES)
