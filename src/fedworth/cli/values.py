"""Commands from a ledger or utilities to values."""

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedworth.cli.record import SIMULATION, TaskOptions
from fedworth.cli.show import progress_bars, show, show_lines, warn
from fedworth.errors import ArtefactError, UsageError
from fedworth.report.settings import PageSettings
from fedworth.simulation.settings import SimulationSettings
from fedworth.valuation.settings import ValuationSettings, WorkSettings

if TYPE_CHECKING:
    from fedworth.games.matrix import UtilityMatrix
    from fedworth.ledger.ledger import Ledger
    from fedworth.pipeline.compare import ComparedMethod
    from fedworth.report.report import Report as ReportObject
    from fedworth.report.tables import Table
    from fedworth.storage import Progress
    from fedworth.valuation.federation import Federation, MeasuredUtilities

LONGEST_WAIT = 86_400.0  # seconds between two checks
COMPARE_LEGEND = (
    "error: distance from the truth, 1 is no better than calling all clients equal; gap: largest difference of two "
    "copies over the spread of the values; evaluations: utilities measured; CPU s: processor time, without a cache"
)
CLEAR = "\x1b[2J\x1b[H"
ABOUT_FACTORS = ("factors", "auto_rank", "unseen")
OF_UTILITIES = (*ABOUT_FACTORS, "strict", "as_one", "given", "seed")
"""Options of a valuation for utilities in a file, which are measured already."""

OF_VALUES = ("strict", "as_one", "given", "by", "group_shares")
MEASURED = {"hidden": (*ABOUT_FACTORS, *OF_VALUES)}
COMPLETED = {"hidden": OF_VALUES}
BY_MODELS = {"hidden": (*ABOUT_FACTORS, *OF_VALUES, "permutations")}
BY_FACTORS = {"hidden": (*OF_VALUES, "permutations")}
"""Options of a valuation that do nothing in some commands."""


@dataclass(frozen=True)
class How:
    """How coalitions are measured and clients valued."""

    task: TaskOptions = field(default_factory=TaskOptions)
    settings: ValuationSettings = field(default_factory=ValuationSettings)
    work: WorkSettings = field(default_factory=WorkSettings)

    def federation(self, folder: Path, progress: "Progress | None" = None) -> "Federation":
        """The federation in a ledger."""
        from fedworth.ledger.ledger import Ledger
        from fedworth.storage import silent
        from fedworth.valuation.federation import Federation

        ledger = Ledger.open(folder)
        return Federation(ledger, self.task.of(ledger), self.settings, work=self.work, progress=progress or silent)

    def utilities(self, file: Path) -> "UtilityMatrix":
        """The utilities in a file; an error if options say how to measure them."""
        plain = ValuationSettings(**{name: getattr(self.settings, name) for name in OF_UTILITIES})
        if self != How(settings=plain):
            raise UsageError(
                f"{file}: a file of utilities, which are measured already: expected no option that says how to measure "
                "(--task, --measure, --weighting, --without, --engine …); name a ledger to measure again"
            )
        from fedworth.games.matrix import UtilityMatrix

        return UtilityMatrix.load(file)

    def source(self, of: Path, progress: "Progress") -> "Federation | MeasuredUtilities":
        """A ledger's federation, or the utilities in a file."""
        if of.is_dir():
            return self.federation(of, progress)
        from fedworth.valuation.federation import MeasuredUtilities

        return MeasuredUtilities(self.utilities(of), self.settings)


@dataclass(frozen=True)
class Observe:
    """Measure the utilities of coalitions of a recorded federation.

    Args:
        ledger: The ledger of a federation.
        out: The file of utilities to write (.npz).

    Example:
        fedworth observe ledger --out utilities.npz
    """

    ledger: Path
    out: Path
    how: How = field(default_factory=How, metadata=MEASURED)

    def run(self, *, as_json: bool) -> None:
        from fedworth.storage import refuse_unwritable

        refuse_unwritable(self.out, "a file of utilities")
        with progress_bars() as progress:
            federation = self.how.federation(self.ledger, progress)
            matrix = federation.observe()
        matrix.save(self.out)
        n_measured = len(matrix.utilities) - matrix.n_rounds  # the empty coalition of each round is known
        document = {
            "utilities": str(self.out),
            "n_rounds": matrix.n_rounds,
            "clients": list(matrix.clients),
            "n_utilities": n_measured,
            "permutations": None if matrix.permutations is None else len(matrix.permutations),
            "notes": list(federation.notes),
        }
        counts = f"{self.out}: {n_measured:,} utilities in {matrix.n_rounds} rounds of {matrix.n_clients} clients"
        methods = "comfedsv,fedsv"
        if federation.is_vertical:
            methods, counts = "fedsv", f"{counts}; FedSV of them is VerFedSV"
        following = f"next: fedworth value {self.out} --method {methods}"
        show(document, counts, following, warnings=federation.notes, as_json=as_json)


@dataclass(frozen=True)
class Complete:
    """Estimate the utilities that were never seen, and write the completed utility matrix.

    Args:
        source: A ledger, or a file of utilities (.npz).
        out: The completed matrix to write (.npz).
        by: Complete by `factors` of the utilities, as in the paper, or by predicted `models` of the absent clients.
        held_out: Measure the error of the factors on seen cells that are hidden from them.

    Example:
        fedworth complete utilities.npz --out completed.npz
    """

    source: Path
    out: Path
    by: Literal["factors", "models"] = "factors"
    held_out: bool = False
    how: How = field(default_factory=How, metadata=COMPLETED)

    def run(self, *, as_json: bool) -> None:
        from fedworth.completion.factors import held_out_error
        from fedworth.report.tables import completion_table
        from fedworth.storage import refuse_unwritable, write_npz
        from fedworth.valuation.federation import completed_arrays

        refuse_unwritable(self.out, "a completed matrix")
        if self.held_out and self.by != "factors":
            raise UsageError("--held-out is for factors; a completion by models always holds models out")
        with progress_bars() as progress:
            source = self.how.source(self.source, progress)
            if source.is_vertical:
                raise UsageError(
                    f"{self.source}: a vertical federation, in which absent clients change nothing, so nothing can be "
                    "completed; value it: fedworth value LEDGER"
                )
            completion = source.by_factors() if self.by == "factors" else source.by_models()
            arrays = completed_arrays(source, completion)
        write_npz(self.out, arrays)
        summary, seen = completion.summary(), source.utility_matrix().coverage()
        if self.held_out:
            from fedworth.arrays import stream

            rng = stream(self.how.settings.seed, "cross-validation")
            summary["held_out_error"] = held_out_error(source.utility_matrix(), self.how.settings.factors, rng=rng)
        notes = [str(caveat) for caveat in completion.caveats]
        document = {"completion": str(self.out), **summary, "coverage": seen, "notes": notes}
        cells = f"{seen['share_seen']:.1%} of {seen['n_columns']:,} × {seen['n_rounds']} cells were seen"
        show(document, completion_table(summary), f"{self.out}: {cells}", warnings=notes, as_json=as_json)


@dataclass(frozen=True)
class Value:
    """Value the clients of a ledger, or of a file of utilities, by one or several methods.

    Args:
        source: A ledger, or a file of utilities (.npz).
        method: A method's name, or several with commas; `fedworth compare --help` lists them (default: comfedsv-models
            for a ledger, refitted-head for one of a vertical federation, comfedsv for utilities).
        out: Folder to write a page, CSV, JSON and Markdown to.

    Example:
        fedworth value utilities.npz --method comfedsv,fedsv --out values
    """

    source: Path
    method: tuple[str, ...] = ()
    out: Path | None = None
    how: How = field(default_factory=How)

    def run(self, *, as_json: bool) -> None:
        from fedworth.ledger.ledger import Ledger
        from fedworth.pipeline.report_on import provenance_of
        from fedworth.report.report import Report as ReportObject
        from fedworth.report.tables import values_table
        from fedworth.valuation.federation import Federation

        default, ledger = "comfedsv", None
        if self.source.is_dir():
            from fedworth.valuation.methods import headline

            ledger = Ledger.open(self.source)
            default = headline(is_vertical=ledger.form is not None)
        methods = [name for text in self.method for name in text.split(",") if name] or [default]
        with progress_bars() as progress:
            if len(methods) == 1 and self.out is None:
                source = self.how.source(self.source, progress)
                valuation, provenance = source.value(methods[0]), None
                if isinstance(source, Federation):
                    provenance = provenance_of(source, source.recorded.ledger, source.recorded.oracle.task)
                shown = ReportObject(valuation.method, valuation.clients, (valuation,), provenance=provenance)
                table = values_table(shown)
                description = f"{valuation.method}: {valuation.description}"
                show(valuation.document(), table, description, warnings=valuation.notes, as_json=as_json)
                return
            report = self._report(ledger, methods, progress)
        _show_report(report, [] if self.out is None else report.write(self.out), as_json=as_json)

    def _report(self, ledger: "Ledger | None", methods: list[str], progress: "Progress") -> "ReportObject":
        from fedworth.pipeline.report_on import report_on

        if ledger is None:
            utilities = self.how.utilities(self.source)
            return report_on(utilities, None, self.how.settings, methods=methods, title=self.source.name)
        task = self.how.task.of(ledger)
        return report_on(ledger, task, self.how.settings, methods=methods, work=self.how.work, progress=progress)


@dataclass(frozen=True)
class Report:
    """Value a ledger and write a page, CSV, JSON and Markdown; for a run, write them again; for several runs of one
    federation, write their mean.

    Args:
        ledger: A ledger, or the folder of a run or a report. Several, recorded from one federation, give the mean of
            their values, with intervals that include training luck.
        out: Folder to write to (default: LEDGER.report, or the folder of the run; needed for several).
        rewards: Show the amounts of `fedworth rewards` on the page.
        excel: Write report.xlsx too.

    Example:
        fedworth report my.ledger --task mytask.py:task
    """

    ledger: tuple[Path, ...]
    out: Path | None = None
    rewards: bool = False
    excel: bool = False
    how: How = field(default_factory=How)
    page: PageSettings = field(default_factory=PageSettings)
    line: tuple[str, ...] = ()  # the command line, which the page shows

    def run(self, *, as_json: bool) -> None:
        from fedworth.ledger.manifest import is_ledger
        from fedworth.report.report import Report as ReportObject
        from fedworth.report.rewards import Rewards

        if self.excel:
            from fedworth.report.excel import xlsxwriter

            xlsxwriter()  # or an error, before anything is measured
        page, first, is_mean = self.page, self.ledger[0], len(self.ledger) > 1
        if is_mean and self.out is None:
            raise UsageError(f"{len(self.ledger)} runs: name a folder for the report on their mean (--out)")
        is_made = is_mean or is_ledger(first)
        folder = self.out or (first.with_name(first.name + ".report") if is_made else first)
        reports = [
            self._of_ledger(path, None if is_mean else folder) if is_ledger(path) else self._of_run(path)
            for path in self.ledger
        ]
        report = ReportObject.mean(reports, [str(path) for path in self.ledger]) if is_mean else reports[0]
        if is_made:
            page = replace(page, command=shlex.join(["fedworth", *self.line]))
        paid = Rewards.read(folder if is_made else first) if self.rewards else None
        _show_report(report, report.write(folder, page, rewards=paid, excel=self.excel), as_json=as_json)

    def _of_ledger(self, path: Path, folder: Path | None) -> "ReportObject":
        """The report on a ledger, which is to be written to this folder if there is one."""
        from fedworth.ledger.ledger import Ledger
        from fedworth.pipeline.report_on import refuse_other_report, report_on

        ledger = Ledger.open(path)
        task = self.how.task.of(ledger)
        if folder is not None:
            refuse_other_report(folder, ledger, task, self.how.settings)
        with progress_bars() as progress:
            return report_on(ledger, task, self.how.settings, work=self.how.work, progress=progress)

    def _of_run(self, folder: Path) -> "ReportObject":
        from fedworth.report.report import Report as ReportObject

        path = folder / "report.json"
        if not path.is_file():
            problem = "neither a ledger nor the folder of a run: no report.json is in it"
            raise ArtefactError(f"{folder}: {problem if folder.is_dir() else 'no such folder; name a ledger or a run'}")
        if replace(self.how, work=WorkSettings()) != How():
            raise UsageError(
                f"{folder}: the folder of a finished run; to value its federation with other settings, name its "
                f"ledger (for a simulated run {folder / 'ledger'})"
            )
        return ReportObject.read(path)


def _show_report(report: "ReportObject", paths: list[Path], *, as_json: bool) -> None:
    """A report on the screen, and where its files are."""
    from fedworth.report.tables import findings_lines, tables

    files = [str(path) for path in paths]
    lines = findings_lines(report.all_findings, report.not_looked_for if report.looked_for else ())
    lines += [f"written: {', '.join(files)}"] if files else []
    document = {**report.document(), "files": files}
    show(document, *tables(report), *lines, warnings=report.all_notes, as_json=as_json)


@dataclass(frozen=True)
class Run:
    """Simulate a federation, value it and write a report; a killed run can be resumed.

    Args:
        out: The folder of the run.
        resume: Continue a run that was killed, or show a finished one.
        data_folder: Folder of the data sets (default: $FEDWORTH_DATA).

    Example:
        fedworth run --out runs/demo
    """

    out: Path
    resume: bool = False
    data_folder: Path | None = None
    simulation: SimulationSettings = field(default_factory=SimulationSettings, metadata=SIMULATION)
    settings: ValuationSettings = field(default_factory=ValuationSettings)
    work: WorkSettings = field(default_factory=WorkSettings)

    def run(self, *, as_json: bool) -> None:
        from fedworth.pipeline.run import RunSettings, run

        settings = RunSettings(self.simulation, self.settings)
        with progress_bars() as progress:
            report = run(
                settings, self.out, data_folder=self.data_folder, resume=self.resume, work=self.work, progress=progress
            )
        _show_report(report, sorted(self.out.iterdir()), as_json=as_json)


@dataclass(frozen=True)
class Watch:
    """Value a federation while it trains: the table changes after each round, until the ledger is closed.

    Args:
        ledger: The ledger that a recorder writes, or will write.
        out: Folder of the report (default: LEDGER.watch).
        every: Seconds between two checks of the ledger.
        once: Value the rounds recorded so far and stop.
        track: Show values and findings in a tracker too: mlflow, wandb, tensorboard:FOLDER or prometheus:FILE.

    Example:
        fedworth watch my.ledger --task mytask.py:task
    """

    ledger: Path
    out: Path | None = None
    every: float = 1.0
    once: bool = False
    track: tuple[str, ...] = ()
    how: How = field(default_factory=How)

    def __post_init__(self) -> None:
        if not 0 <= self.every <= LONGEST_WAIT:
            raise UsageError(f"--every {self.every}: expected from 0 to {LONGEST_WAIT:g} seconds")

    def run(self, *, as_json: bool) -> None:
        from fedworth.oracle.store import Session
        from fedworth.pipeline.run import update
        from fedworth.pipeline.track import Trackers

        trackers = Trackers(self.track)
        place = self.ledger if self.ledger.name else self.ledger.resolve()
        if not place.name:
            raise UsageError(f"{self.ledger}: expected the folder of a ledger")
        folder, session = self.out or place.with_name(place.name + ".watch"), None
        for ledger in self._growing():
            session = session or Session(self.how.task.of(ledger))
            ledger = session.remember(ledger)
            report = update(ledger, session.task, self.how.settings, folder, work=self.how.work, session=session)
            trackers.show(report)
            self._show(report, as_json=as_json)
        trackers.finish(folder)

    def _growing(self) -> "Iterator[Ledger]":
        """The ledger each time it has grown, until it is closed; says if nobody writes it any more."""
        from fedworth.ledger.ledger import Ledger
        from fedworth.ledger.lock import recorder_gone
        from fedworth.ledger.manifest import is_ledger

        chain, gone = None, None
        while True:
            ledger = Ledger.open(self.ledger) if self.once or is_ledger(self.ledger) else None
            if ledger is not None and ledger.chain != chain and (ledger.n_rounds or self.once):
                chain = ledger.chain
                yield ledger
            if self.once or (ledger is not None and ledger.is_closed):
                return
            if ledger is not None and recorder_gone(self.ledger) != gone:
                gone = recorder_gone(self.ledger)
                state = "a recorder writes it again"
                if gone is not None:
                    state = f"not closed, and nobody is writing it: {gone}; no round comes until a recorder resumes it"
                warn([f"{self.ledger}: {state}"])
            time.sleep(self.every)

    def _show(self, report: "ReportObject", *, as_json: bool) -> None:
        from fedworth.report.tables import findings_lines, values_table

        show_lines([CLEAR] if sys.stdout.isatty() and not as_json else [])
        values = [values_table(report)] if report.valuations else []
        found = findings_lines(report.all_findings, report.not_looked_for if report.looked_for else ())
        show(report.document(), report.title, *values, *found, warnings=report.all_notes, as_json=as_json)


@dataclass(frozen=True)
class Compare:
    """Compare reports on the same clients across seeds, methods or weeks; or methods on one ledger.

    Args:
        runs: Folders of runs or reports; with --methods, one ledger or run.
        method: Compare the values by this method (default: those that the pages show).
        methods: Value one ledger by several methods, and show what each costs and how far from the truth it is: names
            with commas out of comfedsv-models, comfedsv, fedsv, fedsv-equal, fedsv-later, truth,
            all-clients-round, leave-one-out, large-coalitions, banzhaf, beta-shapley, least-core, tmc, gtg, mr, or,
            influence, cosine and retraining, verfedsv and refitted-head of a vertical federation, or `all` (without
            truth, which they are compared with, and retraining, which is slow).
        out: Folder to write compare.html, .json and .csv of compared reports to.

    Example:
        fedworth compare runs/monday runs/friday --out compared
    """

    runs: tuple[Path, ...]
    method: tuple[str, ...] = ()
    methods: str | None = None
    out: Path | None = None
    how: How = field(default_factory=How)
    page: PageSettings = field(default_factory=PageSettings)

    def run(self, *, as_json: bool) -> None:
        if self.methods is not None:
            self._methods(self.methods, as_json=as_json)
            return
        if self.how != How():
            raise UsageError(
                "reports are compared as they are: options that say how to value a ledger go with --methods, which "
                "compares methods on one ledger"
            )
        from fedworth.report.comparison import Comparison
        from fedworth.report.report import Report as ReportObject

        reports = [ReportObject.read(folder / "report.json") for folder in self.runs]
        comparison = Comparison.of(reports, [str(folder) for folder in self.runs], methods=list(self.method))
        paths = [] if self.out is None else comparison.write(self.out, self.page)
        lines = ["", *(f"({number}) {name}" for number, name in enumerate(comparison.names, start=1)), ""]
        for pair in comparison.pairs:
            correlation = "–" if pair.correlation is None else f"{pair.correlation:.2f}"
            agreement = f"rank correlation {correlation}, clear differences: {pair.sentence}"
            lines.append(f"{pair.first} and {pair.second}: {agreement}")
        lines += [f"written: {path}" for path in paths]
        document = {**comparison.document(), "files": [str(path) for path in paths]}
        show(document, comparison.table(), *lines, warnings=comparison.differing, as_json=as_json)

    def _methods(self, text: str, *, as_json: bool) -> None:
        if self != Compare(self.runs, methods=text, how=self.how):
            raise UsageError(
                "--methods: writes no page, so --method, --out and options of pages do nothing; leave them out, and "
                "redirect what --json prints to a file"
            )
        if len(self.runs) != 1:
            raise UsageError(f"--methods: found {len(self.runs)} folders, expected one ledger or run")
        from fedworth.ledger.ledger import Ledger
        from fedworth.pipeline.compare import compare

        ledger = Ledger.open(_ledger_in(self.runs[0]))
        names = None if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
        copies = [(ledger.clients[a], ledger.clients[b]) for a, b in (ledger.simulation or {}).get("copies", ())]
        with progress_bars() as progress:
            task = self.how.task.of(ledger)
            rows = compare(ledger, task, self.how.settings, names, copies=copies, work=self.how.work, progress=progress)
        document = {"clients": list(ledger.clients), "methods": [row.document() for row in rows]}
        refusals = (f"{row.method}: {row.refusal}" for row in rows if row.refusal)
        show(document, _methods_table(rows), *refusals, as_json=as_json)


def _ledger_in(folder: Path) -> Path:
    """The ledger of a run, or the folder itself."""
    return folder / "ledger" if (folder / "ledger").is_dir() else folder


def _methods_table(rows: "Sequence[ComparedMethod]") -> "Table":
    from fedworth.report.tables import ABSENT, Table
    from fedworth.valuation.methods import method_text

    def number(value: float | None) -> str:
        return ABSENT if value is None else f"{value:.2f}"

    headings = ("method", "error", "rank correlation", "gap", "evaluations", "CPU s")
    lines = tuple(
        (
            method_text(row.method).label,
            number(row.error),
            number(row.rank_correlation),
            number(row.copies_gap),
            ABSENT if row.refusal else f"{row.n_evaluations:,}",
            f"{row.seconds:.2f}",
        )
        for row in rows
    )
    return Table("Methods side by side", headings, lines, legend=COMPARE_LEGEND)


@dataclass(frozen=True)
class Interactions:
    """Show which pairs of clients are redundant, and which complement each other; in a vertical federation by the
    refitted head.

    Args:
        ledger: A ledger, or the folder of a run.
        most: Number of pairs of each kind to show.

    Example:
        fedworth interactions runs/demo
    """

    ledger: Path
    most: int = 5
    how: How = field(default_factory=How, metadata=BY_MODELS)

    def run(self, *, as_json: bool) -> None:
        from fedworth.report.tables import Table

        with progress_bars() as progress:
            federation = self.how.federation(_ledger_in(self.ledger), progress)
            pairs = federation.interactions()
        kinds = {
            "Redundant: together they add less than apart": [p for p in pairs if p.index < 0][: self.most],
            "Complementary: together they add more": [p for p in reversed(pairs) if p.index > 0][: self.most],
        }
        shown = {of: tuple((f"{p.first}, {p.second}", f"{p.index:+.4f}") for p in some) for of, some in kinds.items()}
        legend = (
            "interaction: how much more two clients add together than each by itself, averaged over coalitions of the "
            "others (Shapley interaction index)"
        )
        if federation.is_vertical:
            legend += "; by heads that are fitted anew to coalitions' embeddings (refitted-head)"
        tables = [
            Table(title, ("clients", "interaction"), rows, legend=legend) for title, rows in shown.items() if rows
        ]
        show({"pairs": [asdict(pair) for pair in pairs]}, *tables, as_json=as_json)
