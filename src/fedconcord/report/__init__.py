"""Result folders in, one page out: figures, tables, and the best method in words where the intervals allow it."""

from fedconcord.report.load import Run, load_runs
from fedconcord.report.results_page import write_report

__all__ = ["Run", "load_runs", "write_report"]
