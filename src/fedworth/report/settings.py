"""Settings of pages and rewards."""

import math
from dataclasses import dataclass

from fedworth.errors import UsageError
from fedworth.names import RewardRule, checked_name


@dataclass(frozen=True)
class PageSettings:
    """The words of a page; nothing here changes a number.

    Args:
        title: Title of the page (default: the report's).
        noun: What the page calls a client, such as hospital.
        nouns: What the page calls several clients (default: the noun with an s).
        date: A date to print on the page (default: none, so that the same report gives the same bytes).
        command: The command that made the report, shown on the page.

    Example:
        html = report.page_html(fedworth.PageSettings(noun="hospital", nouns="hospitals"))
    """

    title: str | None = None
    noun: str = "client"
    nouns: str = ""
    date: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        if not self.noun.strip():
            raise UsageError("--noun: expected a word, as in  --noun hospital")

    @property
    def plural(self) -> str:
        """What several clients are called."""
        return self.nouns or f"{self.noun}s"

    def fill(self, text: str) -> str:
        """A text with {noun} and {nouns} replaced."""
        return text.replace("{nouns}", self.plural).replace("{noun}", self.noun)


SENTENCES: dict[RewardRule, str] = {
    "positive": "in proportion to the value where it is above zero; the others get nothing",
    "floor": "{floor} of the pool in equal parts for taking part, the rest in proportion to values above zero",
    "lower": "in proportion to the lower end of the likely range where it is above zero; the others get nothing",
    "softmax": "in proportion to exp(value / ({temperature:g} × their standard deviation)); everyone gets something",
}


@dataclass(frozen=True)
class RewardSettings:
    """How a pool is split.

    Args:
        rule: Pay in proportion to values above zero (`positive`), the same with equal parts first (`floor`), in
            proportion to the lower ends of the intervals (`lower`), or to exp(value / temperature) (`softmax`).
        floor: Part of the pool that the rule `floor` splits equally.
        temperature: Temperature of the rule `softmax`, in standard deviations of the values; larger is more equal.

    Example:
        paid = fedworth.rewards(report.chosen, "1000", fedworth.RewardSettings("softmax", temperature=2))
    """

    rule: RewardRule = "positive"
    floor: float = 0.2
    temperature: float = 1.0

    def __post_init__(self) -> None:
        checked_name("rule", RewardRule, self.rule)
        if not 0 <= self.floor <= 1:
            raise UsageError(f"--floor {self.floor}: expected a part of the pool, from 0 to 1")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UsageError(f"--temperature {self.temperature}: expected a number above 0")

    @property
    def sentence(self) -> str:
        """The rule in words."""
        return SENTENCES[self.rule].format(floor=f"{self.floor:.0%}", temperature=self.temperature)
