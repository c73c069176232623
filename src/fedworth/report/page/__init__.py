"""The page of a report, and a statement for one client: HTML files that need nothing else. This is their door."""

from fedworth.report.page.comparison import comparison_html
from fedworth.report.page.page import page_html
from fedworth.report.page.settings import PageSettings
from fedworth.report.page.statement import statement_html

__all__ = ["PageSettings", "comparison_html", "page_html", "statement_html"]
