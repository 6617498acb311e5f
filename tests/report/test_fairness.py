import numpy as np
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report import statistics


def test_ten_clients() -> None:
    """Oracle, |G| = 10: 50, 55, ..., 95, shuffled.

    mean = (50 + 95) / 2 = 72.5; variance = 5² (10² - 1) / 12 = 206.25.
    Worst 1, 2, 3, 4 of 10: 50; (50 + 55) / 2 = 52.5; 165 / 3 = 55; 230 / 4 = 57.5. Best 1: 95.
    """
    assert statistics.summarise_task([70, 50, 95, 60, 85, 55, 90, 65, 80, 75]) == {
        "accuracy": 72.5,
        "variance": 206.25,
        "worst-10%": 50.0,
        "worst-20%": 52.5,
        "worst-30%": 55.0,
        "worst-40%": 57.5,
        "best-10%": 95.0,
    }


def test_seven_clients() -> None:
    """Oracle, |G| = 7: 10, 20, 30, 40, 60, 80, 90.

    mean = 330 / 7; variance = 21100 / 7 - (330 / 7)² = (7 * 21100 - 330²) / 49 = 38800 / 49.
    ceil(0.7) = 1: 10; ceil(1.4) = 2: 15; ceil(2.1) = 3: 20; ceil(2.8) = 3: 20; best 1: 90.
    """
    assert statistics.summarise_task([90, 10, 40, 20, 80, 30, 60]) == pytest.approx(
        {
            "accuracy": 330 / 7,
            "variance": 38800 / 49,
            "worst-10%": 10.0,
            "worst-20%": 15.0,
            "worst-30%": 20.0,
            "worst-40%": 20.0,
            "best-10%": 90.0,
        },
        rel=1e-12,
    )


def test_summary_has_every_metric_in_order() -> None:
    assert list(statistics.summarise_task([50.0])) == list(statistics.METRICS)


@pytest.mark.parametrize(
    ("share", "clients", "counted"),
    [(0.3, 10, 3), (0.1 + 0.2, 10, 3), (0.07, 100, 7), (0.29, 100, 29), (0.3, 11, 4), (1, 9, 9)],
)
def test_shares_are_the_decimals_written(share: float, clients: int, counted: int) -> None:
    """Of 0, 1, 2, ... the lowest c have the mean (c - 1) / 2; 0.07 * 100 exceeds 7 in floats."""
    values = np.arange(clients)
    assert statistics.worst(values, share) == (counted - 1) / 2
    assert statistics.best(values, share) == clients - 1 - (counted - 1) / 2


def test_one_client() -> None:
    assert statistics.summarise_task([40.0])["variance"] == 0
    assert statistics.best([40.0], 1e-12) == 40


@pytest.mark.parametrize("bad", [[], [[50.0]], 50.0, [50.0, float("nan")], [100.5], [-1.0]])
def test_bad_accuracies_are_refused(bad: object) -> None:
    with pytest.raises(SettingsError, match=r"accurac.*allowed"):
        statistics.summarise_task(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan")])
def test_bad_shares_are_refused(share: float) -> None:
    with pytest.raises(SettingsError, match=r"share of clients is .*allowed"):
        statistics.worst([50.0], share)
