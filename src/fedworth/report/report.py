"""The report: all valuations of one federation, what they rest on, and how far to trust them.

`Report.write(folder)` writes `report.csv` for spreadsheets, `report.json` for programs (`Report.read`), `report.md` and
`report.html` for people. A report without values says why there are none.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats
from fedworth.errors import ArtefactError, UsageError, unknown_name
from fedworth.findings import KINDS, Finding, Kind, kinds_without, looked_for_in_values, value_findings
from fedworth.provenance import Provenance
from fedworth.records import document_of, read_as
from fedworth.report.scores import Scores
from fedworth.storage import Place, json_bytes, make_folder, read_json, write_together, write_whole
from fedworth.theory.fairness import relative_difference
from fedworth.valuation.methods import HEADLINE
from fedworth.valuation.notebook import notebook_html
from fedworth.valuation.ranking import rank_correlation
from fedworth.valuation.valuation import ClientValue, Valuation

if TYPE_CHECKING:
    from fedworth.ledger.ledger import Ledger
    from fedworth.report.rewards import Rewards
    from fedworth.report.settings import PageSettings, RewardSettings


@dataclass(frozen=True, eq=False)
class Rounds:
    """Who took part in each round, and what each round gained; `numbers` are the federation's own."""

    numbers: tuple[int, ...]
    participants: NDArray[np.bool_]  # (n_rounds, n_clients)
    gains: Floats | None = None  # (n_rounds,): what each round's participants gained together

    def __post_init__(self) -> None:
        n_rounds = len(self.numbers)
        if self.participants.ndim != 2 or len(self.participants) != n_rounds:
            raise ArtefactError(f"rounds: participants of shape {self.participants.shape}, expected {n_rounds} rounds")
        if self.gains is not None and self.gains.shape != (n_rounds,):
            raise ArtefactError(f"rounds: gains of shape {self.gains.shape}, expected {n_rounds} rounds")


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """Valuations of one federation, methods that were refused, findings, rounds and provenance.

    Indexing by client, iterating and sorting use the `chosen` valuation. Reports with equal documents are equal.

    Example:
        best = max(report)
        print(best.client, best.value, report["north"].rank, [valuation.method for valuation in report.valuations])
    """

    title: str
    clients: tuple[str, ...]
    valuations: tuple[Valuation, ...]
    refusals: tuple[tuple[str, str], ...] = ()  # (method, why)
    copies: tuple[tuple[str, str], ...] = ()  # (copy, original): clients known to hold the same data
    coverage: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()  # in the answers; those in the values follow from the values
    looked_for: tuple[Kind, ...] = ()  # kinds of findings that were looked for
    rounds: Rounds | None = None
    scores: Scores | None = None
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        for valuation in self.valuations:
            if valuation.clients != self.clients:
                raise ArtefactError(f"report: {valuation.method} values {valuation.clients}, expected {self.clients}")
        if unknown := {name for pair in self.copies for name in pair} - {*self.clients}:
            raise ArtefactError(f"report: copies among {sorted(unknown)}, expected clients of the report")
        if self.rounds is not None and self.rounds.participants.shape[1] != len(self.clients):
            raise ArtefactError(f"report: participants of shape {self.rounds.participants.shape}, expected clients")
        if self.scores is not None and len(self.scores.last_rounds) != len(self.clients):
            raise ArtefactError(f"report: scores of {len(self.scores.last_rounds)} clients, expected clients")

    def valuation(self, method: str) -> Valuation | None:
        """The valuation by this method, or None."""
        return next((v for v in self.valuations if v.method == method), None)

    def valued_by(self, method: str) -> Valuation:
        """The valuation by this method, or an error that names those of the report."""
        found = self.valuation(method)
        if found is None:
            known = ", ".join(valuation.method for valuation in self.valuations)
            raise UsageError(f"{self.title}: has no values by {method}; it has {known}")
        return found

    @property
    def chosen(self) -> Valuation:
        """The valuation to act on: ComFedSV by models if there is one, else the first."""
        if not self.valuations:
            raise ArtefactError(
                f"{self.title}: no method gave values ({'; '.join(self.all_notes) or 'none asked for'})"
            )
        return self.valuation(HEADLINE) or self.valuations[0]

    @property
    def given(self) -> tuple[str, ...]:
        """The clients that are in every coalition (`--given`), so that values are what the others add to them."""
        return () if self.provenance is None else tuple(self.provenance.settings.get("given", ()))

    @property
    def is_open(self) -> bool:
        """Whether the federation was still training."""
        return self.provenance is not None and self.provenance.is_open

    @property
    def is_vertical(self) -> bool:
        """Whether clients sent embeddings of their features, and no models."""
        return self.provenance is not None and self.provenance.is_vertical

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """The findings in the answers and in the chosen values."""
        return (*self.findings, *(value_findings(self.chosen) if self.valuations else ()))

    @property
    def not_looked_for(self) -> tuple[Kind, ...]:
        """The kinds of findings that were not looked for, because what they need was missing."""
        of_values = looked_for_in_values(self.chosen) if self.valuations else ()
        return kinds_without((*self.looked_for, *of_values), KINDS.values(), is_vertical=self.is_vertical)

    @property
    def all_notes(self) -> list[str]:
        """What a reader must know before using a number, without repetitions."""
        methods: dict[str, list[str]] = {}
        for valuation in self.valuations:
            for note in valuation.notes:
                methods.setdefault(note, []).append(valuation.method)
        refused = [f"{method}: refused; {why}" for method, why in self.refusals]
        every = {valuation.method for valuation in self.valuations}
        of_methods = [
            note if len(every) > 1 and set(names) == every else f"{', '.join(dict.fromkeys(names))}: {note}"
            for note, names in methods.items()
        ]
        return list(dict.fromkeys([*self.notes, *refused, *of_methods]))

    @property
    def n_rounds_heard(self) -> dict[str, int]:
        """How many rounds each client took part in, if that is known."""
        if self.rounds is not None:
            return dict(zip(self.clients, self.rounds.participants.sum(axis=0).tolist(), strict=True))
        return dict(zip(self.clients, (self.coverage or {}).get("n_rounds_heard", ()), strict=False))

    @property
    def agreement(self) -> list[dict[str, Any]]:
        """How each method compares with the truth (rank correlation; error relative to the spread of the true values),
        and the largest relative difference of clients with the same data; a row for each method."""
        truth = self.valuation("truth")
        rows = []
        for valuation in self.valuations:
            row: dict[str, Any] = {"method": valuation.method}
            if truth is not None:
                row["rank_correlation"] = rank_correlation(valuation.values.tolist(), truth.values.tolist())
                row["relative_error"] = _relative_error(valuation, truth)
            if self.copies:
                value = dict(zip(self.clients, valuation.values.tolist(), strict=True))
                pairs = [(value[a], value[b]) for a, b in self.copies if not np.isnan(value[a] + value[b])]
                apart = (relative_difference(a, b) for a, b in pairs)
                row["largest_difference_of_copies"] = max(apart, default=None)
            rows.append(row)
        return rows

    @property
    def error_of_truth(self) -> float | None:
        """The error of the truth over its spread, if the truth was sampled; None if it is exact or absent."""
        truth = self.valuation("truth")
        if truth is None or truth.sampling_errors is None:
            return None
        errors, spread = truth.sampling_errors, float(np.nanstd(truth.values))
        return float(np.sqrt(np.nanmean(errors**2))) / spread if spread > 0 and np.nanmax(errors) > 0 else None

    def __getitem__(self, client: str) -> ClientValue:
        return self.chosen[client]

    def __iter__(self) -> Iterator[ClientValue]:
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
        return notebook_html(f"{self.title} — {chosen.label}: {chosen.description}", repr(self), list(chosen), note)

    def to_dataframe(self) -> Any:
        """A pandas data frame with a row for each client and method, and the columns of `report.csv`.

        Example:
            fedworth.Report.read("runs/demo").to_dataframe().pivot(index="client", columns="method")
        """
        frames = [valuation.to_dataframe() for valuation in self.valuations]
        import pandas

        return pandas.concat(frames, ignore_index=True)

    def by_group(self) -> Any:
        """A pandas data frame of the chosen values by group of test samples: `Valuation.by_group`.

        Example:
            report.by_group().pivot(index="client", columns="group", values="value")
        """
        return self.chosen.by_group()

    def document(self) -> dict[str, Any]:
        """The report as JSON in full precision, with derived entries."""
        return {
            **document_of(replace(self, valuations=(), findings=(), looked_for=())),
            "valuations": [valuation.document() for valuation in self.valuations],
            "agreement": self.agreement,
            "findings": [finding.document() for finding in self.all_findings],
            "looked_for": [kind.name for kind in self.looked_for],
            "not_looked_for": [{"kind": kind.name, "needs": kind.needs_text} for kind in self.not_looked_for],
        }

    @staticmethod
    def from_document(document: Any) -> "Report":
        """The inverse of `document()`.

        Example:
            assert fedworth.Report.from_document(report.document()) == report
        """
        kinds = {name: document_of(kind) for name, kind in KINDS.items()}
        try:  # a document has the names of the kinds
            found = [{**found, "kind": kinds[found["kind"]]} for found in document["findings"]]
            known = {**document, "findings": found, "looked_for": [kinds[name] for name in document["looked_for"]]}
        except (KeyError, TypeError) as error:
            raise ArtefactError(f"not a report: {error!r}") from error
        report = read_as(Report, known, "a report")
        return replace(report, findings=tuple(found for found in report.findings if not found.kind.is_of_values))

    @property
    def fingerprint(self) -> str:
        """The sha256 of `report.json`."""
        return hashlib.sha256(json_bytes(self.document())).hexdigest()

    @staticmethod
    def read(folder: Place) -> "Report":
        """The report in a folder, or in a `report.json`.

        Args:
            folder: The folder of a run or a report, or its `report.json`.

        Returns:
            The report.

        Example:
            report = fedworth.Report.read("runs/demo")
        """
        path = Path(folder)
        return Report.from_document(read_json(path / "report.json" if path.is_dir() else path))

    @staticmethod
    def mean(reports: "Sequence[Report]", names: Sequence[str] = (), *, title: str | None = None) -> "Report":
        """The mean values of several recorded runs of one federation, with intervals that include training luck.

        Args:
            reports: A report on each run: the same clients, task and settings, another ledger.
            names: What errors call the reports; their titles by default.
            title: The title of the new report.

        Returns:
            A report with the mean values by every method that all reports have. Findings in the answers are those of
            single runs and not repeated.

        Example:
            report = fedworth.Report.mean([fedworth.Report.read(run) for run in ("runs/demo", "runs/again")])
        """
        from fedworth.report.runs import mean_of_runs

        return mean_of_runs(reports, names, title=title)

    def rewards(
        self,
        pool: str | int | Decimal,
        settings: "RewardSettings | None" = None,
        *,
        method: str | None = None,
        unit: str = "",
    ) -> "Rewards":
        """Split a pool of money by value.

        Args:
            pool: The amount to split, with at most two decimals.
            settings: The rule.
            method: The method whose values are paid; the chosen one by default.
            unit: What stands behind an amount, such as EUR.

        Returns:
            The amounts, which add up to the pool to the cent.

        Example:
            paid = report.rewards("100000", fedworth.RewardSettings("floor", floor=0.1), unit="EUR")
            print(paid.amount("north"), paid.pool)
            report.write("reports", rewards=paid)
        """
        from fedworth.report.rewards import rewards_of

        valuation = self.chosen if method is None else self.valued_by(method)
        return rewards_of(valuation, pool, settings, unit=unit)

    def write(
        self,
        folder: Place,
        page: "PageSettings | None" = None,
        *,
        rewards: "Rewards | None" = None,
        excel: bool = False,
    ) -> list[Path]:
        """Write `report.csv`, `report.json`, `report.md` and `report.html`; with groups, `report-by-group.csv` too.

        Args:
            folder: Where to write them.
            page: Title, nouns and date of the page.
            rewards: Show these rewards on the page too.
            excel: Write `report.xlsx` too.

        Returns:
            The files.

        Example:
            report.write("reports", fedworth.PageSettings(noun="hospital", nouns="hospitals"))
        """
        from fedworth.report.tables import csv_text, groups_csv, markdown

        files: dict[str, str | bytes] = {"report.csv": csv_text(self), "report.json": json_bytes(self.document())}
        files |= {"report.md": markdown(self), "report.html": self.page_html(page, rewards=rewards)}
        if self.valuations and self.chosen.groups is not None:
            files["report-by-group.csv"] = groups_csv(self)
        if excel:
            from fedworth.report.excel import excel_bytes

            files["report.xlsx"] = excel_bytes(self)
        encoded = {k: x.encode(errors="backslashreplace") if isinstance(x, str) else x for k, x in files.items()}
        return write_together(Path(folder), encoded)

    def page_html(self, settings: "PageSettings | None" = None, *, rewards: "Rewards | None" = None) -> str:
        """The page of the report.

        Args:
            settings: Title, nouns and date.
            rewards: Show these rewards too.

        Returns:
            One HTML file that needs nothing else.

        Example:
            Path("report.html").write_text(report.page_html(fedworth.PageSettings(title="Sepsis model")))
        """
        from fedworth.report.page.page import page_html

        return page_html(self, settings, rewards=rewards)

    def statement_html(
        self,
        client: str,
        settings: "PageSettings | None" = None,
        *,
        rewards: "Rewards | None" = None,
        ledger: "Ledger | None" = None,
    ) -> str:
        """One client's statement, as one HTML file that needs nothing else; arguments as in `write_statement`.

        It shows no name, value or extreme of another client.

        Example:
            Path("north.html").write_text(report.statement_html("north"))
        """
        from fedworth.report.page.statement import statement_html

        return statement_html(self, client, settings, rewards=rewards, ledger=ledger)

    def write_statement(
        self,
        client: str,
        folder: Place,
        page: "PageSettings | None" = None,
        *,
        rewards: "Rewards | None" = None,
        ledger: "Ledger | None" = None,
    ) -> Path:
        """Write one client's statement.

        Args:
            client: Whose statement it is.
            folder: Where to write it.
            page: Title, nouns and date.
            rewards: Show the client's own reward too.
            ledger: The report's ledger, for the hashes of the client's models that were valued.

        Returns:
            The file, named by the client's index and the ASCII letters and digits of its name.

        Example:
            report.write_statement("north", "statements")
        """
        text = self.statement_html(client, page, rewards=rewards, ledger=ledger)
        kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in client.lower())
        slug = "-".join(part for part in kept.split("-") if part)[:60]
        place = f"{self.clients.index(client):0{len(str(len(self.clients) - 1))}d}"
        path = Path(folder) / f"statement-{place}{f'-{slug}' if slug else ''}.html"
        make_folder(path.parent)
        write_whole(path, text.encode())
        return path

    def plot(self, what: str = "values", ax: Any = None) -> Any:
        """One of the page's figures on matplotlib axes.

        Args:
            what: `values`: bars of the chosen values with their 90 % intervals; `gains`: how much better the model was
                after each round; `course`: each client's value added up over the rounds; `rounds`: who added what in
                which round.
            ax: The axes to draw on; those of a new figure by default.

        Returns:
            The axes; nothing is shown.

        Example:
            report.plot("course").figure.savefig("course.svg")
        """
        from fedworth.report import plots

        if what not in plots.OF_REPORTS:
            raise unknown_name("plot", what, plots.OF_REPORTS)
        return plots.OF_REPORTS[what](self, ax)


def _relative_error(valuation: Valuation, truth: Valuation) -> float | None:
    """‖s − s*‖ / ‖s* − mean s*‖ over the clients that both value."""
    known = ~np.isnan(valuation.values) & ~np.isnan(truth.values)
    spread = float(np.linalg.norm(truth.values[known] - truth.values[known].mean())) if known.any() else 0.0
    return float(np.linalg.norm((valuation.values - truth.values)[known])) / spread if spread > 0 else None
