"""Oracles and devices by name, for those who choose them on a command line or in settings."""

import torch

from fedworth.errors import UsageError
from fedworth.names import Measure, OracleName, checked_name
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.task.task import Task


def oracle_named(
    name: OracleName, task: Task, measure: Measure, *, n_threads: int | None = None, also: tuple[Measure, ...] = ()
) -> FastOracle | LoopOracle:
    """`fast`, on `n_threads` threads (default: one a processor), or `loop`: plain, and slow.

    Both take the measures in `also` in the same forward pass.
    """
    checked_name("oracle", name)
    return FastOracle(task, measure, n_threads, also) if name == "fast" else LoopOracle(task, measure, also)


def device_named(name: str) -> torch.device:
    """`cpu`, or another device that torch can compute on in float64, as losses are summed; such as `cuda` or `cuda:1`.

    A GPU's convolutions are then done in float32 as asked, not in TF32, which has ten bits.
    """
    try:
        float(torch.zeros(1, dtype=torch.float64, device=name))
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        seen = ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])
        reason = str(error).strip().partition("\n")[0][:120]
        raise UsageError(
            f"--device {name}: torch cannot compute there ({reason}); it sees {seen}; name one of these, or install a "
            "torch that was built for the device"
        ) from error
    device = torch.device(name)
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return device
