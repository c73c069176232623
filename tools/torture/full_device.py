"""A device that takes no more, at every size of file from nothing to all of a round."""

import resource
import signal
from pathlib import Path

import torch

from fedworth.errors import LedgerError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from tools.torture.corruption import small_ledger


def full_device(place: Path, n_sizes: int) -> tuple[int, list[str]]:
    """Record onto a device that is full after so many bytes; how often a round was refused, and what went wrong."""
    n_refused, wrong = 0, list[str]()
    small_ledger(place / "model")
    whole = (place / "model" / "rounds" / "000000.safetensors").stat().st_size
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for limit in range(0, whole, max(1, whole // n_sizes)):
        n_before, refused = n_refused, recorded_within(place / f"full-{limit}", limit)
        n_refused = n_before + refused
        if Ledger.verify(place / f"full-{limit}").n_rounds != 3 - refused:
            wrong.append(f"a device of {limit} bytes lost a round")
    signal.signal(signal.SIGXFSZ, before)
    return n_refused, wrong


def recorded_within(folder: Path, limit: int) -> bool:
    """Record three rounds, the second while no file may be longer than this; whether that one was refused."""
    writer = LedgerWriter.create(folder, ["a"], aggregation="uniform")
    model = {"w": torch.ones(3, 4), "n": torch.tensor(1)}
    answers, is_refused = {"a": Answer(model, 1)}, False
    writer.record_round(model, answers)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        writer.record_round(model, answers)
    except LedgerError as error:
        is_refused = "rounds before it are intact" in str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.record_round(model, answers)
    writer.release()
    return is_refused
