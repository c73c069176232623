"""Commands that make and check ledgers: simulate, import, verify."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedworth.cli.options import Steps
from fedworth.cli.show import progress_bars, show, warn
from fedworth.errors import LedgerError, UsageError
from fedworth.names import Aggregation
from fedworth.simulation.settings import MOST_CLIENTS, SimulationSettings

if TYPE_CHECKING:
    from fedworth.ledger.ledger import Ledger
    from fedworth.ledger.manifest import LedgerHead
    from fedworth.task.task import Task


def adjust_simulation(given: dict[str, Any]) -> dict[str, Any]:
    """Local epochs replace local steps; shares in steps become one share per client."""
    if given.get("n_epochs") is not None:
        given.setdefault("n_steps", None)
    n_clients = min(given.get("n_clients", SimulationSettings().n_clients), MOST_CLIENTS)  # more are refused later
    return {name: value.for_clients(n_clients) if isinstance(value, Steps) else value for name, value in given.items()}


SIMULATION = {"adjust": adjust_simulation}
"""Metadata of the field of a command that simulates."""


@dataclass(frozen=True)
class TaskOptions:
    """What models are judged by.

    Args:
        task: Model and test set, such as mytask.py:task; a simulated ledger has its own.
        data_folder: Folder of the data sets (default: $FEDWORTH_DATA).
    """

    task: str | None = None
    data_folder: Path | None = None

    def of(self, ledger: "Ledger") -> "Task":
        from fedworth.simulation.simulate import task_of
        from fedworth.task.task import Task

        return task_of(ledger, data_folder=self.data_folder) if self.task is None else Task.load(self.task)


@dataclass(frozen=True)
class Simulate:
    """Train a federation with federated averaging and record it in a ledger.

    Args:
        out: The ledger to write.
        resume: Continue a ledger that a killed simulation left.
        data_folder: Folder of the data sets (default: $FEDWORTH_DATA).

    Example:
        fedworth simulate --dataset digits --clients 10 --copy 9=0 --participants 3 --rounds 10 --out ledger
    """

    out: Path
    resume: bool = False
    data_folder: Path | None = None
    simulation: SimulationSettings = field(default_factory=SimulationSettings, metadata=SIMULATION)

    def run(self, *, as_json: bool) -> None:
        from fedworth.pipeline.report_on import NO_ALL_CLIENTS_ROUND
        from fedworth.simulation.simulate import simulate

        with progress_bars() as progress:
            ledger = simulate(
                self.simulation, self.out, data_folder=self.data_folder, resume=self.resume, progress=progress
            )
        warn([] if self.simulation.everyone_heard else [NO_ALL_CLIENTS_ROUND])
        _show_ledger(ledger, f"fedworth report {self.out}", as_json=as_json)


@dataclass(frozen=True)
class Import:
    """Make a ledger from models on disk (.safetensors, .pt, .npz): a folder for each round, a file for each client.

    Args:
        folder: Folder with a subfolder for each round, which holds global.safetensors and a file for each client.
        out: The ledger to write.
        aggregation: Whether the server averaged models equally, or weighted by samples.

    Example:
        fedworth import models --out my.ledger
    """

    folder: Path
    out: Path
    aggregation: Aggregation = "samples"

    def run(self, *, as_json: bool) -> None:
        from fedworth.recording.importing import import_folder

        with progress_bars() as progress:
            ledger = import_folder(self.folder, self.out, aggregation=self.aggregation, progress=progress)
        _show_ledger(ledger, f"fedworth report {self.out} --task mytask.py:task", as_json=as_json)
        warn([] if as_json else ledger.warnings())


def _counts(folder: Path, ledger: "Ledger") -> str:
    n_rounds, n_clients = ledger.n_rounds, len(ledger.clients)
    rounds, clients = ("round" if n_rounds == 1 else "rounds"), ("client" if n_clients == 1 else "clients")
    return f"{folder}: {n_rounds} {rounds} of {n_clients} {clients}"


def _show_ledger(ledger: "Ledger", following: str, *, as_json: bool) -> None:
    found = {"n_rounds": ledger.n_rounds, "clients": list(ledger.clients), "warnings": list(ledger.warnings())}
    show({"ledger": str(ledger.folder), **found}, _counts(ledger.folder, ledger), f"next: {following}", as_json=as_json)


@dataclass(frozen=True)
class Verify:
    """Check a ledger's bytes and its server's rule, a report by making it again, or a statement by its receipts.

    Args:
        path: A ledger, a report.json, the folder of a run or a report, or a statement (.html).
        as_average: Accept a server that did something other than averaging.
        head: A head of the ledger that was kept elsewhere; an error unless the ledger still contains it.
        sign: Sign the head with this Ed25519 key (PEM), and write --signature.
        signature: The signature to check, or with --sign the file to write.
        public_key: Public key (PEM) of the owner of the signature.
        ledger: Ledger of the report or statement (default: the folder ledger beside the
            report, or LEDGER of LEDGER.report).
        receipts: The client's receipts, to compare with a statement.

    Example:
        fedworth verify my.ledger
    """

    path: Path
    as_average: bool = False
    head: str | None = None
    sign: Path | None = None
    signature: Path | None = None
    public_key: Path | None = None
    ledger: Path | None = None
    receipts: Path | None = None
    task: TaskOptions = field(default_factory=TaskOptions)

    def __post_init__(self) -> None:
        if self.sign is not None and self.signature is None:
            raise UsageError("--sign: expected --signature FILE beside it, the file to write")
        if self.sign is not None and self.public_key is not None:
            raise UsageError("--sign and --public-key: sign first, and check the signature with a second command")
        if self.sign is None and (self.signature is None) != (self.public_key is None):
            raise UsageError("--signature and --public-key: expected both, to check whose signature it is")

    def run(self, *, as_json: bool) -> None:
        if self.path.suffix == ".html" or self.receipts is not None:
            self._statement(as_json=as_json)
            return
        report = self.path / "report.json" if self.path.is_dir() else self.path
        if report.is_file():
            self._report(report, as_json=as_json)
        else:
            self._ledger(as_json=as_json)

    def _report(self, path: Path, *, as_json: bool) -> None:
        from fedworth.ledger.ledger import Ledger
        from fedworth.ledger.manifest import is_ledger
        from fedworth.pipeline.verify import verify_report
        from fedworth.report.report import Report

        near = (path.parent / "ledger", path.parent.resolve().with_suffix(""))  # of a run; of LEDGER.report
        folder = self.ledger or next((place for place in near if is_ledger(place)), near[0])
        if not folder.is_dir():
            raise UsageError(f"{path}: a report; expected its ledger, too: --ledger LEDGER")
        ledger = Ledger.open(folder)
        with progress_bars() as progress:
            checks = verify_report(Report.read(path), folder, self.task.of(ledger), path=path, progress=progress)
        head_checks = self._check_head(ledger)
        found = [{"check": check.name, "is_checked": check.is_checked, "found": check.found} for check in checks]
        document = {"report": str(path), "ledger": str(folder), "head_checks": head_checks, "checks": found}
        ending = f"{path}: agrees with its ledger and task"
        show(document, *head_checks, *map(str, checks), ending, as_json=as_json)

    def _statement(self, *, as_json: bool) -> None:
        from fedworth.pipeline.verify import verify_statement

        if self.receipts is None and self.ledger is None:
            raise UsageError(f"{self.path}: a statement; expected its client's receipts, too: --receipts FILE")
        checks = verify_statement(self.path, self.receipts, ledger=self.ledger)
        rounds = [check.is_checked for check in checks if check.name.startswith("round")]
        outcome = "all agree" if any(check.is_checked for check in checks) else "this shows nothing"
        compared = f"{sum(rounds)} of {len(rounds)} rounds compared; " if rounds else ""
        document = {"statement": str(self.path), "checks": [asdict(check) for check in checks]}
        show(document, *map(str, checks), f"{self.path}: {compared}{outcome}", as_json=as_json)

    def _ledger(self, *, as_json: bool) -> None:
        from fedworth.findings import OF_ANSWERS, kinds_without, look
        from fedworth.ledger.ledger import Ledger
        from fedworth.ledger.writer import exposures
        from fedworth.report.tables import findings_lines
        from fedworth.task.replay import check_ledger
        from fedworth.task.rules import rule_name, rule_of

        ledger = Ledger.verify(self.path)
        head_checks = self._check_head(ledger)
        checked = check_ledger(ledger, rule_of(ledger))
        findings, looked_for = look(ledger)
        unseen = kinds_without(looked_for, OF_ANSWERS, is_vertical=ledger.form is not None)
        rule = f"{rule_name(checked.rule)}, in {checked.n_same} of {ledger.n_rounds} rounds"
        if ledger.form is not None:
            rule = f"{ledger.form.combine} of embeddings"
        unsettled = [f"{file} is intact, but still has its partial name" for file in ledger.unsettled()]
        warnings = (*exposures(ledger.folder), *unsettled, *ledger.warnings(), *checked.notes())
        document = {
            "ledger": str(self.path),
            "n_rounds": ledger.n_rounds,
            "n_missing": len(ledger.missing),
            "n_clients": len(ledger.clients),
            "is_closed": ledger.is_closed,
            "head": ledger.chain,
            "head_checks": head_checks,
            "rule": rule_name(checked.rule) if ledger.form is None else rule,
            "n_rounds_by_rule": checked.n_same,
            "largest_gap": checked.largest_gap,
            "warnings": list(warnings),
            "findings": [finding.document() for finding in findings],
            "not_looked_for": [{"kind": kind.name, "needs": kind.needs_text} for kind in unseen],
        }
        state = "closed" if ledger.is_closed else "still open"
        lines = [
            f"{_counts(self.path, ledger)}, {state}; every byte as written",
            f"head: {ledger.chain} (keep it elsewhere; --head checks that the ledger still contains it)",
            *head_checks,
            f"server: {rule}",
            *findings_lines(findings, unseen),
        ]
        show(document, *lines, warnings=warnings, as_json=as_json)
        if not self.as_average:
            checked.refuse_others()

    def _check_head(self, ledger: "Ledger") -> list[str]:
        """Compare the ledger with the given heads, and sign its own if asked; what was found, in sentences."""
        from fedworth.ledger.manifest import LedgerHead, find_head, parse_head

        sentences = []
        if self.head is not None:
            sentences.append(_passed(find_head(ledger.folder, parse_head(self.head)), ledger, "the head given"))
        if self.sign is not None and self.signature is not None:
            from fedworth.ledger.signature import sign_head

            sign_head(LedgerHead(ledger.chain, ledger.n_rounds), self.sign, self.signature)
            sentences.append(f"head signed: {self.signature}")
        elif self.signature is not None and self.public_key is not None:
            from fedworth.ledger.signature import signed_head

            head = signed_head(self.signature, self.public_key)
            passed = find_head(ledger.folder, head.chain)
            if passed.n_rounds != head.n_rounds:
                found = f"{self.signature}: signed as the head of {head.n_rounds} rounds"
                raise LedgerError(f"{found}, but it is that of {passed.n_rounds}; ask who signed it")
            sentences.append(_passed(passed, ledger, "the head signed"))
        return sentences


def _passed(head: "LedgerHead", ledger: "Ledger", which: str) -> str:
    if head.chain == ledger.chain:
        return f"{which} is this ledger's: nothing was added or removed since"
    return f"{which} is this ledger's after {head.n_rounds} rounds; they are unchanged, and more was added since"
