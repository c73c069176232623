"""A device that is not there: tensors on it are kept on the CPU, and refuse to be mixed with tensors of the CPU.

Torch has no simulated device that computes. Inside `Devices()` whatever is moved to `meta` becomes a `Pretended`
tensor, which says that it is on `meta` and computes on the CPU. An operation on such a tensor and one of the CPU is an
error, as it is with a GPU; so is reading its numbers without moving it back.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")


class Pretended(torch.Tensor):
    """A tensor that says it is on another device."""

    on_cpu: torch.Tensor

    @staticmethod
    def __new__(cls, on_cpu: torch.Tensor) -> "Pretended":
        with torch.inference_mode(False):
            made: Pretended = torch.Tensor._make_wrapper_subclass(
                cls, on_cpu.shape, on_cpu.stride(), dtype=on_cpu.dtype, device=DEVICE
            )
        made.on_cpu = on_cpu
        return made

    def tolist(self) -> Any:
        return self.on_cpu.tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Pretended({self.on_cpu})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _computed(function, args, kwargs or {})


def _computed(function: Any, args: Any, kwargs: Any) -> Any:
    given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    there, here = [x for x in given if isinstance(x, Pretended)], [x for x in given if not isinstance(x, Pretended)]
    target = kwargs.get("device")
    is_there = bool(there) if target is None else torch.device(target) == DEVICE
    is_copy = function.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.to, torch.ops.aten.copy_)
    is_indexed = function is torch.ops.aten.index.Tensor and isinstance(args[0], Pretended)  # by numbers of the CPU
    if there and not (is_copy or is_indexed) and any(x.ndim for x in here):
        raise RuntimeError(f"{function}: tensors on the CPU and on {DEVICE}")
    if function is torch.ops.aten._local_scalar_dense.default:
        is_there = False
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    args, kwargs = tree_map(lambda x: x.on_cpu if isinstance(x, Pretended) else x, (args, kwargs))
    found = function(*args, **kwargs)
    if function is torch.ops.aten.copy_.default and there:
        return given[0]
    return tree_map(lambda x: Pretended(x) if is_there and isinstance(x, torch.Tensor) else x, found)


class Devices(TorchDispatchMode):
    """While this is on, `meta` is the device that is not there."""

    n_moved = 0  # tensors that were taken there

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = _computed(function, args, kwargs or {})
        self.n_moved += bool(args) and type(args[0]) is not Pretended and isinstance(found, Pretended)
        return found
