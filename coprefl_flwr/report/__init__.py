"""Results as data, as tables, as figures, and a measured comparison on one page.

`write_report` writes all of a comparison; `text_tables` is its tables for a terminal.
"""

from coprefl_flwr.report.comparison import Comparison as Comparison
from coprefl_flwr.report.comparison import Report as Report
from coprefl_flwr.report.comparison import ResultRow as ResultRow
from coprefl_flwr.report.page import text_tables as text_tables
from coprefl_flwr.report.page import write_report as write_report
