import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report import Report
from tests.common.comparisons import comparison, measured


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, r"comparison 'a/b': allowed in its name: letters, digits"),
        ({"metrics": ["acuracy"]}, "unknown metric 'acuracy': did you mean 'accuracy'"),
        ({"units": ["seed 0"]}, r"row 'fedavg' has 4 values of accuracy; .* the 1 units"),
        ({"measured": []}, "at least one metric, one unit and one row"),
        ({"reference": "copref"}, "unknown reference 'copref': did you mean 'coprefl'"),
        (
            {"measured": [measured("coprefl", [1.0] * 4, [1.0] * 4)] * 2},
            "two rows 'coprefl'; allowed: one each",
        ),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        comparison(**changes)


def test_reports_are_checked() -> None:
    one = comparison()
    with pytest.raises(SettingsError, match="unknown figure 'curve': did you mean 'curves'"):
        Report("title", "", [], [one], ["curve"])
    with pytest.raises(SettingsError, match="two comparisons are named 'participants-20'"):
        Report("title", "", [], [one, comparison(name="Participants-20")])
    with pytest.raises(SettingsError, match="at least one comparison"):
        Report("title", "", [], [])


def test_rows_that_share_a_label_are_told_apart_by_their_choice() -> None:
    rows = [measured("coprefl", [1.0] * 4, [1.0] * 4, f"gamma={g}") for g in ("0", "1")]
    found = comparison(
        measured=rows,
        paper={"coprefl": {"accuracy": (1.0, None)}, "coprefl:gamma=1": {"accuracy": (2.0, None)}},
    )
    assert found.tested_against is rows[0]
    assert comparison(measured=rows, reference="coprefl:gamma=1").tested_against is rows[1]
    assert found.paper_of(rows[0]) == {}
    assert found.paper_of(rows[1]) == {"accuracy": (2.0, None)}
    assert rows[1].options == {"gamma": "1"}
