"""Results as data, tables, figures and a page.

`write_report` writes the whole report of a comparison; `text_tables` returns its tables as text.
"""

from coprefl_flwr.report.comparison import Comparison as Comparison
from coprefl_flwr.report.comparison import Report as Report
from coprefl_flwr.report.comparison import ResultRow as ResultRow
from coprefl_flwr.report.page import text_tables as text_tables
from coprefl_flwr.report.page import write_report as write_report
