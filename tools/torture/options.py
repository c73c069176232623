"""Every option of every command with every odd text: each call must end with a documented code, and never with a
traceback, an escape sequence or a process that does not end.

Options are read from the commands themselves, so that none is forgotten. A call is a good one, of which one to three
things are made odd: an option's text, a path, or where its output goes.
"""

import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from fedworth.cli.main import COMMANDS, command_class
from fedworth.cli.main import main as fedworth_command
from fedworth.cli.options import Option, options_of
from tools.torture.children import FAULT, Ended, done
from tools.torture.stock import PATHS, Stock

TEXTS = (
    "", " ", "0", "1", "2", "-1", "-0", "+1", "0.5", "nan", "inf", "-inf", "1e400", "1e300", "-1e300", "1e-320", "0x10",
    "1_0", "²", "٣", "½", "1,2", ",", "step:1,2", "step:", "step:x", "0=0", "²=0", "1=2=3", "9" * 30, "-" + "9" * 30,
    str(2**31), str(2**63), str(2**64), "auto", "none", "all", "x", "é", "日本", "\N{RIGHT-TO-LEFT OVERRIDE}x",
    "\udcff", "a" * 5000, "a:b", "a=b", "--", "%s", "{}", "'", '"', "loss", "accuracy", "fast", "loop", "uniform",
    "samples", "fixed", "float32", "cuda:99", "meta", "local", "ray:", "0-1", "5-2", "1-", "truth", "fedsv", "zero",
)  # fmt: skip
DOCUMENTED = re.compile(r"^\| (\d+) \|", re.MULTILINE)
ESCAPES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x9b]")
SECONDS = 120.0

Outputs = ("plain", "plain", "plain", "plain", "plain", "full", "closed", "ascii")


@dataclass(frozen=True)
class Call:
    """A command with its options, and where its standard output goes."""

    argv: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return f"fedworth {' '.join(repr(text)[:60] for text in self.argv)} (output: {self.output})"


def documented_codes() -> set[int]:
    """The exit codes of docs/exit-codes.md but for 1, which is a fault of fedworth itself."""
    page = Path(__file__).parents[2] / "docs" / "exit-codes.md"
    return {int(code) for code in DOCUMENTED.findall(page.read_text(encoding="utf-8"))} - {1}


def commands() -> list[tuple[tuple[str, ...], list[Option]]]:
    """Every command's words and options."""
    return [(tuple(name.split()), options_of(command_class(name))) for name in COMMANDS]


def calls(n_calls: int, rng: random.Random) -> Iterator[Call]:
    """So many calls, the commands in turn."""
    known = commands()
    for number in range(n_calls):
        words, options = known[number % len(known)]
        yield Call((*words, *odd_arguments(words, options, number, rng)), rng.choice(Outputs))


def odd_arguments(words: tuple[str, ...], options: list[Option], number: int, rng: random.Random) -> list[str]:
    """The arguments of a good call, of which one to three are made odd."""
    given: dict[str, list[str]] = {key: list(texts) for key, texts in Stock.arguments(words, number).items()}
    for option in rng.sample(options, min(len(options), rng.choice((0, 1, 1, 1, 2, 3)))):
        key = option.name if option.is_positional else option.flag
        if not option.metavar:
            given[key] = []
        else:
            given[key] = [rng.choice(PATHS if "PATH" in option.metavar and rng.random() < 0.8 else TEXTS)]
    for key in [key for key in given if key.startswith("--") and rng.random() < 0.05]:
        del given[key]
    named = [text for key, texts in given.items() for text in _spelt(key, texts)]
    return named + (["--json"] if rng.random() < 0.3 else [])


def _spelt(key: str, texts: list[str]) -> list[str]:
    if not key.startswith("--"):
        return texts
    return [f"{key}={texts[0]}"] if texts else [key]


def made(call: Call, log: Path) -> Ended:
    """What became of a call, in a process of its own."""

    def work() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        sys.stdout = _output(call.output, log)
        return fedworth_command(list(call.argv))

    return done(work, log, seconds=SECONDS)


def _output(kind: str, log: Path) -> TextIO:
    if kind == "closed":
        reading, writing = os.pipe()
        os.close(reading)
        return os.fdopen(writing, "w", encoding="utf-8")
    place = "/dev/full" if kind == "full" else log
    return open(place, "w", encoding="ascii" if kind == "ascii" else "utf-8")


def faults(ended: Ended, codes: set[int]) -> list[str]:
    """What a command must never do."""
    found = []
    if ended.code == FAULT or "Traceback (most recent call last)" in ended.err:
        found.append("a traceback")
    elif ended.code == -signal.SIGALRM:
        found.append(f"no end within {SECONDS:.0f} seconds")
    elif ended.code not in codes:
        found.append(f"code {ended.code}, which no page lists")
    if ended.code in codes - {0} and not ended.err.strip():
        found.append(f"code {ended.code} without a word")
    if ESCAPES.search(ended.err):
        found.append("an escape sequence on standard error")
    return found


def option_fuzz(n_calls: int, seed: int, place: Path, *, only: str = "") -> tuple[Counter[str], list[str]]:
    """Make so many odd calls among good and hostile files; how often each code came, and what went wrong."""
    rng, codes, ends, wrong = random.Random(seed), documented_codes(), Counter[str](), list[str]()
    log = place / "call.log"
    with Stock.made_at(place / "stock"):
        for call in calls(n_calls, rng):
            if only not in call.argv[0]:
                continue
            ended = made(call, log)
            ends[f"exit {ended.code}"] += 1
            wrong += [f"{call}: {fault}\n{ended.err[-1500:]}" for fault in faults(ended, codes)]
    return ends, wrong
