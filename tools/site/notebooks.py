"""A tutorial as a notebook: its prose, its Python, its commands; made from the page, without outputs."""

import json
import re
from typing import Any

FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OWN_LINK = re.compile(r"^\[This page as a notebook\]\(.*\).*\n+", re.MULTILINE)


def notebook(page: str) -> str:
    """The notebook of a page, as `.ipynb` has it; the same page gives the same bytes."""
    page = OWN_LINK.sub("", page)
    cells: list[dict[str, Any]] = []
    end = 0
    for block in FENCE.finditer(page):
        language, title, code = block.groups()
        if language not in ("python", "bash"):
            continue
        cells += _prose(page[end : block.start()])
        cells.append(_code(code, language, title))
        end = block.end()
    cells += _prose(page[end:])
    document = {
        "cells": [{**cell, "id": f"cell-{number}"} for number, cell in enumerate(cells)],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _prose(text: str) -> list[dict[str, Any]]:
    return [{"cell_type": "markdown", "metadata": {}, "source": text.strip()}] if text.strip() else []


def _code(code: str, language: str, title: str | None) -> dict[str, Any]:
    """A cell: a file of the reader's is written, a command is run by the shell."""
    first = f"%%writefile {title}\n" if title else "%%bash\n" if language == "bash" else ""
    source = first + code.strip("\n")
    return {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": source}
