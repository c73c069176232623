"""One thing of a report, or of what it rests on, is edited: `verify` of the report must find it.

Every leaf of report.json (a number, a word, a yes or no) is changed in meaning, one at a time, and every list is cut by
one; so is a share of the numbers in every array of the artefacts beside it. Each must be an error that says where the
trail breaks. Only the title is anybody's to choose, and shows in the pages beside it.
"""

import copy
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import FedworthError
from fedworth.pipeline.audit import COMPLETIONS, UTILITIES, audit
from fedworth.pipeline.run import RunSettings, run
from fedworth.simulation.settings import SimulationSettings
from fedworth.storage import read_json, read_npz

SMALL = SimulationSettings(n_clients=4, copies=((3, 0),), n_participants=2, n_rounds=3, train_limit=120, test_limit=60)
FREE = ("title",)
SAME = ("clients", "is_truth", "kind")
"""Arrays without which an artefact reads as it does with them: what is left out is what older files meant."""

Place = tuple[str | int, ...]


def edited_reports(place: Path, share: float, seed: int) -> tuple[Counter[str], list[str]]:
    """Edits of a run's report and of its artefacts, this share of them; how many of each kind, and what went unseen."""
    rng, done, wrong = random.Random(seed), Counter[str](), list[str]()
    run(RunSettings(simulation=SMALL), place)
    document = read_json(place / "report.json")
    if problem := unseen(document, place, expected=False):
        wrong.append(f"the honest report: {problem}")
    for where in leaves(document):
        if rng.random() < share and where[0] not in FREE:
            done["report.json"] += 1
            wrong += [f"{where}: {text}" for text in [unseen(changed_at(document, where), place)] if text]
    for name in (*UTILITIES, *COMPLETIONS):
        for what, arrays in edited_arrays(read_npz(place / name), rng, share):
            shutil.copy(place / name, place / "kept")
            np.savez(place / name, allow_pickle=False, **arrays)
            done[name] += 1
            wrong += [f"{name}, {what}: {text}" for text in [unseen(document, place)] if text]
            (place / "kept").replace(place / name)
    return done, wrong


def unseen(document: Any, folder: Path, *, expected: bool = True) -> str:
    """What is wrong with how a report was judged; nothing if it was refused, or if it is honest and was not."""
    try:
        audit(document, folder / "ledger", folder)
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


def edited_arrays(
    arrays: dict[str, NDArray[Any]], rng: random.Random, share: float
) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """The arrays of a file with one number or word of one of them changed, or one array left out."""
    for name, array in arrays.items():
        texts = json.loads(str(array)) if name == "trail" else {}
        for key in texts:
            yield f"trail.{key}", {**arrays, name: np.array(json.dumps({**texts, key: other(texts[key])}))}
        n = 0 if texts else min(array.size, max(1, round(12 * share)))
        for place in rng.sample(range(array.size), n):
            flat = array.reshape(-1).tolist()
            flat[place] = 0.5 if flat[place] != flat[place] else other(flat[place])
            dtype = None if array.dtype.kind == "U" else array.dtype
            yield f"{name}[{place}]", {**arrays, name: np.array(flat, dtype=dtype).reshape(array.shape)}
        if name not in SAME:
            yield f"without {name}", {other_: value for other_, value in arrays.items() if other_ != name}
