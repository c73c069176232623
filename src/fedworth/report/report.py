"""The report: all valuations of one federation side by side, what they rest on, and how far to trust them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedworth.errors import ArtefactError, UsageError
from fedworth.findings import OF_ANSWERS, Finding, FindingKind, finding_from
from fedworth.findings.of_values import value_findings
from fedworth.names import MethodName
from fedworth.report.rounds import Rounds, rounds_from
from fedworth.theory.fairness import relative_difference
from fedworth.trail import Trail
from fedworth.valuation.notebook import notebook_html
from fedworth.valuation.ranking import rank_correlation
from fedworth.valuation.valuation import BASES, Valuation, valuation_from
from fedworth.valuation.worth import Worth

PREFERRED = ("comfedsv", "comfedsv-factors", "fedsv", "heard-round", "leave-one-out", "fedsv-later", "truth")
"""Which method a page is about, if there are several: the first of these that gave values."""


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """Valuations, refusals, coverage, pairs of clients known to have the same data, and what was found.

    Indexing by a client, iterating and sorting are those of the `chosen` valuation; two reports are equal if their
    documents are.

    Example:
        best = max(report)
        print(best.client, best.value, report["north"].rank, [made.method for made in report.valuations])
    """

    title: str
    clients: tuple[str, ...]
    valuations: tuple[Valuation, ...]
    refusals: tuple[tuple[str, str], ...] = ()  # (method, why)
    copies: tuple[tuple[str, str], ...] = ()  # (copy, of)
    coverage: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    looked_for: tuple[FindingKind, ...] = ()  # kinds of findings that were looked for, found or not
    rounds: Rounds | None = None

    def __post_init__(self) -> None:
        for valuation in self.valuations:
            if valuation.clients != self.clients:
                raise ArtefactError(f"report: {valuation.method} values {valuation.clients}, expected {self.clients}")
        if unknown := {name for pair in self.copies for name in pair} - {*self.clients}:
            raise ArtefactError(f"report: copies among {sorted(unknown)}, expected clients of the report")
        if len({trail.head for v in self.valuations if (trail := v.trail) is not None}) > 1:
            raise ArtefactError("report: its valuations are of different ledgers, or of one at different times")

    @property
    def trail(self) -> Trail | None:
        """Which ledger, task and software the values come from; None if that is not known of all of them."""
        trails = [trail for valuation in self.valuations if (trail := valuation.trail) is not None]
        if not trails or len(trails) < len(self.valuations):
            return None
        return replace(trails[0], utilities=None, completion=None)

    def valuation(self, method: MethodName) -> Valuation | None:
        """The valuation by this method, if there is one."""
        return next((v for v in self.valuations if v.method == method), None)

    @property
    def chosen(self) -> Valuation:
        """The valuation to act on: ComFedSV if there is one, else the next best."""
        made = {valuation.method: valuation for valuation in self.valuations}
        found = next((made[method] for method in (*PREFERRED, *made) if method in made), None)
        if found is None:
            raise ArtefactError(
                f"{self.title}: no method gave values ({'; '.join(self.warnings()) or 'none asked for'})"
            )
        return found

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """What the answers show, and what the chosen values do."""
        return (*self.findings, *(value_findings(self.chosen) if self.valuations else ()))

    def __getitem__(self, client: str) -> Worth:
        return self.chosen[client]

    def __iter__(self) -> Iterator[Worth]:
        return iter(self.chosen)

    def __len__(self) -> int:
        return len(self.clients)

    def __eq__(self, other: object) -> bool:
        return self.document() == other.document() if isinstance(other, Report) else NotImplemented

    def __repr__(self) -> str:
        methods = ", ".join(valuation.method for valuation in self.valuations) or "none"
        return f"<Report {self.title!r}: {len(self)} clients by {methods}; findings: {len(self.all_findings)}>"

    def _repr_html_(self) -> str:
        chosen = self.chosen
        note = "" if chosen.uncertainty is None else chosen.uncertainty.sentence
        return notebook_html(f"{self.title} — {chosen.method}: {BASES[chosen.method]}", repr(self), list(chosen), note)

    def to_dataframe(self) -> Any:
        """A pandas data frame with a row a client and method, and the columns of `report.csv`.

        Example:
            fedworth.read_report("runs/demo/report.json").to_dataframe().pivot(index="client", columns="method")
        """
        try:
            import pandas
        except ImportError:
            raise UsageError("to_dataframe needs pandas: install it with  pip install 'fedworth[pandas]'") from None
        return pandas.concat([made.to_dataframe() for made in self.valuations], ignore_index=True)

    def warnings(self) -> list[str]:
        """What a reader must know before believing a number, each said once."""
        warned: dict[str, list[str]] = {}
        for valuation in self.valuations:
            for warning in valuation.warnings:
                warned.setdefault(warning, []).append(valuation.method)
        refused = [f"{method}: refused; {why}" for method, why in self.refusals]
        said = [f"{', '.join(dict.fromkeys(methods))}: {warning}" for warning, methods in warned.items()]
        return list(dict.fromkeys([*self.notes, *refused, *said]))

    def document(self) -> dict[str, Any]:
        """The report as JSON, in full precision."""
        return {
            "title": self.title,
            "clients": list(self.clients),
            "valuations": [{**v.document(), "basis": BASES[v.method], **_derived(v)} for v in self.valuations],
            "agreement": agreement(self),
            "refusals": [list(refusal) for refusal in self.refusals],
            "copies": [list(pair) for pair in self.copies],
            "coverage": self.coverage,
            "notes": list(self.notes),
            "trail": None if self.trail is None else self.trail.document(),
            "findings": [finding.document() for finding in self.all_findings],
            "looked_for": [str(kind) for kind in self.looked_for],
            "rounds": None if self.rounds is None else self.rounds.document(),
        }


def report_from(document: dict[str, Any]) -> Report:
    """The report that `document()` gave.

    Args:
        document: What `report.document()` gave.

    Returns:
        The report.

    Example:
        assert fedworth.report_from(report.document()) == report
    """
    try:
        return Report(
            document["title"],
            tuple(document["clients"]),
            tuple(valuation_from(v) for v in document["valuations"]),
            tuple((method, why) for method, why in document["refusals"]),
            tuple((copy, of) for copy, of in document["copies"]),
            document["coverage"],
            tuple(document["notes"]),
            tuple(found for found in map(finding_from, document.get("findings", ())) if found.kind in OF_ANSWERS),
            tuple(FindingKind(kind) for kind in document.get("looked_for", ())),
            rounds_from(document.get("rounds")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArtefactError(f"not a report: {error!r}") from error


def agreement(report: Report) -> list[dict[str, Any]]:
    """How each method compares: with the truth where it is known (rank correlation, and error relative to the spread
    of the true values), and on clients with the same data (largest relative difference d)."""
    truth = report.valuation("truth")
    rows = []
    for valuation in report.valuations:
        row: dict[str, Any] = {"method": valuation.method}
        if truth is not None:
            row["rank_correlation"] = rank_correlation(valuation.values.tolist(), truth.values.tolist())
            row["relative_error"] = _relative_error(valuation, truth)
        if report.copies:
            row["largest_difference_of_copies"] = _largest_difference(valuation, report.copies)
        rows.append(row)
    return rows


def truths_error(report: Report) -> float | None:
    """How far the truth may itself be off, over its spread, where it is drawn: distances from it are then larger than
    they would be from the exact one."""
    truth = report.valuation("truth")
    if truth is None or truth.standard_errors is None:
        return None
    errors, spread = truth.standard_errors, float(np.nanstd(truth.values))
    return float(np.sqrt(np.nanmean(errors**2))) / spread if spread > 0 and np.nanmax(errors) > 0 else None


def _relative_error(valuation: Valuation, truth: Valuation) -> float | None:
    """‖s − s*‖ / ‖s* − mean s*‖ over the clients that both value."""
    known = ~np.isnan(valuation.values) & ~np.isnan(truth.values)
    spread = float(np.linalg.norm(truth.values[known] - truth.values[known].mean())) if known.any() else 0.0
    return float(np.linalg.norm((valuation.values - truth.values)[known])) / spread if spread > 0 else None


def _largest_difference(valuation: Valuation, copies: tuple[tuple[str, str], ...]) -> float | None:
    worth = dict(zip(valuation.clients, valuation.values.tolist(), strict=True))
    pairs = [(worth[a], worth[b]) for a, b in copies if not np.isnan(worth[a] + worth[b])]
    return max((relative_difference(a, b) for a, b in pairs), default=None)


def _derived(valuation: Valuation) -> dict[str, Any]:
    shares = [None if np.isnan(share) else share for share in valuation.shares.tolist()]
    return {"shares": shares, "ranks": list(valuation.ranks)}
