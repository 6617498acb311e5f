"""Figures of accuracy by the length of the first phase, and of the meta objective."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.report import Comparison
from coprefl_flwr.report.figures import relations
from coprefl_flwr.report.figures.style import colours
from tests.common.comparisons import comparison, loss_row, losses, result_row


def lengths(rounds: list[int]) -> Comparison:
    """Return accuracies on the cubic 50 + (r - 5)³ / 100, of two seeds, 2 apart."""
    rows = []
    for number in rounds:
        value = 50 + (number - 5) ** 3 / 100
        values = [value - 1, value + 1]
        rows.append(result_row("cyclic", values, values, f"rounds={number}", switch=number))
    return comparison(rows=rows, units=["seed 0", "seed 1"], metrics=["accuracy"], paper={})


def test_cubic_fit_goes_through_points_on_a_cubic() -> None:
    figure, _ = relations.p1_rounds(lengths([9, 1, 5, 3, 7, 11]))
    (panel,) = figure.axes
    measured, *_, fit = panel.lines
    assert list(measured.get_xdata()) == [1, 3, 5, 7, 9, 11]
    rounds = np.asarray(fit.get_xdata())
    assert (rounds.min(), rounds.max()) == (1, 11)
    np.testing.assert_allclose(fit.get_ydata(), 50 + (rounds - 5) ** 3 / 100, atol=1e-9)
    bars = panel.collections[0].get_segments()
    assert [float(np.ptp(bar[:, 1])) for bar in bars] == pytest.approx([2 * 2**0.5] * 6)


def test_length_of_p1_against_a_loss_says_so() -> None:
    rows = [loss_row("cyclic", [0.4, 0.5], switch=number) for number in (1, 3)]
    for metric, label in (
        ("loss", "Loss of the tasks' clients"),
        ("final-loss", "Final test loss"),
    ):
        renamed = [replace(row, values=row.values.rename(columns={"loss": metric})) for row in rows]
        figure, caption = relations.p1_rounds(losses(rows=renamed, metrics=[metric]))
        assert figure.axes[0].get_ylabel() == label
        assert caption.startswith(f"{label} against the rounds")


def rounds(level: str, spread: str, values: list[tuple[float, ...]]) -> pd.DataFrame:
    """Return rows of rounds with the metrics that a round reports for the meta objective."""
    names = [f"meta-{name}{of}" for of in ("", "-gradient") for name in (level, spread)]
    data = pd.DataFrame(values, columns=["round", *names])
    return data.assign(phase="pretraining")


PRINTED = rounds("sum", "variance", [(2, 60.0, 0.02, 8.0, 0.4), (1, 80.0, 0.04, 4.0, 0.8)])


def of_rounds(**parts: tuple[pd.DataFrame, float]) -> Comparison:
    rows = [
        result_row(name, [1.0], [1.0], rounds=rounds, gamma=gamma)
        for name, (rounds, gamma) in parts.items()
    ]
    return comparison(rows=rows)


def values_of(terms: pd.DataFrame) -> dict[tuple[str, str], list[float]]:
    """Return {(name of a line, "" or "-gradient"): its values}."""
    return {key: part["value"].tolist() for key, part in terms.groupby(["start", "of"])}


def test_terms_are_weighted_by_gamma_and_one_minus_gamma() -> None:
    terms = relations.weighted(of_rounds(coprefl=(PRINTED, 0.25)))
    first, second = "coprefl, γ × sum", "coprefl, (1 − γ) × variance"  # noqa: RUF001
    assert values_of(terms) == {
        (first, ""): [15, 20],
        (second, ""): pytest.approx([0.015, 0.03]),
        (first, "-gradient"): [2, 1],
        (second, "-gradient"): pytest.approx([0.3, 0.6]),
    }
    assert terms["round"].tolist() == [2, 1] * 4


def test_objective_figure_shows_both_terms_averaged_over_seeds() -> None:
    """Two seeds of CoPreFL are averaged; gamma 1 has no second term."""
    other = PRINTED.assign(**{"meta-sum": [20.0, 40.0]})
    two_seeds = pd.concat([PRINTED, other], ignore_index=True)
    figure, _ = relations.objective(of_rounds(coprefl=(two_seeds, 0.25), only=(PRINTED, 1.0)))
    terms, gradients = figure.axes
    assert [panel.get_yscale() for panel in figure.axes] == ["log", "log"]
    sums, variances, only = terms.lines
    np.testing.assert_allclose(sums.get_xydata(), [[1, 15], [2, 10]])
    np.testing.assert_allclose(variances.get_ydata(), [0.03, 0.015])
    np.testing.assert_allclose(only.get_ydata(), [80, 60])
    np.testing.assert_allclose(gradients.lines[0].get_ydata(), [1, 2])
    np.testing.assert_allclose(gradients.lines[1].get_ydata(), [0.6, 0.3])
    assert [line.is_dashed() for line in terms.lines] == [False, True, False]
    looks = colours(["coprefl", "only"])
    assert [line.get_color() for line in (sums, variances, only)] == [
        looks["coprefl"][0], looks["coprefl"][0], looks["only"][0],
    ]  # fmt: skip


def test_too_few_values_have_no_figure() -> None:
    assert relations.p1_rounds(lengths([3])) is None
    assert relations.objective(comparison()) is None


def test_differences_from_the_reference() -> None:
    """fedavg minus coprefl: -5, -3, -6, -6 over four seeds."""
    seeds = [f"seed {seed}" for seed in range(4)]
    table = comparison(units=seeds, rows=comparison().rows[:2], paper={})
    drawn = relations.differences(table)
    assert drawn
    (panel,) = drawn[0].axes
    (bar,) = panel.containers
    assert bar.lines[0].get_xdata() == [-5.0]
    low, high = bar.lines[2][0].get_segments()[0][:, 0]
    assert (low, high) == pytest.approx((-7.25, -2.75), abs=0.005)
    assert [text.get_text() for text in panel.get_yticklabels()] == ["fedavg"]
    assert relations.differences(comparison(rows=comparison().rows[1:2])) is None
