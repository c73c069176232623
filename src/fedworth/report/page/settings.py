"""What the one who makes a page may say about it."""

from dataclasses import dataclass

from fedworth.errors import UsageError


@dataclass(frozen=True)
class PageSettings:
    """How a page calls things; nothing here changes a number.

    Args:
        title: The page's title; the report's if it is not given.
        noun: What one client is called.
        nouns: What several are called.
        date: A date to print; none is taken from the clock.
        command: The command that made the report, to be shown on it.

    Example:
        html = fedworth.page_html(report, fedworth.PageSettings(noun="hospital", nouns="hospitals"))
    """

    title: str | None = None  # None: the report's
    noun: str = "client"
    nouns: str = "clients"
    date: str = ""  # never from the clock: the same report gives the same bytes
    command: str = ""  # that made the report

    def __post_init__(self) -> None:
        if not (self.noun.strip() and self.nouns.strip()):
            raise UsageError("--noun: expected a word and its plural, as in  --noun hospital hospitals")
