"""Result folders in, one page out: figures, tables, and the best method in words where the intervals allow it."""

from fedconcord.insight.report.results_page import write_report
from fedconcord.study.statistics.load import Run, load_runs

__all__ = ["Run", "load_runs", "write_report"]
