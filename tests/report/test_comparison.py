import math
from dataclasses import replace

import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.comparison import (
    Comparison,
    counted,
    numbers,
    numbers_of,
    of_clients,
    units,
)
from tests.common.comparisons import comparison, result_row, row


def test_rows_with_one_label_are_distinguished_by_their_choice() -> None:
    rows = [result_row("coprefl", [1.0] * 4, [1.0] * 4, f"gamma={g}") for g in ("0", "1")]
    table = comparison(
        rows=rows,
        paper={"coprefl": {"accuracy": (1.0, None)}, "coprefl:gamma=1": {"accuracy": (2.0, None)}},
    )
    assert table.tested_against is rows[0]
    assert comparison(rows=rows, reference="coprefl:gamma=1").tested_against is rows[1]
    assert table.paper_of(rows[0]) == {}
    assert table.paper_of(rows[1]) == {"accuracy": (2.0, None)}


@pytest.mark.parametrize("name", ["coprefl:gamma=0.5", "coprefl"])
def test_another_reference_is_a_name_or_a_label(name) -> None:
    table = comparison(reference="fedavg")
    assert table.against(name).tested_against.name == "coprefl:gamma=0.5"
    assert table.against(name).against("fedavg").reference == "fedavg"
    with pytest.raises(
        SettingsError, match="reference: unknown row 'fedavgm': did you mean 'fedavg'"
    ):
        table.against("fedavgm")


CROSSED = [
    f"draw {draw}, seed {seed}, task {task}"
    for draw in (3, 5)
    for seed in (0, 1)
    for task in (0, 1)
]


def crossed(fedavg: list[float]) -> Comparison:
    """Return two rows over two draws, two training seeds each and two tasks each."""
    rows = [result_row("fedavg", fedavg, fedavg), result_row("coprefl", [10.0] * 8, [1.0] * 8)]
    return comparison(units=CROSSED, rows=rows, paper={}, failed=[])


def test_values_of_a_draw_are_the_mean_of_its_seeds_and_tasks() -> None:
    """fedavg minus coprefl: 2, 4, 6, 8 in draw 3 (mean 5), 1, 1, 3, 3 in draw 5 (mean 2).

    The mean difference is 3.5, with deviation sqrt(2) * 1.5 over the two draws. If a run of draw 5
    is missing, its mean is 3.
    """
    whole = [12.0, 14.0, 16.0, 18.0, 11.0, 11.0, 13.0, 13.0]
    lost = [*whole[:4], math.nan, math.nan, *whole[6:]]
    for values, mean, deviation in ((whole, 3.5, 1.5), (lost, 4.0, 1.0)):
        table = crossed(values)
        entry = numbers(table).set_index(["row", "metric"]).loc["fedavg", "accuracy"]
        assert (entry["difference"], entry["pairs"]) == (mean, 2)
        assert entry["difference-std"] == pytest.approx(math.sqrt(2) * deviation)
        # t = 3.5 / 1.5 with one degree of freedom: the Cauchy distribution.
        p = 1 - 2 / math.pi * math.atan(mean / deviation)
        assert entry["p"] == pytest.approx(p)
    assert table.draws == ["draw 3"] * 4 + ["draw 5"] * 4
    assert table.noun == "draw"


def test_units_have_columns_of_draw_and_seed_if_these_are_separate() -> None:
    data = units(crossed([1.0] * 8))
    assert list(data.columns[:6]) == ["comparison", "row", "label", "unit", "draw", "seed"]
    assert data["draw"].tolist() == [3, 3, 3, 3, 5, 5, 5, 5] * 2
    assert data["seed"].tolist() == [0, 0, 1, 1] * 4
    assert "draw" not in units(comparison())


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (CROSSED, "2 draws with 2 training seeds each"),
        (CROSSED[:6], "2 draws with 1 to 2 training seeds each"),
        (CROSSED[:2], "1 draw with 1 training seed each"),
        (["seed 0, task 0", "seed 0, task 1"], "1 seed"),
        (["seed 0", "seed 7"], "2 seeds"),
    ],
)
def test_draws_and_their_seeds_are_counted(shown, text) -> None:
    assert counted(shown) == text


def test_frame_of_clients_names_draw_seed_and_task() -> None:
    """Equal draws and tasks are the same task, for every training seed."""
    clients = [row("fedavg", unit, client, 5 + client) for unit in range(8) for client in (0, 1)]
    table = crossed([55.0] * 8)
    table = replace(
        table, rows=[replace(table.rows[0], client_rows=pd.DataFrame(clients)), table.rows[1]]
    )
    data = of_clients(table)
    assert list(data.columns) == ["start", "draw", "seed", "task", "client", "value"]
    assert data[["draw", "seed", "task"]].drop_duplicates().to_numpy().tolist() == [
        [draw, seed, task] for draw in (3, 5) for seed in (0, 1) for task in (0, 1)
    ]
    assert set(data["start"]) == {"fedavg"}
    assert data["value"].tolist() == [50.0, 60.0] * 8
    assert of_clients(crossed([55.0] * 8)).empty
    assert numbers_of(["seed 4", "seed 6"]).to_numpy().tolist() == [[4, 4, 0], [6, 6, 0]]
