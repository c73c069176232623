"""The power goes at every instant of a recording, and any part of what was not flushed is lost.

Each time: every round that was acknowledged is there to the bit, nothing else is taken for a round, and a recorder that
goes on ends with the bytes of one that was never interrupted. Then the power goes again, in the recording that went on.
"""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fedworth.errors import FedworthError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.lock import LOCK
from fedworth.ledger.manifest import HEADER
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.storage import read_json, write_json
from tools.torture.disk import Fate, Step, after_power_cut, by_chance, fates, lay_out, recorded

CLIENTS = ("a", "b", "c")
LEDGER = "ledger"


def model(seed: int) -> dict[str, torch.Tensor]:
    """A model of a few sectors."""
    generator = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(8, 40, generator=generator), "n": torch.tensor(seed)}


def record(place: Path, n_rounds: int, done: Callable[[], None] = lambda: None) -> None:
    """Record the rounds that are not there yet, and close; `done` is told whenever something is promised."""
    folder = place / LEDGER
    is_begun = (folder / HEADER).exists()
    writer = LedgerWriter.resume(folder) if is_begun else LedgerWriter.create(folder, CLIENTS, aggregation="samples")
    done()
    for t in range(writer.n_rounds, n_rounds):
        _record_round(writer, t)
        done()
    if not writer.is_closed:
        writer.close(model(999))
    done()


def _record_round(writer: LedgerWriter, t: int) -> None:
    answers = {name: Answer(model(10 * t + k), 10 + k) for k, name in enumerate(CLIENTS)}
    apart = {"c": answers.pop("c")} if t % 2 else {}
    writer.record_round(model(100 + t), answers, apart=apart)


def content(place: Path) -> dict[str, bytes]:
    """All files and their bytes, but for the lock."""
    paths = [path for path in sorted(place.rglob("*")) if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(place)): path.read_bytes() for path in paths}


class Cuts:
    """Power cuts in one recording, and what came of them."""

    def __init__(self, place: Path, n_rounds: int, rng: random.Random) -> None:
        self.place, self.n_rounds, self.rng = place, n_rounds, rng
        self.n_tried, self.wrong = 0, list[str]()
        self.n_made = 0
        record(self._new_place(), n_rounds)
        self.expected = content(self._last_place())

    def _new_place(self) -> Path:
        self.n_made += 1
        self._last_place().mkdir(parents=True)
        return self._last_place()

    def _last_place(self) -> Path:
        return self.place / f"disk-{self.n_made}"

    def steps(self, start: dict[str, bytes | None] | None = None) -> tuple[list[Step], int]:
        """All that a recorder does to a disk that holds this (nothing, unless said), and how many steps laid it out."""
        place = self._new_place()
        shutil.rmtree(place)
        lay_out(start or {}, place)
        with recorded(place) as notes:
            notes.begin_with(place)
            n_before = len(notes.steps)
            record(place, self.n_rounds, notes.done)
        shutil.rmtree(place)
        return notes.steps, n_before

    def cut_everywhere(self, start: dict[str, bytes | None] | None, n_random: int, n_acknowledged: int) -> None:
        """Cut the power after every step of a recording, under every fate of what was not flushed."""
        steps, n_before = self.steps(start)
        for k in range(n_before, len(steps) + 1):
            n_done = sum(step.kind == "done" for step in steps[:k])
            promised = max(n_acknowledged, n_acknowledged + n_done - 1) if start else n_done - 1
            for number, fate in enumerate(fates(self.rng, n_random)):
                self._check(steps[:k], fate, promised, f"step {k} of {len(steps)}, fate {number}")

    def _check(self, steps: list[Step], fate: Fate, n_promised: int, where: str) -> None:
        place = self._new_place()
        shutil.rmtree(place)
        lay_out(after_power_cut(steps, fate), place)
        self.n_tried += 1
        try:
            self.wrong += [f"{where}: {problem}" for problem in self._problems(place, n_promised)]
        except FedworthError as error:
            self.wrong.append(f"{where}: {type(error).__name__}: {error}")
        shutil.rmtree(place)

    def _problems(self, place: Path, n_promised: int) -> list[str]:
        """What is wrong with a disk: `n_promised` is −1 before the ledger was made, then the number of its rounds, and
        one more once it is closed."""
        if n_promised >= 0 and not (place / LEDGER / HEADER).exists():
            return ["the ledger is gone"]
        n_rounds = 0
        if (place / LEDGER / HEADER).exists():
            ledger = Ledger.verify(place / LEDGER)
            n_rounds = ledger.n_rounds + ledger.is_closed
        if n_rounds < n_promised:
            return [f"{n_promised} rounds were promised, and {n_rounds} are there"]
        with patch.object(os, "fsync", lambda _: None):  # the power stays on from here
            record(place, self.n_rounds)
        return [] if content(place) == self.expected else ["other bytes than without a power cut"]


def power_cuts(place: Path, *, n_rounds: int, n_random: int, n_again: int, seed: int) -> tuple[int, list[str]]:
    """Cut the power everywhere in a recording, and in `n_again` recordings that went on after a cut; how many cuts
    were tried, and what went wrong."""
    rng = random.Random(seed)
    cuts = Cuts(place, n_rounds, rng)
    cuts.cut_everywhere(None, n_random, 0)
    steps, _ = cuts.steps()
    for _ in range(n_again):
        k = rng.randrange(len(steps) // 3, len(steps))
        promised = sum(step.kind == "done" for step in steps[:k])
        disk = after_power_cut(steps[:k], by_chance(rng, 0.5))
        if f"{LEDGER}/{HEADER}" in disk:
            cuts.cut_everywhere(disk, max(1, n_random // 4), max(0, promised - 1))
    return cuts.n_tried, cuts.wrong


def artefact_cuts(place: Path, *, n_random: int, seed: int) -> tuple[int, list[str]]:
    """The power goes while an artefact is written over an older one: either is whole, and the new one once it was
    promised."""
    rng, n_tried, wrong = random.Random(seed), 0, list[str]()
    old, new = {"value": list(range(400))}, {"value": list(range(400, 0, -1))}
    place.mkdir(parents=True)
    with recorded(place) as notes:
        write_json(place / "report.json", old)
        notes.done()
        write_json(place / "report.json", new)
        notes.done()
    for k in range(len(notes.steps) + 1):
        promised = sum(step.kind == "done" for step in notes.steps[:k])
        for fate in fates(rng, n_random):
            found = place / f"disk-{n_tried}"
            lay_out(after_power_cut(notes.steps[:k], fate), found)
            n_tried += 1
            content = read_json(found / "report.json") if (found / "report.json").exists() else None
            allowed: tuple[list[Any], ...] = ([None, old], [old, new], [new])
            if content not in allowed[promised]:
                wrong.append(f"step {k}: {promised} writes were promised, found {str(content)[:40]}")
    return n_tried, wrong
