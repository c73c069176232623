"""A report on disk: CSV for spreadsheets, JSON for programs, Markdown and HTML for people."""

from pathlib import Path

from fedworth.errors import ArtefactError
from fedworth.report.page import PageSettings, page_html, statement_html
from fedworth.report.report import Report, report_from
from fedworth.report.rewards import Rewards, rewards_from
from fedworth.report.tables import csv_text, markdown
from fedworth.storage import Place, make_folder, read_json, write_json, write_whole

REWARDS = "rewards.json"


def write_report(
    report: Report, folder: Place, page: PageSettings | None = None, *, rewards: Rewards | None = None
) -> list[Path]:
    """Write a report as `report.csv`, `report.json`, `report.md` and `report.html`.

    Args:
        report: What to write.
        folder: Where to write it.
        page: Title, nouns and date of the page.
        rewards: Show these rewards on the page too.

    Returns:
        The files written: CSV, JSON, Markdown, HTML. The same report gives the same bytes.

    Example:
        fedworth.write_report(report, "reports", fedworth.PageSettings(noun="hospital", nouns="hospitals"))
    """
    folder = Path(folder)
    make_folder(folder)
    paths = [folder / f"report.{ending}" for ending in ("csv", "json", "md", "html")]
    write_whole(paths[0], csv_text(report).encode(errors="backslashreplace"))
    write_json(paths[1], report.document())
    write_whole(paths[2], markdown(report).encode(errors="backslashreplace"))
    write_whole(paths[3], page_html(report, page, rewards=_fitting(rewards, report)).encode(errors="backslashreplace"))
    return paths


def read_report(path: Place) -> Report:
    """The report at `path` (`report.json`).

    Args:
        path: A `report.json`.

    Returns:
        The report.

    Example:
        report = fedworth.read_report("runs/demo/report.json")
    """
    return report_from(read_json(path))


def write_statement(
    report: Report, client: str, folder: Place, page: PageSettings | None = None, *, rewards: Rewards | None = None
) -> Path:
    """Write one client's statement.

    Args:
        report: The report that the statement is from.
        client: Whose statement it is.
        folder: Where to write it.
        page: Title, nouns and date.
        rewards: Tell the client its own reward too.

    Returns:
        The file: named by the client's place and what is harmless of its name.

    Example:
        fedworth.write_statement(report, "north", "statements")
    """
    folder = Path(folder)
    text = statement_html(report, client, page, rewards=_fitting(rewards, report))
    make_folder(folder)
    place = report.clients.index(client)
    path = folder / f"statement-{place:0{len(str(len(report.clients) - 1))}d}{_slug(client)}.html"
    write_whole(path, text.encode())
    return path


def read_rewards(folder: Path) -> Rewards:
    """The rewards that `fedworth rewards` left in a run's folder."""
    path = folder / REWARDS
    if not path.is_file():
        raise ArtefactError(f"{path}: no such file; make it first with  fedworth rewards {folder} --pool AMOUNT")
    return rewards_from(read_json(path))


def _fitting(rewards: Rewards | None, report: Report) -> Rewards | None:
    if rewards is not None and rewards.clients != report.clients:
        raise ArtefactError("rewards: of other clients than the report; make them again")
    return rewards


def _slug(name: str) -> str:
    """What of a name can stand in a file's: ASCII letters and digits, the rest a dash."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())
    joined = "-".join(part for part in kept.split("-") if part)[:60]
    return f"-{joined}" if joined else ""
