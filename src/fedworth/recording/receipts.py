"""The client's side of a receipt: hash what is sent, and keep a line of it."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedworth.ledger.embeddings import EMBEDDING
from fedworth.ledger.receipts import Receipt, receipt_of
from fedworth.recording.recorder import Arrays, attempt, model_of, named, with_difference
from fedworth.storage import Place, make_folder


def receipt(
    model: "Arrays | torch.Tensor | np.ndarray[Any, Any]",
    *,
    round_number: int,
    n_samples: float,
    file: Place,
    names: Iterable[str] | None = None,
    difference_from: Arrays | None = None,
) -> Receipt | None:
    """Write a client's receipt for a model that it is about to send; an error is logged and never raised.

    Args:
        model: What is sent: tensors or arrays by name, Flower's `ArrayRecord`, or a list of arrays. A tensor or array
            alone is the embeddings that a client of a vertical federation sends; of a batch, name both:
            `{"embedding": embeddings, "samples": places}`.
        round_number: The round's number, as the server says it.
        n_samples: The number of samples that is reported with the model.
        file: A file of the client's own, to which a line is added.
        names: The names of a list of arrays, if the server records them under names: `net.state_dict()`.
        difference_from: The global model, if `model` is the difference from it.

    Returns:
        The receipt, None if it could not be made.

    Example:
        fedworth.receipt({"weight": weights}, round_number=3, n_samples=120, file="receipts.jsonl")
    """

    def written() -> Receipt:
        given = {EMBEDDING: model} if isinstance(model, torch.Tensor | np.ndarray) else model
        sent, is_named = named(given, names), names is not None or not isinstance(given, list | tuple)
        if difference_from is not None:
            sent = with_difference(named(difference_from, names), sent)
        kept = receipt_of(model_of(sent), int(round_number), n_samples, is_named=is_named)
        path = Path(file)
        make_folder(path.parent)
        line = (json.dumps(asdict(kept)) + "\n").encode()
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return kept

    return attempt(written)
