"""The page `which-start.md`: the results of startbench's settings, in sentences and tables."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tables
from verdicts import MIN_SEEDS, holm, interval

from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.yaml_file import read_yaml
from coprefl_flwr.report.columns import TO_REACH
from coprefl_flwr.report.formats import escaped
from coprefl_flwr.report.statistics import paired
from coprefl_flwr.report.tables import NONE

RANDOM, SEES_ALL = "random", "centralised"
BENCH, FRESH, HEADS, TUNE = "startbench", "fresh", ("ncm", "ridge"), "tune"
COLUMNS = {
    "accuracy": ("Accuracy %", 1), "worst-10%": ("Worst tenth %", 1),
    "std-clients": ("Std over clients %", 1), "reached": ("Tasks at the target %", 0),
    "rounds-to": ("Rounds to it", 1), "megabytes-to": ("MB to it", 1),
    "ncm": ("NCM %", 1), "ridge": ("Ridge %", 1),
    "megabytes": ("MB of the start", 0), "gradients": ("Its million gradients", 2),
}  # fmt: skip
"""By column of a setting its heading and decimals."""
COSTS = ("megabytes", "gradients")  # the same in every seed, or nearly


class Difference(NamedTuple):
    """The difference of two starts over seeds, with its 95 % interval, which is not corrected."""

    mean: float
    low: float
    high: float
    p: float

    def text(self, decimals: int = 1) -> str:
        """Return the difference with its interval."""
        mean, low, high = (f"{value:+.{decimals}f}" for value in self[:3])
        return f"{mean} [{low}, {high}]" if self.low < self.high else mean


@dataclass(frozen=True, eq=False)
class Setting:
    """The results of a setting."""

    title: str
    reference: str
    rows: list[str]
    values: pd.DataFrame  # a row per seed; its columns are (start, column)
    target: str = ""  # for example "50 %"
    rounds: int = 0  # rounds of a task

    @property
    def starts(self) -> list[str]:
        """The starts that a user can choose: all except centralised training."""
        return [row for row in self.rows if row != SEES_ALL]

    def of(self, row: str, column: str) -> pd.Series:
        """Return the value of each seed."""
        return self.values.get((row, column), pd.Series(math.nan, self.values.index))

    def mean(self, row: str, column: str) -> float:
        """Return the mean over seeds; nan if there are no values."""
        return float(self.of(row, column).mean())

    def sent(self, row: str) -> float:
        """Return the megabytes that a start sent; 0 if it sent nothing."""
        return float(np.nan_to_num(self.mean(row, "megabytes")))

    def failures(self, row: str) -> int:
        """Return the number of seeds in which a start failed."""
        return int(self.of(row, "accuracy").isna().sum())

    def less(self, row: str, column: str, other: str = "") -> Difference:
        """Return a start's values minus those of another start, by default the reference."""
        of, against = self.of(row, column), self.of(other or self.reference, column)
        found, p = paired(of.tolist(), against.tolist())
        return Difference(found.mean, *interval(found), p)

    def found(self, column: str = "accuracy") -> list[str]:
        """Return the starts that differ from the reference, by Holm's tests at 5 %."""
        others = [row for row in self.starts if row != self.reference]
        differs = holm(pd.Series([self.less(row, column).p for row in others]).to_numpy())
        return [row for row, one in zip(others, differs, strict=True) if one]


def measured(
    stored: Mapping[str, tables.Stored], recipes: Mapping[str, Path]
) -> tuple[list[Setting], list[str]]:
    """Return the settings that were measured, and a phrase for each missing part."""
    found, missing = [], []
    for name, path in recipes.items():
        if not name.startswith(f"{BENCH}/"):
            continue
        title = read_yaml(path)[0]["title"].removeprefix("Which start: ")
        of = functools.partial(tables.rows_of, stored, name)
        if not len(of(FRESH)):
            missing.append(f"{title}: not measured yet")
            continue
        recipe = read_recipe(path, protocol=FRESH)
        rounds, seeds = int(recipe.settings["task-rounds"][0]), len(recipe.seeds)
        failed = any(
            "failed runs" in one.about
            for one in stored.values()
            if (one.about["recipe"], one.about["protocol"]) == (name, FRESH)
        )
        setting = Setting(
            title, recipe.reference, [one.label for one in recipe.rows],
            values_of(of(FRESH), {head: of(head) for head in HEADS}, rounds, failed),
            next((f"{m[2]} %" for one in recipe.metrics if (m := TO_REACH.fullmatch(one))), ""),
            rounds,
        )  # fmt: skip
        if len(setting.values) < seeds:
            missing.append(f"{title}: {len(setting.values)} of {seeds} seeds so far")
        if len(setting.values) < MIN_SEEDS:
            continue
        found.append(setting)
        missing += [f"{title}: head {head}" for head in HEADS if not len(of(head))]
    return found, missing


def values_of(
    fresh: pd.DataFrame, heads: Mapping[str, pd.DataFrame], rounds: int, failed: bool = False
) -> pd.DataFrame:
    """Return a row for each seed that all starts have, with the columns (start, column).

    If runs have failed, seeds without one of the starts are returned too: all runs have ended.

    A task that did not reach the target counts with all its rounds, and the megabytes of these.
    """
    wide = fresh.pivot(index=["row", "seed", "task"], columns="metric", values="value")
    names = {one: f"{found[1]}-to" for one in wide if (found := TO_REACH.fullmatch(one))}
    wide = wide.rename(columns=names).astype(float)
    if "rounds-to" in wide:
        came = wide["rounds-to"] < math.inf
        each = (wide["megabytes-to"] / wide["rounds-to"])[came].median()
        wide["reached"] = 100.0 * came[wide["rounds-to"].notna()]
        wide["rounds-to"] = wide["rounds-to"].clip(upper=rounds)
        wide["megabytes-to"] = wide["megabytes-to"].where(came, rounds * each)
    found = wide.groupby(["seed", "row"]).mean()
    for head, of_head in heads.items():
        accuracies = of_head[of_head["metric"] == "accuracy"]
        found[head] = accuracies.groupby(["seed", "row"])["value"].mean()
    for cost in {*COSTS} & {*found}:  # Nothing was sent or computed for random weights.
        free = found.index.get_level_values("row") == RANDOM
        found[cost] = found[cost].mask(free & found[cost].isna(), 0.0)
    of_seeds = found.unstack("row").swaplevel(axis=1)
    accuracies = [one for one in of_seeds if one[1] == "accuracy"]
    return of_seeds.dropna(how="all" if failed else "any", subset=accuracies)


def together(settings: list[Setting]) -> Setting:
    """Return the mean over settings for each seed. The seeds of two settings are independent."""
    first = settings[0]
    rows = [row for row in first.rows if all(row in one.rows for one in settings)]
    mean = sum(one.values for one in settings) / len(settings)
    return Setting("all", first.reference, rows, mean.dropna(how="all"))


# ---- in words ------------------------------------------------------------------------------------


def page(
    settings: list[Setting], missing: list[str], stored: Mapping[str, tables.Stored]
) -> dict[str, Any]:
    """Return the values of the page's template."""
    parts = [
        {
            "title": one.title, "decision": decision(one), "table": table(one),
            "seeds": len(one.values), "target": one.target, "rounds": one.rounds,
        }
        for one in settings
    ]  # fmt: skip
    return {
        "settings": parts, "missing": missing, "chosen": chosen(stored),
        "summary": table(together(settings)) if settings else [],
        "seeds": [*dict.fromkeys(len(one.values) for one in settings)],
        "undecided": [one.title for one in settings if not ahead(one)],
        "reference": settings[0].reference if settings else "",
    }  # fmt: skip


def ahead(setting: Setting) -> list[str]:
    """Return the starts that are better than the reference and never failed, the best first."""
    done = [row for row in setting.found() if not setting.failures(row)]
    better = [row for row in done if setting.less(row, "accuracy").mean > 0]
    return sorted(better, key=lambda row: -setting.mean(row, "accuracy"))


def decision(setting: Setting) -> str:
    """Return which start to use, in sentences that follow from the numbers."""
    reference, better = setting.reference, ahead(setting)
    best = better[0] if better else reference
    if better:
        more = setting.less(best, "accuracy").text()
        told = [
            f"use `{best}`: {more} points of accuracy against `{reference}`{price(setting, best)}"
        ]
        alike = [
            row for row in setting.starts
            if row != best and not setting.failures(row)
            and setting.less(row, "accuracy", best).high >= 0
        ]  # fmt: skip
        if alike:
            least = min([best, *alike], key=lambda row: setting.mean(row, "megabytes"))
            told.append(f"No clear difference from `{best}`: {listed(alike)}")
            told[-1] += f"; `{least}` sends the least of these" * (least != best)
    else:
        told = [f"no start is shown to be better than `{reference}`"]
        worse = [row for row in setting.found() if row != RANDOM]
        told += [f"Less accurate: {listed(worse)}"] * bool(worse)
    if RANDOM in setting.rows:
        more = setting.less(best, "accuracy", RANDOM)
        side = "better" if more.low > 0 else "worse" if more.high < 0 else "not clearly better"
        told.append(f"`{best}` is {side} than random weights: {more.text()} points")
        sooner = setting.less(RANDOM, "rounds-to", best)
        if sooner.low > 0:
            told[-1] += (
                f", and reaches {setting.target} {sooner.text().replace('+', '')} rounds sooner"
            )
    done = [row for row in setting.starts if not setting.failures(row)]
    heads = [(setting.mean(row, head), row, head) for row in done for head in HEADS]
    if known := [one for one in heads if one[0] == one[0]]:
        accuracy, row, head = max(known)
        told.append(
            f"Without any training on the tasks, `{row}` reaches {accuracy:.1f} % with the head "
            f"`{head}`; with training, `{best}` reaches {setting.mean(best, 'accuracy'):.1f} %"
        )
    seeds = len(setting.values)
    for row in setting.rows:
        if lost := setting.failures(row):
            told.append(
                f"`{row}` failed in {lost} of {seeds} seeds, because training diverged at the "
                "chosen rate; its means are over the other seeds"
            )
    return " ".join(f"{one}." for one in told)


def price(setting: Setting, row: str) -> str:
    """Return a phrase on the megabytes of a start, relative to the reference."""
    sent, reference = (setting.mean(one, "megabytes") for one in (row, setting.reference))
    if not reference > 0 or math.isnan(sent):
        return ""
    times = f"{sent / reference:.1f}"
    return ", at the same megabytes" if times == "1.0" else f", for {times} times the megabytes"


def listed(rows: list[str]) -> str:
    """Return names as text."""
    return ", ".join(f"`{row}`" for row in rows)


def table(setting: Setting) -> list[list[str]]:
    """Return the lines of a setting's table: the headings, then means and differences."""
    has = [one for one in COLUMNS if any(setting.mean(row, one) == setting.mean(row, one)
                                         for row in setting.rows)]  # fmt: skip
    lines = [["Start", *(COLUMNS[one][0] for one in has)]]
    for row in setting.rows:
        cells = [escaped(row) + " (sees all data)" * (row == SEES_ALL)]
        for one in has:
            mean, decimals = setting.mean(row, one), COLUMNS[one][1]
            text = f"{mean:,.{decimals}f}" if mean == mean else NONE
            if row != setting.reference and mean == mean and one not in COSTS:
                text += f"<br>{escaped(setting.less(row, one).text(decimals))}"
            cells.append(text)
        lines.append(cells)
    return lines


def chosen(stored: Mapping[str, tables.Stored]) -> list[list[str]]:
    """Return a line per setting and start: the chosen rates, and the accuracy in the search."""
    found = []
    for one in stored.values():
        folder, _, name = one.about["recipe"].partition("/")
        heading, *trials = one.about.get("trials", [[]])
        for trial in trials if (folder, one.about["protocol"]) == (BENCH, TUNE) else []:
            of = dict(zip(heading, trial, strict=False))
            if of.get("Chosen") == "chosen":
                rates = of["Values"].replace(",", ", ")
                found.append(
                    [escaped(cell) for cell in (name, of["Method"], rates, of["Accuracy %"])]
                )
    return found
