"""How a function becomes machine code: compiled by numba, kept on disk, run without the interpreter's lock.

The one place that knows numba and LLVM by name. Their own types are half there and half not, so what the kernels need
of them is handed on as `Any`, and everything else can be typed strictly.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import llvmlite.binding
import llvmlite.ir
import numba
import numba.core.cgutils
import numba.extending

Function = TypeVar("Function", bound=Callable[..., Any])

ir: Any = llvmlite.ir
host: Any = llvmlite.binding
types: Any = numba.types
cgutils: Any = numba.core.cgutils


def compiled(function: Function) -> Function:
    """Compile a function at its first call, and keep the machine code for the next process."""
    try:
        return cast(Function, numba.njit(function, nogil=True, error_model="numpy", cache=True))
    except RuntimeError:
        # numba finds no folder it may write to, neither beside the source nor in the user's cache:
        # every process then compiles for itself.
        return cast(Function, numba.njit(function, nogil=True, error_model="numpy"))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let compiled functions call what `function` writes straight into LLVM."""
    return cast(Callable[..., Any], numba.extending.intrinsic(function))
