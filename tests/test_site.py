"""The documentation site: every page has its place, every link leads somewhere, and nothing is asked of other hosts.

The site itself is built by `make docs`, which opens every page in a browser; here is what can be said without.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tools.site.check import broken, outside
from tools.site.gallery import commands
from tools.site.notebooks import notebook
from tools.site.pages import decisions_page, reference_pages, slug, with_room_for_lists
from tools.site.stage import COPIED, made_pages

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
MADE = made_pages()
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def listed(entries):
    """The pages of a navigation, in order."""
    for entry in entries:
        ((_, below),) = entry.items()
        if isinstance(below, str):
            yield below
        else:
            yield from listed(below)


def anchors(text):
    """What the headings of a page are called in addresses."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


def is_copied(target):
    """Whether a file beside the pages comes to the site."""
    return (DOCS / target).is_file() and target.endswith(COPIED)


def test_every_page_stands_in_the_navigation_once_and_every_entry_is_a_page():
    entries = list(listed(CONFIG["nav"]))
    known = {*PAGES, *(path for path in MADE if path.endswith(".md"))}
    assert len(entries) == len(set(entries))
    assert set(entries) <= known
    assert {path for path in known - set(entries) if not path.startswith("decisions/0")} == set()


@pytest.mark.parametrize("path", [*PAGES, *(path for path in MADE if path.endswith(".md"))])
def test_every_link_leads_to_a_page_and_a_heading(path):
    text = FENCED.sub("", {**MADE, **PAGES}[path])
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        address, _, heading = link.partition("#")
        target = str((DOCS / path).parent.joinpath(address).resolve().relative_to(DOCS)) if address else path
        assert target in PAGES or target in MADE or is_copied(target) or target.startswith("gallery/"), link
        if heading:
            assert heading in anchors({**MADE, **PAGES}[target]), link


def test_the_reference_has_every_public_name_on_one_page():
    pages = reference_pages(PAGES["api.md"])
    named = [name for text in pages.values() for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]
    assert len(named) == len(set(named))
    listed_names = re.findall(r"^\| `(\w+)` \|", PAGES["api.md"], re.MULTILINE)
    assert len(named) == len(listed_names) - 1  # __version__ has nothing to say


def test_every_decision_is_on_their_page():
    page = decisions_page(DOCS / "decisions")
    assert page.count("](0") == len([path for path in PAGES if path.startswith("decisions/0")])


def test_a_notebook_has_the_blocks_of_its_page_and_is_the_same_twice():
    page = (DOCS / "tutorials" / "coordinator.md").read_text()
    document = json.loads(notebook(page))
    sources = [cell["source"] for cell in document["cells"] if cell["cell_type"] == "code"]
    assert len(sources) == len(re.findall(r"^```(?:python|bash)", page, re.MULTILINE))
    assert [source for source in sources if source.startswith("%%writefile mytask.py\n")]
    assert all(source.startswith("%%bash\nfedworth ") for source in sources if "%%bash" in source)
    assert "import random" in sources[0]
    assert "as a notebook" not in json.dumps(document)
    assert notebook(page) == notebook(page)


def test_a_list_gets_an_empty_line_before_it_outside_of_code():
    assert with_room_for_lists("Words:\n- one\n- two") == "Words:\n\n- one\n- two"
    assert with_room_for_lists("```\nWords:\n- one\n```") == "```\nWords:\n- one\n```"
    assert with_room_for_lists("- one\n  more\n- two") == "- one\n  more\n- two"


def test_the_gallery_shows_what_its_commands_write():
    page = PAGES["gallery.md"]
    assert all(program == "fedworth" for program, *_ in commands(page))
    written = {words[words.index("--out") + 1] for words in commands(page) if "--out" in words}
    shown = set(re.findall(r'src="(gallery/\w+)/', page))
    assert shown <= written
    assert set(re.findall(r'src="([^"]+)"', page)) <= set(LINK.findall(page))


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://example.org/a.js"></script>',
        "<script src=//example.org/a.js></script>",
        '<link rel="stylesheet" href="https://example.org/a.css">',
        '<link href="https://example.org" rel="preconnect">',
        "@import 'https://example.org/a.css'",
        "a { background: url(https://example.org/a.png) }",
        '<iframe loading="lazy" src="http://example.org"></iframe>',
    ],
)
def test_what_would_be_asked_of_another_host_is_found(text):
    assert outside(text)


def test_a_link_that_a_reader_may_follow_is_no_request():
    assert not outside('<a href="https://example.org">there</a> <script src="katex/katex.min.js"></script>')


def test_a_link_to_a_file_that_is_not_there_is_found(tmp_path):
    (tmp_path / "there.html").write_text("")
    page = tmp_path / "page.html"
    page.write_text('<a href="there.html#part">a</a> <a href="gone.html">b</a> <a href="https://example.org">c</a>')
    assert list(broken(page)) == ["gone.html"]


def test_slugs():
    assert slug("Pages, rewards, pictures") == "pages-rewards-pictures"
    assert slug("`fedworth.flower`") == "fedworth-flower"
