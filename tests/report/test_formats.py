"""Tables as text."""

from coprefl_flwr.report.formats import text
from coprefl_flwr.report.tables import table
from tests.common.comparisons import comparison


def test_text_has_p_values_next_to_their_metric_with_their_meaning():
    """Each column of p stays with its metric in a narrow table too."""
    shown = text(table(comparison(paper={})))
    heads = [line.split() for line in shown.splitlines() if line.startswith("Method")]
    assert heads == [["Method", "Accuracy", "%", "p", "(Holm)", "Variance", "%²", "p", "(Holm)"]]
    assert "p: two-sided paired t-test against coprefl" in " ".join(shown.split())
    narrow = text(table(comparison(paper={})), 60).splitlines()
    assert [line.count("p (Holm)") for line in narrow if line.startswith("Method")] == [1, 1]
