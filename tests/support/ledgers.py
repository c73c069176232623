"""Small ledgers for the tests, and a way to die between any two operations on files."""

import os
from pathlib import Path

import pytest
import torch

from fedworth.ledger.lock import LOCK
from fedworth.ledger.writer import Answer, LedgerWriter

CLIENTS = ("a", "b", "c")
OPERATIONS = ("open", "write", "pwrite", "fsync", "ftruncate", "truncate", "rename", "unlink", "mkdir")


def model(seed: int) -> dict[str, torch.Tensor]:
    """A model with what real ones have: floats, half floats, counters, flags, a scalar and nothing at all."""
    rng = torch.Generator().manual_seed(seed)
    return {
        "layer.weight": torch.randn(3, 4, generator=rng),
        "layer.bias": torch.randn(3, generator=rng).to(torch.bfloat16),
        "norm.num_batches_tracked": torch.tensor(seed),
        "mask": torch.tensor([True, False, True]),
        "scale": torch.randn(5, generator=rng).to(torch.float64),
        "empty": torch.zeros(0, 2),
    }


def write_ledger(folder: Path, *, n_rounds: int = 3, is_closed: bool = True) -> None:
    """Three clients, the first round hears all; the absent ones stand apart."""
    record_rest(LedgerWriter.create(folder, CLIENTS, aggregation="samples"), n_rounds=n_rounds, is_closed=is_closed)


def record_rest(writer, *, n_rounds: int = 3, is_closed: bool = True) -> None:
    """Record the rounds that are not there yet."""
    for t in range(writer.n_rounds, n_rounds):
        chosen = CLIENTS if t == 0 else CLIENTS[: 1 + t % 2]
        answers = {name: Answer(model(10 * t + k), 10 + k) for k, name in enumerate(CLIENTS)}
        writer.record_round(
            model(100 + t),
            {name: answers[name] for name in chosen},
            apart={name: answers[name] for name in CLIENTS if name not in chosen},
        )
    if is_closed and not writer.is_closed:
        writer.close(model(200))


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder and their bytes, but for the lock of who is recording."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Killed(BaseException):
    """The process is gone: nothing after it runs."""


class Reaper:
    """Lets `n_left` operations on files through, then kills; the dead do not clean up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_left: int) -> None:
        self.n_left = n_left
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, operation):
        def run(*args, **kwargs):
            if self.n_left <= 0:
                raise Killed
            self.n_left -= 1
            return operation(*args, **kwargs)

        return run
