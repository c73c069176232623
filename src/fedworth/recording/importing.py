"""Make a ledger from a folder of models.

    models/
      000/global.safetensors         the model that was sent in the first round
      000/clinic-a.safetensors       what clinic-a sent back; the file is named after the client
      000/clinic-b.pt                a state dict from torch.save; only its tensors are read
      000/clinic-c.npz               arrays by name, from np.savez
      001/…                          rounds in the order of their names; numbers are sorted as numbers
      final.safetensors              the model after the last round (optional)
      samples.json                   {"clinic-a": 120, …}: sample counts; not needed with --aggregation uniform

Only numbers are read from the files. An answer that cannot be averaged is quarantined, as in a live recording. Each
round needs its global model.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedworth.errors import ArtefactError, DataError, FedworthError, LedgerError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.model import Model
from fedworth.ledger.writer import LedgerWriter
from fedworth.names import Aggregation
from fedworth.storage import Place, Progress, read_json, read_npz, silent

GLOBAL, FINAL, SAMPLES = "global", "final", "samples.json"
SUFFIXES = (".safetensors", ".pt", ".pth", ".npz")
NESTED = ("state_dict", "model_state_dict")  # keys of checkpoints that hold the optimizer's state too


def import_folder(
    folder: Place, ledger: Place, *, aggregation: Aggregation = "samples", progress: Progress = silent
) -> Ledger:
    """Make a ledger from models that were kept in files.

    Args:
        folder: A subfolder for each round, with `global` and a file for each client in it, and `samples.json`.
        ledger: Where the ledger is written.
        aggregation: How the server averaged: by `samples`, or `uniform`.
        progress: Progress callback.

    Returns:
        The ledger.

    Example:
        ledger = fedworth.import_folder("kept-models", "new.ledger")
    """
    folder = Path(folder)
    rounds = _round_folders(folder)
    counts = _sample_counts(folder, aggregation)
    writer = LedgerWriter.create(ledger, aggregation=aggregation, settings={"source": "import"}, quarantine=True)
    try:
        for number, place in enumerate(rounds):
            progress("importing rounds", number, len(rounds))
            _import_round(writer, place, counts)
        for final in _models(path for path in folder.glob(f"{FINAL}.*") if path.suffix in SUFFIXES).values():
            writer.close(_read(final))
    finally:
        writer.release()
    progress("importing rounds", len(rounds), len(rounds))
    return Ledger.open(ledger)


def _import_round(writer: LedgerWriter, place: Path, counts: Mapping[str, float]) -> None:
    files = _models(path for path in place.iterdir() if path.is_file() and not path.name.startswith("."))
    start = files.pop(GLOBAL, None)
    if start is None:
        raise DataError(f"{place}: no {GLOBAL}{SUFFIXES[0]} in it, so it is not known what the clients started from")
    writer.start_round(_read(start), asked=list(files))
    try:
        for name, path in files.items():
            _import_answer(writer, name, path, counts)
        writer.end_round()
    finally:
        writer.abort_round()


def _import_answer(writer: LedgerWriter, name: str, path: Path, counts: Mapping[str, float]) -> None:
    try:
        model = _read(path)
    except DataError as error:
        writer.client_quarantined(name, str(error))
        return
    if name not in counts and writer.aggregation == "samples":
        found = f"{path}: no number of samples for client {name!r} in {SAMPLES}"
        raise DataError(f"{found}; add it, or use --aggregation uniform if the server averaged so")
    writer.client_model(name, model, counts.get(name, 1))


def _models(paths: Iterable[Path]) -> dict[str, Path]:
    """Model files by client name, in order; any other file is an error, because a client left out has no value."""
    files: dict[str, Path] = {}
    for path in sorted(paths, key=_in_order):
        if path.suffix not in SUFFIXES:
            raise DataError(
                f"{path}: expected a model of {', '.join(SUFFIXES)}; convert it, or move it elsewhere. Trees (XGBoost, "
                "LightGBM) cannot be imported, because they have no mean; those that Flower's FedXgbBagging appends "
                "can be recorded while it runs"
            )
        if path.stem in files:
            raise DataError(f"{files[path.stem]} and {path.name} are both there; keep one of them")
        files[path.stem] = path
    return files


def _round_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    places = sorted((path for path in folder.iterdir() if path.is_dir()), key=_in_order)
    if not places:
        raise DataError(f"{folder}: no subfolders in it, expected one for each round")
    return places


def _sample_counts(folder: Path, aggregation: Aggregation) -> dict[str, Any]:
    path = folder / SAMPLES
    if not path.is_file():
        if aggregation == "samples":
            raise DataError(f"{path}: missing; write the clients' sample counts there, or use --aggregation uniform")
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
    """Sort key that puts round-2 before round-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _read(path: Path) -> Model:
    """The model in a file, by the file's suffix."""
    read = {".safetensors": _from_safetensors, ".npz": _from_npz}.get(path.suffix, _from_torch)
    return read(path)


def _from_safetensors(path: Path) -> Model:
    try:
        model: Model = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as safetensors ({error})") from error
    return model


def _from_torch(path: Path) -> Model:
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of errors on damaged files
        reason = str(error).strip().partition("\n")[0][:120]
        raise DataError(
            f"{path}: not readable as tensors alone ({reason}); save the state dict: torch.save(module.state_dict(), …)"
        ) from error
    for name in NESTED:
        found = found[name] if isinstance(found, dict) and isinstance(found.get(name), dict) else found
    if not isinstance(found, dict) or not all(isinstance(t, torch.Tensor) for t in found.values()):
        raise DataError(f"{path}: holds a {type(found).__name__}, expected a state dict: tensors by name")
    return {str(name): tensor.detach().contiguous() for name, tensor in found.items()}


def _from_npz(path: Path) -> Model:
    """The arrays of an .npz file; unnamed ones (`arr_0`, …) are named 0, 1, …, as in recordings of Flower."""
    try:
        found = {name.removeprefix("arr_"): np.array(array) for name, array in read_npz(path).items()}
        return {name: torch.from_numpy(array) for name, array in found.items()}
    except (ArtefactError, TypeError) as error:
        raise DataError(f"{path}: not readable as arrays of numbers ({error})") from error
