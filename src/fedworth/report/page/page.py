"""Pages: a report, or a comparison of reports, as one HTML file that needs nothing else.

A page shows every number without a script; the script only sorts, unfolds and shows numbers under the pointer. The same
report gives the same bytes. Everything is escaped, and a policy allows only our own script and style to run:

default-src 'none'                  nothing is fetched
script-src, style-src 'sha256-…'    only these texts run, even if a name were not escaped
"""

import base64
import hashlib
import html
import json
import re
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from fedworth.colours import DARK, LIGHT
from fedworth.errors import UsageError
from fedworth.findings import Level
from fedworth.provenance import SOFTWARE
from fedworth.report.page.clients import (
    COLUMNS,
    group_table,
    n_rounds_of,
    named,
    passed_of,
    rows_of,
    sorted_findings,
    summary_of,
)
from fedworth.report.page.figures import axis_of
from fedworth.report.page.story import story_of
from fedworth.report.page.trust import LEVEL_TEXT, questions_of, verdict_of, wording_of
from fedworth.report.report import Report
from fedworth.report.rewards import Rewards, split_again
from fedworth.report.scores import levels_text
from fedworth.report.settings import PageSettings
from fedworth.report.tables import facts_of, scores_table, uncertainty_table
from fedworth.valuation.notebook import digits_of, signed

if TYPE_CHECKING:
    from fedworth.report.comparison import Comparison

MOST_FINDINGS = 40
LANE = 11
"""Pixels between the dots of one client in a comparison."""
GLOSSARY = {
    "Round": "The server sends the model out, some {nouns} train it on their data, and the server averages them.",
    "Loss": "How wrong the model is on the test data; lower is better.",
    "Improvement": "How much better the model does on the test data than at the start: its loss before minus after, or "
    "another measure after minus before.",
    "Group": "Of {nouns}: any set of them that could have trained together. Of test samples: those with the same "
    "label, such as a class.",
}

VERTICAL_GLOSSARY = {
    "Round": "The {nouns} send embeddings of the samples, and the server makes its prediction from all of them.",
    "Embedding": "A few numbers that a {noun} computes from its features of a sample. The server sees these only.",
}


def page_html(report: Report, settings: PageSettings | None = None, *, rewards: Rewards | None = None) -> str:
    settings = settings or PageSettings()
    if rewards is not None:
        split_again(rewards, report)  # an error unless they follow from the report's values
    frame = {
        **frame_of(settings, settings.title or report.title),
        "has_counts": settings.title is not None,  # the report's own title says how many there are
        "clients": report.clients,
        "n_rounds": n_rounds_of(report),
        "notes": report.all_notes,
    }
    if not report.valuations:
        return render("empty.html", frame)
    chosen, findings = report.chosen, sorted_findings(report)
    wording = wording_of(report, settings)
    rows = rows_of(report, findings)
    flagged = [row.place for row in rows if any(kind.level is Level.ACT for kind in row.kinds)]
    story = story_of(report, [row.place for row in rows], flagged)
    groups = group_table(report, rows, settings)
    words = {**asdict(wording), "noun": settings.noun, "nouns": settings.plural}
    view = frame | {
        "w": wording,
        "level": LEVEL_TEXT,
        "columns": COLUMNS,
        "help": [(column.heading, column.help.format(**words)) for column in COLUMNS],
        "rows": rows,
        "axis": axis_of(report),
        "summary": summary_of(report, findings),
        "verdict": verdict_of(report, settings),
        "questions": questions_of(report, settings),
        "caveats": () if chosen.uncertainty is None else chosen.uncertainty.caveats,
        "findings": [(finding, named(finding.clients, settings)) for finding in findings[:MOST_FINDINGS]],
        "n_findings": len(findings),
        "n_urgent": sum(finding.kind.level is Level.ACT for finding in findings),
        "passed": passed_of(report, findings),
        "not_looked_for": report.not_looked_for if report.looked_for else (),
        "is_vertical": report.is_vertical,
        "looked": bool(report.looked_for),
        "story": story,
        "methods": [valuation.label for valuation in report.valuations],
        "others": _others(report),
        "scores": scores_table(report),
        "sources": uncertainty_table(report),
        "groups": groups,
        "levels": levels_text(report.scores),
        "facts": [("Method", wording.method), *facts_of(report)],
        "command": settings.command,
        "can_verify": report.provenance is not None and not report.provenance.other_heads,
        "glossary": [
            (word, settings.fill(meaning))
            for word, meaning in (GLOSSARY | (VERTICAL_GLOSSARY if report.is_vertical else {})).items()
        ],
        "rewards": rewards,
        "data": {
            "clients": list(report.clients),
            "sort": [[column.key(row) for column in COLUMNS] for row in sorted(rows, key=lambda row: row.place)],
            **({} if story is None else story["data"]),
            **({} if groups is None else {"groups": groups["sort"]}),
        },
    }
    return render("page.html", view, script="script.js")


def comparison_html(comparison: "Comparison", settings: PageSettings | None = None) -> str:
    settings = settings or PageSettings()
    view = {
        **frame_of(settings, settings.title or " · ".join(comparison.names)),
        "c": comparison,
        "axis": axis_of(line for row in comparison.rows for line in row.values),
        "level": LEVEL_TEXT,
        "lane": LANE,
        "height": LANE * len(comparison.names) + 8,
    }
    return render("comparison.html", view)


def frame_of(settings: PageSettings, title: str) -> dict[str, Any]:
    """What every template needs."""
    return {
        "title": title,
        "date": settings.date,
        "noun": settings.noun,
        "nouns": settings.plural,
        "fill": settings.fill,
        "signed": signed,
        "software": SOFTWARE,
        "settings": json.dumps(asdict(settings)),  # so that `fedworth verify` can write the page again
    }


def settings_of(text: str) -> PageSettings | None:
    """The settings that a page was written with; None if it does not say."""
    found = re.search(r'<meta name="fedworth-page" content="([^"]*)">', text)
    try:
        return None if found is None else PageSettings(**json.loads(html.unescape(found[1])))
    except (ValueError, TypeError, AttributeError, UsageError):
        return None


def render(template: str, view: dict[str, Any], *, script: str = "") -> str:
    """A template filled in, with our style and, by its file name, a script."""
    style, code = _style(), _text(script) if script else ""
    policy = (
        "default-src 'none'",
        "img-src data:",
        f"style-src '{_source(style)}'",
        f"script-src '{_source(code)}'" if code else "script-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return (
        _environment()
        .get_template(template)
        .render(view | {"style": style, "script": code, "policy": "; ".join(policy)})
    )


def _others(report: Report) -> list[tuple[str, ...]]:
    """Every client's value by every method, if there are several."""
    if len(report.valuations) < 2:
        return []
    listed = [(lines, digits_of(lines)) for lines in map(list, report.valuations)]
    columns = [[signed(line.value, digits) for line in lines] for lines, digits in listed]
    return list(zip(*columns, strict=True))


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _text(name: str) -> str:
    return (files("fedworth.report.page") / "templates" / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    """Colours, then rules. Dark colours twice: by the system and by the reader's choice; print is always light."""
    light, dark = (";".join(f"--{role}:{colour}" for role, colour in theme.items()) for theme in (LIGHT, DARK))
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}\n{_text('style.css')}"
    )


def _source(text: str) -> str:
    """The hash of a text, as the policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
