"""The page `which-start.md`: the results of startbench's settings, in sentences and tables."""

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
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
from coprefl_flwr.report.variance import more_draws, variance_parts

SETTINGS = (
    *("unseen-classes", "another-dataset", "unseen-domain", "unseen-people", "glyphs"),
    "disjoint-classes",
)
RANDOM, SEES_ALL = "random", "centralised"
BENCH, FRESH, HEADS = "startbench", "fresh", ("ncm", "ridge")
SEARCHES = ("tune", "tune-scaffold")  # a later search replaces the choice of an earlier one
COLUMNS = {
    "accuracy": ("Accuracy %", 1), "worst-10%": ("Worst tenth %", 1),
    "std-clients": ("Std over clients %", 1), "reached": ("Tasks at the target %", 0),
    "rounds-to": ("Rounds to it", 1), "megabytes-to": ("MB to it", 1),
    "ncm": ("NCM %", 1), "ridge": ("Ridge %", 1),
    "megabytes": ("MB of the start", 0), "gradients": ("Its million gradients", 2),
    "step-size": ("Its summed step size", 1),
}  # fmt: skip
"""By column of a setting, its heading and decimals."""
COSTS = ("megabytes", "gradients", "step-size")  # equal in all seeds, or nearly
PARTS = {
    "draw": "Draw and seed, the same for all starts",
    "task": "Task, the same for all starts",
    "start x draw": "Start x (draw and seed)",
    "start x task": "Start x task, and all else",
}
"""By part of the variance, its name on the page: each seed draws both the data and the training."""
MARGIN = 1.0
"""The difference, in points, for which the page counts the seeds that would find it."""
LEARNT = 0.1
"""A start failed if its tasks come at most this part of the way from guessing to 100 %."""


class Difference(NamedTuple):
    """The difference of two starts over seeds, with its 95 % interval, which is not corrected."""

    mean: float
    low: float
    high: float
    p: float

    def text(self, decimals: int = 1) -> str:
        """Return the difference with its interval."""
        # Zero is added, because a rounded -0.04 is -0.0.
        mean, low, high = (f"{round(value, decimals) + 0.0:+.{decimals}f}" for value in self[:3])
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
    tasks: pd.DataFrame = field(default_factory=pd.DataFrame)  # row, seed, task and accuracy

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

    def found(self) -> list[str]:
        """Return the starts whose accuracy differs from the reference's, by Holm's tests at 5 %."""
        others = [row for row in self.starts if row != self.reference]
        differs = holm(pd.Series([self.less(row, "accuracy").p for row in others]).to_numpy())
        return [row for row, one in zip(others, differs, strict=True) if one]

    def ahead(self) -> list[str]:
        """Return the starts that are better than the reference and never failed, best first."""
        done = [row for row in self.found() if not self.failures(row)]
        better = [row for row in done if self.less(row, "accuracy").mean > 0]
        return sorted(better, key=lambda row: -self.mean(row, "accuracy"))

    def best(self) -> str:
        """Return the most accurate start that is better than the reference, or the reference."""
        return next(iter(self.ahead()), self.reference)

    def alike(self) -> list[str]:
        """Return the starts that never failed and are not clearly worse than the best start."""
        best = self.best()
        others = [row for row in self.starts if row != best and not self.failures(row)]
        return [row for row in others if self.less(row, "accuracy", best).high >= 0]

    def parts(self) -> pd.DataFrame:
        """Return the parts of the variance over all trained starts, where they did not fail."""
        done = self.values.xs("accuracy", axis=1, level=1).stack().dropna().index
        rows = self.tasks[self.tasks.set_index(["seed", "row"]).index.isin(done)]
        rows = rows[rows["row"].isin({*self.starts} - {RANDOM})]
        return variance_parts(rows.rename(columns={"row": "start"}).assign(draw=rows["seed"]))

    def runner_up(self) -> str:
        """Return the best start's closest rival among the starts that never failed."""
        done = [row for row in self.starts if row != self.best() and not self.failures(row)]
        return max(done, key=lambda row: self.mean(row, "accuracy"))

    def more_seeds(self) -> float:
        """Return how many more seeds would find `MARGIN` between the best start and its rival."""
        pair = (self.of(row, "accuracy").tolist() for row in (self.best(), self.runner_up()))
        found, _ = paired(*pair)
        return more_draws(found.std, found.n, MARGIN)


def measured(
    stored: Mapping[str, tables.Stored], recipes: Mapping[str, Path]
) -> tuple[list[Setting], list[str]]:
    """Return the settings that were measured, and a phrase for each missing part."""
    found, missing = [], []
    names = [name for name in recipes if name.startswith(f"{BENCH}/")]
    places = {f"{BENCH}/{name}": place for place, name in enumerate(SETTINGS)}
    for name in sorted(names, key=lambda name: places.get(name, len(places))):
        path = recipes[name]
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
        values = values_of(of(FRESH), {head: of(head) for head in HEADS}, rounds)
        # If runs have failed, all runs have ended, and a seed may lack a start.
        values = values if failed else with_all_starts(values)
        tasks = of(FRESH)[of(FRESH)["metric"] == "accuracy"].rename(columns={"value": "accuracy"})
        guessing = 100 / int(recipe.settings["task-classes"][0])
        known = {row for row, _ in values} | tables.named_rows(stored, name, FRESH)
        rows = sorted((r.label for r in recipe.rows if r.label in known), key=SEES_ALL.__eq__)
        if more := [one.label for one in recipe.rows if one.label not in known]:
            missing.append(f"{title}: {listed(more)}")
        setting = Setting(
            title, recipe.reference, rows,
            without_failures(values, guessing + LEARNT * (100 - guessing)),
            next((f"{m[2]} %" for one in recipe.metrics if (m := TO_REACH.fullmatch(one))), ""),
            rounds, tasks,
        )  # fmt: skip
        if len(setting.values) < seeds:
            missing.append(f"{title}: {len(setting.values)} of {seeds} seeds so far")
        if len(setting.values) < MIN_SEEDS:
            continue
        found.append(setting)
        missing += [f"{title}: head {head}" for head in HEADS if not len(of(head))]
    return found, missing


def values_of(fresh: pd.DataFrame, heads: Mapping[str, pd.DataFrame], rounds: int) -> pd.DataFrame:
    """Return a row for each seed, with the columns (start, column).

    A task that did not reach the target counts with all its rounds and their megabytes.
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
    return found.unstack("row").swaplevel(axis=1)


def with_all_starts(values: pd.DataFrame) -> pd.DataFrame:
    """Return the seeds in which all starts have an accuracy."""
    return values.dropna(subset=[one for one in values if one[1] == "accuracy"])


def without_failures(values: pd.DataFrame, least: float) -> pd.DataFrame:
    """Return the values without those of starts whose accuracy in a seed is at most `least`.

    The training of such a start diverged. Random weights are not trained.
    """
    found = values.copy()
    for row in {row for row, _ in values} - {RANDOM}:
        failed = values[row, "accuracy"] <= least
        found.loc[failed, [one for one in values if one[0] == row]] = math.nan
    return found


# ---- in words ------------------------------------------------------------------------------------


def page(
    settings: list[Setting], missing: list[str], stored: Mapping[str, tables.Stored]
) -> dict[str, Any]:
    """Return the values of the page's template."""
    parts = [
        {
            "title": one.title, "advice": advice(one), "details": details(one),
            "table": table(one), "seeds": len(one.values), "target": one.target,
            "rounds": one.rounds,
        }
        for one in settings
    ]  # fmt: skip
    return {
        "settings": parts, "missing": missing, "chosen": chosen(stored),
        "overall": overall(settings), "summary": summary(settings), "variance": variance(settings),
        "seeds": [*dict.fromkeys(len(one.values) for one in settings)],
        "undecided": [one.title for one in settings if not one.ahead()],
        "reference": settings[0].reference if settings else "",
    }  # fmt: skip


def overall(settings: list[Setting]) -> str:
    """Return which starts are best, or not clearly worse than the best, in most settings."""
    good = [row for one in settings for row in (one.best(), *one.alike())]
    most = max(map(good.count, good), default=0)
    names = listed([*dict.fromkeys(row for row in good if good.count(row) == most)])
    if not settings:
        return ""
    are = "is the best start, or is" if names.count("`") == 2 else "are the best starts, or are"
    return f"In {most} of {len(settings)} settings, {names} {are} not clearly worse."


def advice(setting: Setting) -> str:
    """Return which start to use, in sentences that follow from the numbers."""
    best, reference, alike = setting.best(), setting.reference, setting.alike()
    if best == reference:
        worse = [row for row in setting.found() if row != RANDOM]
        sentences = [f"no start is shown to be better than `{reference}`"]
        sentences += [f"Less accurate: {listed(worse)}"] * bool(worse)
        return " ".join(f"{one}." for one in sentences)
    more = setting.less(best, "accuracy").text()
    sentences = [
        f"use `{best}`: {more} points of accuracy against `{reference}`{price(setting, best)}"
    ]
    if alike:
        least = min([best, *alike], key=lambda row: setting.mean(row, "megabytes"))
        sentences.append(f"Not clearly worse: {listed(alike)}")
        sentences[-1] += f"; `{least}` sends the least of these" * (least != best)
    trained = setting.mean(best, "accuracy")
    accuracy, row, head = best_head(setting)
    if accuracy > trained:
        sentences.append(
            f"With the head `{head}` and without any training on the tasks, `{row}` reaches "
            f"{accuracy:.1f} %, more than `{best}` after the {setting.rounds} rounds of the tasks "
            f"({trained:.1f} %)"
        )
    return " ".join(f"{one}." for one in sentences)


def best_head(setting: Setting) -> tuple[float, str, str]:
    """Return the highest mean accuracy without training on the tasks, its start and its head."""
    done = [row for row in setting.starts if not setting.failures(row)]
    heads = [(setting.mean(row, head), row, head) for row in done for head in HEADS]
    return max((one for one in heads if one[0] == one[0]), default=(-math.inf, "", ""))


def details(setting: Setting) -> str:
    """Return further sentences on a setting: random weights, heads and failures."""
    best, sentences = setting.best(), []
    if RANDOM in setting.rows:
        more = setting.less(best, "accuracy", RANDOM)
        side = "better" if more.low > 0 else "worse" if more.high < 0 else "not clearly better"
        sentences.append(f"`{best}` is {side} than random weights: {more.text()} points")
        sooner = setting.less(RANDOM, "rounds-to", best)
        # Without an interval, the difference is the same in all seeds.
        if sooner.mean > 0 and not sooner.low <= 0:
            bound = "at least " * (setting.mean(RANDOM, "reached") < 100)
            rounds = sooner.text().replace("+", "")
            sentences[-1] += f", and reaches {setting.target} {bound}{rounds} rounds sooner"
    accuracy, row, head = best_head(setting)
    if row:
        sentences.append(
            f"Without any training on the tasks, `{row}` reaches {accuracy:.1f} % with the head "
            f"`{head}`; with training, `{best}` reaches {setting.mean(best, 'accuracy'):.1f} %"
        )
    seeds = len(setting.values)
    for row in setting.rows:
        if lost := setting.failures(row):
            sentences.append(
                f"`{row}` failed in {lost} of {seeds} seeds: its training diverged at the chosen "
                "rate. Its means, and its differences from other starts, are over the other seeds"
            )
    return " ".join(f"{one}." for one in sentences)


def summary(settings: list[Setting]) -> list[list[str]]:
    """Return the lines of the table of all settings: each start's accuracy minus the reference's.

    A difference that the test finds is bold.
    """
    rows = dict.fromkeys(row for one in settings for row in one.rows)
    lines = [["Start", *(escaped(capital(one.title)) for one in settings)]] if settings else []
    found = [one.found() for one in settings]
    for row in sorted(rows, key=SEES_ALL.__eq__):
        cells = [escaped(row) + " (sees all data)" * (row == SEES_ALL)]
        for setting, differs in zip(settings, found, strict=True):
            lost, text = setting.failures(row), setting.less(row, "accuracy").text()
            if row == setting.reference:
                text = f"{setting.mean(row, 'accuracy'):.1f} %"
            text = f"**{escaped(text)}**" if row in differs else escaped(text)
            text += f"<br>failed in {lost} of {len(setting.values)} seeds" * (lost > 0)
            cells.append(text if row in setting.rows else NONE)
        lines.append(cells)
    return lines


def variance(settings: list[Setting]) -> list[list[str]]:
    """Return the lines of the table of the variance's parts, with a column per setting."""
    lines = [["Part", *(escaped(capital(one.title)) for one in settings)]] if settings else []
    parts = [one.parts() for one in settings]
    for part, name in PARTS.items():
        cells = [name]
        for of_setting in parts:
            share, std, low, high = of_setting.loc[part]
            cells.append(f"{share:.0f} %<br>" + escaped(f"{std:.1f} [{low:.1f}, {high:.1f}]"))
        lines.append(cells)
    if settings:
        counts = [f"{one.more_seeds():.0f}" for one in settings]
        pairs = [f"`{one.best()}`, `{one.runner_up()}`" for one in settings]
        lines.append(["The two best starts that never failed", *pairs])
        lines.append([f"More seeds for {MARGIN:g} point between them", *counts])
    return lines


def capital(title: str) -> str:
    """Return a title that begins with a capital letter."""
    return title[:1].upper() + title[1:]


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
    found = {}
    tables_of = [stored[name] for name in sorted(stored)]  # As when they are read again.
    for protocol, one in itertools.product(SEARCHES, tables_of):
        folder, _, name = one.about["recipe"].partition("/")
        heading, *trials = one.about.get("trials", [[]])
        for trial in trials if (folder, one.about["protocol"]) == (BENCH, protocol) else []:
            of = dict(zip(heading, trial, strict=False))
            if of.get("Chosen") == "chosen":
                rates = of["Values"].replace(",", ", ")
                cells = name, of["Method"], rates, of["Accuracy %"]
                found[name, of["Method"]] = [*map(escaped, cells)]
    return sorted(found.values(), key=itemgetter(0))  # A later search comes last otherwise.
