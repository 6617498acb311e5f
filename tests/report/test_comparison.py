import pytest

from coprefl_flwr.errors import SettingsError
from tests.common.comparisons import comparison, result_row


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
