"""Writing a ledger: one round after the other, each whole or not at all.

A round's file is written and flushed under its final name before its line is appended to the manifest:
the line commits the round. After a kill, `resume_ledger` drops a line that was never finished and files
that no line speaks of, and goes on from the last committed round.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from fedworth.errors import LedgerError
from fedworth.federation.ledger import (
    FINAL,
    FORMAT,
    HEADER,
    MANIFEST,
    Model,
    check_alike,
    check_finite,
    file_sha256,
    link,
    open_ledger,
)
from fedworth.storage import flush_folder, json_bytes, make_folder, refuse_existing, write_whole


@dataclass(frozen=True)
class Answer:
    """What one client sent back: its model and how many samples it was trained on."""

    model: Model
    n_samples: int


@dataclass
class LedgerWriter:
    """An open ledger; `record_round` commits one round, `close` the final model."""

    folder: Path
    clients: list[str]
    chain: str
    n_rounds: int
    is_closed: bool = field(default=False)

    def record_round(
        self,
        global_model: Model,
        answers: Mapping[str, Answer],
        *,
        asked: Sequence[str] | None = None,
        participants: Sequence[str] | None = None,
        apart: Mapping[str, Answer] | None = None,
    ) -> None:
        """Commit one round: who was asked (default: who answered), who answered, whose models were averaged
        (default: all that answered), and, kept apart, models of absent clients for the ground truth."""
        names = list(answers if asked is None else asked)
        joined = [
            name for name in dict.fromkeys([*names, *answers, *(apart or {})]) if name not in self.clients
        ]
        positions = {name: index for index, name in enumerate([*self.clients, *joined])}
        self._check(global_model, {**answers, **(apart or {})})
        stem = f"{self.n_rounds:06d}.safetensors"
        reported = {f"client/{positions[name]}": answer.model for name, answer in answers.items()}
        file, sha256 = self._write(f"rounds/{stem}", {"global": global_model, **reported})
        apart_file, apart_sha256 = None, None
        if apart:
            absent = {f"absent/{positions[name]}": answer.model for name, answer in apart.items()}
            apart_file, apart_sha256 = self._write(f"apart/{stem}", absent)
        answered = sorted(answers, key=positions.__getitem__)
        absentees = sorted(apart or {}, key=positions.__getitem__)
        taking_part = answers if participants is None else participants
        self._append(
            {
                "kind": "round",
                "round_index": self.n_rounds,
                "file": file,
                "sha256": sha256,
                "apart_file": apart_file,
                "apart_sha256": apart_sha256,
                "joined": joined,
                "asked": sorted(positions[name] for name in names),
                "answered": [positions[name] for name in answered],
                "participants": sorted(positions[name] for name in taking_part),
                "sample_counts": [answers[name].n_samples for name in answered],
                "apart": [positions[name] for name in absentees],
                "apart_sample_counts": [apart[name].n_samples for name in absentees] if apart else [],
            }
        )
        self.clients += joined
        self.n_rounds += 1

    def close(self, final_model: Model) -> None:
        """Commit the model after the last round; nothing can be recorded after that."""
        check_finite(final_model, f"{self.folder}, final model")
        file, sha256 = self._write(FINAL, {"global": final_model})
        self._append({"kind": "closed", "file": file, "sha256": sha256})
        self.is_closed = True

    def _check(self, global_model: Model, answers: Mapping[str, Answer]) -> None:
        where = f"{self.folder}, round {self.n_rounds}"
        check_finite(global_model, f"{where}, global model")
        for name, answer in answers.items():
            check_alike(answer.model, global_model, f"{where}, client {name!r}")
            if answer.n_samples < 0:
                raise LedgerError(f"{where}, client {name!r}: {answer.n_samples} samples, expected 0 or more")

    def _write(self, file: str, models: Mapping[str, Model]) -> tuple[str, str]:
        """The file's name and the sha256 of what was meant to be written, not of what was read back."""
        tensors = {
            f"{owner}/{name}": _plain(tensor)
            for owner, model in models.items()
            for name, tensor in model.items()
        }
        data = save(tensors)
        make_folder((self.folder / file).parent)
        write_whole(self.folder / file, data)
        return file, hashlib.sha256(data).hexdigest()

    def _append(self, line: dict[str, Any]) -> None:
        if self.is_closed:
            raise LedgerError(f"{self.folder}: the ledger is closed; record into a new one")
        chain = link(self.chain, line)
        text = json.dumps({**line, "chain": chain}, ensure_ascii=False)
        descriptor = os.open(self.folder / MANIFEST, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "ab") as manifest:
            manifest.write(text.encode() + b"\n")
            manifest.flush()
            os.fsync(manifest.fileno())
        self.chain = chain


def create_ledger(
    folder: Path, clients: Sequence[str], *, aggregation: str, settings: Mapping[str, Any] | None = None
) -> LedgerWriter:
    """A new ledger for these clients; `aggregation` is how the server averages (`uniform` or `samples`)."""
    refuse_existing(folder / HEADER, "a ledger")
    if len(set(clients)) != len(clients):
        raise LedgerError(f"{folder}: client names {list(clients)} are not all different")
    make_folder(folder)
    header = {
        "format": FORMAT,
        "clients": list(clients),
        "aggregation": aggregation,
        "settings": dict(settings or {}),
    }
    write_whole(folder / MANIFEST, b"")
    write_whole(folder / HEADER, json_bytes(header))
    return LedgerWriter(folder, list(clients), file_sha256(folder / HEADER), 0)


def resume_ledger(folder: Path) -> LedgerWriter:
    """The ledger at `folder`, ready for its next round, with what was never committed cleared away."""
    manifest = folder / MANIFEST
    content = manifest.read_bytes() if manifest.is_file() else b""
    committed = content[: content.rfind(b"\n") + 1]
    if committed != content:
        write_whole(manifest, committed)
    ledger = open_ledger(folder)
    known = {entry.file for entry in ledger.entries} | {entry.apart_file for entry in ledger.entries}
    for path in [*folder.glob("rounds/*"), *folder.glob("apart/*")]:
        if str(path.relative_to(folder)) not in known:
            path.unlink()
    if not ledger.is_closed:
        (folder / FINAL).unlink(missing_ok=True)
    flush_folder(folder)
    return LedgerWriter(folder, list(ledger.clients), ledger.chain, ledger.n_rounds, ledger.is_closed)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A dense copy of its own: the format stores bytes as they lie, so strides and views must go."""
    return tensor.detach().to("cpu").contiguous().clone()
