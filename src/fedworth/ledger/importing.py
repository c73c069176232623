"""Import. In: a folder of models. Out: a ledger.

    models/
      000/global.safetensors         the model that was sent in the first round
      000/clinic-a.safetensors       what clinic-a sent back; the file's name is the client's
      000/clinic-b.pt                a state dict that torch.save wrote; only tensors are read of it
      000/clinic-c.npz               arrays by name, as np.savez wrote them
      001/…                          the rounds, in the order of their names; numbers are sorted as numbers
      final.safetensors              the model after the last round, if there is one
      samples.json                   {"clinic-a": 120, …}: sample counts; not needed with --aggregation uniform

An answer that cannot be averaged is quarantined, as in a live recording. A round needs its global model.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedworth.errors import DataError, FedworthError, LedgerError
from fedworth.ledger.ledger import Ledger, open_ledger
from fedworth.ledger.model_formats import SUFFIXES, read_model, refuse_other_formats
from fedworth.ledger.writer import LedgerWriter, create_ledger
from fedworth.names import Aggregation
from fedworth.storage import Place, Progress, read_json, silent

GLOBAL, FINAL, SAMPLES = "global", "final", "samples.json"


def import_folder(
    folder: Place, ledger: Place, *, aggregation: Aggregation = "samples", progress: Progress = silent
) -> Ledger:
    """Write the ledger of a folder of models."""
    folder = Path(folder)
    rounds = _round_folders(folder)
    counts = _sample_counts(folder, aggregation)
    writer = create_ledger(ledger, aggregation=aggregation, settings={"source": "import"}, quarantine=True)
    try:
        for number, place in enumerate(rounds):
            progress("importing rounds", number, len(rounds))
            _import_round(writer, place, counts)
        final = _models(folder).get(FINAL)
        if final is not None:
            writer.close(read_model(final))
    finally:
        writer.release()
    progress("importing rounds", len(rounds), len(rounds))
    return open_ledger(ledger)


def _import_round(writer: LedgerWriter, place: Path, counts: Mapping[str, float]) -> None:
    files = _models(place)
    start = files.pop(GLOBAL, None)
    if start is None:
        refuse_other_formats(place)
        raise DataError(f"{place}: no {GLOBAL}{SUFFIXES[0]} in it, so what the clients started from is not known")
    refuse_other_formats(place)
    writer.start_round(read_model(start), asked=list(files))
    try:
        for name, path in files.items():
            _import_answer(writer, name, path, counts)
        writer.end_round()
    finally:
        writer.abort_round()


def _import_answer(writer: LedgerWriter, name: str, path: Path, counts: Mapping[str, float]) -> None:
    try:
        model = read_model(path)
    except DataError as error:
        writer.client_quarantined(name, str(error))
        return
    if name not in counts and writer.aggregation == "samples":
        found = f"{path}: no number of samples for client {name!r} in {SAMPLES}"
        raise DataError(f"{found}; add it, or say --aggregation uniform if the server averaged so")
    writer.client_model(name, model, counts.get(name, 1))


def _models(place: Path) -> dict[str, Path]:
    """The models in a folder by their names, in order."""
    files: dict[str, Path] = {}
    for path in sorted((path for path in place.iterdir() if path.suffix in SUFFIXES), key=_in_order):
        if path.stem in files:
            raise DataError(f"{place}: {files[path.stem].name} and {path.name} are both there; keep one of them")
        files[path.stem] = path
    return files


def _round_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    places = sorted((path for path in folder.iterdir() if path.is_dir()), key=_in_order)
    if not places:
        raise DataError(f"{folder}: no subfolders in it, expected one a round")
    return places


def _sample_counts(folder: Path, aggregation: Aggregation) -> dict[str, Any]:
    path = folder / SAMPLES
    if not path.is_file():
        if aggregation == "samples":
            raise DataError(f"{path}: missing; write the clients' sample counts there, or say --aggregation uniform")
        return {}
    try:
        counts = read_json(path)
    except FedworthError as error:
        raise DataError(str(error)) from None
    numbers = counts.values() if isinstance(counts, dict) else [None]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and n > 0 for n in numbers):
        raise LedgerError(f"{path}: expected an object of clients and their sample counts, each above 0")
    return dict(counts)


def _in_order(path: Path) -> list[tuple[int, str]]:
    """round-2 before round-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
