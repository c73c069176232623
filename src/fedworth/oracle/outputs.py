"""Outputs of sampled coalitions that are kept, so that interrupted sampling continues where it stopped.

The draws of a game follow from the seed, so a second run asks for the same outputs in the same order. Those that a
first run has measured are answered from a file in the user's cache folder, beside the kept utilities:

    $FEDWORTH_CACHE/utilities/<key>.npz      a hash of each request (coalition and samples), and the outputs

A module may contain code of the user's own, which a hash cannot describe. So some answers are measured again on a few
samples, and if one differs, nothing that was kept is used.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships

MOST_BYTES = 1 << 24
"""Outputs of a round that are kept; a larger round is sampled again from there on."""

SAVED_EVERY = 10.0
"""Seconds after which new outputs are written."""

N_COMPARED, TOLERANCE = 16, 1e-4
"""Samples on which a kept answer is measured again, and how far it may be, as a part of the largest output."""

Outputs = dict[bytes, torch.Tensor]
"""The outputs of each request."""

Measure = Callable[[Memberships, Sequence[Indices]], Iterator[torch.Tensor]]
"""The outputs of each coalition on its own samples."""


class OutputStore(Protocol):
    """Keeps the outputs of one round between runs."""

    def load(self) -> Outputs: ...

    def save(self, outputs: Outputs) -> None: ...


class ChangedModuleError(Exception):
    """Kept outputs that the module does not give any more."""


@dataclass
class KeptOutputs:
    """The outputs that are known of one round's coalitions."""

    store: OutputStore
    known: Outputs | None = None  # None before the first request
    n_answered: int = 0
    n_bytes: int = 0
    _saved: tuple[int, float] = field(default=(0, 0.0), repr=False)  # how many, and when

    def outputs(self, coalitions: Memberships, which: Sequence[Indices], measure: Measure) -> Iterator[torch.Tensor]:
        """The outputs of each coalition on its own samples; those that are not known are measured."""
        if self.known is None:
            self.known = self.store.load()
            self.n_bytes = sum(found.nbytes for found in self.known.values())
            self._saved = len(self.known), time.monotonic()
        keys = [_key(row, samples) for row, samples in zip(coalitions, which, strict=True)]
        missing = [place for place, key in enumerate(keys) if key not in self.known]
        fresh = measure(coalitions[missing], [which[place] for place in missing])
        is_missing = set(missing)
        for place, key in enumerate(keys):
            if place in is_missing:
                found = next(fresh)
                self._add(key, found)
            else:
                found = self.known[key]
                self._compare(found, coalitions[place : place + 1], which[place], measure)
            yield found

    def _add(self, key: bytes, found: torch.Tensor) -> None:
        assert self.known is not None
        if self.n_bytes + found.nbytes > MOST_BYTES or found.dtype not in (torch.float32, torch.float64):
            return
        self.known[key] = found
        self.n_bytes += found.nbytes
        if time.monotonic() - self._saved[1] > SAVED_EVERY:
            self.save()

    def _compare(self, found: torch.Tensor, row: Memberships, samples: Indices, measure: Measure) -> None:
        """Measure the 1st, 2nd, 4th, 8th … answer again, on a few samples."""
        self.n_answered += 1
        if self.n_answered & (self.n_answered - 1):
            return
        some = samples[:N_COMPARED]
        (again,) = measure(row, [some])
        scale = float(again.abs().max()) if again.numel() else 0.0
        if not torch.allclose(found[: len(some)], again, rtol=0, atol=TOLERANCE * scale, equal_nan=True):
            raise ChangedModuleError

    def save(self) -> None:
        """Write what is known, if there is more of it than before."""
        if self.known is not None and len(self.known) != self._saved[0]:
            self.store.save(self.known)
            self._saved = len(self.known), time.monotonic()

    def forget(self) -> None:
        """Discard what was kept."""
        self.known, self.n_answered, self.n_bytes, self._saved = {}, 0, 0, (0, time.monotonic())


def _key(row: NDArray[np.bool_], samples: Indices) -> bytes:
    return hashlib.sha256(np.packbits(row).tobytes() + np.asarray(samples, np.int64).tobytes()).digest()[:16]
