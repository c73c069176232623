"""How many threads torch uses, set knowingly.

On small models one thread beats two: the work is too short to share, and beside another busy process torch's pool
collapses (a small MLP was measured at 8 ms on one thread and 560 ms on two). Convolutions keep torch's own setting.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@contextmanager
def fitting_threads(module: nn.Module) -> Iterator[None]:
    """One thread while a module without convolutions is at work; torch's own number comes back afterwards."""
    before = torch.get_num_threads()
    if not any(isinstance(layer, CONVOLUTIONS) for layer in module.modules()):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
