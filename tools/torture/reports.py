"""One thing of a report is edited: `verify` of the report must find it.

Every leaf of report.json (a number, a word, a yes or no) is changed in meaning, one at a time, and every list is cut by
one. Each must be an error that says where. Only a title may be anything, and settings that change no number.
"""

import copy
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedworth.errors import FedworthError
from fedworth.ledger.ledger import Ledger
from fedworth.pipeline import verify
from fedworth.pipeline.run import RunSettings, run
from fedworth.report.report import Report
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import task_of
from fedworth.storage import read_json, write_json
from fedworth.task.task import Task

SMALL = SimulationSettings(n_clients=4, copies=((3, 0),), n_participants=2, n_rounds=3, train_limit=120, test_limit=60)
Place = tuple[str | int, ...]
FREE: set[Place] = {
    ("title",),
    ("valuations", -1),  # a report may be by fewer methods
    ("refusals", -1),
    ("provenance", "software"),
    ("provenance", "settings", "factors", "max_sweeps"),
    *(("provenance", "settings", name) for name in ("seed", "strict", "unseen", "oracle", "test_samples")),
}
"""Any title, methods and version; settings that change no number here."""


def edited_reports(place: Path, share: float, seed: int) -> tuple[Counter[str], list[str]]:
    """Edits of a run's report, this share of them; how many there were, and what went unseen."""
    rng, done, wrong = random.Random(seed), Counter[str](), list[str]()
    run(RunSettings(simulation=SMALL), place)
    document = read_json(place / "report.json")
    task = task_of(Ledger.open(place / "ledger"))
    if problem := unseen(document, place, task, expected=False):
        wrong.append(f"the honest report: {problem}")
    for where in leaves(document):
        if rng.random() < share and not any(where[:n] in FREE for n in range(1, 5)):
            done["report.json"] += 1
            wrong += [f"{where}: {text}" for text in [unseen(changed_at(document, where), place, task)] if text]
    return done, wrong


def unseen(document: Any, folder: Path, task: Task, *, expected: bool = True) -> str:
    """What is wrong with how a report was judged; nothing if it was refused, or if it is honest and was not."""
    path = folder / "edited.json"
    write_json(path, document)
    try:
        verify.verify_report(Report.read(path), folder / "ledger", task, path=path)
    except FedworthError as error:
        return "" if expected and str(error) else f"refused ({error})"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "not found" if expected else ""


def leaves(document: Any, where: Place = ()) -> Iterator[Place]:
    """The place of everything that can be changed: numbers, words, and with -1 the last item of every list."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from leaves(value, (*where, key))
    elif isinstance(document, list):
        for k, value in enumerate(document):
            yield from leaves(value, (*where, k))
        if document:
            yield (*where, -1)
    else:
        yield where


def changed_at(document: Any, where: Place) -> Any:
    """A copy in which what stands at a place says something else."""
    made = copy.deepcopy(document)
    around = made
    for key in where[:-1]:
        around = around[key]
    if where[-1] == -1:
        del around[-1]
    else:
        around[where[-1]] = other(around[where[-1]])
    return made


def other(value: Any) -> Any:
    """Something else of the same kind."""
    if value is None or isinstance(value, bool):
        return 0.5 if value is None else not value
    if isinstance(value, str):
        return f"{value}x"
    return value + 1 if isinstance(value, int) else value * 1.01 + 0.01
