"""The page of a report, a statement for one client, and a page that compares reports: HTML files that stand alone."""

from dataclasses import dataclass

from fedworth.errors import UsageError


@dataclass(frozen=True)
class PageSettings:
    """The words of a page; nothing here changes a number.

    Args:
        title: The page's title; by default the report's.
        noun: What one client is called.
        nouns: What several clients are called.
        date: A date to print; the clock is never read, so the same report gives the same bytes.
        command: The command that made the report, to be shown on it.

    Example:
        html = report.page_html(fedworth.PageSettings(noun="hospital", nouns="hospitals"))
    """

    title: str | None = None
    noun: str = "client"
    nouns: str = "clients"
    date: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        if not (self.noun.strip() and self.nouns.strip()):
            raise UsageError("--noun: expected a word and its plural, as in  --noun hospital hospitals")

    def fill(self, text: str) -> str:
        """A text with {noun} and {nouns} replaced."""
        return text.replace("{nouns}", self.nouns).replace("{noun}", self.noun)
