"""Commands on a finished report: statement, rewards."""

from dataclasses import dataclass, field
from pathlib import Path

from fedworth.cli.show import show, warn
from fedworth.errors import UsageError
from fedworth.report.settings import PageSettings, RewardSettings

NO_LEDGER = (
    "no ledger is beside the report, so statements do not say which answers were valued; name it: --ledger LEDGER"
)


@dataclass(frozen=True)
class Statement:
    """Write a page that one client can be sent: its own value, and nothing about other clients.

    Args:
        folder: The folder of a run, or of a report.
        client: Name of the client.
        all_clients: Write a statement for every client.
        out: Folder to write to (default: statements in the folder of the run).
        rewards: Show the client's amount of `fedworth rewards`.
        ledger: Ledger of the report, for the hashes of the client's models (default: the one beside the report).

    Example:
        fedworth statement runs/demo 3
    """

    folder: Path
    client: str | None = field(default=None, metadata={"is_argument": True})
    all_clients: bool = False
    out: Path | None = None
    rewards: bool = False
    ledger: Path | None = None
    page: PageSettings = field(default_factory=PageSettings)

    def __post_init__(self) -> None:
        if (self.client is None) != self.all_clients:
            raise UsageError("name one client, or all of them with --all")

    def run(self, *, as_json: bool) -> None:
        from fedworth.ledger.ledger import Ledger
        from fedworth.ledger.manifest import is_ledger
        from fedworth.report.report import Report
        from fedworth.report.rewards import Rewards

        report = Report.read(self.folder / "report.json")
        near = (self.folder / "ledger", self.folder.resolve().with_suffix(""))  # of a run; LEDGER.report, LEDGER.watch
        found = self.ledger or next((place for place in near if is_ledger(place)), None)
        ledger = None if found is None or report.provenance is None else Ledger.open(found)
        warn([NO_LEDGER] if ledger is None and report.provenance is not None else [])
        paid = Rewards.read(self.folder) if self.rewards else None
        place = self.out or self.folder / "statements"
        wanted = report.clients if self.client is None else (self.client,)
        paths = {
            client: str(report.write_statement(client, place, self.page, rewards=paid, ledger=ledger))
            for client in wanted
        }
        show(paths, *(f"{client}: {path}" for client, path in paths.items()), as_json=as_json)


@dataclass(frozen=True)
class RewardsCommand:
    """Split a pool of money by value, exact to the cent.

    Args:
        folder: The folder of a run, or of a report.
        pool: Amount to split, with at most two decimals.
        unit: Unit of the amounts, such as EUR.
        method: Method whose values are paid (default: the one that the page shows).
        out: Folder to write to (default: the folder of the run).

    Example:
        fedworth rewards runs/demo --pool 100000 --rule floor --floor 0.1 --unit EUR
    """

    folder: Path
    pool: str
    unit: str = ""
    method: str | None = None
    out: Path | None = None
    settings: RewardSettings = field(default_factory=RewardSettings)

    def run(self, *, as_json: bool) -> None:
        from fedworth.report.report import Report
        from fedworth.report.tables import Table

        report = Report.read(self.folder / "report.json")
        paid = report.rewards(self.pool, self.settings, method=self.method, unit=self.unit)
        paths = [str(path) for path in paid.write(self.out or self.folder)]
        rows = tuple((client, paid.amount(client)) for client in paid.clients)
        legend = f"reward: {paid.settings.sentence} (rule {paid.settings.rule})"
        table = Table(f"Rewards from {paid.pool}, by {paid.method}", ("client", "reward"), rows, legend=legend)
        document, written = {**paid.document(), "files": paths}, f"written: {', '.join(paths)}"
        show(document, table, written, warnings=paid.notes, as_json=as_json)
