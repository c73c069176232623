"""Pages that are made of others: the reference of names, the list of decisions, and Markdown as Zensical wants it."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
NAME = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
REFERENCE_NOTE = "Import these from `{door}`. [All names at a glance](../api.md)."
LIST_ITEM = re.compile(r"(-|\*|\d+\.) ")


def slug(heading: str) -> str:
    """A heading as it stands in an address."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def reference_pages(api: str) -> dict[str, str]:
    """A page for each section of docs/api.md, with every name's own documentation; by path."""
    pages = {}
    _, *parts = SECTION.split(api)
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        door = heading.strip("`") if heading.startswith("`") else "fedworth"
        names = [name for name, _ in NAME.findall(text) if name != "__version__"]
        entries = [f"::: {door}.{name}\n" for name in names]
        body = "\n".join([f"# {heading.strip('`')}\n", REFERENCE_NOTE.format(door=door) + "\n", *entries])
        pages[f"reference/{slug(heading)}.md"] = body
    return pages


def decisions_page(folder: Path) -> str:
    """The decisions, in their order, each by its title."""
    lines = []
    for path in sorted(folder.glob("[0-9]*.md")):
        title = path.read_text().splitlines()[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")  # the title has the number; a numbered list would count anew
    head = "# Decisions\n\nChoices that somebody may want to reverse, with what was rejected and what follows.\n\n"
    return head + "\n".join(lines) + "\n"


def with_room_for_lists(text: str) -> str:
    """The page with an empty line before every list: GitHub needs none after a paragraph, Python-Markdown does."""
    return "\n".join(_roomy(text.split("\n")))


def _roomy(lines: list[str]) -> Iterator[str]:
    is_code, before = False, ""
    for line in lines:
        starts = LIST_ITEM.match(line) and before.strip() and not before.startswith(" ") and not LIST_ITEM.match(before)
        if starts and not is_code:
            yield ""
        is_code ^= line.lstrip().startswith("```")
        yield line
        before = line
