"""Settings of pages and rewards."""

import math
import re
from dataclasses import dataclass
from decimal import Decimal

from fedworth.errors import UsageError
from fedworth.names import RewardRule, checked_name


@dataclass(frozen=True)
class PageSettings:
    """Title and wording of a page; no setting changes a number.

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


CENTS = 100
MOST_CENTS = 10**17
_AMOUNT = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?")

SENTENCES: dict[RewardRule, str] = {
    "positive": "in proportion to values above zero; the others get nothing",
    "floor": "{floor} of the pool in equal parts for taking part, the rest in proportion to values above zero",
    "lower": "in proportion to the lower end of the likely range where it is above zero; the others get nothing",
    "cost": "declared costs first, the rest in proportion to values above zero",
    "softmax": "in proportion to exp(value / ({temperature:g} × their standard deviation)); everyone gets something",
}


@dataclass(frozen=True)
class RewardSettings:
    """How a pool is split.

    Args:
        rule: Pay in proportion to values above zero (`positive`), the same with equal parts first (`floor`), in
            proportion to the lower ends of the intervals (`lower`), to exp(value / temperature) (`softmax`), or pay
            declared costs first and the rest as `positive` (`cost`).
        floor: Part of the pool that the rule `floor` splits equally.
        temperature: Temperature of the rule `softmax`, in standard deviations of the values; larger is more equal.
        cost: Declared costs of a client, such as north=1200.50, for the rule `cost`.

    Example:
        paid = report.rewards("1000", fedworth.RewardSettings("softmax", temperature=2))
    """

    rule: RewardRule = "positive"
    floor: float = 0.2
    temperature: float = 1.0
    cost: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_name("rule", RewardRule, self.rule)
        if not 0 <= self.floor <= 1:
            raise UsageError(f"--floor {self.floor}: expected a part of the pool, from 0 to 1")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UsageError(f"--temperature {self.temperature}: expected a number above 0")
        if (self.rule == "cost") != bool(self.declared):
            raise UsageError("--rule cost and --cost CLIENT=AMOUNT go together: give both, or neither")

    @property
    def declared(self) -> dict[str, int]:
        """Declared costs in cents, by client."""
        parts = [text.rpartition("=") for text in self.cost]
        costs = {client: cents_of(amount, f"--cost {client}:") for client, _, amount in parts}
        if len(costs) < len(parts) or "" in costs:
            raise UsageError(f"--cost {' '.join(self.cost)}: expected CLIENT=AMOUNT, each client once")
        return costs

    @property
    def sentence(self) -> str:
        """The rule in words."""
        return SENTENCES[self.rule].format(floor=f"{self.floor:.0%}", temperature=self.temperature)


def cents_of(pool: str | int | Decimal, what: str = "--pool") -> int:
    """An amount of money in cents. A comma is refused, since it may stand for thousands or for decimals."""
    text = format(pool, "f") if isinstance(pool, Decimal) else str(pool)
    amount = Decimal(text) * CENTS if _AMOUNT.fullmatch(text) else Decimal(0)
    if amount != amount.to_integral_value() or not 0 < amount <= MOST_CENTS:
        raise UsageError(
            f"{what} {pool}: expected an amount above 0 in plain digits, with at most two after a point, such as "
            "100000 or 99.95"
        )
    return int(amount)
