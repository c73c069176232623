"""How many threads torch uses, set knowingly.

On small models one thread beats two: the work is too short to share, and beside another busy process torch's pool
collapses (a small MLP was measured at 8 ms on one thread and 560 ms on two). Convolutions keep torch's own setting.
"""

from contextlib import AbstractContextManager, nullcontext

from torch import nn

from fedworth.threads import one_torch_thread

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def fitting_threads(module: nn.Module) -> AbstractContextManager[None]:
    """One thread while a module without convolutions is at work; torch's own number comes back afterwards."""
    is_convolutional = any(isinstance(layer, CONVOLUTIONS) for layer in module.modules())
    return nullcontext() if is_convolutional else one_torch_thread()
