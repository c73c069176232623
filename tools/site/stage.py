"""What the site is built from: the pages of docs/, and beside them what is made now."""

import shutil
from pathlib import Path

from tools.site.gallery import put_gallery
from tools.site.katex import put_katex
from tools.site.notebooks import notebook
from tools.site.pages import ROOT, decisions_page, reference_pages, with_room_for_lists

COPIED = (".svg", ".png", ".csv", ".json", ".css", ".js")
BESIDE_DOCS = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}


def stage(folder: Path) -> None:
    """Write everything that Zensical reads into `folder`, anew."""
    shutil.rmtree(folder, ignore_errors=True)
    docs = ROOT / "docs"
    for path in sorted(path for path in docs.rglob("*") if path.is_file()):
        place = folder / path.relative_to(docs)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            place.write_text(with_room_for_lists(path.read_text()))
        elif path.suffix in COPIED:
            place.write_bytes(path.read_bytes())
    for name, text in made_pages().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    put_katex(folder / "katex", folder.parent / "archives")
    put_gallery((docs / "gallery.md").read_text(), folder, folder.parent / "workshop")


def made_pages() -> dict[str, str]:
    """Pages and notebooks that no file in docs/ has, by path."""
    docs = ROOT / "docs"
    tutorials = {
        f"tutorials/{path.stem}.ipynb": notebook(path.read_text()) for path in (docs / "tutorials").glob("*.md")
    }
    beside = {path: with_room_for_lists((ROOT / name).read_text()) for path, name in BESIDE_DOCS.items()}
    decisions = {"decisions/index.md": decisions_page(docs / "decisions")}
    return {**reference_pages((docs / "api.md").read_text()), **decisions, **beside, **tutorials}
