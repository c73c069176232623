"""A round's models, read from its files: every byte is checked before anything in it is believed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedworth.errors import LedgerError
from fedworth.ledger.manifest import RoundEntry
from fedworth.ledger.model import Model, check_alike, check_finite
from fedworth.ledger.model_file import Owner, read_models


@dataclass(frozen=True)
class Round:
    """One round's models, memory-mapped: the global one before it, and each client's after it."""

    entry: RoundEntry
    global_model: Model
    client_models: Mapping[int, Model]
    apart_models: Mapping[int, Model]


def read_round(folder: Path, entry: RoundEntry, clients: Sequence[str], *, with_apart: bool) -> Round:
    """The models of one round, and with them those that were kept apart."""
    where = f"round {entry.round_index}, {folder / entry.file}"
    models = read_file(folder, entry.file, entry.sha256, entry.round_index)
    global_model = models.pop(("global", -1), None)
    if global_model is None:
        raise LedgerError(f"{where}: no global model in it")
    apart = {}
    if with_apart and entry.apart_file is not None and entry.apart_sha256 is not None:
        apart = read_file(folder, entry.apart_file, entry.apart_sha256, entry.round_index)
    expected = {("client", k) for k in entry.answered}
    if set(models) != expected or (with_apart and set(apart) != {("apart", k) for k in entry.apart}):
        raise LedgerError(f"{where}: holds models of {sorted(models)}, expected {sorted(expected)}")
    check_finite(global_model, f"{where}, global model")
    for (_, index), model in sorted({**models, **apart}.items()):
        check_alike(model, global_model, f"{where}, client {clients[index]!r}")
    return Round(
        entry,
        global_model,
        {index: model for (_, index), model in sorted(models.items())},
        {index: model for (_, index), model in sorted(apart.items())},
    )


def read_file(folder: Path, file: str, sha256: str, round_index: int) -> dict[Owner, Model]:
    """The models of one of a round's files, if its bytes are as recorded."""
    try:
        return read_models(folder / file, sha256)
    except LedgerError as error:
        raise LedgerError(f"round {round_index}: {error}") from None
