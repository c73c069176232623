"""The trace of a round: the few numbers about its models that findings are made from.

For the global model and each answer a trace has the sha256 of the model, its norm, the norm of its update w_k − w^t and
a *sketch* of that update.

The sketch is a linear map to 2,048 numbers, s_j = Σ_b ±_b u[2048 b + j], with fixed signs. A scaled copy of an update
has a scaled copy of its sketch, and inner products are those of the updates up to about 1/√2048 of their lengths. So
all rounds can be compared without two of them in memory. No trace is stored.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from fedworth.arrays import Floats
from fedworth.ledger.ledger import Round
from fedworth.ledger.model import Model
from fedworth.threads import one_torch_thread

WIDTH = 2048
PIECE = 128  # rows of WIDTH numbers that are processed together


@dataclass(frozen=True)
class RoundTrace:
    """What is kept of a round's models; row 0 is the global model, row 1 + i the i-th client that answered."""

    clients: tuple[int, ...]
    sha256s: tuple[str, ...]  # (1 + n_answered,) of the models
    model_norms: Floats  # (1 + n_answered,)
    update_norms: Floats  # (1 + n_answered,), 0 for the global model
    sketches: Floats  # (1 + n_answered, WIDTH): of the global model, then of the updates
    rounding: float  # the largest relative error of a number in the models' dtypes


@one_torch_thread()
def trace_of(round_: Round) -> RoundTrace:
    """Compute the trace of a round, one model at a time."""
    models = [round_.global_model, *round_.client_models.values()]
    sums = [_sums(model, round_.global_model if k else None) for k, model in enumerate(models)]
    floats = [tensor for tensor in round_.global_model.values() if tensor.is_floating_point()]
    return RoundTrace(
        tuple(round_.client_models),
        tuple(model_sha256(model) for model in models),
        np.array([norm for norm, _, _ in sums]),
        np.array([norm for _, norm, _ in sums]),
        np.stack([sketch for _, _, sketch in sums]),
        max((torch.finfo(tensor.dtype).eps for tensor in floats), default=1.0),
    )


def model_sha256(model: Model) -> str:
    """The sha256 of a model: names, dtypes, shapes and numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sums(model: Model, start: Model | None) -> tuple[float, float, Floats]:
    """The norm of a model, the norm of its update from `start`, and the sketch of the update.

    Without a start the sketch is of the model itself. Tensors that are not floats (counters, flags) are left out.
    """
    model_square, update_square, sketch, n_before = 0.0, 0.0, np.zeros(WIDTH), 0
    for name, tensor in sorted(model.items()):
        if not (tensor if start is None else start[name]).is_floating_point():
            continue
        flat, origin = tensor.reshape(-1), None if start is None else start[name].reshape(-1)
        for first in range(0, len(flat), PIECE * WIDTH):
            piece = flat[first : first + PIECE * WIDTH].to(torch.float64).numpy()
            update = piece if origin is None else piece - origin[first : first + len(piece)].to(torch.float64).numpy()
            model_square += float(piece @ piece)
            update_square += 0.0 if origin is None else float(update @ update)
            rows = np.pad(update, (0, -len(update) % WIDTH)).reshape(-1, WIDTH)  # (n_rows, WIDTH)
            raw = np.random.PCG64(n_before).random_raw(PIECE // 64)  # numpy guarantees these bits
            signs = 1.0 - 2.0 * np.unpackbits(np.asarray(raw, dtype="<u8").view(np.uint8))[: len(rows)]  # (n_rows,)
            sketch += signs @ rows
            n_before += 1
    return model_square**0.5, update_square**0.5, sketch
