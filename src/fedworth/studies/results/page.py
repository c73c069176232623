"""The pages of results, made of nothing but the CSVs and the manifest beside them.

results.md            does it work, and when; the regime map; the table of claims; of every study a figure, four
                      methods and a command
results-appendix.md   every method, sensitivity, accuracies, time, the theory, and what each study ran
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedworth.storage import read_bytes
from fedworth.studies.results.claims import HEADINGS, claim_lines
from fedworth.studies.results.manifest import LEFT_OUT, Account, accounts_in
from fedworth.studies.results.outcome import Outcome
from fedworth.studies.results.records import Record, records_from
from fedworth.studies.results.study import Study
from fedworth.studies.results.summary import APPENDIX, HOW, summary
from fedworth.studies.results.theory import THEORY, THEORY_TITLE

PAGE, APPENDIX_PAGE, MAP = "results.md", "results-appendix.md", "regime"
APPENDED = ("sensitivity", "models", "time")
"""Studies that compare no methods: their figures and tables are in the appendix."""

WITH_CLAIMS = ("models",)
"""Those whose claims are there too, since they are not about values."""

MOST_CSV = 50_000_000


def records_in(figures: Path, study: str) -> list[Record]:
    """The records of a study's CSV; none where it was not run."""
    path = figures / f"{study}.csv"
    return records_from(read_bytes(path, MOST_CSV).decode()) if path.is_file() else []


def pages_of(folder: Path, studies: Sequence[Study]) -> dict[str, str]:
    """Both pages as text, from the figures of a folder."""
    figures = folder / "figures"
    accounts = accounts_in(figures)
    kept = {study.name: records_in(figures, study.name) for study in studies if study.name in accounts}
    outcomes = {s.name: s.shown(kept[s.name]) for s in studies if s.shown is not None and kept.get(s.name)}
    return {
        PAGE: _page(studies, outcomes, accounts, kept),
        APPENDIX_PAGE: _appendix(studies, outcomes, accounts),
    }


def _page(
    studies: Sequence[Study],
    outcomes: Mapping[str, Outcome],
    accounts: Mapping[str, Account],
    kept: Mapping[str, Sequence[Record]],
) -> str:
    claims = [claim for name, outcome in outcomes.items() if name not in WITH_CLAIMS for claim in outcome.claims]
    missing = [study.name for study in studies if study.name not in outcomes]
    shown = [study for study in studies if study.name in outcomes and study.name not in APPENDED]
    parts = [
        *summary(kept, accounts, missing),
        *[_section(study, outcomes[study.name], accounts[study.name]) for study in shown if study.name == MAP],
        f"## The paper's claims\n\n{HOW}",
        table(HEADINGS, tuple(claim_lines(claims)), n_names=5),
        *[_section(study, outcomes[study.name], accounts[study.name]) for study in shown if study.name != MAP],
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(study: Study, outcome: Outcome, account: Account) -> str:
    n_names = sum(heading in NAMES for heading in outcome.shown)
    parts = [
        f"## {outcome.title}",
        f"> {study.claim}" if study.claim[0] != "(" else "",
        " ".join([*study.remarks, _command(study, account), *_left_out(account)]),
        f"![{outcome.title}](figures/{study.name}.svg)" if outcome.panels else "",
        table(outcome.shown, outcome.lines, n_names=max(n_names, 1)),
    ]
    return "\n\n".join(part for part in parts if part)


def _left_out(account: Account) -> list[str]:
    return [said for said in account.extents if said.startswith(LEFT_OUT)]


def _command(study: Study, account: Account) -> str:
    return f"`{account.command}`, {account.cpu_seconds / 60:.1f} min · [numbers](figures/{study.name}.csv)."


NAMES = {"data, steps × rate", "", "completion", "model, data, rounds", "steps × rate", "measured as", "N"}
"""Headings of columns that hold names, not numbers."""


def _appendix(studies: Sequence[Study], outcomes: Mapping[str, Outcome], accounts: Mapping[str, Account]) -> str:
    parts = [APPENDIX]
    for study in studies:
        if study.name in outcomes:
            parts.append(_appended(study, outcomes[study.name], accounts[study.name]))
    parts.append(f"## {THEORY_TITLE}\n\n{table(('claim', 'verdict', 'where'), THEORY, n_names=3)}")
    return "\n\n".join(parts) + "\n"


def _appended(study: Study, outcome: Outcome, account: Account) -> str:
    is_whole = study.name in APPENDED
    is_short = is_whole and not outcome.all_lines
    shown, lines = (outcome.shown, outcome.lines) if is_short else (outcome.all_shown, outcome.all_lines)
    picture = study.name if is_whole else f"{study.name}-more"
    parts = [
        f"## {outcome.title}",
        *(study.remarks if is_whole else ()),
        "\n".join(f"- {note}" for note in outcome.notes),
        f"![{outcome.title}](figures/{picture}.svg)" if is_whole or outcome.all_panels else "",
        table(shown, lines, n_names=2) if lines else "",
        table(HEADINGS, tuple(claim_lines(outcome.claims)), n_names=5) if study.name in WITH_CLAIMS else "",
        f"`{account.command}` — {account.sentence()} Commit {', '.join(account.commits)}.",
    ]
    return "\n\n".join(part for part in parts if part)


def lone_page(outcome: Outcome, remarks: tuple[str, ...], account: Account) -> str:
    """A page of one study's own: its table, its bars and what it took."""
    held = [f"- {'✔' if c.holds else '✘' if c.holds is False else '?'} {c.what}: {c.why}" for c in outcome.claims]
    parts = [
        f"# {outcome.title}",
        *remarks,
        table(outcome.shown, outcome.lines, n_names=1),
        f"![{outcome.title}](figures/{outcome.study}.svg)",
        f"## Bars\n\n{sum(bool(c.holds) for c in outcome.claims)} of {len(outcome.claims)} are held.",
        "\n".join(held),
        f"## How it was run\n\n`{account.command}` — {account.sentence()} [Numbers](figures/{outcome.study}.csv).",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def part_of_page(outcome: Outcome, remarks: tuple[str, ...], account: Account) -> str:
    """A study as the last part of another one's page."""
    parts = [
        f"## {outcome.title}",
        *remarks,
        table(outcome.shown, outcome.lines),
        "\n".join(f"- {note}" for note in outcome.notes),
        f"`{account.command}` — {account.sentence()} [Numbers](figures/{outcome.study}.csv).",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(headings: tuple[str, ...], lines: tuple[tuple[str, ...], ...], n_names: int = 2) -> str:
    """A Markdown table, its first columns names and the others numbers; what repeats the line above is left blank."""
    rule = "|" + "|".join([" --- "] * n_names + [" ---: "] * (len(headings) - n_names)) + "|"
    made = ["| " + " | ".join(headings) + " |", rule]
    above = ""
    for line in lines:
        first = "" if line[0] == above else line[0]
        above = line[0]
        made.append("| " + " | ".join((first, *line[1:])) + " |")
    return "\n".join(made)
