"""How a function becomes machine code: compiled by numba, kept on disk, run without the interpreter's lock.

The one place that knows numba's decorators, so that everything else stays typed.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.extending import intrinsic as numba_intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function at its first call, and keep the machine code for the next process."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:
        # numba finds no folder it may write to, neither beside the source nor in the user's cache:
        # every process then compiles for itself.
        return cast(Function, numba.njit(**options)(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let compiled functions call what `function` writes straight into LLVM."""
    return cast(Callable[..., Any], numba_intrinsic(function))
