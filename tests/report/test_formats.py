"""Tables as text."""

from coprefl_flwr.report.formats import text
from coprefl_flwr.report.tables import simple


def test_text_table_in_a_notebook_displays_no_second_output(monkeypatch):
    """Earlier, each table displayed an empty HTML output next to the text that is printed."""
    displayed = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *output: displayed.append(output))
    assert "random" in text(simple("", "Method", {"Rounds": ["3"]}, ["random"]))
    assert displayed == []
