"""Output of commands: tables and JSON on standard output, progress and warnings on standard error."""

import itertools
import json
import logging
import math
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from fedworth.report.tables import Table
    from fedworth.storage import Progress

LONGEST_STEP = 3600.0
"""Seconds between two steps up to which a bar estimates the remaining time."""

SECONDS_BETWEEN_LINES = 60.0


def show(document: Any, *parts: "Table | str", warnings: Iterable[str] = (), as_json: bool) -> None:
    """What a command found: the document if JSON is asked for, else tables and lines, and then warnings."""
    if as_json:  # in full precision
        is_unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
        print(json.dumps(document, ensure_ascii=not is_unicode, indent=2, allow_nan=False))
        return
    for part in parts:
        show_lines([on_one_line(part)]) if isinstance(part, str) else show_table(part)
    warn(warnings)


def show_table(table: "Table") -> None:
    """A table on standard output, aligned; names are shown as they are, never as markup.

    On a narrow terminal the remaining columns follow below, with the first one repeated.
    """
    from rich.cells import cell_len

    rows = [table.headings, *table.rows]
    cells = [[on_one_line(cell) for cell in row] for row in rows]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(table.headings))]
    show_lines([on_one_line(table.title)])
    for number, columns in enumerate(_folds(widths, table.blocks, _room(sys.stdout))):
        show_lines([""] if number else [])
        for row in cells:
            padding = [" " * (widths[column] - cell_len(row[column])) for column in columns]
            rest = (pad + row[column] for pad, column in zip(padding[1:], columns[1:], strict=True))
            print("  ".join([row[0] + padding[0], *rest]).rstrip())
    show_lines(on_one_line(text) for text in (table.note, table.legend) if text)
    print()


def _folds(widths: Sequence[int], blocks: Sequence[int], room: float) -> list[list[int]]:
    """Which columns stand side by side, group below group; columns of a block stay together if they fit."""
    ends = list(itertools.accumulate(blocks or [1] * (len(widths) - 1), initial=1))
    groups: list[list[int]] = [[]]
    for block in map(range, ends, ends[1:]):
        for part in [block] if _needed(widths, block) <= room else [[column] for column in block]:
            if groups[-1] and _needed(widths, [*groups[-1], *part]) > room:
                groups.append([])
            groups[-1] += part
    return [[0, *group] for group in groups]


def _needed(widths: Sequence[int], columns: Iterable[int]) -> int:
    """The width of the first column and these."""
    return widths[0] + sum(2 + widths[column] for column in columns)


def _room(stream: TextIO | None) -> float:
    """The width of the terminal; infinite for a file or a pipe."""
    is_watched = stream is not None and not stream.closed and stream.isatty()
    return shutil.get_terminal_size().columns if is_watched else math.inf


def show_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(whole_words(line, sys.stdout))


def warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(whole_words(f"warning: {on_one_line(warning)}", sys.stderr), file=sys.stderr)


def whole_words(line: str, stream: TextIO | None) -> str:
    """The line, wrapped between words if the stream is a terminal."""
    room = _room(stream)
    if room == math.inf:
        return line
    return "\n".join(textwrap.wrap(line, int(room), break_long_words=False, break_on_hyphens=False))


@contextmanager
def progress_bars() -> Iterator["Progress"]:
    """Progress on standard error: bars while someone watches, a line a minute when piped; forecasts in either case."""
    if not sys.stderr.isatty():
        with _forecasts(sys.stderr):
            yield _MinuteLines(sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars = Bars(*columns, console=Console(stderr=True), speed_estimate_period=LONGEST_STEP)
    with bars, _forecasts(sys.stderr):
        tasks: dict[str, Any] = {}

        def advance(what: str, n_done: int, n_all: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=n_all)
            bars.update(tasks[what], completed=n_done, total=n_all)

        yield advance


class _MinuteLines:
    """A line a minute that says how much is done, and how long the rest takes at the same pace."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.last = stream, time.monotonic()
        self.starts: dict[str, tuple[float, int]] = {}  # when each kind of work first reported, and how far it was

    def __call__(self, what: str, n_done: int, n_all: int) -> None:
        now = time.monotonic()
        started, n_before = self.starts.setdefault(what, (now, n_done))
        if now - self.last < SECONDS_BETWEEN_LINES:
            return
        self.last, rest = now, ""
        if n_before < n_done < n_all:
            minutes = (now - started) / (n_done - n_before) * (n_all - n_done) / 60
            rest = f", about {max(1, round(minutes)):,} min left"
        print(f"{what}: {n_done:,} of {n_all:,}{rest}", file=self.stream, flush=True)


@contextmanager
def _forecasts(stream: TextIO) -> Iterator[None]:
    """Show the package's forecasts of long work."""
    logger, handler = logging.getLogger("fedworth.effort"), logging.StreamHandler(stream)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def on_one_line(text: str) -> str:
    """Text without line feeds and control characters: some of it may come from a file or a client."""
    return "".join(c if c.isprintable() else " " for c in text)
