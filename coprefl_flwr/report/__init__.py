"""A measured comparison as a paper's tables and figures, and one page that holds them all.

The main entry is `write_report`; `text_tables` is the same for a terminal.
"""

from coprefl_flwr.report.comparison import Comparison, Measured, Report
from coprefl_flwr.report.text import text_tables
from coprefl_flwr.report.writing import write_report

__all__ = ["Comparison", "Measured", "Report", "text_tables", "write_report"]
