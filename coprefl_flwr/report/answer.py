"""Sentences of a report: the set-up of the runs, and their results with confidence intervals."""

import math
from dataclasses import replace
from typing import Any

import pandas as pd
import scipy  # Imports scipy.stats at its first use, which takes half a second.

from coprefl_flwr.report.comparison import Comparison, Report, numbers
from coprefl_flwr.report.tables import DAGGER, FEW, ranked
from coprefl_flwr.report.variance import LEVEL, MOST_DRAWS, POWER, more_draws

CONFIDENCE = 0.95
_SET_UP = ("dataset", "clients", "participants", "rounds")
_OF_TASKS = ("tasks", "task-classes", "task-clients", "task-rounds")
_MOST = 8
"""Maximum number of rows with a sentence each; with more rows, the table has to suffice."""


def set_up(report: Report) -> str:
    """Return one line on data, clients, rounds, tasks and seeds, from the report's settings."""
    settings = {**report.defaults, **report.settings}
    keys = [*_SET_UP, *(_OF_TASKS if settings.get("tasks") else ())]
    known = {key: settings[key] for key in keys if settings.get(key)}
    if seeds := report.provenance.get("seeds"):
        known["seeds"] = seeds
    return "; ".join(f"{key} = {value_text(value)}" for key, value in known.items())


def value_text(value: Any) -> str:
    """Return a setting's value as text: as in a recipe, or "not set"; lists with commas."""
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value))
    if value is None or value == "":
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


def answers(comparison: Comparison) -> list[str]:
    """Return the results in sentences for the first tested metric.

    The confidence interval of a difference from the reference uses the t distribution over draws.
    The interval is not corrected for several rows. The p-value is the table's corrected p-value.
    """
    qualities = [metric for metric in comparison.metrics if comparison.column(metric).tested]
    if not qualities:
        return []
    heading = comparison.column(qualities[0])
    comparison = replace(comparison, metrics=qualities[:1])
    rows = numbers(comparison)
    rows = rows[rows["mean"].map(math.isfinite)]
    places = heading.places(rows["mean"])
    reference, noun = comparison.tested_against.name, comparison.noun
    lines = []
    unranked = {row.name for row in comparison.rows if row.problems or row.unfinished}
    if order := ranked(heading.better, rows, unranked):
        first, which = rows.loc[order[0]], "lowest" if heading.better == "lower" else "highest"
        mean = f"{first['mean']:.{places}f}{heading.unit}"
        line = f"{first['row']} has the {which} {heading.name}: {mean}."
        some = f"Of the rows with all seeds and without {DAGGER}, " * (len(order) < len(rows))
        lines += [some + line, *power(comparison, heading.unit, *rows["row"][order[:2]])]
    others = rows[(rows["row"] != reference) & (rows["pairs"] > 0)]
    points = " points" if heading.unit == " %" else heading.unit
    if len(comparison.rows) <= _MOST:
        lines += [_sentence(row, reference, noun, points, places) for _, row in others.iterrows()]
    if len(others) and (others["pairs"] < 2).all():
        draws, what = len({*comparison.draws}), "confidence intervals and tests"
        missing = f"Results of other {noun}s are missing: {what} need two of the {draws} {noun}s."
        alone = f"Only one {noun}: run several {noun}s to get {what}."
        lines.append(missing if draws > 1 else alone)
    return lines


def power(comparison: Comparison, unit: str, first: str, second: str) -> list[str]:
    """Return a sentence on the draws that find a difference of the margin between two rows.

    `comparison` has one metric, with this unit. The sentence needs two draws, and a margin of the
    user's if the measure is not in percent.
    """
    margin, noun = comparison.margin or float(unit == " %"), comparison.noun
    data = numbers(replace(comparison, reference=first)).set_index("row")
    pairs, std = int(data["pairs"][second]), float(data["difference-std"][second])
    if not margin or pairs < 2:
        return []
    points = unit if unit != " %" else " point" if margin == 1 else " points"
    find = f"find a difference of {margin:g}{points} between {first} and {second}"
    more = more_draws(std, pairs, margin)
    if more == 0:
        return [f"The {pairs} {noun}s {find} with a power of at least {POWER:.0%}."]
    count = f"More than {MOST_DRAWS - pairs}" if math.isinf(more) else f"{more:.0f}"
    some = f"{count} more {noun}" if more == 1 else f"{count} more {noun}s"
    how = f"paired t-test at {LEVEL:.0%}" + f"; roughly, from {pairs} {noun}s" * (pairs < FEW)
    return [f"{some} would {find} with a power of {POWER:.0%} ({how})."]


def _sentence(row: "pd.Series[Any]", reference: str, noun: str, points: str, places: int) -> str:
    """Return a sentence with a row's difference from the reference, and its significance."""
    text = f"{row['row']} minus {reference}: {row['difference']:+.{places}f}{points}"
    if row["pairs"] < 2 or math.isnan(row["difference-std"]):
        return f"{text}."
    low, high = (row["difference"] + half for half in (-half_interval(row), half_interval(row)))
    between = f"{CONFIDENCE:.0%} confidence interval {low:+.{places}f} to {high:+.{places}f}"
    text += f", {between} (not corrected for several rows), {row['pairs']} {noun}s"
    if math.isnan(row["p-holm"]):
        return f"{text}."
    p = "p < 0.001" if row["p-holm"] < 0.001 else f"p = {row['p-holm']:.3f}"
    return f"{text}; {'' if row['p-holm'] < LEVEL else 'not '}significant (Holm-corrected {p})."


def half_interval(row: "pd.Series[Any]") -> float:
    """Return half the confidence interval of a difference of `numbers`, by the t distribution."""
    quantile = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, row["pairs"] - 1)
    return float(quantile * row["difference-std"] / math.sqrt(row["pairs"]))
