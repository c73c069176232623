"""Receipts: hashes of the models that a client sent, to be compared with what was valued.

A client keeps a line of JSON for each model that it sends (`fedworth.receipt`). A statement lists the same hashes,
computed from the ledger. Whoever has both can tell whether the models that were valued are those that were sent, and
needs neither the ledger nor any model.

    tensor     sha256 of `F32 [10, 64]` and a line feed (dtype as safetensors names it, shape), then its bytes
    unnamed    sha256 of the tensors' hashes, sorted, a line each: the same whatever the tensors are called
    sha256     sha256 of `"name" hash`, sorted by name, a line each
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from fedworth.errors import ArtefactError, ModelError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.model import Model, tensor_bytes
from fedworth.ledger.model_file import DTYPE_NAMES
from fedworth.records import read_as
from fedworth.storage import Place, read_bytes

MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class Receipt:
    """One model that a client sent: in which round, trained on how many samples, and its hashes.

    Example:
        kept = fedworth.receipt(answer, round_number=0, n_samples=30, file="receipts.jsonl")
        print(kept.round, kept.n_samples, kept.sha256)
    """

    round: int  # the federation's own number
    n_samples: float
    sha256: str
    unnamed: str
    is_named: bool = True  # False if the client sent a list of arrays and did not say their names


def receipt_of(model: Model, round_number: int, n_samples: float, *, is_named: bool = True) -> Receipt:
    hashes = {}
    for name, tensor in model.items():
        if tensor.dtype not in DTYPE_NAMES:
            raise ModelError(f"receipt: tensor {name!r} is {tensor.dtype}, which no ledger keeps")
        digest = hashlib.sha256(f"{DTYPE_NAMES[tensor.dtype]} {list(tensor.shape)}\n".encode())
        digest.update(tensor_bytes(tensor))
        hashes[name] = digest.hexdigest()
    named = [f"{json.dumps(name)} {found}" for name, found in sorted(hashes.items())]
    return Receipt(round_number, n_samples, _hash_of(named), _hash_of(sorted(hashes.values())), is_named)


def receipts_of(ledger: Ledger, client: str, some: slice = slice(None)) -> tuple[Receipt, ...]:
    """The receipts for a client's models that were averaged in some rounds of a ledger."""
    k, receipts = ledger.clients.index(client), []
    for entry in ledger.entries[some]:
        if k in entry.participants:
            n_samples = entry.sample_counts[entry.answered.index(k)]
            receipts.append(receipt_of(ledger.open_round(entry.round_index).client_models[k], entry.number, n_samples))
    return tuple(receipts)


def unused_rounds(ledger: Ledger, client: str, some: slice = slice(None)) -> tuple[tuple[int, str], ...]:
    """The rounds in which a model of the client may have been sent and was not averaged, and why."""
    k, entries, found = ledger.clients.index(client), ledger.entries[some], dict[int, str]()
    for entry in entries:
        if k not in entry.participants and k in {*entry.answered, *entry.quarantined}:
            found[entry.number] = "rejected"
        elif k in entry.failed:
            found[entry.number] = "failed"
    last = max((entry.number for entry in entries), default=-1)
    found.update({gone.number: "round not recorded" for gone in ledger.missing if gone.number < last})
    return tuple(sorted(found.items()))


def read_receipts(path: Place) -> list[Receipt]:
    """The receipts in a file, a line each."""
    try:
        lines = read_bytes(Path(path), MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError(f"{path}: receipts cannot be read ({error})") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(read_as(Receipt, json.loads(line), "a receipt"))
            except (ValueError, ArtefactError) as error:
                raise ArtefactError(f"{path}, line {number}: {error}; expected what fedworth.receipt writes") from error
    return found


def _hash_of(lines: list[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
