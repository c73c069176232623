"""The task: what the server needs to value a ledger — a model to load weights into, and a test set.

A coalition's model is loaded into `module` and judged on `inputs` and `labels`, which never leave the
server: D_c of the paper. For a simulated federation the task is remade from the ledger's settings.
"""

import copy
import hashlib
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedworth.errors import DataError
from fedworth.federation.rules.rule import Rule


@dataclass(frozen=True)
class Task:
    """A classification task: the module that a model's weights belong to, and the server's test set."""

    module: nn.Module
    inputs: torch.Tensor  # (n_samples, ...)
    labels: torch.Tensor  # (n_samples,)
    rule: Rule | None = None  # what the server makes of its clients' models; None: as the ledger says

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels) or len(self.labels) == 0:
            raise DataError(f"test set: {len(self.inputs)} inputs and {len(self.labels)} labels, expected as many")
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            found = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise DataError(f"test set: labels are {found}, expected one int64 class a sample")
        if int(self.labels.min()) < 0:
            raise DataError(f"test set: found label {int(self.labels.min())}, expected 0 or more; recode it")
        if self.inputs.is_floating_point() and not bool(torch.isfinite(self.inputs).all()):
            raise DataError("test set: some inputs are NaN or infinite")

    def to(self, device: torch.device | str) -> "Task":
        """The same task on a device, where coalitions are then evaluated; the module is a copy."""
        module = copy.deepcopy(self.module).to(device)
        return replace(self, module=module, inputs=self.inputs.to(device), labels=self.labels.to(device))

    @property
    def fingerprint(self) -> str:
        """The sha256 of the test set, on any device: utilities measured on another one are other utilities."""
        digest = hashlib.sha256(str((tuple(self.inputs.shape), self.inputs.dtype)).encode())
        for tensor in (self.inputs, self.labels):
            digest.update(
                tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )  # numpy has no bfloat16
        return digest.hexdigest()
