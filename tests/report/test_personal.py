"""The tables of a personalised study."""

import math
from typing import Any

import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.forms import markdown
from coprefl_flwr.report.personal import PersonalRun, personal_tables

SENT = {"weights-sent": 1234567, "numbers-sent": 2000}


def run(domains: str = "aabb", **methods: list[int]) -> PersonalRun:
    """Clients with ten test samples, and how many of them each method has right."""
    rows: list[dict[str, Any]] = [
        {"start": method, "task": 0, "client": client, "n": 10, "correct": right, "loss": 1.0,
         "domain": domains[client]}
        for method, correct in methods.items()
        for client, right in reversed(list(enumerate(correct)))
    ]  # fmt: skip
    return pd.DataFrame(rows), dict.fromkeys(methods, SENT)


def test_one_run_by_hand() -> None:
    """solo has 90, 70, 50, 30 %: mean 60, deviations 30, 10, 10, 30, variance 2000 / 4.

    The worst 40 % are ceil(1.6) = 2 clients, (30 + 50) / 2. fedpcl has 60 throughout.
    """
    text = markdown(*personal_tables([run(solo=[9, 7, 5, 3], fedpcl=[6, 6, 6, 6])]))
    over_clients, by_domain, note = text.split("\n\n")
    head, _, solo, fedpcl = over_clients.splitlines()
    assert head == (
        "| Method | Average | Worst 10 % | Worst 20 % | Worst 40 % | Best 10 % | Std "
        "| Weights sent (all numbers) |"
    )
    std = f"{math.sqrt(500):.1f}"
    assert solo == (
        f"| solo | **60.0** | 30.0 | 30.0 | 40.0 | **90.0** | {std} | 1,234,567 (2,000) |"
    )
    assert "| **60.0** | **60.0** | **60.0** | 60.0 | **0.0** |" in fedpcl
    assert by_domain.splitlines() == [
        "| Method | a | b |", "|:--|--:|--:|",
        "| solo | **80.0** | 40.0 |", "| fedpcl | 60.0 | **60.0** |",
    ]  # fmt: skip
    assert note.startswith("One run of 4 clients, accuracies in %")


def test_several_runs_have_a_deviation() -> None:
    """Means of 60 and 70 %: 65 ± 10 / √2; the only method is not marked."""
    text = markdown(*personal_tables([run("aaaa", a=[6] * 4), run("aaaa", a=[7] * 4)]))
    assert "| a | 65.0 ± 7.1 | 65.0 ± 7.1 |" in text
    assert "Mean ± sample std over 2 runs of 4 clients" in text
    assert text.count("| Method |") == 1


def test_runs_that_cannot_be_compared() -> None:
    with pytest.raises(SettingsError, match="there is no run"):
        personal_tables([])
    one = run(a=[1, 2, 3, 4])
    for other in (run(b=[1, 2, 3, 4]), run("abab", a=[1, 2, 3, 4]), run(a=[1, 2, 3])):
        with pytest.raises(SettingsError, match="not of the same methods"):
            personal_tables([one, other])
