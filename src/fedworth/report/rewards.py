"""Rewards: a pool of money split by value, exact to the cent.

Values may be negative and may add up to almost nothing, so they cannot be scaled to the pool. Each rule gives something
up for that (`docs/rewards.md`):

    positive   w_i = max(s_i, 0)              keeps symmetry and the null client; gives up additivity
    floor      a part of the pool in equal parts for taking part, the rest as `positive`; gives up the null client
    lower      w_i = max(lower end of i, 0)   pays the least that is likely; equal values with unequal intervals differ
    softmax    w_i = exp(s_i / (τ sd(s)))     everyone gets something; keeps the order, gives up the null client
    cost       declared costs first, the rest as `positive`; of a pool that is too small, in proportion to costs

Rewards are w_i / Σ w of the pool, rounded down to cents; the remaining cents go one each to the largest remainders.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedworth.errors import ArtefactError, ValuationError, unknown_name
from fedworth.records import document_of, read_as
from fedworth.report.settings import CENTS, RewardSettings, cents_of
from fedworth.report.tables import csv_of
from fedworth.storage import Place, json_bytes, read_json, write_together
from fedworth.valuation.uncertainty import Trust
from fedworth.valuation.valuation import ClientValue, Valuation

if TYPE_CHECKING:
    from fedworth.report.report import Report


@dataclass(frozen=True)
class Rewards:
    """What each client gets of a pool, in cents.

    Example:
        paid = report.rewards("1000")
        print(paid.amount("north"), sum(paid.cents))
    """

    method: str
    clients: tuple[str, ...]
    cents: tuple[int, ...]
    settings: RewardSettings
    unit: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.cents) != len(self.clients) or any(cents < 0 for cents in self.cents):
            raise ArtefactError(f"rewards: {len(self.cents)} amounts of {len(self.clients)} clients, expected one each")

    @property
    def sentence(self) -> str:
        """The rule in words."""
        return self.settings.sentence

    def for_costs(self, client: str) -> str:
        """What a client gets for its declared costs, as text; empty without any."""
        paid = dict(zip(self.clients, costs_paid(sum(self.cents), self.clients, self.settings), strict=True))
        return self.money(paid[client]) if paid[client] else ""

    def amount(self, client: str) -> str:
        """What a client gets, as text."""
        return self.money(self.cents[self.clients.index(client)])

    @property
    def pool(self) -> str:
        """The whole pool, as text."""
        return self.money(sum(self.cents))

    def money(self, cents: int) -> str:
        """Cents as text, with the unit if there is one."""
        return f"{cents // CENTS:,}.{cents % CENTS:02d}" + (f" {self.unit}" if self.unit else "")

    def document(self) -> dict[str, Any]:
        """The rewards as JSON; amounts in whole cents."""
        return {**document_of(self), "sentence": self.sentence}

    @staticmethod
    def from_document(document: Any) -> "Rewards":
        """The inverse of `document()`."""
        return read_as(Rewards, document, "rewards")

    @staticmethod
    def read(folder: Place) -> "Rewards":
        """The rewards that `fedworth rewards` left in the folder of a run."""
        path = Path(folder) / "rewards.json"
        if not path.is_file():
            raise ArtefactError(f"{path}: no such file; make it first with  fedworth rewards {folder} --pool AMOUNT")
        return Rewards.from_document(read_json(path))

    def write(self, folder: Place) -> list[Path]:
        """Write `rewards.json` and `rewards.csv`."""
        return write_together(Path(folder), self.files())

    def files(self) -> dict[str, bytes]:
        """The content of `rewards.json` and `rewards.csv`."""
        amounts = (Decimal(cents).scaleb(-2) for cents in self.cents)
        rows = ((client, amount, self.unit) for client, amount in zip(self.clients, amounts, strict=True))
        table = csv_of(["client", "reward", "unit"], rows).encode()
        return {"rewards.json": json_bytes(self.document()), "rewards.csv": table}


def rewards_of(
    valuation: Valuation, pool: str | int | Decimal, settings: RewardSettings | None = None, *, unit: str = ""
) -> Rewards:
    """A pool of money split by these values: `Report.rewards`."""
    settings = settings or RewardSettings()
    cents, lines = cents_of(pool), list(valuation)
    for_all = round(cents * Fraction(str(settings.floor))) if settings.rule == "floor" else 0
    first = split(for_all, [Fraction(line.value is not None) for line in lines]) if for_all else [0] * len(lines)
    if settings.rule == "cost":
        first = costs_paid(cents, valuation.clients, settings)
    by_value = _by_weights(cents - sum(first), lines, settings, valuation)
    paid = tuple(a + b for a, b in zip(first, by_value, strict=True))
    notes = tuple(_notes(valuation, settings, cents))
    return Rewards(valuation.method, valuation.clients, paid, settings, unit, notes)


def costs_paid(cents: int, clients: Sequence[str], settings: RewardSettings) -> list[int]:
    """What each client gets for its declared costs: all of them, or the same part of each if the pool is smaller."""
    declared = settings.declared
    if unknown := declared.keys() - set(clients):
        raise unknown_name("client", min(unknown), clients)
    wanted = [declared.get(client, 0) for client in clients]
    return wanted if sum(wanted) <= cents else split(cents, [Fraction(cost) for cost in wanted])


def split_again(paid: Rewards, report: "Report") -> Rewards:
    """The same pool split by the values of a report now; an error unless every client gets the same."""
    pool = Decimal(sum(paid.cents)).scaleb(-2)
    again = report.rewards(pool, paid.settings, method=paid.method, unit=paid.unit)
    if (again.clients, again.cents) != (paid.clients, paid.cents):
        raise ArtefactError(
            "rewards: the amounts do not follow from the report's values; write the report without rewards, and split "
            "the pool again (fedworth rewards)"
        )
    return again


def split(cents: int, weights: Sequence[Fraction]) -> list[int]:
    """Cents in proportion to the weights: rounded down, the rest to the largest remainders, earlier clients first."""
    total = sum(weights, Fraction(0))
    quotas = [cents * weight / total for weight in weights]
    paid = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda k: (paid[k] - quotas[k], k))
    for k in by_remainder[: cents - sum(paid)]:
        paid[k] += 1
    return paid


def _by_weights(cents: int, lines: list[ClientValue], settings: RewardSettings, valuation: Valuation) -> list[int]:
    if cents == 0:
        return [0] * len(lines)
    weights = _weights(lines, settings)
    if sum(weights) == 0:
        raise ValuationError(
            f"{valuation.method}: no client's {'lower end' if settings.rule == 'lower' else 'value'} is above zero, so "
            f"the rule {settings.rule} has nothing to split by; use --rule softmax, or --rule floor --floor 1, or with "
            "--rule cost a pool that is not larger than the costs"
        )
    return split(cents, weights)


def _weights(lines: list[ClientValue], settings: RewardSettings) -> list[Fraction]:
    """What each client is paid in proportion to; 0 for clients without a value."""
    if settings.rule == "softmax":
        known = np.array([line.value for line in lines if line.value is not None])
        spread = float(known.std()) if len(known) else 0.0
        scale = settings.temperature * spread if spread > 0 else 1.0
        top = float(known.max(initial=-math.inf))
        return [Fraction(0 if line.value is None else math.exp((line.value - top) / scale)) for line in lines]
    if settings.rule == "lower" and all(line.low is None for line in lines):
        raise ValuationError("the rule lower needs intervals, and these values have none; use another --rule")
    ends = [line.low if settings.rule == "lower" else line.value for line in lines]
    return [Fraction(max(end or 0.0, 0.0)) for end in ends]


def _notes(valuation: Valuation, settings: RewardSettings, cents: int) -> list[str]:
    """What to know before paying."""
    notes = []
    if (missing := sum(settings.declared.values()) - cents) > 0:
        notes.append(f"the pool is {missing / CENTS:,.2f} smaller than the declared costs: nothing is paid by value")
    trust = None if valuation.uncertainty is None else valuation.uncertainty.trust
    if trust is Trust.INDISTINGUISHABLE:
        notes.append(
            "the values cannot tell the clients apart, so they justify no unequal shares: --rule floor --floor 1 pays "
            "everyone the same"
        )
    elif trust is Trust.ROUGH_ORDER:
        notes.append(
            "only the rough order of the values can be trusted: fine shares are not justified between clients whose "
            "rank ranges overlap"
        )
    elif trust is None:
        notes.append("the errors of the values are not known, so it is not known whether fine shares are justified")
    notes += [f"use with care: {caution}" for caution in valuation.cautions]
    if settings.rule == "lower" and valuation.uncertainty is not None:
        for_all = [caveat.reason for caveat in valuation.uncertainty.caveats if caveat.is_of_all]
        notes += [f"the lower ends of the ranges are too high: {reason}" for reason in for_all]
    if absent := [line.client for line in valuation if line.value is None and line.client not in settings.declared]:
        notes.append(f"without a value, and so without a reward: {', '.join(absent)}")
    return notes
